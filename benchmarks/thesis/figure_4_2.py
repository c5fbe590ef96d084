"""Figure 4.2: random features against random coordinates in stochastic dual descent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.thesis.descent import (
    Curve,
    Problem,
    descend,
    draw_curves,
    follow,
    geometric,
    half_subsampled,
    random_coordinates,
    random_features,
)
from benchmarks.thesis.size import Size

TITLE = "Random features and random coordinates"
TEXT = """\
Stochastic dual descent on `pol`, batches of 512, momentum 0.9, geometric averaging. The weights a and the norms are
those of figure 4.1.

- Gradients from random features need smaller steps and are slower at every step size that we tried. In the thesis they
  diverge above βn = 0.0005 (β: the step size). Here, with 512 new features per step on a part of the rows, βn = 1 is
  still stable.
- The gradient is Ka + σ²a - y. Random coordinates of Ka alone, with the other terms exact, stop improving at a distance
  from the solution: their noise does not vanish there.
- Random coordinates of the whole gradient keep converging."""
STEPS = 20_000 if torch.cuda.is_available() else 2_000


def draw(path: Path, size: Size) -> dict[str, Any]:
    """What is subsampled decides whether the noise of the gradient vanishes at the solution."""
    problem = Problem.load(size)
    batch, steps = min(512, len(problem.b)), size.pick(STEPS, 8)
    curves: dict[str, Curve] = {}
    for name, estimate, step, limit in (
        ("random features, βn = 0.05", random_features(problem, batch), 0.05, steps // 4),
        ("random features, βn = 1", random_features(problem, batch), 1.0, steps // 4),
        ("coordinates of Ka only, βn = 50", half_subsampled(problem, batch), 50.0, steps),
        ("random coordinates, βn = 50", random_coordinates(problem, batch), 50.0, steps),
    ):
        iterates = descend(problem, estimate, step, momentum=0.9)
        curves |= follow(problem, iterates, limit, {name: geometric(100 / steps)})
    return draw_curves(curves, path, problem, f"steps of batch size {batch}")
