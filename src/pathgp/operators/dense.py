"""Backend that evaluates K once and keeps it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.compute.process_groups import share
from pathgp.compute.threads import run_separately
from pathgp.operators.streamed import Streamed, transposed

# Entries of K that one thread of a CPU multiplies at a time: V is read once for each.
_TASK_ENTRIES = 2**22


class Dense:
    """K as n^2 numbers: a product is a matrix product. A member of a group keeps its share of the rows.

    As in `Streamed`, vectors are multiplied as rows, and every thread of a CPU computes whole rows of the result.

    Args:
        tiles: the backend that evaluates K once, and gradients.
        into: memory for K, of a matrix that is no longer needed.
    """

    name = "dense"

    def __init__(self, tiles: Streamed, into: Tensor | None = None) -> None:
        self.tiles, self.kernel, self.X, self.variances = tiles, tiles.kernel, tiles.X, tiles.variances
        self.bilinear, self.weighted_sum = tiles.bilinear, tiles.weighted_sum
        self.own = share(len(self.X), *tiles.member)
        self.is_whole = tiles.member[1] == 1
        rows = torch.arange(self.own.start, self.own.stop, device=self.X.device)
        self.K = tiles.matrix(into) if self.is_whole else tiles.strip(rows)

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        own, V = start[self.own], transposed(V)
        step = max(1, _TASK_ENTRIES // len(self.X)) if V.device.type == "cpu" else max(1, len(own))
        run_separately(list(spans(len(own), step)), lambda I: own[I].add_((V @ self.K[I].T).T), V.device)
        return start

    def rows(self, index: Tensor, V: Tensor, start: Tensor) -> Tensor:
        V = transposed(V)
        for place, rows in self._kept_rows(index):
            start[place] += (V @ rows.T).T
        return start

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        D = transposed(D)
        result = D.new_zeros(len(D), len(self.X))
        # K is symmetric: read its rows, which are contiguous in memory.
        for place, rows in self._kept_rows(index):
            result.addmm_(D[:, place], rows)
        return result.T.contiguous()

    def block(self, index: Tensor) -> Tensor:
        if not self.is_whole:
            return self.tiles.block(index)
        if len(index) < len(self.K):
            return self.between(index, index)
        # All rows, as for Cholesky: copied, not gathered entry by entry.
        result = self.K[index]
        return result.index_select(1, index) if bool((index.diff() != 1).any()) else result

    def between(self, index: Tensor, other: Tensor) -> Tensor:
        return self.K[index.unsqueeze(1), other]

    def _kept_rows(self, index: Tensor) -> Iterator[tuple[slice | Tensor, Tensor]]:
        """Positions in ``index`` of the rows kept here, and these rows.

        On a CPU about 8 MB at a time, in one buffer: they are still in the cache when a product reads them.
        """
        places = None if self.is_whole else ((index >= self.own.start) & (index < self.own.stop)).nonzero().flatten()
        rows = index if places is None else index[places] - self.own.start
        n, is_cpu = self.K.shape[1], self.K.device.type == "cpu"
        step = max(16, 8_000_000 // (n * self.K.element_size())) if is_cpu else max(1, len(rows))
        buffer = self.K.new_empty(min(step, len(rows)), n)
        for part in spans(len(rows), step):
            gathered = torch.index_select(self.K, 0, rows[part], out=buffer[: part.stop - part.start])
            yield part if places is None else places[part], gathered
