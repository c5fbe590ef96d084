"""Points in blocks of neighbours, and the pairs of blocks that are close to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pathgp.compute.memory import spans

# Blocks that a coarser block combines, and pairs of blocks that are compared together.
_FAN_OUT, _AT_ONCE = 16, 2**22

Distance = Callable[[Tensor], Tensor]
"""Gaps between boxes (pairs, d) -> whether the boxes are close (pairs,)."""


class Boxes(NamedTuple):
    """Bounding boxes of blocks of points: lower and upper corners (blocks, d)."""

    lower: Tensor
    upper: Tensor

    def coarsen(self) -> Boxes:
        """Boxes of `_FAN_OUT` consecutive blocks each."""
        count = -(-len(self.lower) // _FAN_OUT)
        missing = count * _FAN_OUT - len(self.lower)
        parts = (torch.cat([corner, corner[-1:].expand(missing, -1)]) for corner in self)
        lower, upper = (part.view(count, _FAN_OUT, -1) for part in parts)
        return Boxes(lower.amin(1), upper.amax(1))


def bounding_boxes(blocks: Tensor) -> Boxes:
    """Boxes of blocks of points (blocks, b, d)."""
    return Boxes(blocks.amin(1), blocks.amax(1))


def close_pairs(rows: Boxes, columns: Boxes, is_close: Distance, symmetric: bool = False) -> Tensor:
    """Numbers (pairs, 2) of a row block and a column block that are close, sorted by row.

    ``symmetric``: rows and columns are the same; only pairs with row <= column are returned. Boxes are compared from
    coarse to fine, so that the time is in proportion to the result, and n log n.
    """
    if max(len(rows.lower), len(columns.lower)) <= _FAN_OUT:
        device = rows.lower.device
        parents = torch.cartesian_prod(
            torch.arange(len(rows.lower), device=device), torch.arange(len(columns.lower), device=device)
        )
        return _select(rows, columns, parents, is_close, symmetric)
    coarse = close_pairs(rows.coarsen(), columns.coarsen(), is_close, symmetric)
    found = [
        _select(rows, columns, children, is_close, symmetric)
        for children in _children(coarse, len(rows.lower), len(columns.lower))
    ]
    pairs = torch.cat(found) if found else coarse[:0]
    return pairs[(pairs[:, 0] * len(columns.lower) + pairs[:, 1]).argsort()]


def _children(coarse: Tensor, rows: int, columns: int) -> Iterator[Tensor]:
    """The pairs of blocks inside pairs of coarser blocks, some of them at a time."""
    offsets = torch.arange(_FAN_OUT, device=coarse.device)
    inside = torch.cartesian_prod(offsets, offsets)
    for part in spans(len(coarse), max(1, _AT_ONCE // _FAN_OUT**2)):
        pairs = (coarse[part].unsqueeze(1) * _FAN_OUT + inside).flatten(0, 1)
        yield pairs[(pairs[:, 0] < rows) & (pairs[:, 1] < columns)]


def _select(rows: Boxes, columns: Boxes, pairs: Tensor, is_close: Distance, symmetric: bool) -> Tensor:
    if symmetric:
        pairs = pairs[pairs[:, 0] <= pairs[:, 1]]
    i, j = pairs.unbind(1)
    gap = torch.maximum(rows.lower[i] - columns.upper[j], columns.lower[j] - rows.upper[i]).clamp_min(0.0)
    return pairs[is_close(gap)]
