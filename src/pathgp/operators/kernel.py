"""H = K + Sigma for one kernel and one set of inputs, kept dense or evaluated tile by tile."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pathgp.kernels import Kernel
from pathgp.operators.base import Operator
from pathgp.operators.memory import halve_on_failure, memory_budget, spans, tile_edge


class KernelOperator(Operator):
    """H = K + diag(noise^2) at the inputs X.

    A snapshot: products use the hyperparameters at construction. Only ``bilinear`` reaches back to the
    kernel and to the noise tensor, with gradients.

    Backends:

    - dense: K is evaluated once and kept, n^2 numbers.
    - streamed: K is evaluated in square tiles at every product and never kept. The symmetric half is used
      twice, so a product evaluates n^2 / 2 entries.
    - auto: dense when K fits into the memory budget.

    Args:
        kernel: covariance function.
        X: inputs (n, d).
        noise: standard deviation of the noise, a number or one per row.
        backend: one of the above.
        memory: budget in bytes for K or its tiles; by default half of what is free.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        noise: float | Tensor = 0.1,
        backend: str = "auto",
        memory: int | None = None,
    ) -> None:
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernel must be a pathgp kernel, got {type(kernel).__name__}")
        if not isinstance(X, Tensor) or X.ndim != 2 or X.shape[0] == 0:
            raise ValueError("X must be a tensor of shape (n, d) with at least one row")
        if not X.is_floating_point():
            X = X.to(torch.float64)
        n = X.shape[0]
        self.kernel = kernel
        self.X = X.detach()
        self.shape = (n, n)
        self.entries = n**2
        self.dtype = X.dtype
        self.device = X.device
        self.memory = memory_budget(memory, X.device)
        self._deviation = checked_noise(noise, n, X.device)
        self.noise = self._deviation.detach().square()
        self._snapshot = copy.deepcopy(kernel).to(X.device)
        self._edge = tile_edge(self.memory, self.dtype, self.device)
        with torch.no_grad():
            self._variances = self._snapshot.diag(self.X)
        self.backend = self._choose(backend)
        self._K = self._evaluate() if self.backend == "dense" else None

    def __matmul__(self, V: Tensor) -> Tensor:
        self._check(V, self.shape[0], "V")
        if self._K is not None:
            return torch.addmm(self._weighted_noise(V), self._K, V)
        return self._tiled(lambda edge: self._streamed_product(V, edge))

    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        self._check(V, self.shape[0], "V")
        noise = self._weighted_noise(V[index], index)
        if self._K is not None:
            for part, gathered in _gathered(self._K, index):
                noise[part].addmm_(gathered, V)
            return noise
        return self._tiled(lambda edge: self._streamed_rows(index, V, noise, edge))

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        self._check(D, len(index), "D")
        result = torch.zeros(self.shape[0], D.shape[1], dtype=self.dtype, device=self.device)
        if self._K is not None:
            # K is symmetric: its rows are its columns, and rows lie together in memory.
            for part, gathered in _gathered(self._K, index):
                result.addmm_(gathered.T, D[part])
        else:
            result = self._tiled(lambda edge: self._streamed_columns(index, D, edge))
        return result.index_add_(0, index, self._weighted_noise(D, index))

    def block(self, index: Tensor) -> Tensor:
        if self._K is not None and len(index) == self.shape[0]:
            # All of it, as Cholesky asks: copied, not gathered entry by entry.
            result = self._K[index]
            result = result.index_select(1, index) if bool((index.diff() != 1).any()) else result
        elif self._K is not None:
            result = self._K[index.unsqueeze(1), index]
        else:
            with torch.no_grad():
                result = self._snapshot(self.X[index])
        result.diagonal().add_(self.noise[index] if self.noise.ndim else self.noise)
        return result

    def between(self, index: Tensor, other: Tensor) -> Tensor:
        """The dense part K[index, other] without the noise."""
        if self._K is not None:
            return self._K[index.unsqueeze(1), other]
        with torch.no_grad():
            return self._snapshot(self.X[index], self.X[other])

    def diagonal(self) -> Tensor:
        return self._variances + self.noise.to(self.dtype)

    def bilinear(self, L: Tensor, R: Tensor) -> Tensor:
        """sum_j L_j^T H R_j. Value and gradient come from the same single pass over half of K."""
        self._check(L, self.shape[0], "L")
        self._check(R, self.shape[0], "R")
        L, R = L.detach(), R.detach()
        noise = (self._deviation.square() * (L * R).sum(1).to(torch.float64)).sum()

        def weights(I: slice, J: slice) -> Tensor:
            tile = L[I] @ R[J].T
            return tile if I == J else tile.addmm_(R[I], L[J].T)

        return self._weighted_sum(weights) + noise

    def weighted_sum(self, W: Tensor) -> Tensor:
        """sum_ij W_ij K_ij without the noise, for weights W (n, n); differentiable like `bilinear`."""
        return self._weighted_sum(lambda I, J: W[I, J].clone() if I == J else W[I, J] + W[J, I].T)

    def _weighted_sum(self, weights: Callable[[slice, slice], Tensor]) -> Tensor:
        value: Tensor = _WeightedSum.apply(self, weights, *(p for p in self.kernel.parameters() if p.requires_grad))
        return value

    def features(self, num: int, generator: torch.Generator | None = None, draws: int | None = None) -> Tensor:
        with torch.no_grad():
            return self._snapshot.features(num, generator=generator, paths=draws, dim=self.X.shape[1])(self.X)

    def cost(self, rows: int | None = None) -> float:
        return 1.0 if rows is None else rows / self.shape[0]

    def __repr__(self) -> str:
        return f"KernelOperator(n={self.shape[0]}, {self.backend}, {self.dtype}, {self.device})"

    def _choose(self, backend: str) -> str:
        needed = self.shape[0] ** 2 * self.X.element_size()
        if backend == "auto":
            return "dense" if needed <= self.memory else "streamed"
        if backend == "dense" and needed > self.memory:
            raise ValueError(
                f"a dense K needs {needed / 1e9:.2f} GB, the budget is {self.memory / 1e9:.2f} GB: "
                "use backend='streamed' or raise memory="
            )
        if backend not in ("dense", "streamed"):
            raise ValueError(f"backend must be 'auto', 'dense' or 'streamed', got {backend!r}")
        return backend

    def _tiled(self, compute: Callable[[int], Tensor]) -> Tensor:
        with torch.no_grad():
            result, self._edge = halve_on_failure(compute, self._edge)
        return result

    def _evaluate(self) -> Tensor:
        n = self.shape[0]

        def fill(edge: int) -> Tensor:
            K = torch.empty(n, n, dtype=self.dtype, device=self.device)
            for I in spans(n, edge):
                K[I, I] = self._snapshot(self.X[I])
                for J in spans(I.start, edge):
                    tile = self._snapshot(self.X[I], self.X[J])
                    K[I, J] = tile
                    K[J, I] = tile.T
            return K

        return self._tiled(fill)

    def _streamed_product(self, V: Tensor, edge: int) -> Tensor:
        result = self._weighted_noise(V)
        for I in spans(self.shape[0], edge):
            result[I].addmm_(self._snapshot(self.X[I]), V[I])
            for J in spans(I.start, edge):
                tile = self._snapshot(self.X[I], self.X[J])
                result[I].addmm_(tile, V[J])
                result[J].addmm_(tile.T, V[I])
        return result

    def _streamed_rows(self, index: Tensor, V: Tensor, noise: Tensor, edge: int) -> Tensor:
        result = noise.clone()
        for part in spans(len(index), edge):
            for J in spans(self.shape[0], edge):
                tile = self._snapshot(self.X[index[part]], self.X[J])
                self._restore_diagonal(tile, index[part], J)
                result[part].addmm_(tile, V[J])
        return result

    def _streamed_columns(self, index: Tensor, D: Tensor, edge: int) -> Tensor:
        result = torch.zeros(self.shape[0], D.shape[1], dtype=self.dtype, device=self.device)
        for part in spans(len(index), edge):
            for J in spans(self.shape[0], edge):
                tile = self._snapshot(self.X[index[part]], self.X[J])
                self._restore_diagonal(tile, index[part], J)
                result[J].addmm_(tile.T, D[part])
        return result

    def _restore_diagonal(self, tile: Tensor, index: Tensor, J: slice) -> None:
        """Put the exact variances where row and column are the same point.

        The distance of a point to itself is a rounding error, whose square root matters for Matern-1/2.
        """
        inside = (index >= J.start) & (index < J.stop)
        column = torch.where(inside, index - J.start, 0)
        row = torch.arange(len(index), device=self.device)
        tile[row, column] = torch.where(inside, self._variances[index], tile[row, column])


