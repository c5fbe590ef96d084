"""Figure 3.5: test errors of several solvers by compute time."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.uci import Regression
from benchmarks.thesis.size import Size, regression
from pathgp import GP, ConvergenceWarning, metrics, plots, solvers

TITLE = "Test errors by compute time"
TEXT = """\
Every marker is a solve from zero with its own budget of epochs, for the mean and 64 samples; the last is the largest
budget. Dotted: the exact posterior with 64 samples.

- Alternating projections (AP) need the fewest epochs.
- The gradient methods SDD and SGD improve steadily. SGD does not become accurate within this budget.
- Conjugate gradients (CG) need most of their budget before predictions become good. The first marker with a
  preconditioner is the prior: its budget does not cover the construction of the preconditioner. At equal larger budgets
  the errors with this preconditioner of low rank are larger on `pol` and `bike`, and smaller on `elevators`."""
SETS = ("pol", "elevators", "bike")
ENTRANTS: dict[str, solvers.Solver] = {
    "AP": solvers.AP(),
    "CG": solvers.CG(preconditioner=None, block=1),
    "CG, preconditioned": solvers.CG(block=1),
    "SDD": solvers.SDD(),
    "SGD": solvers.SGD(),
}
BUDGETS = (2, 4, 8, 16, 32)


def draw(path: Path, size: Size) -> dict[str, Any]:
    sets, budgets = size.pick((SETS, BUDGETS), (SETS[:1], BUDGETS[:1]))
    figure, axes = grid(2, len(sets), width=12, height=2.6)
    for column, name in enumerate(sets):
        data = regression(name, size, torch.float64)
        gp = GP(data.kernel().to(data.X.device), noise=data.noise)
        for (label, solver), colour in zip(ENTRANTS.items(), COLOURS, strict=False):
            curve = [_score(gp, data, solver, budget) for budget in budgets]
            for row in range(2):
                points = [(seconds, scores[row]) for seconds, scores in curve]
                axes[row, column].plot(*zip(*points, strict=True), ".-", color=colour, lw=1.3, ms=5, label=label)
        _, exact = _score(gp, data, solvers.Cholesky(), None)
        for row in range(2):
            axes[row, column].axhline(exact[row], color=plots.INK, lw=0.8, ls=":", label="exact")
            axes[row, column].set_xscale("log")
        axes[0, column].set_title(f"{name}, n = {len(data.y):,}", fontsize=9, loc="left")
        axes[0, column].set_ylim(0.8 * exact[0], 1.1)
        axes[1, column].set_ylim(exact[1] - 0.3, 2.0)
        axes[1, column].set_xlabel("seconds", fontsize=9)
    axes[0, 0].set_ylabel("test RMSE", fontsize=9)
    axes[1, 0].set_ylabel("test NLL", fontsize=9)
    legend(figure, axes[0, 0])
    save(figure, path)
    return {"n": len(data.y), "epochs, at most": budgets[-1]}


def _score(gp: GP, data: Regression, solver: solvers.Solver, budget: int | None) -> tuple[float, tuple[float, float]]:
    """Seconds of the solve, test RMSE and negative log-likelihood from 64 samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        generator = torch.Generator().manual_seed(0)
        post = gp.condition(data.X, data.y, solver=solver, tol=1e-8, max_epochs=budget, generator=generator)
    with torch.no_grad():
        mean = post.mean(data.X_test)
        variance = post.variance(data.X_test, noise=True, method="samples")
    return post.report.solution.seconds, (
        metrics.rmse(data.y_test, mean),
        metrics.nll(data.y_test, mean, variance),
    )
