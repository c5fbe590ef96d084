"""Divide points into compact groups of almost equal size: cut sets of points along their widest column."""

from __future__ import annotations

import torch
from torch import Tensor

# The first division of many points makes 8 to 15 parts, all later ones two. The groups are then at least 8/9 full on
# average; with divisions in two alone they could be half full.
_FIRST_PARTS = 8


def group_nearby_rows(X: Tensor, size: int) -> Tensor:
    """Divide the rows of X (n, d) into groups of at most ``size`` rows: indices (groups, longest group).

    The numbers of rows of two groups differ by at most one. Shorter groups end with the index n in place of a row. Each
    set of rows is sorted by the column in which it is widest and cut into equal parts: first into up to 15 parts, then
    into two. The groups are compact, unlike intervals of a space-filling curve, which can be long or disconnected. Time
    O(n log n log(n / size)), for sorts.
    """
    n, parts = X.shape[0], -(-X.shape[0] // size)
    while parts >= 2 * _FIRST_PARTS:
        parts = -(-parts // 2)
    rows = torch.arange(n, device=X.device).unsqueeze(0)
    counts = torch.tensor([n], device=X.device)
    while rows.shape[1] > size:
        rows, counts = _divide(X, rows, counts, parts)
        parts = 2
    return rows


def _divide(X: Tensor, rows: Tensor, counts: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """Cut every set of rows (sets, longest set) along its widest column into equal parts.

    ``counts``: the number of rows of every set. Return the rows of all parts and their counts.
    """
    n = len(X)
    is_row = rows < n
    points = X[rows.clamp(max=n - 1)]
    widest = (_extreme(points, is_row, 1.0) - _extreme(points, is_row, -1.0)).argmax(1)
    values = points.gather(2, widest.view(-1, 1, 1).expand(-1, points.shape[1], 1)).squeeze(2)
    del points
    rows = rows.gather(1, values.masked_fill_(~is_row, torch.inf).argsort(1))
    number, share, extra = torch.arange(parts, device=X.device), counts // parts, counts % parts
    begin = number * share.unsqueeze(1) + torch.minimum(number, extra.unsqueeze(1))
    lengths = share.unsqueeze(1) + (number < extra.unsqueeze(1))
    offset = torch.arange(-(-rows.shape[1] // parts), device=X.device)
    position = (begin.unsqueeze(2) + offset).clamp(max=rows.shape[1] - 1).flatten(1)
    divided = rows.gather(1, position).view(-1, len(offset))
    counts = lengths.flatten()
    return divided.masked_fill_(offset >= counts.unsqueeze(1), n), counts


def _extreme(points: Tensor, is_row: Tensor, sign: float) -> Tensor:
    """The largest (sign 1) or smallest (sign -1) coordinates of every set, (sets, d), without missing rows."""
    return sign * (sign * points).masked_fill(~is_row.unsqueeze(2), -torch.inf).amax(1)
