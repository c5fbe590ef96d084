"""Figure 5.7: epochs of the solver at every step of learning, by solver, estimator and start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.thesis.learning_fits import METHODS, reports
from benchmarks.thesis.size import Size

TITLE = "Epochs of the solvers during learning"
TEXT = """\
The epochs that every step needs to reach the tolerance, in the fits of figure 5.1.

- With CG and AP the epochs rise during the fit: systems become harder as the model learns that there is little
  noise.
- With SDD they are lower at the end of the fit than at its start; with cold starts they rise at first. SDD chooses its
  step size and batch size anew for every solve.
- Over a whole fit, warm starts save epochs with every solver.
- Blocks of AP are shuffled; the thesis takes the block with the largest residual, and needs many more."""
CPU_ROWS = 1000
SETS = ("pol", "elevators")


def draw(path: Path, size: Size) -> dict[str, Any]:
    sets = size.pick(SETS, SETS[:1])
    found = {name: reports(name, size) for name in sets}
    solvers = list(dict.fromkeys(solver for solver, _ in found[sets[0]]))
    figure, axes = grid(len(sets), len(solvers), width=12, height=2.6, sharex=True)
    facts: dict[str, Any] = {"rows": size.rows or "all", "steps": size.steps}
    for row, name in enumerate(sets):
        for panel, solver in zip(axes[row], solvers, strict=True):
            totals = []
            for (method, _), colour in zip(METHODS.items(), COLOURS, strict=False):
                epochs = [step.epochs for step in found[name][solver, method].history]
                panel.plot(epochs, color=colour, lw=1.4, label=method)
                totals.append(sum(epochs))
            panel.set_yscale("log")
            panel.set_title(f"{name}, {solver}", fontsize=9, loc="left")
            facts[f"{name}, {solver}: epochs of standard cold / pathwise warm"] = totals[0] / totals[-1]
    for panel in axes[-1]:
        panel.set_xlabel("step", fontsize=9)
    for line in axes:
        line[0].set_ylabel("epochs", fontsize=9)
    legend(figure, axes[0, 0])
    save(figure, path)
    return facts
