"""Figure 4.3: momentum and averaging in stochastic dual descent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.thesis.descent import (
    Curve,
    Problem,
    arithmetic,
    descend,
    draw_curves,
    follow,
    geometric,
    plain,
    random_coordinates,
)
from benchmarks.thesis.size import Size

TITLE = "Momentum and averaging"
TEXT = """\
Random coordinates on `pol`, batches of 128, βn = 50; weights a and norms as in figure 4.1. Momentum has the largest
effect. Geometric averaging is slower at first and ends lower in the K²-norm. Arithmetic averaging over the last steps
is slower in the K-norm."""
STEPS = 100_000 if torch.cuda.is_available() else 10_000


def draw(path: Path, size: Size) -> dict[str, Any]:
    """Momentum matters, geometric averaging helps, arithmetic averaging remembers too much."""
    problem = Problem.load(size)
    batch, steps, step = min(128, len(problem.b)), size.pick(STEPS, 10), 50.0
    curves: dict[str, Curve] = {}
    for name, momentum in (("no momentum", 0.0), ("momentum", 0.9)):
        averages = {name: plain, f"{name}, geometric averaging": geometric(100 / steps)}
        if momentum:
            averages[f"{name}, arithmetic averaging"] = arithmetic(steps * 7 // 10)
        iterates = descend(problem, random_coordinates(problem, batch), step, momentum)
        curves |= follow(problem, iterates, steps, averages)
    return draw_curves(curves, path, problem, f"steps of batch size {batch}")
