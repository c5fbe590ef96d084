"""Figures 5.1 and 5.9: cost of learning by solver, estimator and start of the solves, without and with a small budget.

Every fit starts with all hyperparameters at one and takes Adam steps with learning rate 0.1. On a subset of the rows
the block size of AP and the rank of the preconditioner shrink in proportion to the thesis's values for all of pol, so
that a small problem is as hard for them as the large one.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from matplotlib.patches import Patch

from benchmarks.common.drawing import COLOURS, grid, save
from benchmarks.common.fits import THESIS_FIT
from benchmarks.common.recording import device_name
from benchmarks.common.uci import Regression, uci
from benchmarks.thesis.uci_learning import initial
from pathgp import GP, ConvergenceWarning, FitReport, Posterior, solvers
from pathgp.metrics import nll

STEPS = 100 if torch.cuda.is_available() else 30
TOL = 0.01
BUDGETS = (10, 20, 30, 40, 50)
METHODS = {
    "standard": {"estimator": "standard", "warm_start": False},
    "pathwise": {"estimator": "pathwise", "warm_start": False},
    "standard, warm start": {"estimator": "standard", "warm_start": True},
    "pathwise, warm start": {"estimator": "pathwise", "warm_start": True},
}
# Where the time of a fit goes, and how it is drawn.
PARTS = {
    "solver": {"alpha": 0.9, "hatch": "////"},
    "kernel matrix, right-hand sides, gradient": {"alpha": 0.5},
    "posterior": {"alpha": 0.2},
}
# Rows of pol, for which the thesis's sizes were chosen.
_POL = 13_500


def time_shares(path: Path, rows: int | None) -> Path:
    """Figure 5.1: seconds of four methods relative to the first, and where they went; hatched: the solver."""
    figure, axes = grid(1, 2, width=12, height=3.8, sharey=True)
    for panel, name in zip(axes[0], ("pol", "elevators"), strict=True):
        data = uci(name, device=device_name(), rows=rows)
        named = entrants(len(data.y))
        for group, solver in enumerate(named.values()):
            whole = 0.0
            for number, options in enumerate(METHODS.values()):
                parts = _parts(data, solver, options)
                whole = whole or sum(parts)
                below, place = 0.0, 5 * group + number
                for seconds, style in zip(parts, PARTS.values(), strict=True):
                    style = {"color": COLOURS[number], "edgecolor": "white", "lw": 0.6, **style}
                    panel.bar(place, seconds / whole, bottom=below, width=0.85, **style)
                    below += seconds / whole
                panel.text(place, below, f"{sum(parts):.3g} s", fontsize=7.5, ha="center", va="bottom")
        panel.set_xticks([5 * group + 1.5 for group in range(len(named))], list(named))
        panel.set_title(f"{name}, n = {len(data.y):,}, {STEPS} steps", fontsize=9, loc="left")
    axes[0, 0].set_ylabel("time relative to standard", fontsize=9)
    shown = {name: Patch(color=colour) for name, colour in zip(METHODS, COLOURS, strict=False)}
    shown |= {name: Patch(facecolor=COLOURS[-1], edgecolor="white", **style) for name, style in PARTS.items()}
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    return save(figure, path)


def budgets(path: Path, rows: int | None) -> Path:
    """Figure 5.9: the probes' residual at every step, one line per budget of epochs; the final test log-likelihood."""
    data = uci("pol", device=device_name(), rows=rows)
    named = entrants(len(data.y))
    figure, axes = grid(len(named), len(METHODS), width=12, height=2.6, sharex=True, sharey=True)
    for row, (solver, made) in enumerate(named.items()):
        for panel, (method, options) in zip(axes[row], METHODS.items(), strict=True):
            for number, budget in enumerate(BUDGETS):
                model, report = learn(data, solver=made, max_epochs=budget, **options)
                residuals = [step.probe_residual for step in report.history]
                label = f"{budget} epochs: {log_likelihood(model.posterior, data):.2f}"
                panel.plot(residuals, color=COLOURS[number], lw=1.2, label=label)
            panel.axhline(TOL, color="#1b1b1f", lw=0.8, ls=":")
            panel.set_yscale("log")
            panel.legend(loc="upper left", frameon=False, fontsize=7, handlelength=1.2)
            if row == 0:
                panel.set_title(method, fontsize=9, loc="left")
        axes[row, 0].set_ylabel(f"{solver}: residual of the probes", fontsize=9)
    # Room for the legends above a residual of one.
    axes[0, 0].set_ylim(3e-3, 40)
    for panel in axes[-1]:
        panel.set_xlabel("step", fontsize=9)
    title = f"pol, n = {len(data.y):,}; in the legends: budget of a step, test log-likelihood at the end"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    return save(figure, path)


def entrants(n: int) -> dict[str, solvers.Solver]:
    """The thesis's three solvers at its settings for pol, scaled to n rows; blocks of AP are shuffled."""

    def scaled(size: int) -> int:
        return max(8, round(size * min(1.0, n / _POL)))

    return {
        "CG": solvers.CG(preconditioner=solvers.PivotedCholesky(scaled(100))),
        "AP": solvers.AP(block_size=scaled(1000)),
        "SDD": solvers.SDD(),
    }


def learn(data: Regression, **options: Any) -> tuple[GP, FitReport]:
    """A fit of all steps from one; solves that end at their budget are no reason to warn here."""
    model = initial(data)
    options = {"steps": STEPS, "min_gain": 0.0, "generator": torch.Generator().manual_seed(0), **THESIS_FIT, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model, model.fit(data.X, data.y, **options)


def log_likelihood(post: Posterior, data: Regression) -> float:
    """Mean log density of the test targets."""
    return -nll(data.y_test, post.mean(data.X_test), post.variance(data.X_test, noise=True))


def _parts(data: Regression, solver: solvers.Solver, options: dict[str, Any]) -> list[float]:
    """Seconds of one fit, in the order of PARTS."""
    _, report = learn(data, solver=solver, **options)
    steps = sum(step.seconds for step in report.history)
    solving = sum(step.solver_seconds for step in report.history)
    return [solving, steps - solving, report.seconds - steps]
