"""Windows W (points, nodes) of points on a grid: sparse matrices on a CPU, dense tiles on a GPU.

Both have `spread`, W^T V, and `gather`, W G. Points are sorted by their nodes, so that those which are multiplied
together share a small part of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pathgp.compute.memory import spans
from pathgp.operators.field.grid import Grid

# Entries of the windows of the points that are multiplied together on a CPU.
_ENTRIES = 2**22
# Windows are kept if they fit into this share of the budget; only their values if indices of four bytes do not fit.
_KEPT_SHARE, _INDEX_BYTES = 0.25, 4
# Numbers that a GPU holds for the tiles which it multiplies together.
_NUMBERS_GPU = 2**27
# Edges of tiles in steps of the grid, and points of a tile, that are tried.
_EDGES, _POINTS = (1, 2, 4, 8, 16), (1, 4, 16, 32, 64, 128)
# The time to add a number to the grid, in multiplications of a matrix product.
_ADDITION = 400.0


def place_points(grid: Grid, X: Tensor, memory: int) -> SparseWindows | TiledWindows:
    """The windows of points X (n, d) on a grid; ``memory``: budget in bytes."""
    return SparseWindows(grid, X, memory) if X.device.type == "cpu" else TiledWindows(grid, X, memory)


class SparseWindows:
    """Windows as sparse matrices, one for each group of consecutive points and the part of the grid that they reach.

    O(n w^d) time per column, for windows of w nodes per dimension. The matrices, or at least their values, are kept if
    they fit into a quarter of the memory budget, and otherwise made in every product.
    """

    def __init__(self, grid: Grid, X: Tensor, memory: int) -> None:
        self.grid, self.count = grid, len(X)
        corner, weights = grid.place(X)
        first = grid.number(corner)
        self.order = first.argsort()
        self.first, self.weights = first[self.order], [own[self.order] for own in weights]
        self.groups = list(spans(self.count, max(1, _ENTRIES // grid.window)))
        entries, limit = self.count * grid.window, _KEPT_SHARE * memory
        self.values: list[Tensor] | None = None
        self.kept: list[tuple[int, Any]] | None = None
        if entries * X.element_size() <= limit:
            self.values = [self._values(number) for number in range(len(self.groups))]
        if entries * (X.element_size() + _INDEX_BYTES) <= limit:
            self.kept = [self._window(number) for number in range(len(self.groups))]

    def spread(self, V: Tensor) -> Tensor:
        """W^T V for values V (points, s): (s, nodes)."""
        # One column after the other: products with several are two to five times slower per column.
        columns = V.detach()[self.order].T.contiguous()
        G = V.new_zeros(len(columns), self.grid.places)
        for group, (start, W) in self._windows():
            for own, values in zip(G, columns, strict=True):
                own[start : start + W.shape[1]] += torch.from_numpy(W.T @ values[group].numpy())
        return G

    def gather(self, G: Tensor) -> Tensor:
        """W G for values G (s, nodes): (points, s)."""
        columns = G.new_empty(len(G), self.count)
        for group, (start, W) in self._windows():
            for own, values in zip(columns, G, strict=True):
                own[group] = torch.from_numpy(W @ values[start : start + W.shape[1]].numpy())
        return G.new_empty(self.count, len(G)).index_copy_(0, self.order, columns.T)

    def _windows(self) -> Iterator[tuple[slice, tuple[int, Any]]]:
        windows = map(self._window, range(len(self.groups))) if self.kept is None else self.kept
        return zip(self.groups, windows, strict=True)

    def _window(self, number: int) -> tuple[int, Any]:
        """The first node that a group of points reaches, and their windows on the nodes from there on."""
        from scipy.sparse import csr_matrix  # `import pathgp` does not wait for it

        first, offsets = self.first[self.groups[number]], self.grid.offsets()
        start, count = int(first[0]), len(first)
        index = (first - start).to(torch.int32).unsqueeze(1) + offsets.to(torch.int32)
        values = self._values(number) if self.values is None else self.values[number]
        rows = np.arange(0, index.numel() + 1, len(offsets), dtype=np.int32)
        shape = (count, int(first[-1] + offsets[-1]) + 1 - start)
        return start, csr_matrix((values.numpy(), index.flatten().numpy(), rows), shape=shape, copy=False)

    def _values(self, number: int) -> Tensor:
        """The entries of the windows of a group, one point after the other."""
        return outer_rows([own[self.groups[number]] for own in self.weights]).flatten()


class TiledWindows:
    """Windows as dense matrices of up to P points and the nodes of a tile of the grid.

    All windows that begin in a cube of T nodes per dimension lie in a tile of E = T + w - 1. With D_k (P, E) the
    points' weights in dimension k, a tile receives (D_1 x D_2)^T (D_3 x V), a matrix product; x: products of all
    entries of a row. This takes n E^d multiplications per column, but only n E^d / P additions to the grid, which are
    what takes time on a GPU. T and P are chosen for the smallest predicted time.
    """

    def __init__(self, grid: Grid, X: Tensor, memory: int) -> None:
        self.grid, self.count = grid, len(X)
        self.numbers = min(_NUMBERS_GPU, memory // 32)
        corner, weights = grid.place(X)
        self.edge, self.points = self._choose(corner)
        cube = corner // self.edge
        number = grid.number(cube)
        self.order = number.argsort()
        self.inside = (corner - cube * self.edge)[self.order]
        self.weights = [own[self.order] for own in weights]
        counts = torch.unique_consecutive(number[self.order], return_counts=True)[1]
        starts, tiles = counts.cumsum(0) - counts, self._tiles(counts, self.points)
        cubes = torch.arange(len(tiles), device=X.device).repeat_interleave(tiles)
        place = torch.arange(len(cubes), device=X.device) - (tiles.cumsum(0) - tiles)[cubes]
        # The first point of every tile, and the end of its cube.
        self.starts = starts[cubes] + place * self.points
        self.ends = torch.minimum((starts + counts)[cubes], self.starts + self.points)
        self.corner = (cube * self.edge)[self.order][self.starts]

    def spread(self, V: Tensor) -> Tensor:
        """W^T V for values V (points, s): (s, nodes)."""
        s = V.shape[1]
        V = pad(V[self.order], (0, 0, 0, 1))
        G = V.new_zeros(self.grid.places, s)
        for index, nodes, left, last in self._windows(s):
            right = (last.unsqueeze(3) * V[index].unsqueeze(2)).flatten(2)
            G.index_add_(0, nodes, torch.bmm(left.mT, right).view(-1, s))
        return G.T.contiguous()

    def gather(self, G: Tensor) -> Tensor:
        """W G for values G (s, nodes): (points, s)."""
        s, G = len(G), G.T.contiguous()
        found = G.new_empty(self.count + 1, s)
        for index, nodes, left, last in self._windows(s):
            tiles = G[nodes].view(len(index), left.shape[2], -1)
            values = torch.bmm(left, tiles).view(*last.shape, s)
            found[index] = (last.unsqueeze(3) * values).sum(2)
        return torch.empty_like(found[:-1]).index_copy_(0, self.order, found[:-1])

    def _windows(self, s: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Tiles, a part of them at a time: the numbers (c, P) of their points, n for none; their nodes (c E^d,); the
        weights of their points in all dimensions but the last, (c, P, E^(d-1)), and in the last one, (c, P, E)."""
        device, E = self.starts.device, self.edge + self.weights[0].shape[1] - 1
        each = self.points * E * s + E ** len(self.grid.shape) * (s + 2) + self.points * E**2
        side = torch.arange(E, device=device)
        for part in spans(len(self.starts), max(1, self.numbers // each)):
            index = self.starts[part].unsqueeze(1) + torch.arange(self.points, device=device)
            is_point = index < self.ends[part].unsqueeze(1)
            index = index.where(is_point, self.count)
            at = index.clamp(max=self.count - 1)
            dense = []
            for weights, inside in zip(self.weights, self.inside.unbind(1), strict=True):
                own = weights.new_zeros(*index.shape, E)
                places = inside[at].unsqueeze(2) + torch.arange(weights.shape[1], device=device)
                dense.append(own.scatter_(2, places, weights[at]))
            dense[-1] *= is_point.unsqueeze(2)
            nodes = torch.zeros(len(index), 1, dtype=torch.long, device=device)
            for corner, size in zip(self.corner[part].unbind(1), self.grid.box, strict=True):
                own = (corner.unsqueeze(1) + side) % size
                nodes = (nodes.unsqueeze(2) * size + own.unsqueeze(1)).flatten(1)
            left = outer_rows([dense[-1].new_ones(index.numel(), 1), *(own.flatten(0, 1) for own in dense[:-1])])
            yield index, nodes.flatten(), left.view(*index.shape, -1), dense[-1]

    def _choose(self, corner: Tensor) -> tuple[int, int]:
        """The edge of a tile and its number of points with the smallest predicted time."""
        costs = {}
        for edge in _EDGES:
            number = self.grid.number(corner // edge)
            counts = torch.unique(number, return_counts=True)[1]
            nodes = (edge + max(1, self.grid.width) - 1) ** len(self.grid.shape)
            for points in _POINTS:
                costs[edge, points] = int(self._tiles(counts, points).sum()) * nodes * (points + _ADDITION)
        return min(costs, key=lambda pair: costs[pair])

    @staticmethod
    def _tiles(counts: Tensor, points: int) -> Tensor:
        """The number of tiles of every cube."""
        return (counts + points - 1) // points


def outer_rows(parts: list[Tensor]) -> Tensor:
    """Products of all entries of corresponding rows: (n, w) of each part to (n, w^k), the last one fastest."""
    return reduce(lambda left, right: (left.unsqueeze(2) * right.unsqueeze(1)).flatten(1), parts)
