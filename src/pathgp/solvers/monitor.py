"""When to stop a run, and when to reduce its step: the bookkeeping around the recurrences of AP, SDD and SGD."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pathgp.solvers.run import Run, column_norms
from pathgp.solvers.solution import Status

# Residuals above the best ones by this factor mean divergence. A stable run lets them fluctuate far less than this; an
# unstable one multiplies them by far more in one epoch.
GROWTH = 4.0
_MAX_HALVINGS = 25


class Monitor:
    """Judge a run by estimated residuals; an estimate that meets the goal is confirmed by a product.

    A failed confirmation gives the factor by which later estimates are corrected.

    Args:
        run: the solve in progress.
        patience: checks without an improvement by a percent after which the run counts as stalled.
        max_failures: failed confirmations after which the run counts as stalled.
    """

    def __init__(self, run: Run, patience: float, max_failures: float = math.inf) -> None:
        self.run, self.patience, self.max_failures = run, patience, max_failures
        self.correction, self.failures = 1.0, 0
        self.confirmed: Tensor | None = None

    def check(
        self, x: Tensor, estimate: Tensor, residual: Callable[[], Tensor], level: Tensor | None = None
    ) -> Status | None:
        """The status to end with, or None to continue.

        Args:
            x: the iterate.
            estimate: its residual norms (s,).
            residual: computes b - H x by a product.
            level: the norms that tell whether the run stalls; by default the estimate.
        """
        run = self.run
        if run.tol > 0 and self.correction * run.measure(estimate) <= 1.0:
            if not run.affords(run.H.cost()):
                return Status.BUDGET_EXHAUSTED
            exact = run.record(column_norms(residual()), exact=True)
            if run.is_converged(x, exact):
                self.confirmed = exact
                return Status.CONVERGED
            self.failures += 1
            self.correction = run.measure(exact) / max(run.measure(estimate), 1e-300)
        is_stalled = run.is_stalled(estimate if level is None else level, self.patience)
        return Status.STALLED if is_stalled or self.failures >= self.max_failures else None


class StepControl:
    """Tell from the growth of residuals whether a step size is stable; the caller halves it if not."""

    def __init__(self, run: Run, initial: Tensor) -> None:
        self.best = initial
        self._floor = max(float(run.goal.min()), torch.finfo(run.H.dtype).eps)
        self.growth, self.halvings = 0.0, 0

    def update(self, norms: Tensor) -> bool:
        """Return whether the step size is stable: no residual has grown beyond `GROWTH` times its best.

        Update the best residuals if it is; otherwise count a halving.
        """
        self.growth = float((norms / self.best.clamp_min(self._floor)).nan_to_num(math.inf).max())
        if self.growth > GROWTH:
            self.halvings += 1
            return False
        self.best = torch.minimum(self.best, norms)
        return True

    @property
    def is_exhausted(self) -> bool:
        return self.halvings > _MAX_HALVINGS
