"""A regular grid around points, and the part of K that it represents, multiplied by Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.compute.threads import count_threads, run_separately
from pathgp.operators.field.transform import BandTransform, count_signs, fold, invert_even, mirror, transform_even
from pathgp.operators.field.window import levelling, window_spectrum, window_weights

# Nodes at which a kernel is evaluated together.
_NODES = 2**20
# Steps of the grid per unit of beta in which lags level off: their spectrum ends at 0.8 of the grid's band, pi / 2 per
# step.
LEVEL = 2.0 / (0.8 * math.pi / 2.0)
# Share of the budget for columns on the grid that are transformed together: on a GPU few columns at a time are slow.
_BATCH_SHARE, _BATCH_SHARE_GPU = {"cpu": 0.25}, 0.5


@dataclass(frozen=True)
class Grid:
    """A periodic regular grid.

    columns: those of X that it spans.  lower: coordinates of the first node.  steps: distances of nodes.  shape: number
    of nodes.  width: nodes per dimension of a point's window; 0 if the points are nodes.  extent: the largest lag of
    two points, in steps, or half of the shape if the kernel vanishes before lags wrap around.  box: number of nodes,
    from the first one on, in which all windows lie; the numbers of nodes are those in the box.
    """

    columns: tuple[int, ...]
    lower: tuple[float, ...]
    steps: tuple[float, ...]
    shape: tuple[int, ...]
    width: int
    extent: tuple[float, ...]
    box: tuple[int, ...]

    @property
    def nodes(self) -> int:
        return math.prod(self.shape)

    @property
    def places(self) -> int:
        """The number of nodes in the box."""
        return math.prod(self.box)

    @property
    def transform(self) -> BandTransform:
        """Of columns on the grid: windows need the lower half of the frequencies, points that are nodes need all."""
        return BandTransform(self.shape, self.box, tuple(size // (4 if self.width else 2) for size in self.shape))

    def column_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of a column in a product: on the nodes, in two orders, and its transform."""
        return (self.places + self.transform.numbers) * dtype.itemsize

    @property
    def window(self) -> int:
        """Entries of a point's window."""
        return max(1, self.width) ** len(self.shape)

    def place(self, X: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The first node (n, d) of every point's window, and its weights (n, w) in every dimension."""
        corners, weights = [], []
        for column, lower, step in zip(self.columns, self.lower, self.steps, strict=True):
            position = (X[:, column].to(torch.float64) - lower) / step
            first = (position - self.width / 2).ceil() if self.width else position.round()
            own = window_weights(position - first, self.width) if self.width else torch.ones_like(first).unsqueeze(1)
            corners.append(first.long())
            weights.append(own.to(X.dtype))
        return torch.stack(corners, 1), weights

    def number(self, corner: Tensor) -> Tensor:
        """The numbers (n,) of nodes (n, d)."""
        number = torch.zeros_like(corner[:, 0])
        for own, size in zip(corner.unbind(1), self.box, strict=True):
            number = number * size + own
        return number

    def offsets(self) -> Tensor:
        """Numbers of the nodes of a window, relative to its first: (w^d,)."""
        inside = torch.arange(max(1, self.width))
        offset = torch.zeros(1, dtype=torch.long)
        for size in self.box:
            offset = (offset.unsqueeze(1) * size + inside).flatten()
        return offset

    def lags(self) -> list[Tensor]:
        """Distances of a node from the first one in every dimension, non-negative lags only, float64.

        Beyond the extent of the points they level off, so that the kernel on the periodic grid is smooth where lags
        wrap around, although it does not vanish there. Without room a kernel has vanished before.
        """
        sides = []
        for size, step, extent in zip(self.shape, self.steps, self.extent, strict=True):
            lag = torch.arange(size // 2 + 1, dtype=torch.float64)
            room = size / 2.0 - extent
            if self.width and room > 0:
                lag = torch.minimum(lag, torch.tensor(extent)) + room * levelling((lag - extent) / room, room / LEVEL)
            sides.append(lag * step)
        return sides


def along(dimension: int, values: Tensor, dimensions: int) -> Tensor:
    """A vector that varies along one dimension of several."""
    shape = [1] * dimensions
    shape[dimension] = -1
    return values.view(shape)


def outer(values: Sequence[Tensor]) -> Tensor:
    """The product of one vector per dimension."""
    return reduce(torch.mul, (along(k, part, len(values)) for k, part in enumerate(values)))


class Windows(Protocol):
    """The windows W (points, nodes) of points on a grid."""

    def spread(self, V: Tensor) -> Tensor:
        """W^T V for values V (points, s): (s, nodes)."""

    def gather(self, G: Tensor) -> Tensor:
        """W G for values G (s, nodes): (points, s)."""


class GridPart:
    """W_targets T W_sources^T with T the kernel on a periodic grid, in n log n.

    Args:
        grid: the nodes.
        values: the kernel at non-negative lags, float64, of the shape of `Grid.lags`.
        sources, targets: windows of the points.
    """

    def __init__(self, grid: Grid, values: Tensor, sources: Windows, targets: Windows, dtype: torch.dtype) -> None:
        self.grid, self.sources, self.targets = grid, sources, targets
        self.transform = grid.transform
        self.window = spectrum_of_windows(grid, values.device)
        transformed = transform_even(values, grid.shape, self.transform.last)
        # What the grid does not resolve is, between different points, close to zero; on the diagonal it is added.
        self.unresolved = 0.0
        if grid.width and sources is targets:
            resolved = (transformed * self._signs(self.transform.last)).sum() / grid.nodes
            self.unresolved = float(values.flatten()[0] - resolved)
        symbol = (transformed * self.window).to(dtype)
        for dimension, band in enumerate(self.transform.bands[:-1]):
            symbol = mirror(symbol, band, dimension)
        self.symbol = symbol

    def product(self, V: Tensor, result: Tensor, memory: int) -> None:
        """Add the product with V (sources, s) to the result (targets, s); columns in batches, and on threads."""

        def compute(columns: slice) -> None:
            spectrum = self._transform(self.sources, V[:, columns]).mul_(self.symbol)
            G = self.transform.backward(spectrum)
            result[:, columns] += self.targets.gather(G.flatten(1))
            if self.unresolved:
                result[:, columns].add_(V[:, columns], alpha=self.unresolved)

        run_separately(list(self._batches(V, memory)), compute, V.device)

    def lag_weights(self, L: Tensor, R: Tensor, memory: int) -> Tensor:
        """Weights of the values at non-negative lags in sum_j L_j^T W T W^T R_j: float64."""
        total = torch.zeros(self.symbol.shape, dtype=torch.float64, device=L.device)
        for columns in self._batches(L, memory, tasks=1):
            left, right = self._transform(self.targets, L[:, columns]), self._transform(self.sources, R[:, columns])
            total += (left.conj() * right).real.sum(0, dtype=torch.float64)
        for dimension, band in enumerate(self.transform.bands[:-1]):
            total = fold(total, band, dimension)
        # Of both signs of a frequency the average counts; the last dimension has the positive sign only.
        total *= self.window / self._signs((*self.transform.last[:-1], 0))
        diagonal = (L * R).sum(dtype=torch.float64) if self.unresolved else 0.0
        weights = invert_even(total - diagonal, self.grid.shape)
        weights *= self._signs(tuple(size // 2 for size in self.grid.shape))
        weights.view(-1)[0] += diagonal
        return weights

    def _signs(self, last: Sequence[int]) -> Tensor:
        """The number of lags or frequencies with the same absolute values, up to the last of every dimension."""
        pairs = zip(self.grid.shape, last, strict=True)
        return outer([count_signs(size, largest, self.window.device) for size, largest in pairs])

    def _transform(self, points: Windows, V: Tensor) -> Tensor:
        """The Fourier transform of spread columns: (s, ...)."""
        return self.transform.forward(points.spread(V).view(-1, *self.grid.box))

    def _batches(self, V: Tensor, memory: int, tasks: int | None = None) -> Iterator[slice]:
        threads = tasks or count_threads(V.device)
        share = _BATCH_SHARE.get(V.device.type, _BATCH_SHARE_GPU)
        fitting = max(1, int(share * memory / threads) // self.grid.column_bytes(V.dtype))
        return spans(V.shape[1], max(1, min(16, fitting, -(-V.shape[1] // threads))))


def spectrum_of_windows(grid: Grid, device: torch.device) -> Tensor:
    """One over the squared spectra of all windows at the non-negative frequencies of the band, float64."""
    sides = []
    for size, last in zip(grid.shape, grid.transform.last, strict=True):
        side = window_spectrum(size, grid.width).pow(-2.0) if grid.width else torch.ones(last + 1, dtype=torch.float64)
        sides.append(side[: last + 1].to(device))
    return outer(sides)


def evaluate_nodes(lags: Sequence[Tensor], evaluate: Callable[[list[Tensor]], Tensor], device: torch.device) -> Tensor:
    """evaluate(coordinates of nodes, one (m,) per dimension) at all nodes, a part of them at a time: (..., ...)."""
    shape = [len(side) for side in lags]
    total = math.prod(shape)
    parts = [evaluate(coordinates(lags, part, device)) for part in spans(total, _NODES)]
    return torch.cat(parts).view(shape)


def coordinates(lags: Sequence[Tensor], part: slice, device: torch.device) -> list[Tensor]:
    """Coordinates of consecutive nodes, one (m,) per dimension."""
    number = torch.arange(part.start, part.stop, device=device)
    result: list[Tensor] = []
    for side in reversed(list(lags)):
        result.append(side.to(device)[number % len(side)])
        number = number // len(side)
    return result[::-1]


def node_spans(lags: Sequence[Tensor]) -> Iterator[slice]:
    """Consecutive nodes, a part at a time."""
    return spans(math.prod(len(side) for side in lags), _NODES)
