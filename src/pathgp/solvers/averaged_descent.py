"""Nesterov's accelerated descent with an average of the iterates: the recurrence of the stochastic gradient solvers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pathgp.solvers.base import Solver
from pathgp.solvers.monitor import StepControl
from pathgp.solvers.run import Run, column_norms
from pathgp.solvers.solution import Solution, Status

# An average gives iterate t a weight of about t^power. Power 3 is an average of the tail that does not need to know the
# length of the run (Shamir and Zhang 2013); power 0 is the arithmetic mean of all iterates (Polyak).
POWERS = {"tail": 3.0, "arithmetic": 0.0}


class AveragedDescent:
    """The iterate a, its velocity v and the average of the iterates, (n, s) each.

        u = a + rho v;  v = rho v - step g(u);  a = a + v;  average = average + (p + 1) / (t + p) (a - average)

    step_size: a number, or one per column (s,).  momentum: rho.  averaging: gives the power p, see `POWERS`. The
    average is the solution. If its residuals grow, the last good iterate is restored and the step halved.
    """

    def __init__(self, run: Run, step_size: Tensor | float, momentum: float, averaging: str = "tail") -> None:
        self.run, self.step_size, self.momentum, self.power = run, step_size, momentum, POWERS[averaging]
        self._control = StepControl(run, column_norms(run.initial_residual))
        self._good = (run.start, run.start, self._control.best)
        self._restore(run.start, run.start)

    def _restore(self, a: Tensor, average: Tensor) -> None:
        """Begin again at an earlier iterate, at rest."""
        self.a, self.v, self.average, self.t = a.clone(), torch.zeros_like(a), average.clone(), 0

    def step(self, gradient: Callable[[Tensor], Tensor]) -> None:
        """One step, for a function from u (n, s) to an estimate of the gradient (n, s)."""
        g = gradient(self.a + self.momentum * self.v)
        self.v = self.momentum * self.v - self.step_size * g
        self.a += self.v
        self.t += 1
        self.average.lerp_(self.a, min(1.0, (self.power + 1.0) / (self.t + self.power)))

    def check(self) -> Status | None:
        """Compute the residuals of the average; return the status to end with, or None to continue."""
        norms = self.run.record(column_norms(self.run.residual(self.average)), exact=True)
        if self._control.is_stable(norms):
            self._good = (self.a.clone(), self.average.clone(), norms)
            return Status.CONVERGED if self.run.is_converged(self._good[1], norms) else None
        if self._control.is_exhausted:
            return Status.DIVERGED
        self._restore(*self._good[:2])
        self.step_size = self.step_size / 2
        return None

    def finish(self, status: Status, solver: Solver, note: str) -> Solution:
        """The solution: the last good average."""
        if self._control.halvings:
            note += f", {self._control.halvings} halvings of the step"
        return self.run.finish(self._good[1], status, solver, note, self._good[2])
