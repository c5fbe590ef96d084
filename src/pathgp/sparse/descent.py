"""Stochastic gradient descent for the weights of inducing points (thesis, section 3.2.3).

    minimise  1/2 |b - K_XZ a|^2_{Sigma^-1} + 1/2 |a|^2_{K_ZZ} - a . c,        c = K_ZX Sigma^-1 eps

for the mean with b = y - mu and c = 0, for sample j with b = f_j(X) and the noise eps_j of the path in c, which one
pass over the data computes: there it does not add to the variance of the gradient. The gradient is

    K_ZX Sigma^-1 (K_XZ a - b) + K_ZZ a - c,

and the minimiser (K_ZZ + K_ZX Sigma^-1 K_XZ)^-1 (K_ZX Sigma^-1 b + c). The first term is estimated from a batch of
rows, the second from fresh random features Phi(Z) Phi(Z)^T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.random import permutation
from pathgp.operators import cross_product
from pathgp.solvers.base import Solver
from pathgp.solvers.monitor import StepControl
from pathgp.solvers.run import Run, column_norms
from pathgp.solvers.solution import Solution, Status
from pathgp.sparse.operator import InducingOperator, targets_of

# Epochs between two checks of the residual; batches from which the step is derived; products of the power iteration.
_CHECK_EVERY, _TRIAL_BATCHES, _POWER_STEPS = 5.0, 3, 8
# The average of the iterates gives iterate t a weight of about t^3, as in `solvers.SGD`.
_TAIL = 3.0


@dataclass(frozen=True)
class InducingSGD(Solver):
    """Nesterov descent with an average of the iterates, for an `InducingOperator`.

        u = a + rho v;  v = rho v - step g(u);  a = a + v;  average = average + 4 / (t + 3) (a - average)

    prior: the prior paths.  noise: c (m, 1 + s).  batch_size: rows per step.  momentum: rho.  features: per step; a
    kernel without features has the exact product K_ZZ a. The step is one over the largest eigenvalue of the Hessian of
    a batch; it is halved if residuals grow. Time O((batch_size + features) m s) per step, memory O(m (s + batch_size)).
    """

    prior: Any = field(repr=False)
    noise: Tensor = field(repr=False)
    batch_size: int = 512
    momentum: float = 0.9
    features: int = 100

    def _solve(self, run: Run) -> Solution:
        n, generator = len(_problem(run).data.y), run.generator
        batch = min(self.batch_size, n)
        # An epoch is a product with all rows; a step uses the rows of a batch.
        steps = max(1, round(_CHECK_EVERY * n / batch))
        step_size = 1.0 / self._largest_eigenvalue(run, batch)
        a, average = run.start.clone(), run.start.clone()
        v, t = torch.zeros_like(a), 0
        control = StepControl(run, column_norms(run.initial_residual))
        good, status = (a, average, control.best), Status.BUDGET_EXHAUSTED
        while run.affords(_CHECK_EVERY + 1.0):
            for _ in range(steps):
                rows = permutation(n, generator, a.device)[:batch].sort().values
                g = self.gradient(run, a + self.momentum * v, rows)
                v = self.momentum * v - step_size * g
                a = a + v
                t += 1
                average = torch.lerp(average, a, min(1.0, (_TAIL + 1) / (t + _TAIL)))
            run.iterations += steps
            run.epochs += _CHECK_EVERY
            norms = run.record(column_norms(run.residual(average)), exact=True)
            if control.is_stable(norms):
                good = (a, average, norms)
                if run.is_converged(average, norms):
                    status = Status.CONVERGED
                    break
            elif control.is_exhausted:
                status = Status.DIVERGED
                break
            else:
                a, average, _ = good
                v, t, step_size = torch.zeros_like(a), 0, step_size / 2
        note = f"steps on {batch} rows" + f", {control.halvings} halvings of the step" * bool(control.halvings)
        return run.finish(good[1], status, self, note, good[2])

    def gradient(self, run: Run, u: Tensor, rows: Tensor, exact: bool = False) -> Tensor:
        """Unbiased estimate of the gradient at u (m, 1 + s), in the units of the run, from rows of the data.

        ``exact``: with the exact product K_ZZ u in place of random features.
        """
        problem = _problem(run)
        X, targets, noise = targets_of(problem, rows, self.prior)
        K = problem.kernel(problem.Z, X)
        error = (K.T @ u - targets / run.scale) * (len(problem.data.y) / len(rows))
        return K @ (error / noise.unsqueeze(1)) + self._regulariser(run, u, exact) - self.noise / run.scale

    def _regulariser(self, run: Run, u: Tensor, exact: bool) -> Tensor:
        """K_ZZ u, or an unbiased estimate of it."""
        problem = _problem(run)
        if not exact and self.prior is not None and self.prior.num_features:
            columns = problem.Z.shape[1]
            phi = problem.kernel.features(self.features, generator=run.generator, dim=columns)(problem.Z)
            estimate: Tensor = phi @ (phi.T @ u)
            return estimate
        return cross_product(problem.kernel, problem.Z, problem.Z, u, problem.memory, "exact")

    def _largest_eigenvalue(self, run: Run, batch: int) -> float:
        """The largest eigenvalue of the Hessian of a few batches, n / b K_ZI Sigma^-1 K_IZ + K_ZZ, from above."""
        problem = _problem(run)
        n, largest = len(problem.data.y), 0.0
        for _ in range(_TRIAL_BATCHES):
            rows = permutation(n, run.generator, problem.Z.device)[:batch].sort().values
            X, _, noise = problem.rows(rows)
            G = problem.kernel(problem.Z, X) / noise.sqrt()
            largest = max(largest, n / batch * float(torch.linalg.eigvalsh(G.T @ G)[-1]))
        vector = problem.Z.new_ones(len(problem.Z), 1) / math.sqrt(len(problem.Z))
        for _ in range(_POWER_STEPS):
            vector = vector / torch.linalg.vector_norm(vector)
            vector = self._regulariser(run, vector, exact=True)
        return largest + float(torch.linalg.vector_norm(vector))


def _problem(run: Run) -> Any:
    assert isinstance(run.H, InducingOperator)
    return run.H.problem
