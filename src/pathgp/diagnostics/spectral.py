"""Spectral basis functions of a kernel and inputs: the eigenvectors of K as functions of x.

    K = U diag(lambda) U^T,   u_i(.) = sum_j U_ji / sqrt(lambda_i) k(., x_j),   lambda_1 >= lambda_2 >= ...

They are orthonormal in the reproducing kernel Hilbert space of k, and sum_j u_i(x_j)^2 = lambda_i: the first ones are
large at the data, the last ones are small there. Gradient methods converge along the first ones first.
Thesis, section 3.2.4 and appendix A; the functions are those of kernel principal component analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.inputs import Array, read_matrix
from pathgp.compute.memory import memory_budget, spans
from pathgp.data.standardise import Standardisation
from pathgp.diagnostics.regions import Regions
from pathgp.kernels import Kernel
from pathgp.operators import cross_product
from pathgp.posterior import InducingPosterior, Posterior

# Largest number of rows of an eigendecomposition, which takes minutes on a CPU at this size.
MAX_ROWS = 10_000
# Bytes per entry of K while it is decomposed: K, U and the workspace, float64.
_BYTES_PER_ENTRY = 32
# Inputs at which all basis functions are evaluated at once.
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class SpectralBasis:
    """The functions u_1, u_2, ... of a kernel and its inputs, the largest eigenvalue first.

    Directions whose eigenvalue is lost in rounding, below n eps lambda_1 in float64, are left out: r remain.

    Args:
        kernel: the covariance function.
        X: inputs (n, d) in the units of the kernel, float64.
        values: eigenvalues lambda (r,), descending.
        vectors: eigenvectors U (n, r).
        scaling: conversion of the caller's inputs to the units of the kernel.
    """

    kernel: Kernel
    X: Tensor
    values: Tensor
    vectors: Tensor
    scaling: Standardisation

    @classmethod
    def of(cls, posterior: Posterior) -> SpectralBasis:
        """The basis of a posterior's kernel and data, as functions of inputs in the units of the data.

        Time O(n^3), memory O(n^2); ValueError above 10,000 rows.
        """
        require_table(posterior)
        return cls._decompose(posterior.model.kernel, posterior.system.X, posterior.scaling)

    @classmethod
    def compute(cls, kernel: Kernel, X: Array) -> SpectralBasis:
        """The basis of a kernel and inputs X (n, d). Time O(n^3), memory O(n^2); ValueError above 10,000 rows."""
        inputs = read_matrix(X).X
        return cls._decompose(kernel, inputs, Standardisation.identity(inputs))

    @classmethod
    def _decompose(cls, kernel: Kernel, X: Tensor, scaling: Standardisation) -> SpectralBasis:
        require_small(len(X), X.device)
        X = X.detach().to(torch.float64)
        with torch.no_grad():
            values, vectors = torch.linalg.eigh(kernel(X))
        kept = values > len(X) * torch.finfo(torch.float64).eps * values[-1]
        return cls(kernel, X, values[kept].flip(0), vectors[:, kept].flip(1), scaling)

    def __len__(self) -> int:
        """The number of functions r."""
        return len(self.values)

    def __call__(self, Xs: Array, index: Sequence[int] | slice = slice(None)) -> Array:
        """Values (r, m) of all functions at Xs (m, d), or of those with numbers ``index``, counted from 0.

        Differentiable in Xs. Time O(m n (d + r)), memory one tile and the result.
        """
        inputs = read_matrix(Xs, "Xs", columns=self.X.shape[1], like=self.X)
        return inputs.to_caller(self._evaluate(self.scaling.inputs(inputs.X, torch.float64), index))

    def function(self, i: int) -> Callable[[Array], Array]:
        """The function u_i alone, i counted from 0: call it with inputs (m, d) to get values (m,)."""
        if not -len(self) <= i < len(self):
            raise IndexError(f"there are {len(self)} spectral basis functions, counted from 0: got {i}")
        return lambda Xs: self(Xs, [i])[0]

    def coefficients(self, weights: Tensor) -> Tensor:
        """Coefficients c (r, s) of the functions K(., X) weights = sum_i c_i u_i, for weights (n, s).

        c = diag(lambda)^1/2 U^T weights. |c_i| is the norm of the projection onto u_i, in the space of the kernel.
        """
        return self.values.sqrt().unsqueeze(1) * (self.vectors.T @ weights.to(self.vectors))

    def seminorm(self, weights: Tensor, index: Sequence[int] | slice = slice(None)) -> Tensor:
        """Norm (s,) of the functions K(., X) weights, projected onto the span of u_i, i in ``index``."""
        return torch.linalg.vector_norm(self.coefficients(weights)[index], dim=0)

    def count_leading(self, share: float = 0.99) -> int:
        """The smallest number of functions that hold this share of sum_i sum_j u_i(x_j)^2 = tr K at the data."""
        if not 0.0 < share <= 1.0:
            raise ValueError(f"share must lie in (0, 1], got {share}")
        total = self.values.cumsum(0)
        return min(len(self), int((total < share * total[-1]).sum()) + 1)

    def regions(self, Xs: Array, share: float = 0.99) -> Regions:
        """Whether inputs Xs (m, d) lie in the interpolation, the extrapolation or the prior region; see `Regions`.

        ``share``: see `count_leading`. Time O(m n r).
        """
        inputs = read_matrix(Xs, "Xs", columns=self.X.shape[1], like=self.X)
        points = self.scaling.inputs(inputs.X, torch.float64).detach()
        count = self.count_leading(share)
        leading, rest = torch.zeros(len(points)).to(points), torch.zeros(len(points)).to(points)
        with torch.no_grad():
            prior = self.kernel.diag(points)
            for rows in spans(len(points), _ROWS_AT_ONCE):
                energies = self._evaluate(points[rows], slice(None)).square()
                leading[rows], rest[rows] = energies[:count].sum(0), energies[count:].sum(0)
        return Regions(leading / prior, rest / prior, count)

    def _evaluate(self, X: Tensor, index: Sequence[int] | slice) -> Tensor:
        """Values (r, m) at X (m, d) in the units of the kernel."""
        weights = self.vectors[:, index] / self.values[index].sqrt()
        return cross_product(self.kernel, X, self.X, weights, backend="exact").T

    def __repr__(self) -> str:
        largest, smallest = float(self.values[0]), float(self.values[-1])
        return (
            f"SpectralBasis of {len(self.X):,} rows: {len(self):,} functions, eigenvalues {largest:.2g} to "
            f"{smallest:.2g}; {self.count_leading():,} hold 99 % of the energy at the data"
        )


def require_table(posterior: Any) -> None:
    """TypeError unless this is the posterior of a table, without inducing points."""
    if not isinstance(posterior, Posterior):
        raise TypeError(f"expected the posterior of a table, as GP.condition returns, got {type(posterior)}")
    if isinstance(posterior, InducingPosterior):
        raise TypeError(
            "an InducingPosterior solves for its inducing points, not for the rows of the data: diagnose the posterior "
            "of a pathgp.GP on a subset of the rows"
        )


def require_small(rows: int, device: torch.device) -> None:
    """ValueError if an exact decomposition of this many rows takes too long or does not fit the memory."""
    if rows > MAX_ROWS:
        raise ValueError(
            f"exact diagnostics take O(n^3) time and are limited to {MAX_ROWS:,} rows, got {rows:,}: use a random "
            "subset of the rows, or post.report, whose error bounds hold for any number"
        )
    needed, budget = _BYTES_PER_ENTRY * rows**2, memory_budget(None, device)
    if needed > budget:
        raise ValueError(
            f"exact diagnostics of {rows:,} rows need {needed / 1e9:.1f} GB, and {budget / 1e9:.1f} GB are free: use "
            "a random subset of the rows"
        )
