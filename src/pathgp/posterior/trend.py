"""Trends with unknown coefficients: y = B beta + f(X) + eps with a flat prior on beta, exactly.

With H = K + Sigma, the weights W = H^-1 B and G = B^T W,

    beta | y ~ N(c, G^-1),   c = G^-1 B^T H^-1 y = G^-1 W^T y,   P = H^-1 - W G^-1 W^T,
    mean(x) = b(x)^T c + k(x, X) P y,   cov(x, z) = cov_0(x, z) + t(x)^T G^-1 t(z),   t(x) = b(x) - W^T k(X, x),

where cov_0 is the posterior covariance without a trend. A path f_j, observed as xi_j = f_j(X) + eps_j, becomes
f_j(x) + b(x)^T (c - c_j) + k(x, X) P (y - xi_j) with c_j = G^-1 W^T xi_j: both corrections are linear in the solutions
H^-1 y and H^-1 xi_j. Likelihood and leave-one-out predictions are those without a trend with P in place of H^-1:

    log p = log N(y | 0, H) + 1/2 c^T G c - 1/2 log|G| + 1/2 log|B^T B| + p/2 log 2 pi

is the density of n - p orthonormal contrasts of y (restricted likelihood). The cost is p more right-hand sides.

Harville (1974); Dubrule (1983) for leave-one-out; Rasmussen and Williams (2006), section 2.7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# Directions of the basis that are smaller than this part of the largest, squared, do not exist at these rows.
_RANK = 1e-10


def orthonormal(basis: Tensor) -> Tensor:
    """Orthonormal basis functions (n, r), float64, of the same space as B (n, p); r < p if those are dependent."""
    B = basis.to(torch.float64)
    return B @ _orthonormal_directions(B)


def _orthonormal_directions(B: Tensor) -> Tensor:
    """D (p, r) with orthonormal columns B D: r < p if the rows do not determine all coefficients."""
    values, vectors = torch.linalg.eigh(B.T @ B)
    kept = values > _RANK * values[-1]
    return vectors[:, kept] / values[kept].sqrt()


@dataclass(frozen=True)
class GeneralisedLeastSquares:
    """The coefficients of a trend, given any data. basis: B (n, p).  weights: W = H^-1 B (n, p)."""

    basis: Tensor
    weights: Tensor

    @cached_property
    def _directions(self) -> Tensor:
        return _orthonormal_directions(self.basis.to(torch.float64))

    @cached_property
    def _gram(self) -> Tensor:
        """G in these directions (r, r), float64: positive definite, symmetric up to the residual of W."""
        D = self._directions
        return D.T @ (self.basis.to(torch.float64).T @ self.weights.to(torch.float64)) @ D

    @property
    def rank(self) -> int:
        """The number of coefficients that these rows determine."""
        return self._directions.shape[1]

    @property
    def covariance(self) -> Tensor:
        """G^-1 (p, p), float64, symmetric: the covariance of the coefficients."""
        D, G = self._directions, self._gram
        return D @ torch.linalg.inv(0.5 * (G + G.T)) @ D.T

    @cached_property
    def root(self) -> Tensor:
        """L (p, r) with L L^T = G^-1, float64."""
        D, G = self._directions, self._gram
        factor = torch.linalg.cholesky(0.5 * (G + G.T))
        return torch.linalg.solve_triangular(factor, D.T, upper=False).T

    def coefficients(self, solutions: Tensor) -> Tensor:
        """c (p, k), float64, for the data of solutions H^-1 y (n, k).

        With the unsymmetric G of an inexact W the projection satisfies B^T P y = 0 up to rounding.
        """
        D = self._directions
        right = D.T @ (self.basis.to(torch.float64).T @ solutions.to(torch.float64))
        return D @ torch.linalg.solve(self._gram, right)

    def project(self, solutions: Tensor) -> Tensor:
        """P y (n, k) from solutions H^-1 y (n, k), in their dtype."""
        return solutions - self.weights.to(solutions) @ self.coefficients(solutions).to(solutions)

    def explained(self) -> Tensor:
        """The diagonal of W G^-1 W^T (n,), float64."""
        return (self.weights.to(torch.float64) @ self.root).square().sum(1)

    def residuals(self, solutions: Tensor, norms: Tensor) -> Tensor:
        """Bounds of |y - B c - H P y| (k,) from the norms of the residuals of y and of the basis (k + p,), on the CPU.

        With this residual r the error of the mean is the prediction from r in place of y. It is at most
        sqrt(k) |r| / (2 sigma) in the part k(x, X) P r, and |L^T b(x)| |r| / sigma in the trend.
        """
        count = solutions.shape[1]
        return norms[:count] + self.coefficients(solutions).abs().T.cpu() @ norms[count:]

    @cached_property
    def leverage(self) -> float:
        """The largest standard deviation of the trend at the data."""
        return float((self.basis.to(torch.float64) @ self.root).square().sum(1).max().sqrt())

    def log_density_change(self, y: Tensor) -> float:
        """The restricted log likelihood of y (n,) minus log N(y | 0, H)."""
        W, D, G = self.weights.to(torch.float64), self._directions, self._gram
        right = D.T @ (W.T @ y.to(torch.float64))
        quadratic = float(right @ torch.linalg.solve(G, right))
        return 0.5 * (quadratic - float(torch.linalg.slogdet(G).logabsdet) + self.rank * math.log(2 * math.pi))


@dataclass(frozen=True, eq=False)
class TrendEstimate:
    """The coefficients of a trend given the data, in the units of the caller.

    names: of the basis functions.  coefficients: (p,), float64.  std: their standard errors (p,).  covariance: (p, p).
    """

    names: tuple[str, ...]
    coefficients: Tensor
    covariance: Tensor

    @property
    def std(self) -> Tensor:
        """Standard errors of the coefficients (p,)."""
        return self.covariance.diagonal().clamp_min(0.0).sqrt()

    def __repr__(self) -> str:
        width = max(map(len, self.names))
        rows = zip(self.names, self.coefficients.tolist(), self.std.tolist(), strict=True)
        return "\n".join(["trend", *(f"  {name:<{width}}  {value: .6g} ± {error:.2g}" for name, value, error in rows)])
