"""Figure 6.1: a covariance matrix of observed cells as a projection of a Kronecker product, a diagram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.patches import Rectangle

from benchmarks.common.drawing import COLOURS, grid, save
from benchmarks.thesis.size import Size
from pathgp import kernels, plots

TITLE = "Latent Kronecker structure"
TEXT = """\
Two places and three times, with one missing cell: place 1 at time 3. The covariance matrix of the five observed cells
(right) is the Kronecker product of the two factors (left, middle) without one row and one column. This is exact for any
pattern of missing cells."""
MISSING = 2
# Cells with larger values are dark: their numbers are white.
DARK = 0.8


def draw(path: Path, size: Size) -> dict[str, Any]:
    space, times = torch.tensor([[0.0], [0.9]]), torch.tensor([[0.0], [0.6], [1.2]])
    with torch.no_grad():
        K_s = kernels.SquaredExponential(1.0)(space, space).numpy()
        K_t = kernels.SquaredExponential(0.7)(times, times).numpy()
    whole = np.kron(K_s, K_t)
    kept = [cell for cell in range(len(whole)) if cell != MISSING]
    observed = whole[np.ix_(kept, kept)]
    matrices = (("$K_S$", K_s), ("$K_T$", K_t), ("$K_S ⊗ K_T$", whole), ("$P (K_S ⊗ K_T) P^T$", observed))
    figure, axes = grid(1, 4, width=12, height=3.6, width_ratios=[2, 3, 6, 5])
    names = [f"s{i + 1} t{j + 1}" for i in range(len(space)) for j in range(len(times))]
    labels = (["s1", "s2"], ["t1", "t2", "t3"], names, [names[cell] for cell in kept])
    for panel, (title, matrix), ticks in zip(axes[0], matrices, labels, strict=True):
        panel.imshow(matrix, cmap="Blues", vmin=0.0, vmax=1.3)
        panel.set_title(title, fontsize=12)
        panel.set_xticks(range(len(ticks)), ticks, fontsize=9, rotation=90 if len(ticks) > 3 else 0)
        panel.set_yticks(range(len(ticks)), ticks, fontsize=9)
        for label in [*panel.get_xticklabels(), *panel.get_yticklabels()]:
            label.set_color(COLOURS[0] if label.get_text().startswith("s1") else COLOURS[3])
        for i, j in np.ndindex(*matrix.shape):
            colour = "white" if matrix[i, j] > DARK else plots.INK
            panel.text(j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", fontsize=9, color=colour)
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
    style = {"fill": False, "hatch": "////", "ec": "#8a8a94", "lw": 0}
    axes[0, 2].add_patch(Rectangle((MISSING - 0.5, -0.5), 1, len(whole), **style))
    axes[0, 2].add_patch(Rectangle((-0.5, MISSING - 0.5), len(whole), 1, **style))
    save(figure, path)
    return {"cells": len(whole), "observed": len(observed)}
