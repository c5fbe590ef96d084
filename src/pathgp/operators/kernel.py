"""H = K + Sigma for one kernel and one set of inputs, through one of the backends."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from pathgp.compute import triton
from pathgp.compute.groups import words
from pathgp.compute.random import neighbourhoods
from pathgp.compute.settings import Compute
from pathgp.kernels import Kernel
from pathgp.operators.base import Invert, Operator, Solve
from pathgp.operators.dense import Dense
from pathgp.operators.fused import Fused, fallback_reason
from pathgp.operators.sharded import Sharded
from pathgp.operators.streamed import Streamed

# Up to this number of rows a dense K costs little, and compiling fused kernels (seconds the first time) does not pay.
SMALL = 8192
# (value, gradients) from the snapshots of the learned parameters.
_ValueAndGradient = Callable[[list[Tensor]], tuple[Tensor, list[Tensor]]]


class KernelOperator(Operator):
    """H = K + diag(noise^2) at the inputs X.

    A snapshot: products use the hyperparameters at construction. Only ``bilinear`` carries gradients to the kernel and
    to the noise tensor.

    Backends:

    - dense: K is evaluated once and kept, n^2 numbers.
    - streamed: K is evaluated in square tiles in every product and never kept. The symmetric half is used twice, so a
      product evaluates n^2 / 2 entries.
    - fused: K is evaluated inside one kernel on the GPU in every product, and no entry is ever written to memory.
      float32, for sums, products and scales of all kernels but Task and Matern with an unusual nu; Tanimoto for
      counts. Needs Triton, the extra ``triton``.
    - auto: on a CUDA device fused above 8,192 rows, or if K does not fit into the memory budget, if it is available:
      products with about 65 columns are then faster than with a dense K, and nothing is kept. Otherwise dense if K
      fits, which saves the seconds of the first compilation; else streamed. ``fallback_reason`` says why not fused.

    The members of a group divide the work. Each evaluates its part of K for a product, for rows and columns and for
    ``bilinear``, and a sum over the members completes the result. Of ``size`` members each keeps n / size rows of a
    dense K, evaluates one in ``size`` of the streamed tiles, or n / size rows of a fused product. K fits if the rows of
    a member fit into its budget. The blocks of `block_inverses` are divided, too.

    Args:
        kernel: covariance function.
        X: inputs (n, d), the same on every rank.
        noise: standard deviation of the noise, a number or one per row.
        compute: backend, memory budget (of each member), group (`Ranks` or `Devices`, None to compute alone) and
            precision; None for the defaults. The precision is that of the fused products of ``low_precision``, which
            solvers use between their checks: "high" is that of float32, with a relative error of about 1e-6; "medium"
            rounds K and V to 11 bits, about 3e-4; "low" also rounds the scaled inputs if the error stays below 4e-3.
            Everything else, and all other backends, have "high" precision.
        reuse: an operator of the same size that is no longer needed. Without a group its budget and the memory of its K
            are reused: pages fresh from the system can cost more time than the numbers in them.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        noise: float | Tensor = 0.1,
        compute: Compute | None = None,
        reuse: Operator | None = None,
    ) -> None:
        compute = Compute.read(compute)
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
        self.group = group = compute.group
        self.world_size = 1 if group is None else group.size
        before = None
        if isinstance(reuse, KernelOperator) and group is None is reuse.group and _is_same_size(reuse, self):
            before = reuse
        self.memory = before.memory if before else compute.budget(X.device)
        self._deviation = checked_noise(noise, n, X.device)
        self.noise = self._deviation.detach().square()
        self._snapshot = copy.deepcopy(kernel).to(X.device)
        if group is not None:
            values = [self.X, self._deviation.detach(), *(p.detach() for p in kernel.parameters())]
            facts = [words(kernel), compute.backend, compute.precision]
            message = "X, noise, kernel, backend or precision differ between ranks"
            group.check([*values, *facts], f"{message}: give every rank the same data and model")
        choice = _choose_backend(compute.backend, self._snapshot, self.X, self.memory, self.world_size)
        tiles, is_kept, self.fallback_reason = choice
        self.backend = "dense" if is_kept else tiles.name
        self.precision = compute.precision if self.backend == "fused" else "high"
        self.graph_capturable = group is None and self.backend != "streamed"
        self._tiles = self._make_tiles(tiles, is_kept, before)

    @cached_property
    def low_precision(self) -> KernelOperator:
        if self.precision == "high":
            return self
        twin = copy.copy(self)
        twin._tiles = self._make_tiles(partial(Fused, precision=self.precision))
        twin.low_precision = twin
        return twin

    @cached_property
    def coordinates(self) -> Tensor:
        """Coordinates (n, c) in which similar inputs are near each other."""
        return self._snapshot.coordinates(self.X)

    def __matmul__(self, V: Tensor) -> Tensor:
        self._check(V, self.shape[0], "V")
        return self._tiles.product(V, self._weighted_noise(V))

    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        self._check(V, self.shape[0], "V")
        return self._tiles.rows(index, V, self._weighted_noise(V[index], index))

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        self._check(D, len(index), "D")
        return self._tiles.columns(index, D).index_add_(0, index, self._weighted_noise(D, index))

    def block(self, index: Tensor) -> Tensor:
        return self._noisy_block(self._tiles, index)

    def block_inverses(self, parts: Sequence[Tensor], invert: Invert) -> Iterator[Solve]:
        if not isinstance(self._tiles, Sharded):
            return super().block_inverses(parts, invert)
        return self._tiles.block_inverses(parts, lambda tiles, index: invert(self._noisy_block(tiles, index)))

    def between(self, index: Tensor, other: Tensor) -> Tensor:
        """The dense part K[index, other] without the noise."""
        return self._tiles.between(index, other)

    def diagonal(self) -> Tensor:
        return self._tiles.variances + self.noise.to(self.dtype)

    def bilinear(self, L: Tensor, R: Tensor, symmetric: bool = False) -> Tensor:
        """sum_j L_j^T H R_j. Value and gradient come from the same single pass over K."""
        self._check(L, self.shape[0], "L")
        self._check(R, self.shape[0], "R")
        L, R = L.detach(), R.detach()
        noise = (self._deviation.square() * (L * R).sum(1).to(torch.float64)).sum()
        return self._differentiable(lambda learned: self._tiles.bilinear(L, R, learned, symmetric)) + noise

    def weighted_sum(self, W: Tensor) -> Tensor:
        """sum_ij W_ij K_ij without the noise, for weights W (n, n); differentiable like `bilinear`."""

        def weights(I: slice, J: slice) -> Tensor:
            return W[I, J].clone() if I == J else W[I, J] + W[J, I].T

        return self._differentiable(lambda learned: self._tiles.weighted_sum(weights, learned))

    def _make_tiles(
        self, evaluate: Callable[..., Streamed], is_kept: bool = False, before: KernelOperator | None = None
    ) -> Dense | Streamed | Sharded:
        """The backend of this process, or one for every member of the group."""
        into = before._tiles.K if before and isinstance(before._tiles, Dense) else None

        def make(kernel: Kernel, X: Tensor, member: tuple[int, int] = (0, 1)) -> Dense | Streamed:
            tiles = evaluate(kernel, X, self.memory, member=member)
            return Dense(tiles, into) if is_kept else tiles

        if self.group is None:
            return make(self._snapshot, self.X)
        return Sharded(self.group, evaluate(self._snapshot, self.X, self.memory), make)

    def _noisy_block(self, tiles: Dense | Streamed | Sharded, index: Tensor) -> Tensor:
        """H[index, index] on the device of the tiles."""
        result = tiles.block(index.to(tiles.variances.device))
        result.diagonal().add_((self.noise[index] if self.noise.ndim else self.noise).to(result.device))
        return result

    def _differentiable(self, compute: _ValueAndGradient) -> Tensor:
        pairs = list(zip(self.kernel.parameters(), self._snapshot.parameters(), strict=True))
        learned = [snapshot for parameter, snapshot in pairs if parameter.requires_grad]
        value: Tensor = _FromSnapshot.apply(compute, learned, *(p for p, _ in pairs if p.requires_grad))
        return value

    def features(self, num: int, generator: torch.Generator | None = None, draws: int | None = None) -> Tensor:
        with torch.no_grad():
            return self._snapshot.features(num, generator=generator, paths=draws, dim=self.X.shape[1])(self.X)

    def partition(self, parts: int, generator: torch.Generator, near: bool = False) -> tuple[Tensor, ...]:
        return neighbourhoods(self.coordinates, parts, generator) if near else super().partition(parts, generator)

    def cost(self, rows: int | None = None) -> float:
        return 1.0 if rows is None else rows / self.shape[0]

    def sync_generator(self, generator: torch.Generator) -> torch.Generator:
        return generator if self.group is None else self.group.sync_generator(generator)

    def __repr__(self) -> str:
        backend = f"{self.backend}: {self.fallback_reason}" if self.fallback_reason else self.backend
        return f"KernelOperator(n={self.shape[0]}, {backend}, {self.dtype}, {self.group or self.device})"


