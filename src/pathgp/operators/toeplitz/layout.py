"""Rows of a table as cells of sites x times: one column has equally spaced values (times), the others are a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathgp.compute.distinct import label_distinct_rows
from pathgp.kernels import Kernel, Periodic
from pathgp.kernels.expression import leaves
from pathgp.kernels.gneiting import Gneiting
from pathgp.kernels.sphere import CIRCLE, Sphere
from pathgp.kernels.stationary import Stationary
from pathgp.operators.field.window import good_size
from pathgp.operators.spacing import Spacing, find_spacing

# Largest number of cells per row of the table: with more empty cells, transforms take too long.
_CELLS_PER_ROW = 16
# The circle of longitudes is closed if it is a whole number of steps, up to this part of a step.
_CLOSED = 1e-3


@dataclass(frozen=True)
class Layout:
    """Rows as cells of p sites x T times.

    Longitudes can be the times, with parallels as sites, because K depends on differences of longitudes alone.

    column: index of the column of times.
    step: distance of two times.
    times: the number T of times.
    sites: inputs of the sites (p, d), with time zero.
    cell: the cell of every row (n,), as index of the time * p + index of the site.
    is_unique: no two rows share a cell.
    is_closed: the times are the longitudes of the whole circle.
    """

    column: int
    step: float
    times: int
    sites: Tensor
    cell: Tensor
    is_unique: bool
    is_closed: bool

    @property
    def is_complete(self) -> bool:
        """Whether every cell has one row."""
        return self.is_unique and len(self.cell) == self.times * len(self.sites)

    @property
    def size(self) -> int:
        """The number N of times of a period: T for a circle, otherwise at least 2 T - 1, so that all lags differ."""
        return self.times if self.is_closed else good_size(2 * self.times - 1)

    @property
    def lags(self) -> int:
        """The number of different lags of two times."""
        return self.times // 2 + 1 if self.is_closed else self.times

    @property
    def frequencies(self) -> int:
        return self.size // 2 + 1

    @property
    def entries(self) -> int:
        """Numbers that represent K: a symmetric matrix of all sites for every frequency."""
        return self.frequencies * len(self.sites) ** 2

    def restrict(self, rows: slice) -> Layout:
        """The layout of a part of the rows, with the same times, and without the sites of other rows."""
        time, site = self.cell[rows] // len(self.sites), self.cell[rows] % len(self.sites)
        kept, site = site.unique(return_inverse=True)
        cell = time * len(kept) + site
        return replace(self, sites=self.sites[kept], cell=cell, is_unique=len(cell.unique()) == len(cell))

    def at_lags(self, sites: Tensor) -> Tensor:
        """Inputs of sites (q, d) at all lags, (lags q, d), lag by lag."""
        lags = self.step * torch.arange(self.lags, dtype=torch.float64, device=sites.device)
        points = sites.repeat(self.lags, 1)
        points[:, self.column] = lags.repeat_interleave(len(sites)).to(sites.dtype)
        return points


def candidate_columns(kernel: Kernel, dim: int) -> tuple[list[int], list[int]]:
    """The columns in which a kernel is an even function of differences alone, and all columns that it depends on."""
    parts = leaves(kernel, range(dim))
    seen = {column for _, columns in parts for column in columns}
    other = {column for part, columns in parts for column in columns if column not in _by_difference(part, columns)}
    return sorted(seen - other), sorted(seen)


def structure_key(kernel: Kernel, dim: int) -> tuple[tuple[int, ...], ...]:
    """What layouts of inputs with ``dim`` columns depend on: `candidate_columns`, and which of them are longitudes."""
    candidates, seen = candidate_columns(kernel, dim)
    return tuple(candidates), tuple(seen), tuple(c for c in candidates if _is_longitude(kernel, dim, c))


def _by_difference(part: Kernel, columns: tuple[int, ...]) -> tuple[int, ...]:
    """The columns of an elementary kernel in which it is an even function of differences."""
    if isinstance(part, Stationary | Gneiting | Periodic):
        return columns
    # Latitude comes first, then longitude.
    return columns[1:] if isinstance(part, Sphere) else ()


def _is_longitude(kernel: Kernel, dim: int, column: int) -> bool:
    """Whether a kernel uses a column only as longitude, in degrees."""
    return all(isinstance(part, Sphere) for part, columns in leaves(kernel, range(dim)) if column in columns)


def find_layouts(kernel: Kernel, X: Tensor) -> list[Layout]:
    """The layouts of rows X (n, d) by each regular column of at least two values, fewest entries first."""
    if X.is_sparse or X.layout != torch.strided:
        return []
    candidates, seen = candidate_columns(kernel, X.shape[1])
    layouts = []
    for column in candidates:
        spacing = find_spacing(X[:, column], _CELLS_PER_ROW * len(X))
        if spacing is not None and spacing.count > 1:
            others = [other for other in seen if other != column]
            layout = _lay_out(X, column, spacing, others, _is_longitude(kernel, X.shape[1], column))
            if layout is not None:
                layouts.append(layout)
    return sorted(layouts, key=lambda layout: layout.entries)


def _lay_out(X: Tensor, column: int, spacing: Spacing, others: Sequence[int], is_longitude: bool) -> Layout | None:
    """The layout with one column as times; None if it has more than 16 cells per row."""
    site, first = label_distinct_rows(X[:, list(others)])
    p, times, step, time = len(first), spacing.count, spacing.step, spacing.index(X[:, column])
    circle = round(CIRCLE / step)
    is_whole = circle % 2 == 0 and abs(CIRCLE / step - circle) < _CLOSED
    # `multiplicities` needs an even number. Of less than half a circle the periodic extension is shorter.
    is_closed = is_longitude and is_whole and circle < 2 * times
    if is_closed:
        times, step, time = circle, CIRCLE / circle, time % circle
    if p * times > _CELLS_PER_ROW * len(X):
        return None
    sites = X[first].clone()
    sites[:, column] = 0.0
    cell = time * p + site
    is_unique = len(cell.unique()) == len(cell)
    return Layout(column, step, times, sites, cell, is_unique, is_closed)
