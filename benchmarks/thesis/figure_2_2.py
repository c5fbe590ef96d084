"""Figure 2.2: draws of Matern priors; a larger nu, smoother functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.thesis.priors import draw_priors
from benchmarks.thesis.size import Size
from pathgp import kernels

TITLE = "Samples from Matérn priors"
TEXT = "ν sets the smoothness, ℓ the scale."


def draw(path: Path, size: Size) -> dict[str, Any]:
    panels = [
        [(f"ν = {name}, ℓ = {l:g}", kernels.Matern(nu, lengthscale=l)) for l in (0.25, 0.5, 1.0)]
        for name, nu in (("1/2", 0.5), ("3/2", 1.5), ("5/2", 2.5))
    ]
    return draw_priors(panels, path)
