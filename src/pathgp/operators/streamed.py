"""Backend that evaluates K tile by tile in every product, in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pathgp.compute.groups import share
from pathgp.compute.memory import halve_on_failure, spans, tile_edge
from pathgp.kernels import Kernel, Scale


class Streamed:
    """K at the inputs X in square tiles that are never kept: time O(n^2 (d + s)), memory one tile.

    The symmetric half is used twice, so a product evaluates n^2 / 2 entries. `Fused` derives from this class.

    Args:
        kernel: covariance function.
        X: inputs (n, d).
        memory: budget in bytes for a tile.
        member: (number, size) of a group that divides the work: all results but single blocks are then parts of this
            member, which sum to the whole.
    """

    name = "streamed"

    def __init__(self, kernel: Kernel, X: Tensor, memory: int, member: tuple[int, int] = (0, 1)) -> None:
        self.kernel, self.X, self.member = kernel, X, member
        self.edge = tile_edge(memory, X.dtype, X.device)
        self.own_blocks = _own_blocks(len(X), self.edge, *member)
        with torch.no_grad():
            self.factor, self.bare = _unscaled(kernel, X)
            self.bare_variances = self.bare.diag(X)
            self.variances = self.factor * self.bare_variances

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        """start + K V, (n, s)."""
        V = self.factor * V

        def compute(edge: int) -> Tensor:
            result = start.clone()
            for I, J in self.pairs(edge):
                tile = self._tile(self.bare, I, J)
                result[I].addmm_(tile, V[J])
                if I != J:
                    result[J].addmm_(tile.T, V[I])
            return result

        return self.tiled(compute)

    def rows(self, index: Tensor, V: Tensor, start: Tensor) -> Tensor:
        """start + K[index, :] V, (len(index), s)."""
        V, own = self.factor * V, share(len(index), *self.member)

        def compute(edge: int) -> Tensor:
            result = start.clone()
            for part, J, tile in self._row_tiles(index[own], edge):
                result[own][part].addmm_(tile, V[J])
            return result

        return self.tiled(compute)

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        """K[:, index] D, (n, s)."""
        own = share(len(index), *self.member)
        D = self.factor * D[own]

        def compute(edge: int) -> Tensor:
            result = torch.zeros(len(self.X), D.shape[1], dtype=D.dtype, device=D.device)
            for part, J, tile in self._row_tiles(index[own], edge):
                result[J].addmm_(tile.T, D[part])
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

    def matrix(self, into: Tensor | None = None) -> Tensor:
        """All of K, in the memory of ``into`` if given."""

        def compute(edge: int) -> Tensor:
            K = self.X.new_empty(len(self.X), len(self.X)) if into is None else into
            for I, J in self.pairs(edge):
                K[I, J] = self._tile(self.kernel, I, J)
                if I != J:
                    K[J, I] = K[I, J].T
            return K

        return self.tiled(compute)

    def strip(self, index: Tensor) -> Tensor:
        """K[index, :], exact on the diagonal."""

        def compute(edge: int) -> Tensor:
            K = self.X.new_empty(len(index), len(self.X))
            for part, J, tile in self._row_tiles(index, edge):
                K[part, J] = tile
            return K.mul_(self.factor)

        return self.tiled(compute)

    def bilinear(
        self, L: Tensor, R: Tensor, learned: list[Tensor], symmetric: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """sum_j L_j^T K R_j and its gradient in the learned parameters; ``symmetric``: that L R^T is."""

        def weights(I: slice, J: slice) -> Tensor:
            if symmetric and I != J:
                return (2.0 * L[I]) @ R[J].T
            tile = L[I] @ R[J].T
            return tile if I == J else tile.addmm_(R[I], L[J].T)

        return self.weighted_sum(weights, learned)

    def weighted_sum(
        self, weights: Callable[[slice, slice], Tensor], learned: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """sum_ij W_ij K_ij and its gradient in the learned parameters, from one pass over half of K.

        ``weights(I, J)`` are the weights of the tile K_IJ, J <= I: W_IJ, below the diagonal plus W_JI^T. Kernels have
        closed-form gradients, for all length scales together.
        """

        def accumulate(edge: int) -> tuple[Tensor, list[Tensor]]:
            value = torch.zeros((), dtype=torch.float64, device=self.X.device)
            grads = [torch.zeros_like(q) for q in learned]
            for I, J in self.pairs(edge):
                with torch.enable_grad():
                    part = self.kernel.contract(weights(I, J), self.X[I], None if I == J else self.X[J])
                if learned and part.requires_grad:
                    found = torch.autograd.grad(part, learned, allow_unused=True)
                    for grad, new in zip(grads, found, strict=True):
                        if new is not None:
                            grad += new
                value += part.detach()
            return value, grads

        result, _ = halve_on_failure(accumulate, self.edge)
        return result

    def tiled(self, compute: Callable[[int], Tensor]) -> Tensor:
        """compute(edge of a tile), without a graph; keep the edge that fitted into memory."""
        with torch.no_grad():
            result, self.edge = halve_on_failure(compute, self.edge)
        return result

    def pairs(self, edge: int) -> Iterator[tuple[slice, slice]]:
        """The member's tiles (I, J) of the half J <= I of K, with sides of at most ``edge`` rows."""
        for I, J in self.own_blocks:
            for part in _split(I, edge):
                yield from ((part, other) for other in _split(J, edge) if other.start <= part.start)

    def _tile(self, kernel: Kernel, I: slice, J: slice) -> Tensor:
        """The kernel for one of the pairs, exact on the diagonal."""
        return kernel(self.X[I]) if I == J else kernel(self.X[I], self.X[J])

    def _row_tiles(self, index: Tensor, edge: int) -> Iterator[tuple[slice, slice, Tensor]]:
        """(I, J, K[index[I], J] / factor) for all tiles, with the exact variances on the diagonal of K.

        The distance of a point to itself is a rounding error, whose square root matters for Matern-1/2.
        """
        for part in spans(len(index), edge):
            rows, row = index[part], torch.arange(part.stop - part.start, device=index.device)
            for J in spans(len(self.X), edge):
                tile = self.bare(self.X[rows], self.X[J])
                is_inside = (rows >= J.start) & (rows < J.stop)
                column = torch.where(is_inside, rows - J.start, 0)
                tile[row, column] = torch.where(is_inside, self.bare_variances[rows], tile[row, column])
                yield part, J, tile


