"""What a solver may ask of the system matrix H = K + Sigma."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pathgp.compute.random import partition


class Operator(ABC):
    """A symmetric positive-definite matrix H = K + Sigma of shape (n, n), known through its products.

    ``noise`` is the diagonal of Sigma: a 0-d tensor, or one variance per row. ``memory`` is a budget in bytes
    for whatever is derived from H. ``entries`` counts the multiplications of a product with one column. ``members``
    is the number of processes or devices that share them out. ``fallback_reason`` says why a slower backend was chosen.
    ``precision`` is that of the products with ``inner``: "high", "medium" or "low".
    ``graph_capturable``: whether a product is safe to capture in a CUDA graph.
    Costs are counted in epochs: one epoch is the cost of one full product.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    backend: str
    noise: Tensor
    memory: int
    entries: int
    members: int = 1
    fallback_reason: str = ""
    precision: str = "high"
    graph_capturable: bool = False

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

        ``symmetric``: that L R^T is symmetric, as for L = c R with one number per column, which saves work.
        """

    @abstractmethod
    def features(self, num: int, generator: torch.Generator | None = None, draws: int | None = None) -> Tensor:
        """Random features Phi of K at the training inputs: (n, num') with E[Phi Phi^T] = K.

        With ``draws`` so many independent ones, (draws, n, num'), for the overhead of one.
        """

    @abstractmethod
    def cost(self, rows: int | None = None) -> float:
        """Epochs of a product with all rows, or with ``rows`` of them."""

    @property
    def inner(self) -> Operator:
        """What solvers use between their checks: H itself, or a twin whose products are cheaper and rougher."""
        return self

    def block_inverses(
        self, parts: Sequence[Tensor], invert: Callable[[Tensor], Callable[[Tensor], Tensor]]
    ) -> Iterator[Callable[[Tensor], Tensor]]:
        """For each part I of the rows in turn the function R -> invert(H[I, I])(R), to be called once."""
        for part in parts:
            yield functools.partial(self._solve_block, part, invert)

    def partition(self, parts: int, generator: torch.Generator, near: bool = False) -> tuple[Tensor, ...]:
        """All rows in parts of equal size, each in ascending order: at random, or with ``near`` similar rows together
        where it is known which are."""
        return partition(self.shape[0], parts, generator, self.device)

    def sync_generator(self, generator: torch.Generator) -> torch.Generator:
        """The generator to use, in the same state for all that share H out."""
        return generator

    def _solve_block(self, part: Tensor, invert: Callable[[Tensor], Callable[[Tensor], Tensor]], R: Tensor) -> Tensor:
        return invert(self.block(part))(R)

    def _check(self, V: Tensor, rows: int, name: str) -> None:
        if V.ndim != 2 or V.shape[0] != rows:
            raise ValueError(f"{name} must have shape ({rows}, s), got {tuple(V.shape)}")
        if V.dtype != self.dtype or V.device != self.device:
            raise TypeError(
                f"{name} is {V.dtype} on {V.device}, the operator is {self.dtype} on {self.device}: convert {name}"
            )

    def _weighted_noise(self, V: Tensor, index: Tensor | None = None) -> Tensor:
        """Sigma V, or its rows ``index`` for those rows V."""
        noise = self.noise.to(self.dtype)
        if noise.ndim:
            noise = (noise if index is None else noise[index]).unsqueeze(1)
        return noise * V
