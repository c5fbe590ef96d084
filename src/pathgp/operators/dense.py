"""Backend that evaluates K once and keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.operators.streamed import Streamed


class Dense:
    """K as n^2 numbers: a product is a matrix product.

    Args:
        tiles: the backend that evaluates K once, and gradients.
        into: memory for K, of a matrix that is no longer needed.
    """

    name = "dense"

    def __init__(self, tiles: Streamed, into: Tensor | None = None) -> None:
        self.tiles, self.variances = tiles, tiles.variances
        self.K = tiles.matrix(into)

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        return torch.addmm(start, self.K, V)

    def rows(self, index: Tensor, V: Tensor, start: Tensor) -> Tensor:
        for part, gathered in _gather_rows(self.K, index):
            start[part].addmm_(gathered, V)
        return start

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        result = torch.zeros(len(self.K), D.shape[1], dtype=D.dtype, device=D.device)
        # K is symmetric: read its rows, which are contiguous in memory.
        for part, gathered in _gather_rows(self.K, index):
            result.addmm_(gathered.T, D[part])
        return result

    def block(self, index: Tensor) -> Tensor:
        if len(index) < len(self.K):
            return self.between(index, index)
        # All rows, as for Cholesky: copied, not gathered entry by entry.
        result = self.K[index]
        return result.index_select(1, index) if bool((index.diff() != 1).any()) else result

    def between(self, index: Tensor, other: Tensor) -> Tensor:
        return self.K[index.unsqueeze(1), other]

    def bilinear(
        self, L: Tensor, R: Tensor, learned: list[Tensor], symmetric: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        return self.tiles.bilinear(L, R, learned, symmetric)

    def weighted_sum(
        self, weights: Callable[[slice, slice], Tensor], learned: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        return self.tiles.weighted_sum(weights, learned)


def _gather_rows(K: Tensor, index: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of K, on a CPU about 8 MB at a time in one buffer: they are still in the cache when a product reads them."""
    step = len(index) if K.device.type != "cpu" else max(16, 8_000_000 // (K.shape[1] * K.element_size()))
    buffer = K.new_empty(min(step, len(index)), K.shape[1])
    for part in spans(len(index), max(1, step)):
        rows = index[part]
        yield part, torch.index_select(K, 0, rows, out=buffer[: len(rows)])
