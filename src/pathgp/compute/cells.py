"""Nearest points by cells of a regular grid, with sorts and gathers only: for GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# The first points search by ``first``; then the points double, and the new half searches among all.
_FIRST, _GROWTH = 4096, 2
# Points whose neighbours give the first size of the cells; sizes are enlarged by this factor for points that have too
# few points around them.
_SAMPLE, _LARGER = 256, 1.6
# The largest number of distances between these points and the others.
_DISTANCES = 2**26
# Bytes of a candidate: number, coordinates, distance, and what topk makes of them.
_BYTES_PER_CANDIDATE, _AT_ONCE = 96, 2**25


def search_cells(X: Tensor, m: int, memory: int, first: Callable[[Tensor, int, int], Tensor]) -> Tensor:
    """For every row i > m of X (n, d), d <= 3, the m rows j < i nearest to it, in no order: (n - m - 1, m), int32.

    A point looks at its own cell and those around it. It is done if m earlier points are closer than the size of a
    cell; otherwise it looks again at larger cells. Time O(n m log n).
    ``first(X, m, memory)`` searches the first points.
    """
    n = len(X)
    nearest = torch.empty(max(0, n - m - 1), m, dtype=torch.int32, device=X.device)
    a = min(n, max(2 * (m + 1), _FIRST))
    nearest[: max(0, a - m - 1)] = first(X[:a], m, memory)
    while a < n and m:
        b = min(n, _GROWTH * a)
        rows = torch.arange(a, b, device=X.device)
        size = _first_size(X[:b], a, m)
        widest = float((X[:b].amax(0) - X[:b].amin(0)).amax())
        while len(rows):
            cells = _Cells(X[:b], min(size, 2.0 * widest) if widest else 1.0)
            found, is_done = cells.search(rows, m, memory)
            if size > widest:
                is_done[:] = True
            nearest[rows[is_done] - m - 1] = found[is_done]
            rows, size = rows[~is_done], _LARGER * size
        a = b
    return nearest


def search_cells_around(X: Tensor, m: int, memory: int) -> Tensor:
    """For every row of X (n, d), d <= 3, the m <= n rows nearest to it, with itself, in no order: (n, m), int32."""
    nearest = torch.empty(len(X), m, dtype=torch.int32, device=X.device)
    rows = torch.arange(len(X), device=X.device)
    # Distances from a part of the points to all of them.
    size = _first_size(torch.cat([X, X[:: max(1, len(X) // _SAMPLE)]]), len(X), m)
    widest = float((X.amax(0) - X.amin(0)).amax())
    while len(rows):
        found, is_done = _Cells(X, min(size, 2.0 * widest) if widest else 1.0).search(rows, m, memory, earlier=False)
        if size > widest:
            is_done[:] = True
        nearest[rows[is_done]] = found[is_done]
        rows, size = rows[~is_done], _LARGER * size
    return nearest


def _first_size(X: Tensor, a: int, m: int) -> float:
    """Cells around most points that hold their m neighbours, or around the densest tenth in clustered data."""
    count = min(_SAMPLE, len(X) - a, max(8, _DISTANCES // a))
    chosen = torch.linspace(a, len(X) - 1, count, device=X.device).long()
    distance = torch.cdist(X[chosen], X[:a], compute_mode="donot_use_mm_for_euclid_dist")
    farthest = distance.kthvalue(m, dim=1).values.sort().values
    few, most = (float(farthest[int(part * (len(farthest) - 1))]) for part in (0.1, 0.9))
    tiny = torch.finfo(X.dtype).tiny
    return max(min(1.05 * most, 2.5 * few) or most, tiny)


class _Cells:
    """Points (n, d) sorted by the cells of a regular grid with this size."""

    def __init__(self, X: Tensor, size: float) -> None:
        self.X, self.size, self.columns = X, size, X.T.contiguous()
        self.lower = X.amin(0)
        extent = X.amax(0) - self.lower
        # At most 2^20 cells per column, so that the number of a cell fits into 62 bits.
        self.edge = torch.clamp(extent / (2**20 - 4), min=size)
        # A margin on both sides: the neighbours of a cell at the border are cells of the same row.
        self.shape = [int(side) + 3 for side in (extent / self.edge).tolist()]
        keys = self._number(self._cell(X))
        self.keys, self.order = keys.sort()

    def search(self, rows: Tensor, m: int, memory: int, earlier: bool = True) -> tuple[Tensor, Tensor]:
        """The m nearest rows found for each row, (p, m), and whether they are certainly the nearest (p,).

        ``earlier``: only rows before it count.
        """
        start, stop = self._runs(rows)
        counts = stop - start
        total = counts.sum(1)
        found = torch.zeros(len(rows), m, dtype=torch.int32, device=rows.device)
        is_done = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        # Points with about as many candidates together; those with too few wait for larger cells.
        by_count = total.argsort()
        by_count = by_count[int((total < m).sum()) :]
        sorted_totals = total[by_count].cpu()
        limit = max(1, min(_AT_ONCE, memory // (4 * _BYTES_PER_CANDIDATE)))
        begin = 0
        while begin < len(by_count):
            end = _end_of_batch(sorted_totals, begin, limit)
            batch = by_count[begin:end]
            last = rows[batch] if earlier else torch.full_like(batch, len(self.X))
            most = int(sorted_totals[end - 1])
            closest, index = self._nearest(rows[batch], last, start[batch], counts[batch], most, m)
            found[batch] = index
            is_done[batch] = closest <= self.size
            begin = end
        return found, is_done

    def _nearest(
        self, rows: Tensor, last: Tensor, start: Tensor, counts: Tensor, most: int, m: int
    ) -> tuple[Tensor, Tensor]:
        """The distance of the m-th nearest candidate before row ``last`` (p,), and all m of them (p, m)."""
        column = torch.arange(most, device=rows.device)
        position = torch.zeros(len(rows), most, dtype=torch.long, device=rows.device)
        ends = counts.cumsum(1)
        for run in range(counts.shape[1]):
            begin = ends[:, run : run + 1] - counts[:, run : run + 1]
            is_inside = (column >= begin) & (column < ends[:, run : run + 1])
            position = torch.where(is_inside, start[:, run : run + 1] + column - begin, position)
        candidate = self.order[position]
        is_valid = (column < ends[:, -1:]) & (candidate < last.unsqueeze(1))
        square = torch.zeros(position.shape, dtype=self.X.dtype, device=rows.device)
        for values in self.columns:
            difference = values[rows].unsqueeze(1) - values[candidate]
            square.addcmul_(difference, difference)
        nearest = square.masked_fill_(~is_valid, math.inf).topk(m, dim=1, largest=False, sorted=False)
        return nearest.values.amax(1).sqrt(), candidate.gather(1, nearest.indices).to(torch.int32)

    def _cell(self, X: Tensor) -> Tensor:
        """The cell of every point, from 1 on: (n, d)."""
        return ((X - self.lower) / self.edge).long() + 1

    def _number(self, cell: Tensor) -> Tensor:
        number = torch.zeros_like(cell[:, 0])
        for column, side in enumerate(self.shape):
            number = number * side + cell[:, column]
        return number

    def _runs(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Starts and ends (p, 3^(d-1)) of the sorted points in the cells around each row: three cells in a row."""
        cell = self._cell(self.X[rows])
        steps = torch.tensor([-1, 0, 1], device=rows.device)
        starts, stops = [], []
        dims = cell.shape[1] - 1
        offsets = torch.cartesian_prod(*([steps] * dims)).view(-1, dims) if dims else steps.new_zeros(1, 0)
        for offset in offsets:
            around = cell.clone()
            around[:, :dims] += offset
            number = self._number(around)
            starts.append(torch.searchsorted(self.keys, number - 1))
            stops.append(torch.searchsorted(self.keys, number + 1, right=True))
        return torch.stack(starts, 1), torch.stack(stops, 1)


def _end_of_batch(totals: Tensor, begin: int, limit: int) -> int:
    """The end of a batch of sorted counts whose padded candidates stay below the limit; at least one row."""
    low, high = begin + 1, len(totals)
    while low < high:
        middle = (low + high + 1) // 2
        if (middle - begin) * int(totals[middle - 1]) <= limit:
            low = middle
        else:
            high = middle - 1
    return low
