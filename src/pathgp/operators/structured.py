"""The base of backends with fast products, which leave rows, columns and blocks of K to an exact backend."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from pathgp.compute.hardware import rates
from pathgp.operators.streamed import Streamed

# Number of columns for which costs are compared: that of a typical solve.
COLUMNS = 65
# "auto" uses fast products if they take less than this part of the time of exact ones.
MUCH_LESS = 0.5

ValueAndGradients = tuple[Tensor, list[Tensor]]
"""A number, and its gradients in the learned parameters."""


class StructureError(ValueError):
    """Fast products are not possible; the message says why."""


class Structured(ABC):
    """K with fast products, and an exact backend for its entries.

    ``error``: the measured relative error of products; None if they are exact up to rounding.
    """

    name: str
    error: float | None = None

    def __init__(self, exact: Streamed, memory: int) -> None:
        self.exact, self.kernel, self.X, self.variances = exact, exact.kernel, exact.X, exact.variances
        self.rows, self.columns, self.block, self.between = exact.rows, exact.columns, exact.block, exact.between
        self.weighted_sum, self.memory = exact.weighted_sum, memory

    @abstractmethod
    def product(self, V: Tensor, start: Tensor) -> Tensor:
        """start + K V, (n, s)."""

    @abstractmethod
    def bilinear(self, L: Tensor, R: Tensor, learned: list[Tensor], symmetric: bool = False) -> ValueAndGradients:
        """sum_j L_j^T K R_j and its gradient in the learned parameters; ``symmetric``: whether L R^T is symmetric."""

    @abstractmethod
    def predict_product(self, s: int) -> float:
        """Predicted seconds of a product with s columns."""

    def cost(self, rows: int) -> float:
        """Cost of exact rows in epochs: their predicted seconds over those of a product."""
        seconds = rows / len(self.X) * predict_exact_rows(len(self.X), COLUMNS, self.exact.name, self.X)
        return seconds / self.predict_product(COLUMNS)


def predict_exact_rows(n: int, s: int, backend: str, X: Tensor) -> float:
    """Predicted seconds of the product of n rows of K, between n points and X, with s columns, by an exact backend."""
    r = rates(X.device, X.dtype)
    if backend == "fused" and r.fused:
        return n * len(X) * max(0.5, s / 65) / r.fused
    return n * len(X) * (1.0 / r.evaluate + 2.0 * s / r.multiply)


def predict_exact_product(X: Tensor, backend: str, fits: bool) -> float:
    """Predicted seconds of the product of K with 65 columns by an exact backend; ``fits``: whether it stores K.

    Streamed products, without a stored K, evaluate half of the entries, because K is symmetric.
    """
    n, r = len(X), rates(X.device, X.dtype)
    exact = predict_exact_rows(n, COLUMNS, backend, X)
    if backend == "fused":
        return exact
    return 2.0 * n**2 * COLUMNS / r.multiply if fits else exact - n**2 / 2 / r.evaluate


def exact_backend(X: Tensor) -> str:
    """The backend of exact products if K does not fit into memory."""
    return "fused" if rates(X.device, X.dtype).fused and X.dtype == torch.float32 else "streamed"
