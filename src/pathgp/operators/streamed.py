"""Backend that evaluates K tile by tile in every product, in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pathgp.compute.memory import halve_on_failure, limit_edge, tile_edge, tiles
from pathgp.compute.process_groups import share
from pathgp.compute.threads import run_in_order, run_separately
from pathgp.kernels import Kernel, Scale


class Streamed:
    """K at the inputs X in square tiles that are never kept: time O(n^2 (d + s)), memory one tile for every thread.

    The symmetric half is used twice, so a product evaluates n^2 / 2 entries. Vectors are multiplied as rows, (s, n):
    on a CPU a product of few rows with a tile takes a third to nine tenths of the time of a product with few columns.
    `Fused` derives from this class.

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
        V = transposed(self.factor * V)

        def multiply(pair: tuple[slice, slice]) -> tuple[Tensor, Tensor | None]:
            I, J = pair
            tile = self._tile(self.bare, I, J)
            return V[:, J] @ tile.T, None if I == J else V[:, I] @ tile

        def compute(edge: int) -> Tensor:
            result = torch.zeros_like(V)

            def add(pair: tuple[slice, slice], parts: tuple[Tensor, Tensor | None]) -> None:
                for rows, part in zip(pair, parts, strict=True):
                    if part is not None:
                        result[:, rows] += part

            run_in_order(list(self.pairs(edge)), multiply, add, V.device)
            return result

        return start.add_(self.tiled(compute).T)

    def rows(self, index: Tensor, V: Tensor, start: Tensor) -> Tensor:
        """start + K[index, :] V, (len(index), s)."""
        own = share(len(index), *self.member)
        V, index = transposed(self.factor * V), index[own]

        def compute(edge: int) -> Tensor:
            result = V.new_zeros(len(V), len(index))
            run_in_order(
                tiles(len(index), len(self.X), edge, self.X.device),
                lambda task: V[:, task[1]] @ self._row_tile(index, *task).T,
                lambda task, part: result[:, task[0]].add_(part),
                V.device,
            )
            return result

        start[own] += self.tiled(compute).T
        return start

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        """K[:, index] D, (n, s)."""
        own = share(len(index), *self.member)
        D, index = transposed(self.factor * D[own]), index[own]

        def compute(edge: int) -> Tensor:
            result = D.new_zeros(len(D), len(self.X))
            run_in_order(
                tiles(len(index), len(self.X), edge, self.X.device),
                lambda task: D[:, task[0]] @ self._row_tile(index, *task),
                lambda task, part: result[:, task[1]].add_(part),
                D.device,
            )
            return result

        return self.tiled(compute).T.contiguous()

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

            def write(pair: tuple[slice, slice]) -> None:
                I, J = pair
                K[I, J] = self._tile(self.kernel, I, J)
                if I != J:
                    K[J, I] = K[I, J].T

            run_separately(list(self.pairs(edge)), write, K.device)
            return K

        return self.tiled(compute)

    def strip(self, index: Tensor) -> Tensor:
        """K[index, :], exact on the diagonal."""

        def compute(edge: int) -> Tensor:
            K = self.X.new_empty(len(index), len(self.X))

            def write(task: tuple[slice, slice]) -> None:
                torch.mul(self._row_tile(index, *task), self.factor, out=K[task])

            run_separately(tiles(len(index), len(self.X), edge, self.X.device), write, K.device)
            return K

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

        def contract(pair: tuple[slice, slice]) -> tuple[Tensor, Sequence[Tensor | None]]:
            I, J = pair
            with torch.enable_grad():
                part = self.kernel.contract(weights(I, J), self.X[I], None if I == J else self.X[J])
            has_gradient = bool(learned) and part.requires_grad
            return part.detach(), torch.autograd.grad(part, learned, allow_unused=True) if has_gradient else ()

        def compute(edge: int) -> tuple[Tensor, list[Tensor]]:
            value = torch.zeros((), dtype=torch.float64, device=self.X.device)
            grads = [torch.zeros_like(q) for q in learned]

            def add(pair: tuple[slice, slice], found: tuple[Tensor, Sequence[Tensor | None]]) -> None:
                value.add_(found[0])
                for grad, part in zip(grads, found[1], strict=False):
                    if part is not None:
                        grad += part

            run_in_order(list(self.pairs(edge)), contract, add, value.device)
            return value, grads

        result, _ = halve_on_failure(compute, self.edge)
        return result

    def tiled(self, compute: Callable[[int], Tensor]) -> Tensor:
        """compute(edge of a tile), without a graph; keep the edge that fitted into memory."""
        with torch.no_grad():
            result, self.edge = halve_on_failure(compute, self.edge)
        return result

    def pairs(self, edge: int) -> Iterator[tuple[slice, slice]]:
        """The member's tiles (I, J) of the half J <= I of K, with sides of at most ``edge`` rows."""
        edge = limit_edge(edge, len(self.X) ** 2, self.X.device)
        for I, J in self.own_blocks:
            for part in _split(I, edge):
                yield from ((part, other) for other in _split(J, edge) if other.start <= part.start)

    def _tile(self, kernel: Kernel, I: slice, J: slice) -> Tensor:
        """The kernel for one of the pairs, exact on the diagonal."""
        return kernel(self.X[I]) if I == J else kernel(self.X[I], self.X[J])

    def _row_tile(self, index: Tensor, I: slice, J: slice) -> Tensor:
        """K[index[I], J] / factor, with the exact variances on the diagonal of K.

        The distance of a point to itself is a rounding error, whose square root matters for Matern-1/2.
        """
        rows, row = index[I], torch.arange(I.stop - I.start, device=index.device)
        tile = self.bare(self.X[rows], self.X[J])
        is_inside = (rows >= J.start) & (rows < J.stop)
        column = torch.where(is_inside, rows - J.start, 0)
        tile[row, column] = torch.where(is_inside, self.bare_variances[rows], tile[row, column])
        return tile


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


def transposed(V: Tensor) -> Tensor:
    """V (n, s) as (s, n), contiguous."""
    return V.T.contiguous()
