"""Figure 2.1: draws of a squared exponential prior; smaller length scales, faster changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.thesis.priors import draw_priors
from benchmarks.thesis.size import Size
from pathgp import kernels

TITLE = "Samples from squared exponential priors"
TEXT = (
    "Shorter length scales give faster changes. All panels use the same random numbers, so they show the same functions"
    " at different scales."
)


def draw(path: Path, size: Size) -> dict[str, Any]:
    return draw_priors([[(f"ℓ = {l:g}", kernels.SquaredExponential(lengthscale=l)) for l in (0.25, 0.5, 1.0)]], path)
