"""Nearest points: for every point of a sequence, the nearest of all, or the nearest of those before it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathgp.compute.cells import search_cells, search_cells_around
from pathgp.compute.memory import spans
from pathgp.compute.threads import count_threads

# A k-d tree holds a prefix of the points, the next one this factor more. Points that search a tree then find few later
# ones, which do not count. The first points, this number of them, search among each other.
_GROWTH, _FIRST = 1.5, 1024
# Points that search a tree together, and bytes of a tile per pair: distances, indices, and what topk makes of them.
_AT_ONCE, _BYTES_PER_PAIR = 2**14, 48
# The largest number of pairs of a tile.
_LARGEST_TILE = 2**27


def search_tree(points: NDArray[np.floating]) -> Any:
    """A k-d tree of SciPy for points (n, d)."""
    from scipy.spatial import cKDTree  # `import pathgp` does not wait for it

    return cKDTree(points)


def earlier_neighbours(X: Tensor, m: int, memory: int) -> Tensor:
    """For every row i > m of X (n, d), the m rows j < i nearest to it, in no order: (n - m - 1, m), on X's device.

    Time O(n m log n): by k-d trees on a CPU, elsewhere by cells; from four columns on O(n^2) by tiles of distances.
    Memory O(n m), and a quarter of ``memory`` in bytes for cells or tiles.
    """
    if X.device.type == "cpu":
        return _search_trees(X, m, memory)
    return search_cells(X, m, memory, search_tiles) if X.shape[1] <= 3 else search_tiles(X, m, memory)


def nearest_neighbours(X: Tensor, m: int, memory: int, count: int | None = None) -> Tensor:
    """For every row of X (n, d), the m <= n rows nearest to it, itself among them, in no order: (n, m).

    ``count``: return the neighbours of the first rows only, (count, m). Time O(n m log n): by a k-d tree on a CPU,
    elsewhere by cells; few points, and more than three columns, by tiles.
    """
    n = len(X)
    if X.device.type == "cpu":
        # A list of neighbours: a single one would be a vector.
        targets = X[:count].numpy()
        found = search_tree(X.numpy()).query(targets, k=range(1, m + 1), workers=count_threads(X.device))[1]
        return torch.from_numpy(found).to(torch.int32)
    search = search_cells_around if X.shape[1] <= 3 and n > _FIRST else search_tiles_around
    return search(X, m, memory)[:count]


def search_tiles_around(X: Tensor, m: int, memory: int) -> Tensor:
    """`nearest_neighbours` by the distances of all pairs, some rows at a time."""
    n = len(X)
    nearest = torch.empty(n, m, dtype=torch.int32, device=X.device)
    for part in spans(n, max(1, min(_LARGEST_TILE, memory // (4 * _BYTES_PER_PAIR)) // n)):
        distance = torch.cdist(X[part], X, compute_mode="donot_use_mm_for_euclid_dist")
        nearest[part] = distance.topk(m, dim=1, largest=False, sorted=False).indices.to(torch.int32)
    return nearest


def _search_trees(X: Tensor, m: int, memory: int) -> Tensor:
    """Rows of [a, b) search in a tree of the rows before b, for more than m rows: some of those found come later."""
    points, n = X.numpy(), len(X)
    nearest = torch.empty(max(0, n - m - 1), m, dtype=torch.int32)
    a = min(n, max(m + 1, _FIRST))
    nearest[: a - m - 1] = search_tiles(X[:a], m, memory)
    while a < n and m:
        b = min(n, math.ceil(_GROWTH * a))
        tree = search_tree(points[:b])
        # The number of earlier rows among k is about k a / b or more.
        k = math.ceil((m + 2.0 * math.sqrt(m)) * b / a) + 2
        for part in spans(b - a, _AT_ONCE):
            rows, count = torch.arange(a + part.start, a + part.stop), min(k, b)
            while len(rows):
                # A list of neighbours: a single one would be a vector.
                found = tree.query(points[rows.numpy()], k=range(1, count + 1), workers=count_threads(X.device))[1]
                is_earlier = (index := torch.from_numpy(found)) < rows.unsqueeze(1)
                rank = is_earlier.cumsum(1, dtype=torch.int32)
                is_complete = rank[:, -1] >= m
                chosen = (is_earlier & (rank <= m))[is_complete]
                nearest[rows[is_complete] - m - 1] = index[is_complete][chosen].view(-1, m).to(torch.int32)
                rows, count = rows[~is_complete], min(2 * count, b)
        a = b
    return nearest


def search_tiles(X: Tensor, m: int, memory: int) -> Tensor:
    """The same by tiles of squared distances, on any device."""
    n = len(X)
    nearest = torch.empty(max(0, n - m - 1), m, dtype=torch.int32, device=X.device)
    pairs = max(1, min(_LARGEST_TILE, memory // (4 * _BYTES_PER_PAIR)))
    width = max(m + 1, math.isqrt(pairs))
    for part in spans(len(nearest), max(1, pairs // (width + m))):
        rows = torch.arange(part.start, part.stop, device=X.device) + m + 1
        closest = torch.full((len(rows), m), math.inf, dtype=X.dtype, device=X.device)
        index = torch.zeros(len(rows), m, dtype=torch.int32, device=X.device)
        for columns in spans(part.stop + m, width):
            # Sums of squared differences: close points lose no digits.
            distance = torch.cdist(X[rows], X[columns], compute_mode="donot_use_mm_for_euclid_dist")
            numbers = torch.arange(columns.start, columns.stop, dtype=torch.int32, device=X.device)
            distance.masked_fill_(numbers >= rows.unsqueeze(1), math.inf)
            closest, best = torch.cat([closest, distance], 1).topk(m, dim=1, largest=False, sorted=False)
            index = torch.cat([index, numbers.expand(len(rows), -1)], 1).gather(1, best)
        nearest[part] = index
    return nearest
