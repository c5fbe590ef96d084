"""Stationary kernels at many small sets of points at once: sums, products and scales of radial kernels."""

from __future__ import annotations

from collections.abc import Iterator
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


@torch.no_grad()
def stationary_blocks(kernel: Kernel, points: Tensor) -> Tensor:
    """K of every set of points (g, b, d), float64: (g, b, b). For the kernels that have `stationary_columns`.

    Distances are sums of squared differences, exact for close points. Time O(g b^2 d), memory O(g b^2).
    """
    by_column = points.movedim(-1, 0).contiguous()

    def visit(node: Kernel, columns: Columns, parts: Iterator[Tensor]) -> Tensor:
        if isinstance(node, Scale):
            return next(parts).mul_(node.signal.square().to(points.device))
        seen = list(columns or ())
        if isinstance(node, Gneiting):
            space = squares(seen[:-1], node.kernel.lengthscales(len(seen) - 1, points.device))
            return node.combine(space, squares(seen[-1:], node.timescale.to(points.device)), len(seen) - 1)
        if not isinstance(node, Stationary):
            return reduce(torch.Tensor.add_ if isinstance(node, Sum) else torch.Tensor.mul_, parts)
        sq = squares(seen, node.lengthscales(len(seen), points.device))
        return node.profile(sq, *(p.to(points.device, points.dtype) for p in node.shape_parameters()))

    def squares(seen: list[int], scales: Tensor) -> Tensor:
        """Squared distances (g, b, b) in some columns."""
        sq = points.new_zeros(*points.shape[:2], points.shape[1])
        for column, scale in zip(seen, scales.expand(len(seen)), strict=True):
            x = by_column[column] / scale
            difference = x.unsqueeze(2) - x.unsqueeze(1)
            sq.addcmul_(difference, difference)
        return sq

    return fold(kernel, visit, range(points.shape[2]))
