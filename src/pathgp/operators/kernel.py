"""The operator H = K + Sigma of a kernel matrix K, with one of five backends."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from pathgp.compute import triton
from pathgp.compute.process_groups import words
from pathgp.compute.random import neighbourhoods
from pathgp.compute.settings import Compute
from pathgp.kernels import Kernel
from pathgp.kernels.blocks import stationary_blocks, stationary_columns
from pathgp.kernels.sphere import Embedding
from pathgp.operators.base import Invert, Operator, Preconditioner, Solve, T
from pathgp.operators.dense import Dense
from pathgp.operators.field import Field
from pathgp.operators.fused import Fused, fallback_reason
from pathgp.operators.sharded import Sharded
from pathgp.operators.snapshot import FromSnapshot, ValueAndGradient
from pathgp.operators.streamed import Streamed
from pathgp.operators.structure_choice import STRUCTURED_BACKENDS, InputStructure
from pathgp.operators.structured import COLUMNS, Structured, StructureError, predict_exact_product
from pathgp.operators.toeplitz import Toeplitz

# Up to this number of rows "auto" prefers a dense K: compiling a fused kernel takes seconds, and would save little.
SMALL = 8192
# Field products that are not accurate enough are replaced by exact ones if these take at most this factor longer.
_MAX_SLOWDOWN = 20.0


class KernelOperator(Operator):
    """H = K + diag(noise^2) at the inputs X.

    The attribute ``X`` are the inputs of K as it is evaluated: those given and, for `Sphere`, points on the sphere.
    Products use a copy of the hyperparameters, made at construction. Only ``bilinear`` and ``weighted_sum`` are
    differentiable with respect to the kernel's parameters, and ``bilinear`` with respect to the noise.

    Backends:

    - dense: K is evaluated once and kept, n^2 numbers.
    - streamed: K is evaluated in square tiles in every product and never kept. Tiles below the diagonal are the
      transposes of those above, so a product evaluates n^2 / 2 entries.
    - fused: K is evaluated inside one GPU kernel in every product, and no entry is ever written to memory. In float32,
      for sums, products and scales of all kernels except Task and Matern with an unusual nu; Tanimoto for counts only.
      Needs Triton (the extra ``triton``).
    - field: products in n log n by a grid, for stationary kernels in one to three dimensions, with a relative error of
      1e-5, see `FieldOperator`. Rows, columns and blocks are exact: streamed or fused.
    - toeplitz: exact products for sites x regular times, see `ToeplitzOperator`. Rows, columns and blocks as for field.
    - auto: toeplitz from 4,096 rows on, or field from 8,192 rows on, if that is predicted to take less than half the
      time of the others. Else fused on a CUDA device, if it is available, and if there are more than 8,192 rows or K
      does not fit into the memory budget; products with about 65 columns are then faster than with a dense K. Otherwise
      dense if K fits, else streamed. ``fallback_reason`` says why "auto" did not choose a faster backend.

    The members of a group (processes or devices) share the work. Each member evaluates its part of K, and the results
    are summed over the members. In a group of ``size`` members, each keeps n / size rows of a dense K, or evaluates one
    of ``size`` streamed tiles, or n / size rows of a fused product. K fits if the rows of one member fit into its
    budget. The members also share the blocks of `block_inverses`.

    Args:
        kernel: covariance function.
        X: inputs (n, d), the same on every rank.
        noise: standard deviation of the noise, a number or one per row.
        compute: backend, memory budget of each member, group (`Ranks` or `Devices`, None for this process alone) and
            precision; None for the defaults. The precision applies to the fused products of ``low_precision``, which
            solvers use between their checks. "high": float32, relative error about 1e-6. "medium": K and V are rounded
            to 11 bits, about 3e-4. "low": the scaled inputs are rounded, too, if the error stays below 4e-3. All other
            products, and all other backends, have "high" precision.
        reuse: an operator of the same size that is no longer needed. Without a group, its budget and the memory of its
            K are reused: allocating new memory can take longer than evaluating K.
        accuracy: relative error of field products; 0 excludes them from "auto".
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        noise: float | Tensor = 0.1,
        compute: Compute | None = None,
        reuse: Operator | None = None,
        accuracy: float = 1e-5,
    ) -> None:
        compute = Compute.read(compute)
        if not 0.0 <= accuracy < 1.0:
            raise ValueError(f"accuracy is a relative error of products in [0, 1), got {accuracy}")
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernel must be a pathgp kernel, got {type(kernel).__name__}")
        if not isinstance(X, Tensor) or X.ndim != 2 or X.shape[0] == 0:
            raise ValueError("X must be a tensor of shape (n, d) with at least one row")
        if not X.is_floating_point():
            X = X.to(torch.float64)
        n = X.shape[0]
        self.kernel = kernel
        embedding = Embedding(copy.deepcopy(kernel).to(X.device), X.shape[1])
        self._given = X
        self.shape = (n, n)
        self.entries = n**2
        self.dtype = X.dtype
        self.device = X.device
        self.group = group = compute.group
        self.world_size = 1 if group is None else group.size
        reused = None
        if isinstance(reuse, KernelOperator) and group is None and reuse.group is None and _is_same_size(reuse, self):
            reused = reuse
        self.memory = reused.memory if reused else compute.budget(X.device)
        is_same = reused is not None and reused._given.data_ptr() == X.data_ptr()
        inputs: InputStructure | None = reused._inputs if reused and is_same else None
        self.X = embedding(X.detach()) if inputs is None else inputs.X
        self._deviation = checked_noise(noise, n, X.device)
        self.noise = self._deviation.detach().square()
        self._embedding, self._snapshot = embedding, embedding.kernel
        if group is not None:
            values = [self.X, self._deviation.detach(), *(p.detach() for p in kernel.parameters())]
            options = [words(kernel), compute.backend, compute.precision]
            message = "X, noise, kernel, backend or precision differ between ranks"
            group.check([*values, *options], f"{message}: give every rank the same data and model")
        choice = _choose_backend(compute.backend, self._snapshot, self.X, self.memory, self.world_size)
        tiles, is_kept, self.fallback_reason = choice
        self.accuracy = accuracy
        self._inputs: InputStructure = inputs or InputStructure(self.X, X.detach())
        structured = self._make_structured(compute.backend, tiles, is_kept, reused)
        self._tiles: Dense | Streamed | Sharded | Structured = structured or self._make_tiles(tiles, is_kept, reused)
        self.backend = structured.name if structured else "dense" if is_kept else tiles.name
        self.precision = compute.precision if self.backend == "fused" else "high"
        # Whether this is the operator of the iterations between checks, with products of that precision.
        self._is_low = False
        self.graph_capturable = group is None and self.backend in ("dense", "fused")

    @property
    def low_precision(self) -> KernelOperator:
        # An operator that referred to itself would keep K until the next garbage collection.
        return self if self.precision == "high" or self._is_low else self._low_twin

    @cached_property
    def _low_twin(self) -> KernelOperator:
        twin = copy.copy(self)
        twin._tiles = self._make_tiles(partial(Fused, precision=self.precision))
        twin._is_low = True
        return twin

    @cached_property
    def coordinates(self) -> Tensor:
        """Coordinates (n, c) in which inputs with a large covariance are close to each other."""
        return self._snapshot.coordinates(self.X)

    @cached_property
    def stationary_dim(self) -> int | None:  # type: ignore[override]
        columns = stationary_columns(self._snapshot, self.X.shape[1])
        return None if columns is None else len(columns)

    def __matmul__(self, V: Tensor) -> Tensor:
        self._check(V, self.shape[0], "V")
        return self._tiles.product(V, self._weighted_noise(V))

    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        self._check(V, self.shape[0], "V")
        return self._tiles.rows(index, V, self._weighted_noise(V[index], index))

    @property
    def _exact_tiles(self) -> Dense | Streamed | Sharded:
        """The backend of rows, columns and blocks."""
        return self._tiles.exact if isinstance(self._tiles, Structured) else self._tiles

    @property
    def entry_backend(self) -> str:
        return self._tiles.exact.name if isinstance(self._tiles, Structured) else self.backend

    @property
    def product_error(self) -> float | None:
        """The measured relative error of products; None if they are exact up to rounding."""
        return self._tiles.error if isinstance(self._tiles, Structured) else None

    def sparse_rows(self, index: Tensor, V: Tensor, support: Tensor) -> Tensor:
        tiles = self._exact_tiles
        if not isinstance(tiles, Fused):
            return self.rows(index, V)
        self._check(V, self.shape[0], "V")
        return tiles.rows(index, V, self._weighted_noise(V[index], index), support)

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        self._check(D, len(index), "D")
        return self._tiles.columns(index, D).index_add_(0, index, self._weighted_noise(D, index))

    def block(self, index: Tensor) -> Tensor:
        return self._noisy_block(self._tiles, index)

    def _blocks(self, index: Tensor) -> Tensor:
        tiles = self._exact_tiles
        if not isinstance(tiles, Fused):
            return super()._blocks(index)
        return self._add_noise(tiles.blocks(index), index)

    def small_blocks(self, index: Tensor) -> Tensor:
        if self.stationary_dim is None:
            return super().small_blocks(index)
        return self._add_noise(self.covariances(self.X[index].to(torch.float64)), index)

    @property
    def locations(self) -> Tensor | None:
        return None if self.stationary_dim is None else self.X

    def covariances(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            return stationary_blocks(self._snapshot, points)

    def block_inverses(self, parts: Sequence[Tensor], invert: Invert) -> Iterator[Solve]:
        if not isinstance(self._tiles, Sharded):
            return super().block_inverses(parts, invert)
        return self._tiles.block_inverses(parts, lambda tiles, index: invert(self._noisy_block(tiles, index)[None])[0])

    def between(self, index: Tensor, other: Tensor) -> Tensor:
        """The dense matrix K[index, other], without the noise."""
        return self._tiles.between(index, other)

    def diagonal(self) -> Tensor:
        return self._tiles.variances + self.noise.to(self.dtype)

    def bilinear(self, L: Tensor, R: Tensor, symmetric: bool = False) -> Tensor:
        """sum_j L_j^T H R_j. One pass over K computes both the value and the gradient."""
        self._check(L, self.shape[0], "L")
        self._check(R, self.shape[0], "R")
        L, R = L.detach(), R.detach()
        noise = (self._deviation.square() * (L * R).sum(1).to(torch.float64)).sum()
        return self._differentiable(lambda learned: self._tiles.bilinear(L, R, learned, symmetric)) + noise

    def contract(self, W: Tensor) -> Tensor:
        """sum_ij W_ij H_ij. One pass over K, without the n columns of a bilinear form: time O(n^2)."""
        return self.weighted_sum(W) + (self._deviation.square() * W.diagonal().to(torch.float64)).sum()

    def weighted_sum(self, W: Tensor) -> Tensor:
        """sum_ij W_ij K_ij without the noise, for weights W (n, n); differentiable like `bilinear`."""

        def weights(I: slice, J: slice) -> Tensor:
            return W[I, J].clone() if I == J else W[I, J] + W[J, I].T

        return self._differentiable(lambda learned: self._tiles.weighted_sum(weights, learned))

    def _make_tiles(
        self, evaluate: Callable[..., Streamed], is_kept: bool = False, reused: KernelOperator | None = None
    ) -> Dense | Streamed | Sharded:
        """Return the backend of this process, or one backend for every member of the group."""
        reused_K = reused._tiles.K if reused and isinstance(reused._tiles, Dense) else None

        def make(kernel: Kernel, X: Tensor, member: tuple[int, int] = (0, 1)) -> Dense | Streamed:
            tiles = evaluate(kernel, X, self.memory, member=member)
            return Dense(tiles, reused_K) if is_kept else tiles

        if self.group is None:
            return make(self._snapshot, self.X)
        return Sharded(self.group, evaluate(self._snapshot, self.X, self.memory), make)

    def _make_structured(
        self, backend: str, evaluate: type[Streamed], is_kept: bool, reused: KernelOperator | None
    ) -> Structured | None:
        """Return the structured backend that is asked for, or chosen by "auto"; otherwise None."""
        name = backend if backend in STRUCTURED_BACKENDS else ""
        if name and self.group is not None:
            raise ValueError(f"{name} products are computed by one process: use another backend, or no group")
        if backend == "auto" and self.group is None:
            name = self._inputs.choose(self._embedding, evaluate.name, is_kept, self.accuracy, self.memory)
        if not name:
            return None
        exact = evaluate(self._snapshot, self.X, self.memory)
        try:
            old = None if reused is None else reused._tiles
            noise = float(self.noise.min())
            return self._inputs.make_backend(name, self._embedding, exact, self.accuracy, noise, self.memory, old)
        except StructureError as error:
            if backend in STRUCTURED_BACKENDS:
                raise ValueError(f"{error}: use backend='auto'") from None
            self.fallback_reason = str(error)
            return None

    def _noisy_block(self, tiles: Dense | Streamed | Sharded | Structured, index: Tensor) -> Tensor:
        """H[index, index] on the device of the tiles."""
        return self._add_noise(tiles.block(index.to(tiles.variances.device)), index)

    def _add_noise(self, blocks: Tensor, index: Tensor) -> Tensor:
        """Blocks of H from those of K (..., b, b), in place; index (..., b)."""
        noise = self.noise[index] if self.noise.ndim else self.noise
        blocks.diagonal(dim1=-2, dim2=-1).add_(noise.to(blocks.device))
        return blocks

    def _differentiable(self, compute: ValueAndGradient) -> Tensor:
        """Return the value of ``compute`` as a scalar that autograd can differentiate in the kernel's parameters."""
        pairs = list(zip(self.kernel.parameters(), self._snapshot.parameters(), strict=True))
        learned = [copied for parameter, copied in pairs if parameter.requires_grad]
        value: Tensor = FromSnapshot.apply(compute, learned, *(p for p, _ in pairs if p.requires_grad))
        return value

    def features(self, num: int, generator: torch.Generator | None = None, draws: int | None = None) -> Tensor:
        with torch.no_grad():
            return self._snapshot.features(num, generator=generator, paths=draws, dim=self.X.shape[1])(self.X)

    def partition(self, parts: int, generator: torch.Generator, near: bool = False) -> tuple[Tensor, ...]:
        return neighbourhoods(self.coordinates, parts, generator) if near else super().partition(parts, generator)

    def cost(self, rows: int | None = None) -> float:
        if rows is None:
            return 1.0
        return self._tiles.cost(rows) if isinstance(self._tiles, Structured) else rows / self.shape[0]

    def tighten(self, factor: float) -> KernelOperator:
        if not isinstance(self._tiles, Field):
            return self
        twin, exact = copy.copy(self), self._tiles.exact
        vars(twin).pop("_low_twin", None)
        twin.accuracy, noise = factor * self.accuracy, factor * self._tiles.noise
        try:
            twin._tiles = Field(exact, twin.accuracy, noise, self.memory, dtype=torch.float64)
        except StructureError as error:
            seconds = predict_exact_product(self.X, exact.name, fits=False)
            if seconds > _MAX_SLOWDOWN * self._tiles.predict_product(COLUMNS):
                return self
            twin._tiles, twin.backend, twin.fallback_reason = exact, exact.name, str(error)
        return twin

    def choose_preconditioner(self, epochs: float) -> Preconditioner | None:
        return self._tiles.choose_preconditioner() if isinstance(self._tiles, Toeplitz) else None

    def predict_product(self, s: int) -> float | None:
        return self._tiles.predict_product(s) if isinstance(self._tiles, Structured) else None

    def sync_generator(self, generator: torch.Generator) -> torch.Generator:
        return generator if self.group is None else self.group.sync_generator(generator)

    def on_main_process(self, compute: Callable[[], T]) -> T:
        return compute() if self.group is None else self.group.on_main_process(compute)

    def __repr__(self) -> str:
        backend = f"{self.backend}: {self.fallback_reason}" if self.fallback_reason else self.backend
        return f"KernelOperator(n={self.shape[0]}, {backend}, {self.dtype}, {self.group or self.device})"


def _choose_backend(
    backend: str, kernel: Kernel, X: Tensor, memory: int, world_size: int
) -> tuple[type[Streamed], bool, str]:
    """Return the class that evaluates K, whether K is kept (dense), and the fallback reason.

    The fallback reason says why "auto" did not choose fused where it would be faster; otherwise it is empty. Each of
    ``world_size`` members keeps an equal part of the rows of K.
    """
    n = len(X)
    required = math.ceil(n / world_size) * n * X.element_size()
    fits = required <= memory
    if backend in STRUCTURED_BACKENDS:
        backend = "auto"
        fits = False
    if backend == "dense" and not fits:
        where, advice = (f" on each of {world_size} members", ", more members,") if world_size > 1 else ("", "")
        raise ValueError(
            f"a dense K needs {required / 1e9:.3g} GB{where}, the budget is {memory / 1e9:.3g} GB: "
            f"use backend='streamed'{advice} or raise memory="
        )
    is_fused_faster = backend != "streamed" and triton.preferred(X.device) and not (fits and n <= SMALL)
    # Why K cannot or should not be evaluated by a fused kernel; empty if it can.
    reason = fallback_reason(kernel, X) if backend == "fused" or is_fused_faster else "fused is not faster"
    if backend == "fused" and reason:
        raise ValueError(f"{reason}: use backend='auto'")
    is_kept = backend == "dense" or (backend == "auto" and fits and bool(reason))
    return Streamed if reason else Fused, is_kept, reason if backend == "auto" and is_fused_faster else ""


def _is_same_size(a: Operator, b: Operator) -> bool:
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def checked_noise(noise: float | Tensor, n: int, device: torch.device) -> Tensor:
    """Check standard deviations of the noise, one number or one per row; return them in float64, differentiable."""
    deviation = torch.as_tensor(noise, dtype=torch.float64, device=device)
    if deviation.ndim > 1 or (deviation.ndim == 1 and deviation.shape[0] != n):
        raise ValueError(f"noise must be one number or one per row ({n},), got shape {tuple(deviation.shape)}")
    if not bool(((deviation >= 0) & (deviation < math.inf)).all()):
        raise ValueError("noise is a standard deviation: it must be finite and not negative")
    return deviation
