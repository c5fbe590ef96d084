"""Distinct rows of a matrix, and matrices whose rows are pairs of few sites and few values of one column."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Largest number of pairs (site, value) per row of X: with more, over three quarters of the pairs would not occur in X.
_PAIRS_PER_ROW = 4
# The least number of rows of X per site or value. A column with two values has pairs, too, but as many sites as rows.
_ROWS_PER_SITE = 4


def label_distinct_rows(points: Tensor) -> tuple[Tensor, Tensor]:
    """Label equal rows of points (n, c) with equal numbers: the labels (n,), and the first row with each label (p,).

    Time O(n (c + log n)), unless different rows have equal weighted sums.
    """
    n = len(points)
    # Sort weighted sums of the columns, which takes less time than sorting rows. Equal rows have equal sums. Different
    # rows rarely do; the check below finds them, and then rows are sorted.
    key = torch.zeros(n, dtype=torch.float64, device=points.device)
    for column, values in enumerate(points.to(torch.float64).unbind(1)):
        key += values * (column + 2.0) ** 0.5
    label = key.unique(return_inverse=True)[1]
    first = _first_rows(label)
    if bool((points != points[first[label]]).any()):
        label = points.unique(dim=0, return_inverse=True)[1]
        first = _first_rows(label)
    return label, first


def _first_rows(label: Tensor) -> Tensor:
    """The first row with each label."""
    counts = torch.bincount(label)
    return label.argsort(stable=True)[counts.cumsum(0) - counts]


class Combination(NamedTuple):
    """Rows X (n, d) as pairs of a site and a value: the value of one column, and the site, the other columns together.

    column: index of the column of values.
    values: its distinct values (t,).
    sites: index of the first row of X at every site (p,).
    cell: the pair of every row (n,), as index of the site * t + index of the value.
    """

    column: int
    values: Tensor
    sites: Tensor
    cell: Tensor


def find_combination(X: Tensor) -> Combination | None:
    """Write the rows X (n, d) as pairs of few sites and few values of one column, such as stations and times.

    The column with the fewest values for which there are at most four pairs per row, and at least four rows per site
    or value; None if there is none. Time O(d n (d + log n)).
    """
    n, candidates = len(X), []
    for column, values in enumerate(X.unbind(1)):
        distinct, index = values.unique(return_inverse=True)
        if 1 < len(distinct) <= n // 2:
            candidates.append((column, distinct, index))
    for column, distinct, index in sorted(candidates, key=lambda candidate: len(candidate[1])):
        others = [other for other in range(X.shape[1]) if other != column]
        site, first = label_distinct_rows(X[:, others])
        p, t = len(first), len(distinct)
        if p * t <= _PAIRS_PER_ROW * n and _ROWS_PER_SITE * (p + t) <= n:
            return Combination(column, distinct, first, site * len(distinct) + index)
    return None
