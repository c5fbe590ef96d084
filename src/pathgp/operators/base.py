"""What a solver may ask of the system matrix H = K + Sigma, and of a preconditioner for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from pathgp.compute.hardware import Rates, full_rate_float64
from pathgp.compute.memory import spans
from pathgp.compute.random import partition

T = TypeVar("T")

Solve = Callable[[Tensor], Tensor]
"""R -> A^-1 R for a matrix A."""

Invert = Callable[[Tensor], Sequence[Solve]]
"""Blocks A (g, b, b) -> the function R -> A^-1 R of every block."""

# Blocks that are inverted together take at most this share of the memory budget, and this number of bytes per entry:
# the values, their factors in float64, temporaries, and the factors before them.
_BLOCKS_SHARE, _BYTES_PER_ENTRY = 0.25, 32


class Operator(ABC):
    """A symmetric positive-definite matrix H = K + Sigma of shape (n, n), defined by its products.

    ``noise`` is the diagonal of Sigma: a 0-d tensor, or one variance per row. ``memory`` is a budget in bytes
    for everything derived from H. ``entries`` counts the multiplications of a product with one column. ``world_size``
    is the number of processes or devices that share the work. ``fallback_reason`` says why a slower backend was chosen.
    ``precision`` is that of the products with ``low_precision``: "high", "medium" or "low".
    ``graph_capturable``: whether a product is safe to capture in a CUDA graph.
    ``stationary_dim``: the number of input columns if K depends on differences of inputs alone, otherwise None.
    Costs are counted in epochs: one epoch is the cost of one full product.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    backend: str
    noise: Tensor
    memory: int
    entries: int
    world_size: int = 1
    fallback_reason: str = ""
    precision: str = "high"
    graph_capturable: bool = False
    stationary_dim: int | None = None

    @property
    def entry_backend(self) -> str:
        """The backend of rows, columns and blocks."""
        return self.backend

    @property
    def product_error(self) -> float | None:
        """The measured relative error of products; None if they are exact up to rounding."""
        return None

    @abstractmethod
    def __matmul__(self, V: Tensor) -> Tensor:
        """H V for V of shape (n, s)."""

    @abstractmethod
    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        """H[index, :] @ V: (len(index), s)."""

    @abstractmethod
    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        """H[:, index] @ D for D of shape (len(index), s): (n, s)."""

    @abstractmethod
    def block(self, index: Tensor) -> Tensor:
        """The dense square block H[index, index]."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """diag(H): (n,)."""

    @abstractmethod
    def bilinear(self, L: Tensor, R: Tensor, symmetric: bool = False) -> Tensor:
        """sum_j L_j^T H R_j as a scalar, differentiable in the hyperparameters; L and R are constants.

        ``symmetric``: whether L R^T is symmetric, as for L = c R with one number per column, which saves work.
        """

    def contract(self, W: Tensor) -> Tensor:
        """sum_ij W_ij H_ij for symmetric constant weights W (n, n); differentiable like `bilinear`."""
        return self.bilinear(W, torch.eye(len(W), dtype=W.dtype, device=W.device), symmetric=True)

    @abstractmethod
    def features(self, num: int, generator: torch.Generator | None = None, draws: int | None = None) -> Tensor:
        """Random features Phi of K at the training inputs: (n, num') with E[Phi Phi^T] = K.

        With ``draws``, that number of independent maps, (draws, n, num'), for the overhead of one.
        """

    @abstractmethod
    def cost(self, rows: int | None = None) -> float:
        """Epochs of a product with all rows, or with ``rows`` of them."""

    def tighten(self, factor: float) -> Operator:
        """The operator whose products have an error that is smaller by this factor.

        H itself if its products are exact, or if more accurate ones would take far longer.
        """
        return self

    def predict_product(self, s: int) -> float | None:
        """Predicted seconds of a product with s columns; None if they follow from the backend and the sizes."""
        return None

    @property
    def low_precision(self) -> Operator:
        """The operator for the iterations between checks: H itself, or one with faster, less accurate products."""
        return self

    @property
    def coordinates(self) -> Tensor | None:
        """Coordinates (n, c) in which rows with a large covariance are close to each other; None if unknown."""
        return None

    def small_blocks(self, index: Tensor) -> Tensor:
        """The blocks H[I, I] for all rows I of an index (g, b), for a small b: (g, b, b), float64."""
        return self._blocks(index).to(torch.float64)

    @property
    def locations(self) -> Tensor | None:
        """The inputs (n, d) of a stationary K, of which `covariances` is a function; None if K is not stationary."""
        return None

    def covariances(self, points: Tensor) -> Tensor:
        """The stationary K at sets of locations (g, b, d), inputs or others, without noise: (g, b, b), float64."""
        raise NotImplementedError(f"{type(self).__name__} has no covariances at locations")

    def choose_preconditioner(self, epochs: float) -> Preconditioner | None:
        """The preconditioner that suits the structure of H, for a solve of at most ``epochs``; None: no structure."""
        return None

    def sparse_rows(self, index: Tensor, V: Tensor, support: Tensor) -> Tensor:
        """H[index, :] @ V for a V that is zero outside the rows ``support``; a backend may skip the other columns."""
        return self.rows(index, V)

    def block_inverses(self, parts: Sequence[Tensor], invert: Invert) -> Iterator[Solve]:
        """For each part I of the rows in turn, the function R -> H[I, I]^-1 R; the lengths differ by at most one.

        Groups of `blocks_at_once` blocks are evaluated and inverted together, when the first of them is asked for.
        """
        for group in spans(len(parts), self.blocks_at_once(max(map(len, parts)))):
            yield from self._invert_group(parts[group], invert)

    def blocks_at_once(self, b: int) -> int:
        """The number of blocks of b rows that are inverted together.

        One on a CPU, whose cores a single block occupies, and where it stays in the cache. As many as the budget allows
        on a GPU, which takes as long for one as for many. One on a GPU with little float64: more would cost more.
        """
        if self.device.type != "cuda" or not full_rate_float64(self.device):
            return 1
        return max(1, int(_BLOCKS_SHARE * self.memory) // (_BYTES_PER_ENTRY * b**2))

    def partition(self, parts: int, generator: torch.Generator, near: bool = False) -> tuple[Tensor, ...]:
        """All rows in parts of equal size, each in ascending order: at random, or, with ``near`` and if it is known
        which rows are similar, similar rows together."""
        return partition(self.shape[0], parts, generator, self.device)

    def sync_generator(self, generator: torch.Generator) -> torch.Generator:
        """The generator to use, in the same state in all processes that share H."""
        return generator

    def on_main_process(self, compute: Callable[[], T]) -> T:
        """compute() by the first of the processes that share H; all of them return its result."""
        return compute()

    def _invert_group(self, parts: Sequence[Tensor], invert: Invert) -> Iterator[Solve]:
        """The functions R -> H[I, I]^-1 R of several parts; shorter blocks are padded by rows of the identity."""
        b = max(map(len, parts))
        missing = [b - len(part) for part in parts]
        blocks = self._blocks(torch.stack([pad(part, (0, rest)) for part, rest in zip(parts, missing, strict=True)]))
        if any(missing):
            is_missing = torch.arange(b) >= torch.tensor([[len(part)] for part in parts])
            is_missing = is_missing.to(blocks.device)
            blocks.masked_fill_(is_missing.unsqueeze(1) | is_missing.unsqueeze(2), 0.0)
            blocks.diagonal(dim1=1, dim2=2).masked_fill_(is_missing, 1.0)
        for solve, rest in zip(invert(blocks), missing, strict=True):
            yield partial(_solve_padded, solve, rest) if rest else solve

    def _blocks(self, index: Tensor) -> Tensor:
        """The blocks H[I, I] for all rows I of an index (g, b): (g, b, b)."""
        blocks = [self.block(part) for part in index]
        # No copy of a single one.
        return torch.stack(blocks) if len(blocks) > 1 else blocks[0].unsqueeze(0)

    def _check(self, V: Tensor, rows: int, name: str) -> None:
        if V.ndim != 2 or V.shape[0] != rows:
            raise ValueError(f"{name} must have shape ({rows}, s), got {tuple(V.shape)}")
        if V.dtype != self.dtype or V.device != self.device:
            raise TypeError(
                f"{name} is {V.dtype} on {V.device}, the operator is {self.dtype} on {self.device}: convert {name}"
            )

    def _weighted_noise(self, V: Tensor, index: Tensor | None = None) -> Tensor:
        """Sigma V, or with ``index`` its rows index, for rows V."""
        noise = self.noise.to(self.dtype)
        if noise.ndim:
            noise = (noise if index is None else noise[index]).unsqueeze(1)
        return noise * V


def _solve_padded(solve: Solve, rest: int, R: Tensor) -> Tensor:
    """A^-1 R for a block A that has ``rest`` rows of the identity below it."""
    return solve(pad(R, (0, 0, 0, rest)))[: len(R)]


class SolveInProgress(Protocol):
    """What a preconditioner may ask of the solve it is built for; columns of b have norm one.

    goal: relative residuals to reach (s,); tol: 0 if there is no goal.  epochs: the cost so far, to be added to.
    """

    H: Operator
    b: Tensor
    tol: float
    goal: Tensor
    epochs: float
    generator: torch.Generator

    def affords(self, epochs: float) -> bool:
        """Whether the budget covers this much more work."""

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        """H[:, index] D, counted as a part of an epoch."""


class Preconditioner(ABC):
    """Settings of an approximation P^-1 of H^-1.

    label: what a report adds to the name of the solver.
    epochs: of a solve to a residual of 0.01, if they do not depend on the condition of H.
    """

    label: ClassVar[str] = ""
    epochs: ClassVar[float | None] = None

    @abstractmethod
    def build(self, run: SolveInProgress) -> tuple[Solve, str]:
        """The function R -> P^-1 R for ``run.H``, and a note on it for the report."""

    def cost(self, H: Operator) -> float:
        """The largest number of epochs that ``build`` can take."""
        return 0.0

    def apply_cost(self, H: Operator) -> float:
        """Epochs of one application, if they are not negligible."""
        return 0.0

    def needs_trial(self, H: Operator) -> bool:
        """Whether the number of epochs is so uncertain that a trial on one column should come first."""
        return False

    @abstractmethod
    def predict_seconds(self, H: Operator, s: int, epochs: float, product: float, rates: Rates) -> float:
        """Seconds of a solve for s columns: build P, then ``epochs`` times a product (seconds) and an application."""
