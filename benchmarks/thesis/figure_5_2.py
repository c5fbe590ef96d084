"""Figure 5.2: the three levels of learning, a diagram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from benchmarks.common.drawing import COLOURS, grid, save
from benchmarks.thesis.size import Size
from pathgp import plots

TITLE = "The three levels of learning"
TEXT = """\
An optimiser asks an estimator for gradients; the estimator needs the solutions of linear systems; a solver computes
them. Each level can be exchanged on its own, and the solution of one step starts the solve of the next."""
LEVELS = (
    ("outer-loop optimiser", "Adam, L-BFGS"),
    ("gradient estimator", "exact, standard, pathwise"),
    ("linear system solver", "CG, AP, SDD, Cholesky"),
)


def draw(path: Path, size: Size) -> dict[str, Any]:
    figure, axes = grid(1, 1, width=6.4, height=4.2)
    panel = axes[0, 0]
    panel.set(xlim=(0, 10), ylim=(0, 9))
    panel.axis("off")
    for number, ((name, choices), colour) in enumerate(zip(LEVELS, COLOURS, strict=False)):
        y = 6.8 - 3.0 * number
        box = {"boxstyle": "round,pad=0.15", "fc": f"{colour}22", "ec": colour, "lw": 1.4}
        panel.add_patch(FancyBboxPatch((2.2, y), 5.6, 1.5, **box))
        panel.text(5, y + 1.0, name, ha="center", va="center", fontsize=11, color=plots.INK)
        panel.text(5, y + 0.42, choices, ha="center", va="center", fontsize=9, color="#5c5c66")
        if number < 2:
            for x, (start, end), label in (
                (3.4, (y - 0.2, y - 1.3), ("hyperparameters θ", "H, right-hand sides")[number]),
                (6.6, (y - 1.3, y - 0.2), ("gradient", "solutions v")[number]),
            ):
                arrow = {"arrowstyle": "-|>", "mutation_scale": 13, "color": plots.INK, "lw": 1.1}
                panel.add_patch(FancyArrowPatch((x, start), (x, end), **arrow))
                side = {"ha": "right" if x < 5 else "left", "va": "center", "fontsize": 9}
                panel.text(x + (-0.25 if x < 5 else 0.25), y - 0.75, label, color=plots.INK, **side)
    loop = {"arrowstyle": "-|>", "mutation_scale": 13, "color": COLOURS[1], "lw": 1.2, "ls": "--"}
    panel.add_patch(FancyArrowPatch((8.05, 2.0), (8.05, 1.1), connectionstyle="arc3,rad=-1.6", **loop))
    panel.text(8.95, 1.55, "warm\nstart", ha="left", va="center", fontsize=9, color=COLOURS[1])
    save(figure, path)
    return {"levels": len(LEVELS)}
