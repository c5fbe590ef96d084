"""Draws from priors over functions of one input, for figures 2.1 to 2.3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.drawing import COLOURS, grid, save
from pathgp import GP, kernels

PATHS, FEATURES = 4, 4096


def draw_priors(panels: list[list[tuple[str, kernels.Kernel]]], path: Path) -> dict[str, Any]:
    """One panel per title and kernel; all panels use the same random numbers."""
    figure, axes = grid(len(panels), len(panels[0]), height=1.9, sharex=True, sharey=True)
    x = np.linspace(-2, 2, 1001)
    for row, line in enumerate(panels):
        for column, (title, kernel) in enumerate(line):
            prior = GP(kernel).prior(PATHS, features=FEATURES, generator=torch.Generator().manual_seed(2))
            for values, colour in zip(prior(x[:, None]), COLOURS, strict=False):
                axes[row, column].plot(x, values, color=colour, lw=1.0)
            axes[row, column].set_title(title, fontsize=9, loc="left")
    axes[0, 0].set(xlim=(-2, 2), ylim=(-3.4, 3.4))
    save(figure, path)
    return {"features per path": FEATURES}
