"""Figure 5.9: residuals of the probes along fits with small budgets of epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.drawing import COLOURS, grid, save
from benchmarks.thesis.learning_fits import METHODS, TOL, entrants, learn, log_likelihood
from benchmarks.thesis.size import Size, regression
from pathgp import plots

TITLE = "Learning on a small budget"
TEXT = """\
Fits of `pol` in which every solve, including the last one for the posterior, ends after a fixed number of epochs. In
the legends: the budget of a step, and the test log-likelihood at the end.

- The systems become harder as the model learns that there is little noise. With conjugate gradients the residuals rise,
  and with SDD and small budgets they fall at first and rise at the end.
- At the end of these fits, pathwise gradients and warm starts each lower the residuals of conjugate gradients and
  SDD.
- The solutions of the standard estimator are no samples: its posterior needs another solve, from zero and with the same
  budget. With conjugate gradients this solve is far from converged, so the log-likelihood is low although warm starts
  lower the residuals of the steps.
- Alternating projections with shuffled blocks (thesis: greedy blocks) reach the tolerance (dotted) in every step, and
  the log-likelihood of converged solves, with the smallest budget and all four methods.
- Block size and rank are about the same fraction of n as in the thesis."""
CPU_ROWS = 1000
BUDGETS = (10, 20, 30, 40, 50)


def draw(path: Path, size: Size) -> dict[str, Any]:
    data, budgets = regression("pol", size), size.pick(BUDGETS, BUDGETS[:1])
    named = dict(list(entrants(len(data.y)).items())[: size.pick(3, 1)])
    figure, axes = grid(len(named), len(METHODS), width=12, height=2.6, sharex=True, sharey=True)
    scores: dict[tuple[str, str], float] = {}
    for row, (solver, made) in enumerate(named.items()):
        for panel, (method, options) in zip(axes[row], METHODS.items(), strict=True):
            for number, budget in enumerate(budgets):
                model, report = learn(data, size.steps, solver=made, max_epochs=budget, **options)
                residuals = [step.probe_residual for step in report.history]
                score = log_likelihood(model.posterior, data)
                scores.setdefault((solver, method), score)
                panel.plot(residuals, color=COLOURS[number], lw=1.2, label=f"{budget} epochs: {score:.2f}")
            panel.axhline(TOL, color=plots.INK, lw=0.8, ls=":")
            panel.set_yscale("log")
            panel.legend(loc="upper left", frameon=False, fontsize=8, handlelength=1.2)
            if row == 0:
                panel.set_title(method, fontsize=9, loc="left")
        axes[row, 0].set_ylabel(f"{solver}: residual of the probes", fontsize=9)
    # Room for the legends above a residual of one.
    axes[0, 0].set_ylim(3e-3, 40)
    for panel in axes[-1]:
        panel.set_xlabel("step", fontsize=9)
    save(figure, path)
    facts = {f"{budgets[0]} epochs, {solver}, {method}: log-likelihood": s for (solver, method), s in scores.items()}
    return {"n": len(data.y), "steps": size.steps, **facts}
