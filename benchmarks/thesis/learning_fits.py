"""Fits for the figures of chapter 5: three solvers, two estimators, cold and warm starts.

Every fit starts with all hyperparameters at one and takes Adam steps with learning rate 0.1. On a subset of the rows
the block size of AP and the rank of the preconditioner shrink in proportion to the thesis's values for all of pol, so
that a small problem is as hard for them as the large one.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch

from benchmarks.common.fits import THESIS_FIT
from benchmarks.common.uci import Regression
from benchmarks.thesis.size import Size, regression
from benchmarks.thesis.table_5_1 import initial
from pathgp import GP, ConvergenceWarning, FitReport, Posterior, solvers
from pathgp.metrics import nll

TOL = 0.01
METHODS = {
    "standard": {"estimator": "standard", "warm_start": False},
    "pathwise": {"estimator": "pathwise", "warm_start": False},
    "standard, warm start": {"estimator": "standard", "warm_start": True},
    "pathwise, warm start": {"estimator": "pathwise", "warm_start": True},
}
# Rows of pol, for which the thesis's sizes were chosen.
_POL = 13_500


def entrants(n: int) -> dict[str, solvers.Solver]:
    """The thesis's three solvers at its settings for pol, scaled to n rows; blocks of AP are shuffled."""

    def scaled(size: int) -> int:
        return max(8, round(size * min(1.0, n / _POL)))

    return {
        "CG": solvers.CG(preconditioner=solvers.PivotedCholesky(scaled(100)), block=1),
        "AP": solvers.AP(block_size=scaled(1000)),
        "SDD": solvers.SDD(),
    }


def learn(data: Regression, steps: int, **options: Any) -> tuple[GP, FitReport]:
    """A fit of all steps from one; solves that end at their budget are no reason to warn here."""
    model = initial(data)
    options = {"steps": steps, "min_gain": 0.0, "generator": torch.Generator().manual_seed(0), **THESIS_FIT, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model, model.fit(data.X, data.y, **options)


@cache
def reports(name: str, size: Size) -> dict[tuple[str, str], FitReport]:
    """The reports of whole fits of a set by (solver, method), which figures 5.1 and 5.7 share."""
    data = regression(name, size)
    return {
        (solver, method): learn(data, size.steps, solver=made, **options)[1]
        for solver, made in entrants(len(data.y)).items()
        for method, options in METHODS.items()
    }


def log_likelihood(post: Posterior, data: Regression) -> float:
    """Mean log density of the test targets."""
    return -nll(data.y_test, post.mean(data.X_test), post.variance(data.X_test, noise=True))
