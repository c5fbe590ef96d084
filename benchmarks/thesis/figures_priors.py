"""Figures 2.1 to 2.3: draws from priors over functions of one input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.common.drawing import COLOURS, grid, save
from pathgp import GP, kernels

PATHS, FEATURES = 4, 4096


def squared_exponential(path: Path) -> Path:
    """Figure 2.1: smaller length scales, faster changes."""
    return _draw([[(f"ℓ = {l:g}", kernels.SquaredExponential(lengthscale=l)) for l in (0.25, 0.5, 1.0)]], path)


def matern(path: Path) -> Path:
    """Figure 2.2: a larger ν, smoother functions."""
    panels = [
        [(f"ν = {name}, ℓ = {l:g}", kernels.Matern(nu, lengthscale=l)) for l in (0.25, 0.5, 1.0)]
        for name, nu in (("1/2", 0.5), ("3/2", 1.5), ("5/2", 2.5))
    ]
    return _draw(panels, path)


def periodic(path: Path) -> Path:
    """Figure 2.3: p is the distance between repetitions, ℓ the detail inside one."""
    panels = [
        [(f"p = {p:g}, ℓ = {l:g}", kernels.Periodic(period=p, lengthscale=l)) for p in (0.5, 1.0, 2.0)]
        for l in (0.5, 1.0)
    ]
    return _draw(panels, path)


def _draw(panels: list[list[tuple[str, kernels.Kernel]]], path: Path) -> Path:
    figure, axes = grid(len(panels), len(panels[0]), height=1.9, sharex=True, sharey=True)
    x = np.linspace(-2, 2, 1001)
    for row, line in enumerate(panels):
        for column, (title, kernel) in enumerate(line):
            # One seed for all panels: the same random numbers make the same functions, stretched or roughened.
            prior = GP(kernel).prior(PATHS, features=FEATURES, generator=torch.Generator().manual_seed(2))
            for values, colour in zip(prior(x[:, None]), COLOURS, strict=False):
                axes[row, column].plot(x, values, color=colour, lw=1.0)
            axes[row, column].set_title(title, fontsize=9, loc="left")
    axes[0, 0].set(xlim=(-2, 2), ylim=(-3.4, 3.4))
    return save(figure, path)