class _WeightedSum(torch.autograd.Function):
    """sum_ij W_ij K_ij with its gradient in the kernel's parameters, accumulated tile by tile.

    ``weights(I, J)`` is what meets the tile K_IJ, J up to I: W_IJ, and below the diagonal W_JI as well. The kernels
    bring closed-form gradients, so the tile's backward pass costs one more tile and two products with the inputs, for
    all length scales together.
    """

    @staticmethod
    def forward(
        ctx: Any, operator: KernelOperator, weights: Callable[[slice, slice], Tensor], *parameters: Tensor
    ) -> Tensor:
        pairs = zip(operator.kernel.parameters(), operator._snapshot.parameters(), strict=True)
        learned = [snapshot for parameter, snapshot in pairs if parameter.requires_grad]

        def accumulate(edge: int) -> tuple[Tensor, list[Tensor]]:
            value = torch.zeros((), dtype=torch.float64, device=operator.device)
            grads = [torch.zeros_like(q) for q in learned]
            for I in spans(operator.shape[0], edge):
                for J in spans(I.stop, edge):
                    W = weights(I, J)
                    with torch.enable_grad():
                        X = operator.X
                        tile = operator._snapshot(X[I]) if I == J else operator._snapshot(X[I], X[J])
                    if learned and tile.requires_grad:
                        found = torch.autograd.grad(tile, learned, W, allow_unused=True)
                        for grad, new in zip(grads, found, strict=True):
                            if new is not None:
                                grad += new
                    value += torch.dot(tile.detach().flatten(), W.flatten())
            return value, grads

        # On a CPU the tile, its weights and its gradient share the cache.
        edge = operator._edge if operator.device.type == "cuda" else max(1, operator._edge // 2)
        (value, grads), _ = halve_on_failure(accumulate, edge)
        ctx.save_for_backward(*grads)
        ctx.devices = [p.device for p in parameters]
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        grads = ctx.saved_tensors
        return (None, None, *((outer[0] * g).to(d) for g, d in zip(grads, ctx.devices, strict=True)))


def _gathered(K: Tensor, index: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of K, on a CPU some 8 MB at a time in one buffer: they are still in the cache when a product reads them."""
    step = len(index) if K.device.type != "cpu" else max(16, 8_000_000 // (K.shape[1] * K.element_size()))
    buffer = K.new_empty(min(step, len(index)), K.shape[1])
    for part in spans(len(index), max(1, step)):
        rows = index[part]
        yield part, torch.index_select(K, 0, rows, out=buffer[: len(rows)])


def checked_noise(noise: float | Tensor, n: int, device: torch.device) -> Tensor:
    """Standard deviations of the noise, one number or one per row, float64, with their graph."""
    deviation = torch.as_tensor(noise, dtype=torch.float64, device=device)
    if deviation.ndim > 1 or (deviation.ndim == 1 and deviation.shape[0] != n):
        raise ValueError(f"noise must be one number or one per row ({n},), got shape {tuple(deviation.shape)}")
    if not bool(torch.isfinite(deviation).all()) or bool((deviation < 0).any()):
        raise ValueError("noise is a standard deviation: it must be finite and not negative")
    return deviation
