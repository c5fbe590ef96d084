"""K evaluated tile by tile at every product, in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pathgp.kernels import Kernel
from pathgp.operators.memory import halve_on_failure, spans, tile_edge


class Streamed:
    """K at the inputs X in square tiles that are never kept: time O(n^2 (d + s)), memory one tile.

    The symmetric half is used twice, so a product evaluates n^2 / 2 entries. Fused does the rest the same way, and
    overrides what it does better.
    """

    name = "streamed"

    def __init__(self, kernel: Kernel, X: Tensor, memory: int) -> None:
        self.kernel, self.X = kernel, X
        self.edge = tile_edge(memory, X.dtype, X.device)
        with torch.no_grad():
            self.variances = kernel.diag(X)

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        """start + K V, (n, s)."""

        def compute(edge: int) -> Tensor:
            result = start.clone()
            for I in spans(len(self.X), edge):
                result[I].addmm_(self.kernel(self.X[I]), V[I])
                for J in spans(I.start, edge):
                    tile = self.kernel(self.X[I], self.X[J])
                    result[I].addmm_(tile, V[J])
                    result[J].addmm_(tile.T, V[I])
            return result

        return self.tiled(compute)

    def rows(self, index: Tensor, V: Tensor, start: Tensor) -> Tensor:
        """start + K[index, :] V, (len(index), s)."""

        def compute(edge: int) -> Tensor:
            result = start.clone()
            for part in spans(len(index), edge):
                for J in spans(len(self.X), edge):
                    result[part].addmm_(self._tile(index[part], J), V[J])
            return result

        return self.tiled(compute)

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        """K[:, index] D, (n, s)."""

        def compute(edge: int) -> Tensor:
            result = torch.zeros(len(self.X), D.shape[1], dtype=D.dtype, device=D.device)
            for part in spans(len(index), edge):
                for J in spans(len(self.X), edge):
                    result[J].addmm_(self._tile(index[part], J).T, D[part])
            return result

        return self.tiled(compute)

    def block(self, index: Tensor) -> Tensor:
        """K[index, index], a fresh tensor."""
        with torch.no_grad():
            return self.kernel(self.X[index])

    def between(self, index: Tensor, other: Tensor) -> Tensor:
        """K[index, other]."""
        with torch.no_grad():
            return self.kernel(self.X[index], self.X[other])

    def matrix(self) -> Tensor:
        """All of K."""

        def compute(edge: int) -> Tensor:
            n = len(self.X)
            K = torch.empty(n, n, dtype=self.X.dtype, device=self.X.device)
            for I in spans(n, edge):
                K[I, I] = self.kernel(self.X[I])
                for J in spans(I.start, edge):
                    tile = self.kernel(self.X[I], self.X[J])
                    K[I, J] = tile
                    K[J, I] = tile.T
            return K

        return self.tiled(compute)

    def bilinear(
        self, L: Tensor, R: Tensor, learned: list[Tensor], symmetric: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """sum_j L_j^T K R_j and its gradient in the learned parameters; ``symmetric``: that L R^T is."""
        twice = 2.0 * L

        def weights(I: slice, J: slice) -> Tensor:
            tile = (twice if symmetric and I != J else L)[I] @ R[J].T
            return tile if symmetric or I == J else tile.addmm_(R[I], L[J].T)

        return self.weighted_sum(weights, learned)

    def weighted_sum(
        self, weights: Callable[[slice, slice], Tensor], learned: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """sum_ij W_ij K_ij and its gradient in the learned parameters, from one pass over half of K.

        ``weights(I, J)`` is what meets the tile K_IJ, J up to I: W_IJ, and below the diagonal W_JI as well. The kernels
        bring closed-form gradients, so the tile's backward pass costs one more tile and two products with the inputs,
        for all length scales together.
        """

        def accumulate(edge: int) -> tuple[Tensor, list[Tensor]]:
            value = torch.zeros((), dtype=torch.float64, device=self.X.device)
            grads = [torch.zeros_like(q) for q in learned]
            for I in spans(len(self.X), edge):
                for J in spans(I.stop, edge):
                    W = weights(I, J)
                    with torch.enable_grad():
                        tile = self.kernel(self.X[I]) if I == J else self.kernel(self.X[I], self.X[J])
                    if learned and tile.requires_grad:
                        found = torch.autograd.grad(tile, learned, W, allow_unused=True)
                        for grad, new in zip(grads, found, strict=True):
                            if new is not None:
                                grad += new
                    value += torch.dot(tile.detach().flatten(), W.flatten())
            return value, grads

        # On a CPU the tile, its weights and its gradient share the cache.
        edge = self.edge if self.X.device.type == "cuda" else max(1, self.edge // 2)
        result, _ = halve_on_failure(accumulate, edge)
        return result

    def tiled(self, compute: Callable[[int], Tensor]) -> Tensor:
        """compute(edge of a tile), without a graph; the edge that worked is remembered."""
        with torch.no_grad():
            result, self.edge = halve_on_failure(compute, self.edge)
        return result

    def _tile(self, index: Tensor, J: slice) -> Tensor:
        """K[index, J] with the exact variances where row and column are the same point.

        The distance of a point to itself is a rounding error, whose square root matters for Matern-1/2.
        """
        tile = self.kernel(self.X[index], self.X[J])
        inside = (index >= J.start) & (index < J.stop)
        column = torch.where(inside, index - J.start, 0)
        row = torch.arange(len(index), device=index.device)
        tile[row, column] = torch.where(inside, self.variances[index], tile[row, column])
        return tile
