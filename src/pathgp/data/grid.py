"""A grid of observations with holes, in a model's units, and draws from a prior on it.

A prior on a grid has the covariance K_1 x ... x K_k. With S_i S_i^T = K_i its square root is S_1 x ... x S_k: draws
need only the roots of the factors. At new inputs G_i the roots are extended by rows,

    S_i = [ L      0   ]      L L^T = K(F, F),   S21 = K(G, F) L^-T,   S22 S22^T = K(G, G) - S21 S21^T,
          [ S21    S22 ]

and a joint draw at old and new inputs consists of all 2^k blocks of (S_1 x ... x S_k) w. The block of w that belongs to
the training grid is shared with the draw that was conditioned on data, so that both are values of one function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pathgp.compute.inputs import whole_number
from pathgp.compute.random import normal, spawn_generator
from pathgp.data.observations import Data
from pathgp.data.standardise import Standardisation
from pathgp.kernels import Kernel
from pathgp.operators.grid_base import multiply_sides, unravel
from pathgp.solvers.cholesky import factorise

# Directions of S22 with less than this part of the variance at new inputs are rounding errors of repeated inputs.
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True)
class GridObservations(Data):
    """Observed cells of a grid, row by row.

    originals: the factors in the caller's units, with all their digits.  observed: (p_1, ..., p_k), boolean.
    scalings: one per side; the first also holds that of the targets.  is_numpy: whether the caller works in NumPy.
    """

    factors: list[Tensor]
    originals: list[Tensor]
    observed: Tensor
    y: Tensor
    noise_std: Tensor | None
    scalings: list[Standardisation]
    is_numpy: bool

    @property
    def scaling(self) -> Standardisation:  # type: ignore[override]
        return self.scalings[0]

    @cached_property
    def cells(self) -> Tensor:
        """The numbers of the observed cells (n,)."""
        return self.observed.flatten().nonzero().flatten()

    @property
    def X_raw(self) -> Tensor:  # type: ignore[override]
        return cells([F.to(self.dtype) for F in self.originals], self.cells)

    def without_empty(self) -> tuple[list[Tensor], Tensor]:
        """The factors and the grid of observed cells without the entries of a side that have no observation."""
        factors, observed = [], self.observed
        for side, F in enumerate(self.factors):
            others = [m for m in range(len(self.factors)) if m != side]
            is_used = self.observed.any(dim=others) if others else self.observed
            factors.append(F[is_used])
            observed = observed.index_select(side, is_used.nonzero().flatten())
        return factors, observed

    def inputs(self, rows: Tensor | None = None) -> Tensor:
        return cells(self.factors, self.cells if rows is None else self.cells[rows])

    def to(self, dtype: torch.dtype) -> GridObservations:
        pairs = zip(self.scalings, self.originals, strict=True)
        return replace(self, factors=[scaling.inputs(F, dtype) for scaling, F in pairs])


@dataclass(frozen=True)
class GridPrior:
    """s draws on a grid from frozen standard normal numbers w (p_1, ..., p_k, s).

    features: random features of each path, for paths that are functions (`GridPosterior.paths`).
    """

    w: Tensor
    features: int = 512

    def state(self) -> dict[str, Any]:
        return {"w": self.w, "features": self.features}

    def follow(self, generator: torch.Generator) -> GridPrior:
        """Return self: the roots are computed from the present hyperparameters."""
        return self

    def on_grid(self, kernels: Sequence[Kernel], factors: Sequence[Tensor]) -> Tensor:
        """The draws on the training grid at the present hyperparameters: (p_1, ..., p_k, s).

        Time O(sum_i p_i^3 + p s sum_i p_i) for p cells.
        """
        roots = [root(k, F).to(self.w) for k, F in zip(kernels, factors, strict=True)]
        return multiply_sides(roots, self.w)

    def extend(
        self,
        kernels: Sequence[Kernel],
        factors: Sequence[Tensor],
        inputs: Sequence[Tensor],
        generator: torch.Generator,
        budget: int,
    ) -> tuple[list[Tensor], Tensor]:
        """Roots [S21, S22] of every side at inputs, new or the factors themselves, and w with new numbers for them.

        (S_1 x ... x S_k) w are the draws at the inputs. ``budget``: memory in bytes.
        """
        roots = [extended_root(k, F, G) for k, F, G in zip(kernels, factors, inputs, strict=True)]
        shape, w = tuple(len(F) + new for F, (_, new) in zip(factors, roots, strict=True)), self.w
        needed = w.element_size() * w.shape[-1] * math.prod(shape)
        if needed > max(budget, 2 * w.nbytes):
            raise ValueError(
                f"draws that continue the old ones at the new inputs take {needed / 1e9:.2g} GB, and the memory "
                f"budget is {budget / 1e9:.2g} GB: ask for fewer inputs at once, or use paths"
            )
        if shape != tuple(w.shape[:-1]):
            # Spawned: w may come from the same seed, and its numbers must not be repeated in the new blocks.
            w = normal((*shape, w.shape[-1]), spawn_generator(generator), w.dtype, w.device)
            w[tuple(slice(len(F)) for F in factors)] = self.w
        return [root.to(w) for root, _ in roots], w


def root(kernel: Kernel, F: Tensor) -> Tensor:
    """L with L L^T = K(F, F), float64.

    A Cholesky factor is a smooth function of the hyperparameters. Smooth kernels are singular up to rounding; the
    jitter is about 1e-14 of the variance, because draws must not have more noise than the data.
    """
    with torch.no_grad():
        return factorise(kernel(F.to(torch.float64)), least=1e-15)[0]


def extended_root(kernel: Kernel, F: Tensor, G: Tensor) -> tuple[Tensor, int]:
    """[S21, S22] (g, p + r) with the joint covariance of draws at F and at new inputs G, and r; float64.

    If G is F itself, S21 = L and r = 0. S22 comes from an eigendecomposition without the directions of
    zero variance, so that repeated inputs add no columns.
    """
    L = root(kernel, F)
    if G is F:
        return L, 0
    with torch.no_grad():
        F, G = F.to(torch.float64), G.to(torch.float64)
        S21 = torch.linalg.solve_triangular(L, kernel(F, G), upper=False).T
        values, vectors = torch.linalg.eigh(kernel(G) - S21 @ S21.T)
        keep = values > _NEGLIGIBLE * float(kernel.diag(G).max()) if len(G) else values > 0
        S22 = vectors[:, keep] * values[keep].sqrt()
    return torch.cat([S21, S22], 1), S22.shape[1]


def cells(sides: Sequence[Tensor], index: Tensor | None = None) -> Tensor:
    """The inputs of the cells of a grid with these numbers, or of all, row by row: (m, d_1 + ... + d_k)."""
    shape = torch.Size([len(G) for G in sides])
    index = torch.arange(shape.numel(), device=sides[0].device) if index is None else index
    return torch.cat([G[place] for G, place in zip(sides, unravel(index, shape), strict=True)], 1)


def multiply_rows(matrices: Sequence[Tensor], grid: Tensor) -> Tensor:
    """sum_c prod_i matrices_i[m, c_i] grid[c] over all cells c: (m, s) for (m, p_i) and a grid (p_1, ..., p_k, s)."""
    first, *others = matrices
    result = (first @ grid.reshape(grid.shape[0], -1)).view(len(first), *grid.shape[1:])
    for matrix in others:
        result = torch.einsum("mp,mp...->m...", matrix, result)
    return result


def prior_variance(kernels: Sequence[Kernel], inputs: Sequence[Tensor]) -> Tensor:
    """k_1(x_1, x_1) ... k_k(x_k, x_k) on a grid (g_1, ..., g_k)."""
    total = torch.ones((), dtype=inputs[0].dtype, device=inputs[0].device)
    with torch.no_grad():
        for kernel, G in zip(kernels, inputs, strict=True):
            total = total.unsqueeze(-1) * kernel.diag(G)
    return total


class BreakEven(NamedTuple):
    """Missing ratios at which a dense matrix of the observed cells costs as much as the structure."""

    time: float
    memory: float


def break_even(*sizes: int) -> BreakEven:
    """The missing ratios beyond which a dense matrix is cheaper, for a grid with sides p_1, ..., p_k.

    n observed of p = p_1 ... p_k cells: n^2 against p (p_1 + ... + p_k) multiplications, and n^2 against
    p_1^2 + ... + p_k^2 numbers, so that with the missing ratio 1 - n / p

        time = 1 - sqrt(sum_i p_i / prod_i p_i),    memory = 1 - sqrt(sum_i p_i^2) / prod_i p_i.

    Never below zero: where it is zero the structure never pays.
    """
    if not sizes:
        raise ValueError("break_even needs the sizes of the sides, for instance break_even(2000, 52)")
    sizes = tuple(whole_number(p, "a side of the grid", 1) for p in sizes)
    cells = math.prod(sizes)
    time = 1.0 - math.sqrt(sum(sizes) / cells)
    memory = 1.0 - math.sqrt(sum(p**2 for p in sizes)) / cells
    return BreakEven(max(0.0, time), max(0.0, memory))
