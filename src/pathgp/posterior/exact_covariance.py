"""Exact posterior variances and covariances, by a factorisation or by solves."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, cached_property

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.compute.recompute import recompute_blocks
from pathgp.compute.settings import Compute
from pathgp.kernels import Kernel
from pathgp.operators import KernelOperator, Operator, cross_product
from pathgp.posterior.conditioning import Settings
from pathgp.posterior.convergence import warn_unless_converged
from pathgp.solvers import Cholesky
from pathgp.solvers.cholesky import factorise

# Up to this number of rows tables have exact variances and gradients, which cost about as much as estimates. Without
# noise in the data estimates are poor: random features represent the tiny eigenvalues of H by few frequencies. With
# 2,000 rows of Friedman's function the trace of one probe had 30 times the standard deviation that a normal draw would
# have, fits ended up to 0.03 nats per row below the optimum, each elsewhere, and at the optimum the test
# log-likelihoods of four generators differed by 0.1 nats.
EXACT_ROWS = 2000
# Columns of K(X, Xs) that are solved for at once when only variances are needed.
_COLUMNS_AT_ONCE = 256
# Up to this number of rows H is factorised, 8 n^2 bytes, and the factor kept. n^3 / 3 operations take seconds on two
# cores, as long as the quadrature of the evidence does.
FACTOR_ROWS = 10_000
_SOLVE_TOL = {torch.float32: 1e-4, torch.float64: 1e-7}
# float64 numbers per row and column while systems with K(X, Xs) are solved: right-hand sides, iterates, residuals.
_NUMBERS_PER_SOLVE = 8
# Bytes per entry of a covariance: prior, explained part, difference and its transpose, float64.
_BYTES_PER_COVARIANCE = 32


class ExactCovariance:
    """K(Xs, Xs) - K(Xs, X) H^-1 K(X, Xs), in the model's units, within the memory budget.

    Up to 10,000 rows, and with ``solver="cholesky"``, from a float64 factor of H; above from iterative solves,
    one per row of Xs. Differentiable in Xs. ``operator`` constructs the H of these solves.
    """

    def __init__(
        self, kernel: Kernel, X: Tensor, deviation: Tensor, settings: Settings, operator: Callable[[], Operator]
    ) -> None:
        self._kernel, self._X, self._deviation, self.settings = kernel, X, deviation, settings
        self._operator, budget = cache(operator), settings.compute.budget(X.device)
        self._columns_at_once = max(1, budget // (4 * 8 * _NUMBERS_PER_SOLVE * len(X)))
        wanted = len(X) <= FACTOR_ROWS or isinstance(settings.solver, Cholesky)
        # 16 n^2 bytes while H is factorised.
        self.factorises = wanted and 16 * len(X) ** 2 <= budget

    def variance(self, Xs: Tensor, part: Kernel | None = None) -> Tensor:
        """The diagonal (m,), in the dtype of Xs; of f, or of the function of one summand ``part`` of the kernel."""
        kernel = self._kernel if part is None else part
        prior = kernel.diag(Xs.to(torch.float64))
        step = min(_COLUMNS_AT_ONCE, self._columns_at_once)

        def explain(rows: Tensor) -> Tensor:
            return self._explained_at_once(rows, kernel, _column_products)

        # K(X, Xs) is recomputed in the backward pass instead of being stored; solves are not repeated.
        if self.factorises:
            explained = recompute_blocks(explain, Xs, step)
        else:
            explained = torch.cat([explain(Xs[rows]) for rows in spans(len(Xs), step)] or [prior])
        return (prior - explained).clamp_min(0.0).to(Xs.dtype)

    def covariance(self, Xs: Tensor) -> Tensor:
        """The matrix (m, m), float64, symmetric; ValueError if it does not fit the memory budget."""
        self._require_room(len(Xs))
        covariance = self._kernel(Xs.to(torch.float64)) - self._explained(Xs)
        return 0.5 * (covariance + covariance.T)

    def _require_room(self, m: int) -> None:
        """Raise ValueError if covariances of m inputs do not fit the memory budget."""
        budget = self.settings.compute.budget(self._X.device)
        if (needed := _BYTES_PER_COVARIANCE * m**2) > budget:
            raise ValueError(
                f"the covariance of {m:,} inputs needs {needed / 1e9:,.1f} GB, and the memory budget is "
                f"{budget / 1e9:,.1f} GB, enough for {math.isqrt(budget // _BYTES_PER_COVARIANCE):,} inputs: ask for "
                "fewer inputs at once, raise Compute(memory=...), or use variance or paths, which need O(m) memory"
            )

    def _explained(self, Xs: Tensor) -> Tensor:
        """K(Xs, X) H^-1 K(X, Xs): (m, m), float64, for as many columns of K(X, Xs) at a time as the budget holds."""
        step = self._columns_at_once
        if step >= len(Xs):
            return self._explained_at_once(Xs, self._kernel, lambda L, R: L.T @ R)
        kernel, memory = self._kernel, self.settings.compute.memory_bytes
        X = self._X.to(torch.float64) if self.factorises else self._X
        points = Xs.to(X.dtype)
        parts = []
        for rows in spans(len(Xs), step):
            with torch.no_grad():
                weights = self.solve_for(kernel(X, points[rows]))
            parts.append(cross_product(kernel, points, X, weights, memory, "exact"))
        half = torch.cat(parts, 1).to(torch.float64)
        # Both factors K depend on Xs and the weights are constants here: twice the gradient, once the value.
        both = half + half.T
        return both - 0.5 * both.detach()

    def _explained_at_once(self, Xs: Tensor, kernel: Kernel, multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """K(Xs, X) H^-1 K(X, Xs), float64: the matrix for multiply(L, R) = L^T R, or its diagonal."""
        X = self._X
        if self.factorises:
            cross = kernel(X.to(torch.float64), Xs.to(torch.float64))
            half = torch.linalg.solve_triangular(self.factor[0], cross, upper=False)
            return multiply(half, half)
        cross = kernel(X, Xs)
        solution = self.solve_for(cross.detach())
        # With r = K - H x the value x^T K + x^T r is wrong only by r^T H^-1 r, second order in the residual.
        residual = cross - self._operator() @ solution
        return multiply(solution, cross + residual).to(torch.float64)

    def solve_for(self, cross: Tensor) -> Tensor:
        """H^-1 cross for columns cross (n, m) of K(X, Xs) or of the basis of a trend; no gradient."""
        if self.factorises:
            return torch.cholesky_solve(cross.to(torch.float64), self.factor[0])
        tol, fixed = _SOLVE_TOL[cross.dtype], torch.Generator().manual_seed(0)  # repeated calls agree
        solution = self.settings.solver.solve(self._operator(), cross, tol=tol, generator=fixed)
        warn_unless_converged(solution, tol, "exact variances")
        return solution.x

    @cached_property
    def factor(self) -> tuple[Tensor, float]:
        """Cholesky factor of H in float64, and the jitter that was added to its diagonal."""
        X = self._X.to(torch.float64)
        H = KernelOperator(self._kernel, X, self._deviation, Compute("streamed"))
        return factorise(H.block(torch.arange(len(X), device=X.device)))


def _column_products(L: Tensor, R: Tensor) -> Tensor:
    """The diagonal of L^T R."""
    return (L * R).sum(0)
