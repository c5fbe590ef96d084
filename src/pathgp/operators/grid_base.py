"""Grids: vectors on the cells, matrices applied along the sides, and what is known of an operator on a grid."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, reduce

import torch
from torch import Tensor

from pathgp.operators.base import Operator
from pathgp.operators.kernel import KernelOperator

# Columns of a product that count as few on a CPU; along a long side more, this part of its length. In float64, with 9
# columns and sides of 132 and 1,000, one product takes a sixth of the time of 132 products; with 33 columns a third.
_NARROW = 16


def unravel(cells: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Coordinates of cells along every side, from their numbers (torch.unravel_index is slow in its first call)."""
    coordinates = []
    for p in reversed(sizes):
        coordinates.append(cells % p)
        cells = cells // p
    return coordinates[::-1]


def scatter(V: Tensor, cells: Tensor, sizes: Sequence[int]) -> Tensor:
    """V (n, s) at the n numbered cells of a grid, zero elsewhere: (p_1, ..., p_k, s)."""
    grid = V.new_zeros(math.prod(sizes), V.shape[1])
    return grid.index_copy_(0, cells, V).view(*sizes, V.shape[1])


def unfold(grid: Tensor, side: int) -> Tensor:
    """A grid as a matrix with one row per place along a side: (p_side, everything else)."""
    return grid.movedim(side, 0).reshape(grid.shape[side], -1)


def multiply_side(matrix: Operator | Tensor, side: int, grid: Tensor) -> Tensor:
    """A matrix (m, p_side) applied along one side of a grid (p_1, ..., p_k, s): (p_1, ..., m, ..., p_k, s).

    Tensors are multiplied without a copy of the grid, by one product for each place along the sides before. On a CPU
    these products are slow if they have few columns: then the grid is copied for a single product.
    """
    shape = grid.shape
    before, after = shape[:side], shape[side + 1 :]
    batch, columns = math.prod(before), math.prod(after)
    is_narrow = batch > 1 and grid.device.type == "cpu" and columns <= max(_NARROW, shape[side] // _NARROW)
    if isinstance(matrix, Tensor) and not is_narrow:
        product = torch.bmm(matrix.expand(batch, *matrix.shape), grid.reshape(batch, shape[side], columns))
    else:
        product = (matrix @ unfold(grid, side)).view(matrix.shape[0], *before, *after).movedim(0, side)
    return product.reshape(*before, matrix.shape[0], *after)


def multiply_sides(matrices: Sequence[Operator | Tensor | None], grid: Tensor) -> Tensor:
    """One matrix (m_i, p_i), or None, applied along every side of a grid (p_1, ..., p_k, s): (m_1, ..., m_k, s)."""
    for side, matrix in enumerate(matrices):
        grid = grid if matrix is None else multiply_side(matrix, side, grid)
    return grid


class GridOperator(Operator):
    """H on the observed cells of a grid, as preconditioners see it.

    sizes: cells along every side.  cells: the numbers of the observed ones (n,).  places: their coordinates along every
    side.  factors: the kernel matrix of every side.  roots: B_i (p_i, r_i) with K_i = B_i B_i^T, or None.
    """

    sizes: tuple[int, ...]
    cells: Tensor
    places: list[Tensor]
    factors: list[KernelOperator]
    roots: list[Tensor | None]

    @abstractmethod
    def multiply(self, grid: Tensor) -> Tensor:
        """(K_1 x ... x K_k) applied to a grid (p_1, ..., p_k, s)."""

    def scatter(self, V: Tensor) -> Tensor:
        """P^T V: (p_1, ..., p_k, s), zero in the holes."""
        return scatter(V, self.cells, self.sizes)

    def gather(self, grid: Tensor) -> Tensor:
        """P applied to a grid (p_1, ..., p_k, s): (n, s)."""
        return grid.reshape(-1, grid.shape[-1])[self.cells]

    @property
    def is_complete(self) -> bool:
        """Whether every cell is observed."""
        return self.shape[0] == math.prod(self.sizes)

    @cached_property
    def holes(self) -> Tensor:
        """The numbers of the cells without an observation."""
        missing = torch.ones(math.prod(self.sizes), dtype=torch.bool, device=self.device)
        missing[self.cells] = False
        return missing.nonzero().flatten()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Columns of the factors' roots: r_i, or p_i for a factor without a root."""
        return tuple(p if B is None else B.shape[1] for p, B in zip(self.sizes, self.roots, strict=True))

    def cells_along(self, side: int) -> tuple[Tensor, int]:
        """Numbers of the observed cells (n,) if one side is counted last, and the number of places along all other
        sides."""
        others = [m for m in range(len(self.sizes)) if m != side]
        place = torch.zeros_like(self.cells)
        for m in [*others, side]:
            place = place * self.sizes[m] + self.places[m]
        return place, math.prod(self.sizes[m] for m in others)

    def other_factors(self, side: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The diagonal (p',) of the product of all factors but one, and a function that computes its columns
        (p', index); float64."""
        others = [m for m in range(len(self.sizes)) if m != side]
        sizes = [self.sizes[m] for m in others]
        cells = torch.arange(math.prod(sizes), device=self.device)
        places = unravel(cells, sizes)
        pairs = [(self.factors[m], place) for m, place in zip(others, places, strict=True)]

        def columns(index: Tensor) -> Tensor:
            parts = (factor.between(place, place[index]).to(torch.float64) for factor, place in pairs)
            return reduce(torch.Tensor.mul_, parts)

        variances = (factor.diagonal()[place].to(torch.float64) for factor, place in pairs)
        return reduce(torch.mul, variances), columns

    @cached_property
    def basis(self) -> list[tuple[Tensor, Tensor]]:
        """Eigenvalues (r_i,), none negative, and eigenvectors (p_i, r_i) of every factor, in float64."""
        pairs = []
        for factor, B in zip(self.factors, self.roots, strict=True):
            if B is not None:
                # Columns of a root are scaled eigenvectors.
                values = B.square().sum(0)
                pairs.append((values, B / values.sqrt()))
                continue
            everything = torch.arange(factor.shape[0], device=self.device)
            values, vectors = torch.linalg.eigh(factor.block(everything).to(torch.float64))
            pairs.append((values.clamp_min(0.0), vectors))
        return pairs

    def columns_at_once(self) -> int:
        """Number of columns whose grids, with a few temporaries, fit into half of the budget."""
        return max(1, self.memory // (2 * 4 * 8 * math.prod(self.sizes)))

    def by_reduction(self) -> list[int]:
        """The sides, the strongest reduction by their roots first."""
        return sorted(range(len(self.sizes)), key=lambda side: self.ranks[side] / self.sizes[side])
