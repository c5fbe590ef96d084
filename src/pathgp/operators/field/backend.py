"""Backend whose products take n log n; rows, columns and blocks of K stay exact."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from pathgp.compute.hardware import rates
from pathgp.compute.random import normal
from pathgp.kernels import Kernel
from pathgp.kernels.blocks import stationary_columns
from pathgp.operators.field.grid import GRID_COPIES, Grid
from pathgp.operators.field.near import Blocks, Values
from pathgp.operators.field.plan import Plan, nodes_of, plan_products, unsuitable
from pathgp.operators.field.product import FieldProduct
from pathgp.operators.field.split import Split
from pathgp.operators.streamed import Streamed

# Rows and vectors from which the error of a product is measured, and the factor by which a plan that misses its
# accuracy is tightened, a number of times.
_MEASURED_ROWS, _PROBES, _TIGHTER, _ATTEMPTS = 64, 4, 0.2, 3
# The measured error must be this part of the accuracy: other vectors than the one measured may have larger errors.
_MARGIN = 0.5
# Errors of the spectrum of K stay below this part of the noise; the least that rounding allows.
_PART_OF_NOISE, _LEAST_SPECTRAL = 0.01, {torch.float32: 1e-9}
_LEAST_SPECTRAL_64, _LARGEST_SPECTRAL = 1e-11, 1e-4
# Columns for which the cost of a row is that of a typical solve.
_COLUMNS = 65
# The accuracy of operators by default.
_ACCURACY = 1e-5
# "auto" uses field products from this number of rows on, if they take less than this part of the time.
LEAST_ROWS, _MUCH_LESS = 8192, 0.5


class Geometry:
    """What field products need to know about inputs X (n, d), for all hyperparameters."""

    def __init__(self, X: Tensor) -> None:
        self.X = X

    @cached_property
    def nodes(self) -> Grid | None:
        """The regular grid on which all points lie."""
        return nodes_of(self.X)

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks(self.X.to(torch.float64))

    def unsuitable(self, kernel: Kernel) -> str:
        """Why there are no field products, or an empty string."""
        reason = unsuitable(kernel, self.X)
        if not reason and self.nodes is None and stationary_columns(kernel, self.X.shape[1]) is None:
            reason = "field products of a periodic kernel need points on a regular grid"
        return reason

    def plan(self, kernel: Kernel, accuracy: float, spectral_accuracy: float, memory: int) -> Plan | None:
        """Grid and near part; None if they do not fit into the budget."""
        if self.nodes is None:
            return plan_products(kernel, self.blocks, None, accuracy, spectral_accuracy, memory, self.X.dtype)
        fits = GRID_COPIES * self.nodes.nodes * self.X.element_size() <= memory / 4
        split = Split(accuracy, spectral_accuracy, self.X.shape[1])
        return Plan(self.nodes, split, 0.0, 2 * len(self.X), True) if fits else None


class Field:
    """K = W T W^T + C: T the smooth part on a regular grid (a fast Fourier transform), W windows, C near tiles.

    Points on a regular grid need neither windows nor near tiles: K is then a part of T, exact for every stationary
    kernel. Otherwise grid and tiles are chosen for the smallest predicted time. The error of the product with white
    noise is measured on some rows; it exceeds ``accuracy`` in no operator that is returned.

    Args:
        exact: the backend that evaluates rows, columns and blocks.
        accuracy: relative error of products.
        noise: the smallest variance of the noise: eigenvalues of K of this size must be right, too.
        memory: budget in bytes.
        geometry: of the inputs, if it is known.

    Raises:
        FieldError: if the kernel or the inputs do not suit, or the accuracy or the budget is out of reach.
    """

    name = "field"

    def __init__(
        self, exact: Streamed, accuracy: float, noise: float, memory: int, geometry: Geometry | None = None
    ) -> None:
        self.exact, self.kernel, self.X, self.variances = exact, exact.kernel, exact.X, exact.variances
        self.rows, self.columns, self.block, self.between = exact.rows, exact.columns, exact.block, exact.between
        self.weighted_sum, self.memory, self.noise = exact.weighted_sum, memory, noise
        n, dtype = len(self.X), self.X.dtype
        self.geometry = geometry or Geometry(self.X)
        reason = self.geometry.unsuitable(self.kernel)
        if reason:
            raise FieldError(reason)
        index = torch.linspace(0, n - 1, min(n, _MEASURED_ROWS), device=self.X.device).long()
        probe = normal((n, 1 + _PROBES), torch.Generator().manual_seed(0), dtype, self.X.device)
        probe[:, 0] = 1.0
        wanted = exact.rows(index, probe, probe.new_zeros(len(index), 1 + _PROBES))
        least = _LEAST_SPECTRAL.get(dtype, _LEAST_SPECTRAL_64)
        spectral = min(_LARGEST_SPECTRAL, max(least, _PART_OF_NOISE * noise / float(wanted[:, 0].max())))
        target = accuracy
        for _ in range(_ATTEMPTS):
            plan = self.geometry.plan(self.kernel, target, spectral, memory)
            if plan is None:
                raise FieldError(f"no grid for field products fits into {memory / 1e9:.3g} GB")
            blocks = (self.geometry.blocks, None) if any(plan.split.radii.values()) else None
            self.plan, self.fast = plan, FieldProduct(self.kernel, plan, self.X, None, blocks, memory)
            found = self.fast.product(probe, torch.zeros_like(probe))[index]
            self.error = float((found - wanted)[:, 1:].norm() / wanted[:, 1:].norm())
            if self.error <= _MARGIN * accuracy:
                return
            target *= _TIGHTER
        raise FieldError(f"field products reach an error of {self.error:.1e}, not {accuracy:.1e}, in {dtype}")

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        """start + K V, (n, s)."""
        return self.fast.product(V, start)

    def bilinear(self, L: Tensor, R: Tensor, learned: list[Tensor], symmetric: bool = False) -> Values:
        """sum_j L_j^T K R_j and its gradient in the learned parameters."""
        return self.fast.bilinear(L, R, learned)

    def predict_product(self, s: int) -> float:
        """Predicted seconds of a product with s columns."""
        return self.plan.seconds(s, rates(self.X.device, self.X.dtype), self.memory, self.X.element_size())

    def cost(self, rows: int) -> float:
        """Predicted seconds of exact rows over those of a product."""
        seconds = rows / len(self.X) * predict_exact_rows(len(self.X), _COLUMNS, self.exact.name, self.X)
        return seconds / self.predict_product(_COLUMNS)


class FieldError(ValueError):
    """Field products are not possible; the message says why."""


def predict_exact_rows(n: int, s: int, backend: str, X: Tensor) -> float:
    """Predicted seconds of all rows of K times s columns, evaluated by an exact backend."""
    r = rates(X.device, X.dtype)
    if backend == "fused":
        return n * len(X) * max(0.5, s / 65) / r.fused
    return n * len(X) * (1.0 / r.evaluate + 2.0 * s / r.multiply)


def predict_field(kernel: Kernel, X: Tensor, backend: str, memory: int) -> float | None:
    """Predicted seconds per column of a field product; None if a `KernelOperator` of this backend has none.

    ``backend``: "auto" or "field" may have them.
    """
    geometry, r = Geometry(X), rates(X.device, X.dtype)
    if backend not in ("auto", "field") or len(X) < LEAST_ROWS or geometry.unsuitable(kernel):
        return None
    exact = "fused" if r.fused and X.dtype == torch.float32 else "streamed"
    if backend == "auto" and not prefers_field(kernel, geometry, exact, False, _ACCURACY, memory):
        return None
    plan = geometry.plan(kernel, _ACCURACY, _LARGEST_SPECTRAL, memory)
    return None if plan is None else plan.seconds(_COLUMNS, r, memory, X.element_size()) / _COLUMNS


def prefers_field(kernel: Kernel, geometry: Geometry, backend: str, fits: bool, accuracy: float, memory: int) -> bool:
    """Whether field products are predicted to take less than half the time of the exact ones of a backend."""
    X = geometry.X
    if len(X) < LEAST_ROWS or geometry.unsuitable(kernel):
        return False
    n, r = len(X), rates(X.device, X.dtype)
    exact = predict_exact_rows(n, _COLUMNS, backend, X)
    if backend != "fused":
        exact = 2.0 * n**2 * _COLUMNS / r.multiply if fits else exact - n**2 / 2 / r.evaluate
    plan = geometry.plan(kernel, accuracy, _LARGEST_SPECTRAL, memory)
    return plan is not None and plan.seconds(_COLUMNS, r, memory, X.element_size()) < _MUCH_LESS * exact
