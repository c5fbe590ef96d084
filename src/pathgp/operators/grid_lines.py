"""Inverses along the lines of a grid: a preconditioner for the system of its holes (see `GridInverse`)."""

from __future__ import annotations

import math
from functools import reduce

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.operators.base import Solve
from pathgp.operators.grid_base import GridOperator, multiply_sides, unravel

# The largest block. A line with more holes is divided into blocks of consecutive ones.
_LARGEST = 512
# Added to the diagonal of every block of I - U D U^T, whose smallest eigenvalues are of the order of rounding errors if
# the noise is tiny.
_JITTER = 1e-13


def invert_lines(H: GridOperator, D: Tensor) -> Solve:
    """The sum over all sides of the inverses of the blocks of I - U D U^T at the holes of each line along the side.

    A line is the set of cells with equal places along all sides but one. The block of a line along side j with places
    i_m along the others is I - U_j[h] diag(a) U_j[h]^T at its holes h, with a = D multiplied along every side m != j by
    the squares of row i_m of U_m. The result maps R (m, s) at the m holes of H to a tensor of the same shape, and is
    symmetric positive definite.

    ``D``: values on the grid of the eigenvectors `GridOperator.basis` (r_1, ..., r_k), float64.
    Time O(m b r + m b^2) for blocks of b holes, and O(m b s) per application; memory O(m b).
    """
    places = unravel(H.holes, H.sizes)
    solves = [_invert_side(H, D, side, places) for side in range(len(H.sizes)) if H.sizes[side] > 1]
    return lambda R: reduce(torch.add, (solve(R) for solve in solves))


def _invert_side(H: GridOperator, D: Tensor, side: int, places: list[Tensor]) -> Solve:
    """The inverses of the blocks of all lines along one side."""
    vectors = H.basis[side][1]
    lines, index = _divide(H, side, places)
    squares = [None if m == side else vectors_m.square() for m, (_, vectors_m) in enumerate(H.basis)]
    weights = multiply_sides(squares, D.unsqueeze(-1)).squeeze(-1).movedim(side, -1).reshape(-1, D.shape[side])
    # Entries that pad a block have a row of zeros, and so the block of the identity.
    along = torch.cat([places[side], places[side].new_full((1,), H.sizes[side])])
    padded = torch.cat([vectors, torch.zeros_like(vectors[:1])])
    b = index.shape[1]
    inverses = vectors.new_empty(len(index), b, b)
    for part in spans(len(index), max(1, H.memory // (32 * 8 * b * (b + D.shape[side])))):
        V = padded[along[index[part]]]
        blocks = -(V * weights[lines[part]].unsqueeze(1)) @ V.mT
        blocks.diagonal(dim1=1, dim2=2).add_(1.0 + _JITTER)
        inverses[part] = torch.cholesky_inverse(torch.linalg.cholesky(blocks))

    def solve(R: Tensor) -> Tensor:
        m, s = R.shape
        gathered = torch.cat([R, R.new_zeros(1, s)])[index]
        result = R.new_zeros(m + 1, s)
        return result.index_copy_(0, index.flatten(), torch.bmm(inverses, gathered).flatten(0, 1))[:m]

    return solve


def _divide(H: GridOperator, side: int, places: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Divide the holes into blocks of lines along a side: the line of every block (blocks,) and the numbers of its
    holes (blocks, b), padded by the number of all holes."""
    line = torch.zeros_like(H.holes)
    for m, p in enumerate(H.sizes):
        line = line if m == side else line * p + places[m]
    order = line.argsort(stable=True)
    _, counts = line[order].unique_consecutive(return_counts=True)
    # Memory for the inverses of all blocks: a part of the budget.
    affordable = max(1, H.memory // (16 * 8 * len(H.holes)))
    b = min(int(counts.max()), _LARGEST, affordable)
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    position = torch.arange(len(order), device=order.device) - starts
    block = (line[order] * math.ceil(H.sizes[side] / b) + position // b).unique_consecutive(return_inverse=True)[1]
    index = torch.full((int(block[-1]) + 1, b), len(order), device=order.device)
    index[block, position % b] = order
    return line[index[:, 0]], index
