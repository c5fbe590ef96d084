"""Arrays on a grid: vectors on its cells, and matrices applied along its sides."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pathgp.operators.base import Operator


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

    Tensors are multiplied in place, one product for each place along the sides before; nothing is copied.
    """
    shape = grid.shape
    before, after = shape[:side], shape[side + 1 :]
    if isinstance(matrix, Tensor):
        batch = math.prod(before)
        product = torch.bmm(matrix.expand(batch, *matrix.shape), grid.reshape(batch, shape[side], math.prod(after)))
    else:
        product = (matrix @ unfold(grid, side)).view(matrix.shape[0], *before, *after).movedim(0, side)
    return product.reshape(*before, matrix.shape[0], *after)


def multiply_sides(matrices: Sequence[Operator | Tensor | None], grid: Tensor) -> Tensor:
    """One matrix (m_i, p_i), or None, applied along every side of a grid (p_1, ..., p_k, s): (m_1, ..., m_k, s)."""
    for side, matrix in enumerate(matrices):
        grid = grid if matrix is None else multiply_side(matrix, side, grid)
    return grid
