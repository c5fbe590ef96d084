"""Figure 5.1: where the time of learning goes, by solver, estimator and start of the solves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.patches import Patch

from benchmarks.common.drawing import COLOURS, grid, save
from benchmarks.thesis.learning_fits import METHODS, reports
from benchmarks.thesis.size import Size
from pathgp import FitReport

TITLE = "Time of learning"
TEXT = """\
Seconds of four methods, relative to the first one. Hatched: the solver. Palest colour: the posterior after the fit.

- Warm starts reduce the time of the solver, except on `elevators` with conjugate gradients. There it rises a little,
  although the epochs fall (figure 5.7).
- This run on a CPU has few rows. The pathwise estimator spends more time on right-hand sides than in the solver,
  because every path has its own frequencies. Their cost grows as n and that of the solver as n², so on all rows the
  solver dominates, as in the thesis."""
CPU_ROWS = 1000
SETS = ("pol", "elevators")
# Where the time of a fit goes, and how it is drawn.
PARTS = {
    "solver": {"alpha": 0.9, "hatch": "////"},
    "kernel matrix, right-hand sides, gradient": {"alpha": 0.5},
    "posterior": {"alpha": 0.2},
}


def draw(path: Path, size: Size) -> dict[str, Any]:
    sets = size.pick(SETS, SETS[:1])
    figure, axes = grid(1, len(sets), width=12, height=3.8, sharey=True)
    for panel, name in zip(axes[0], sets, strict=True):
        found = reports(name, size)
        solvers = list(dict.fromkeys(solver for solver, _ in found))
        for group, solver in enumerate(solvers):
            whole = sum(parts_of(found[solver, next(iter(METHODS))]))
            for number, method in enumerate(METHODS):
                parts = parts_of(found[solver, method])
                below, place = 0.0, 5 * group + number
                for seconds, style in zip(parts, PARTS.values(), strict=True):
                    style = {"color": COLOURS[number], "edgecolor": "white", "lw": 0.6, **style}
                    panel.bar(place, seconds / whole, bottom=below, width=0.85, **style)
                    below += seconds / whole
                panel.text(place, below, f"{sum(parts):.3g} s", fontsize=8, ha="center", va="bottom")
        panel.set_xticks([5 * group + 1.5 for group in range(len(solvers))], solvers)
        panel.set_title(f"{name}, {size.steps} steps", fontsize=9, loc="left")
    axes[0, 0].set_ylabel("time relative to standard", fontsize=9)
    shown = {name: Patch(color=colour) for name, colour in zip(METHODS, COLOURS, strict=False)}
    shown |= {name: Patch(facecolor=COLOURS[-1], edgecolor="white", **style) for name, style in PARTS.items()}
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    save(figure, path)
    return {"rows": size.rows or "all", "steps": size.steps}


def parts_of(report: FitReport) -> list[float]:
    """Seconds of one fit, in the order of PARTS."""
    steps = sum(step.seconds for step in report.history)
    solving = sum(step.solver_seconds for step in report.history)
    return [solving, steps - solving, report.seconds - steps]
