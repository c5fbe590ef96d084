"""Stationary kernels as functions of differences: at many small sets of points, or with other profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from pathgp.kernels.algebra import Scale, Sum
from pathgp.kernels.base import Kernel
from pathgp.kernels.expression import Columns, fold, leaves
from pathgp.kernels.gneiting import Gneiting
from pathgp.kernels.stationary import Stationary


def stationary_columns(kernel: Kernel, dim: int) -> set[int] | None:
    """The columns that a kernel sees of inputs with ``dim`` columns; None if it is not a function of differences."""
    parts = leaves(kernel, range(dim))
    if not all(isinstance(part, Stationary | Gneiting) for part, _ in parts):
        return None
    return {column for _, columns in parts for column in columns}


def stationary_values(
    kernel: Kernel, differences: Sequence[Tensor], profile: Callable[[Stationary, Tensor], Tensor]
) -> Tensor:
    """k at differences of inputs, one tensor per column, for the kernels that have `stationary_columns`.

    ``profile(leaf, squared scaled distances)``: the value of an elementary kernel. Differentiable if it is.
    """

    def visit(node: Kernel, columns: Columns, parts: Iterator[Tensor]) -> Tensor:
        if isinstance(node, Scale):
            value = next(parts)
            return value * node.signal.square().to(value)
        if isinstance(node, Gneiting):
            *space, time = (differences[column] for column in columns or ())
            time = (time / node.timescale.to(time)).square()
            return node.combine(squared_length(node.kernel, space), time, len(space))
        if not isinstance(node, Stationary):
            return reduce(torch.add if isinstance(node, Sum) else torch.mul, parts)
        return profile(node, squared_length(node, [differences[column] for column in columns or ()]))

    return fold(kernel, visit, range(len(differences)))


def squared_length(leaf: Stationary, differences: Sequence[Tensor]) -> Tensor:
    """Squared distances in length scales from the differences in the columns that a kernel sees, a fresh tensor."""
    scales = leaf.lengthscales(len(differences), differences[0].device).to(differences[0].dtype)
    scaled = [
        difference / scale for difference, scale in zip(differences, scales.expand(len(differences)), strict=True)
    ]
    sq = scaled[0] * scaled[0]
    for part in scaled[1:]:
        sq = torch.addcmul(sq, part, part)
    return sq


def stationary_blocks(kernel: Kernel, points: Tensor) -> Tensor:
    """K of every set of points (g, b, d), float64: (g, b, b). For the kernels that have `stationary_columns`.

    Distances are sums of squared differences, exact for close points. Differentiable in the hyperparameters. Time
    O(g b^2 d), memory O(g b^2).
    """
    columns = points.movedim(-1, 0).contiguous()
    differences = [x.unsqueeze(2) - x.unsqueeze(1) for x in columns]
    return stationary_values(kernel, differences, lambda leaf, sq: leaf.radial(sq))
