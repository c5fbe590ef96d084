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
from pathgp.solvers.averaged_descent import AveragedDescent
from pathgp.solvers.base import Solver
from pathgp.solvers.run import Run
from pathgp.solvers.solution import Solution, Status
from pathgp.sparse.operator import InducingOperator, targets_of

# Epochs between two checks of the residual; batches from which the step is derived; products of the power iteration.
_CHECK_EVERY, _TRIAL_BATCHES, _POWER_STEPS = 5.0, 3, 8


@dataclass(frozen=True)
class InducingSGD(Solver):
    """Nesterov descent with an average of the iterates (`AveragedDescent`), for an `InducingOperator`.

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
        descent = AveragedDescent(run, 1.0 / self._largest_eigenvalue(run, batch), self.momentum)

        def batch_gradient(u: Tensor) -> Tensor:
            return self.gradient(run, u, permutation(n, generator, u.device)[:batch].sort().values)

        status = None
        while status is None and run.affords(_CHECK_EVERY + 1.0):
            for _ in range(steps):
                descent.count_step()
                descent.step(batch_gradient)
            run.iterations += steps
            run.epochs += _CHECK_EVERY
            status = descent.check()
        return descent.finish(status or Status.BUDGET_EXHAUSTED, self, f"steps on {batch} rows")

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
