"""Figure 2.3: draws of periodic priors; p is the distance between repetitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.thesis.priors import draw_priors
from benchmarks.thesis.size import Size
from pathgp import kernels

TITLE = "Samples from periodic priors"
TEXT = "p is the period, ℓ sets the detail within a period."


def draw(path: Path, size: Size) -> dict[str, Any]:
    panels = [
        [(f"p = {p:g}, ℓ = {l:g}", kernels.Periodic(period=p, lengthscale=l)) for p in (0.5, 1.0, 2.0)]
        for l in (0.5, 1.0)
    ]
    return draw_priors(panels, path)
