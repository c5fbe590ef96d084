"""Nesterov's accelerated descent with an average of the iterates: for SGD and inducing points in mini-batches.

Stochastic dual descent has its own recurrence, see `pathgp.solvers.sdd`.
"""

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
        self.run, self.momentum, self.power = run, momentum, POWERS[averaging]
        self._control = StepControl(run, column_norms(run.initial_residual))
        self._good = (run.start, run.start, self._control.best)
        # All are updated in place, so that steps can be captured in a CUDA graph.
        self.step_size = torch.as_tensor(step_size, dtype=run.b.dtype, device=run.b.device).clone()
        self.a, self.v, self.average = (torch.empty_like(run.start) for _ in range(3))
        self._weight = torch.empty((), dtype=run.b.dtype, device=run.b.device)
        self._restore(run.start, run.start)

    def _restore(self, a: Tensor, average: Tensor) -> None:
        """Begin again at an earlier iterate, at rest."""
        self.a.copy_(a)
        self.v.zero_()
        self.average.copy_(average)
        self.t = 0

    def count_step(self) -> None:
        """Set the weight of the next iterate in the average; call it before `step`, outside of a CUDA graph."""
        self.t += 1
        self._weight.fill_(min(1.0, (self.power + 1.0) / (self.t + self.power)))

    def step(self, gradient: Callable[[Tensor], Tensor]) -> None:
        """One step, for a function from u (n, s) to an estimate of the gradient (n, s)."""
        g = gradient(torch.add(self.a, self.v, alpha=self.momentum))
        self.v.mul_(self.momentum).sub_(self.step_size * g)
        self.a.add_(self.v)
        self.average.lerp_(self.a, self._weight)

    def check(self) -> Status | None:
        """Compute the residuals of the average; return the status to end with, or None to continue."""
        norms = self.run.record(column_norms(self.run.residual(self.average)), exact=True)
        if self._control.update(norms):
            self._good = (self.a.clone(), self.average.clone(), norms)
            return Status.CONVERGED if self.run.is_converged(self._good[1], norms) else None
        if self._control.is_exhausted:
            return Status.DIVERGED
        self._restore(*self._good[:2])
        self.step_size.div_(2)
        return None

    def finish(self, status: Status, solver: Solver, note: str) -> Solution:
        """The solution: the last good average."""
        if self._control.halvings:
            note += f", {self._control.halvings} halvings of the step"
        return self.run.finish(self._good[1], status, solver, note, self._good[2])
