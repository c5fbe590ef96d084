"""Backend whose products take n log n; rows, columns and blocks of K stay exact."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from pathgp.compute.hardware import rates
from pathgp.compute.memory import spans
from pathgp.compute.random import normal
from pathgp.kernels import Kernel
from pathgp.kernels.blocks import stationary_columns
from pathgp.operators.field.grid import Grid
from pathgp.operators.field.near import Blocks
from pathgp.operators.field.plan import Plan, nodes_of, plan_products, unsuitable
from pathgp.operators.field.product import FieldProduct
from pathgp.operators.field.split import Split
from pathgp.operators.streamed import Streamed
from pathgp.operators.structured import COLUMNS, MUCH_LESS, Structured, StructureError, ValueAndGradients

# Rows and vectors from which the error of a product is measured, and the factor by which a plan that misses its
# accuracy is tightened, a number of times.
_MEASURED_ROWS, _PROBES, _TIGHTER, _ATTEMPTS = 64, 4, 0.2, 3
# The measured error must be this part of the accuracy: other vectors than the one measured may have larger errors.
_MARGIN = 0.5
# Errors of the spectrum of K stay below this part of the noise; the least that rounding allows.
_PART_OF_NOISE, _LEAST_SPECTRAL = 0.01, {torch.float32: 1e-9}
_LEAST_SPECTRAL_64, _LARGEST_SPECTRAL = 1e-11, 1e-4
# Nodes of an exact grid, twice as long as the points in every dimension, per point: with fewer no other grid is tried.
_FEW_HOLES = 16
# Columns that are converted to another dtype together.
_CONVERTED = 16
# "auto" uses field products from this number of rows on.
LEAST_ROWS = 8192


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
        """Grid and near part; None if they do not fit into the budget.

        A grid on which all points lie is exact. Another one is chosen if it takes less than half of the time: most
        nodes of the exact grid may be holes.
        """
        dtype, exact = self.X.dtype, None
        if self.nodes is not None and self.nodes.column_bytes(dtype) <= memory / 4:
            split = Split(accuracy, spectral_accuracy, self.X.shape[1])
            exact = Plan(self.nodes, split, 0.0, 2 * len(self.X), True)
        is_dense = self.nodes is not None and self.nodes.nodes <= _FEW_HOLES * len(self.X)
        if (exact is not None and is_dense) or stationary_columns(kernel, self.X.shape[1]) is None:
            return exact
        other = plan_products(kernel, self.blocks, None, accuracy, spectral_accuracy, memory, dtype)
        if exact is None or other is None:
            return exact or other
        seconds, others = (
            plan.seconds(COLUMNS, rates(self.X.device, dtype), memory, dtype.itemsize) for plan in (exact, other)
        )
        return other if others < MUCH_LESS * seconds else exact


class Field(Structured):
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
        dtype: in which products are computed, that of the inputs by default.

    Raises:
        StructureError: if the kernel or the inputs do not suit, or the accuracy or the budget is out of reach.
    """

    name = "field"

    def __init__(
        self,
        exact: Streamed,
        accuracy: float,
        noise: float,
        memory: int,
        geometry: Geometry | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(exact, memory)
        self.noise, self.dtype = noise, dtype or self.X.dtype
        n, X = len(self.X), self.X.to(self.dtype)
        if X.dtype != self.X.dtype:
            geometry, exact = None, Streamed(self.kernel, X, memory)
        self.geometry = geometry or Geometry(X)
        reason = self.geometry.unsuitable(self.kernel)
        if reason:
            raise StructureError(reason)
        index = torch.linspace(0, n - 1, min(n, _MEASURED_ROWS), device=X.device).long()
        probe = normal((n, 1 + _PROBES), torch.Generator().manual_seed(0), self.dtype, X.device)
        probe[:, 0] = 1.0
        wanted = exact.rows(index, probe, probe.new_zeros(len(index), 1 + _PROBES))
        least = _LEAST_SPECTRAL.get(self.dtype, _LEAST_SPECTRAL_64)
        spectral = min(_LARGEST_SPECTRAL, max(least, _PART_OF_NOISE * noise / float(wanted[:, 0].max())))
        target = accuracy
        for _ in range(_ATTEMPTS):
            plan = self.geometry.plan(self.kernel, target, spectral, memory)
            if plan is None:
                raise StructureError(f"no grid for field products fits into {memory / 1e9:.3g} GB")
            blocks = (self.geometry.blocks, None) if any(plan.split.radii.values()) else None
            self.plan, self.fast = plan, FieldProduct(self.kernel, plan, X, None, blocks, memory)
            found = self.fast.product(probe, torch.zeros_like(probe))[index]
            self.error = float((found - wanted)[:, 1:].norm() / wanted[:, 1:].norm())
            if self.error <= _MARGIN * accuracy:
                return
            target *= _TIGHTER
        raise StructureError(f"field products reach an error of {self.error:.1e}, not {accuracy:.1e}, in {self.dtype}")

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        """start + K V, (n, s)."""
        if V.dtype == self.dtype:
            return self.fast.product(V, start)
        for part in spans(V.shape[1], _CONVERTED):
            start[:, part] = self.fast.product(V[:, part].to(self.dtype), start[:, part].to(self.dtype))
        return start

    def bilinear(self, L: Tensor, R: Tensor, learned: list[Tensor], symmetric: bool = False) -> ValueAndGradients:
        """sum_j L_j^T K R_j and its gradient in the learned parameters."""
        return self.fast.bilinear(L.to(self.dtype), R.to(self.dtype), learned)

    def predict_product(self, s: int) -> float:
        """Predicted seconds of a product with s columns."""
        return self.plan.seconds(s, rates(self.X.device, self.dtype), self.memory, self.dtype.itemsize)


def predict_field(kernel: Kernel, geometry: Geometry, accuracy: float, memory: int) -> float:
    """Predicted seconds of a field product with 65 columns; infinite if there is none."""
    X = geometry.X
    if len(X) < LEAST_ROWS or geometry.unsuitable(kernel):
        return math.inf
    plan = geometry.plan(kernel, accuracy, _LARGEST_SPECTRAL, memory)
    return math.inf if plan is None else plan.seconds(COLUMNS, rates(X.device, X.dtype), memory, X.element_size())