def _unscaled(kernel: Kernel, X: Tensor) -> tuple[Tensor, Kernel]:
    """factor and bare kernel with kernel = factor * bare kernel. The factor multiplies vectors instead of tiles."""
    factor = torch.ones((), dtype=torch.float64, device=X.device)
    while type(kernel) is Scale and kernel.active_dims is None:
        factor = factor * kernel.signal.square()
        kernel = kernel.kernel
    return factor.to(X.dtype), kernel


def _own_blocks(n: int, edge: int, member: int, size: int) -> list[tuple[slice, slice]]:
    """The blocks (I, J) of the half J <= I of an (n, n) matrix that belong to a member, distributed in turn.

    Their number is a multiple of the number of members, so that all have equally many, and does not change if a member
    has to use smaller tiles.
    """
    count = 1 if size == 1 else 2 * size * max(2, -(-n // (2 * size * edge)))
    sides = [part for k in range(count) if (part := share(n, k, count)).start < part.stop]
    return [(I, J) for k, I in enumerate(sides) for J in sides[: k + 1]][member::size]


def _split(side: slice, edge: int) -> list[slice]:
    """As few slices of at most ``edge`` rows as possible, of the same length or one less."""
    n = side.stop - side.start
    count = -(-n // edge)
    parts = (share(n, k, count) for k in range(count))
    return [slice(side.start + part.start, side.start + part.stop) for part in parts]