def _choose_backend(
    backend: str, kernel: Kernel, X: Tensor, memory: int, members: int
) -> tuple[type[Streamed], bool, str]:
    """The class that evaluates K, whether K is kept, and why it is not fused if that would be faster.

    The rows of K and the work are divided among ``members``.
    """
    n = len(X)
    needed = -(-n // members) * n * X.element_size()
    fits, small = needed <= memory, n <= SMALL
    if backend == "dense" and not fits:
        each, more = (f" on each of {members} members", ", more members,") if members > 1 else ("", "")
        raise ValueError(
            f"a dense K needs {needed / 1e9:.3g} GB{each}, the budget is {memory / 1e9:.3g} GB: "
            f"use backend='streamed'{more} or raise memory="
        )
    worthwhile = backend != "streamed" and triton.preferred(X.device) and not (fits and small)
    problem = fallback_reason(kernel, X) if backend == "fused" or worthwhile else "not worth compiling"
    if backend == "fused" and problem:
        raise ValueError(f"{problem}: use backend='auto'")
    kept = backend == "dense" or (backend == "auto" and fits and bool(problem))
    return Streamed if problem else Fused, kept, problem if backend == "auto" and worthwhile else ""


def _is_same_size(one: Operator, other: Operator) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


class _FromSnapshot(torch.autograd.Function):
    """A scalar whose gradient was computed with it, at the snapshot of the kernel's parameters."""

    @staticmethod
    def forward(ctx: Any, compute: _ValueAndGradient, learned: list[Tensor], *parameters: Tensor) -> Tensor:
        value, grads = compute(learned)
        ctx.save_for_backward(*grads)
        ctx.devices = [p.device for p in parameters]
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        grads = ctx.saved_tensors
        return (None, None, *((outer[0] * g).to(d) for g, d in zip(grads, ctx.devices, strict=True)))


def checked_noise(noise: float | Tensor, n: int, device: torch.device) -> Tensor:
    """Standard deviations of the noise, one number or one per row, float64, with their graph."""
    deviation = torch.as_tensor(noise, dtype=torch.float64, device=device)
    if deviation.ndim > 1 or (deviation.ndim == 1 and deviation.shape[0] != n):
        raise ValueError(f"noise must be one number or one per row ({n},), got shape {tuple(deviation.shape)}")
    if not bool(((deviation >= 0) & (deviation < math.inf)).all()):
        raise ValueError("noise is a standard deviation: it must be finite and not negative")
    return deviation
