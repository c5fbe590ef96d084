"""Shift and scale of inputs and targets, kept with the model so that predictions come back in the user's units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.kernels import Kernel, Task
from pathgp.kernels.algebra import leaves


@dataclass(frozen=True)
class Standardisation:
    """x -> (x - shift) / scale per column, y -> (y - target_shift) / target_scale, all float64."""

    shift: Tensor
    scale: Tensor
    target_shift: Tensor
    target_scale: Tensor

    @classmethod
    def identity(cls, X: Tensor) -> Standardisation:
        zero = torch.zeros(X.shape[1], dtype=torch.float64, device=X.device)
        return cls(zero, zero + 1.0, zero.new_zeros(()), zero.new_ones(()))

    @classmethod
    def of(cls, X: Tensor, y: Tensor, kept: Sequence[int] = ()) -> Standardisation:
        """Mean zero and standard deviation one on these rows; what is constant is only shifted.

        kept: columns of X that stay as they are.
        """
        X64, y64 = X.detach().to(torch.float64), y.detach().to(torch.float64)
        shift, scale = X64.mean(0), _deviation(X64)
        shift[list(kept)], scale[list(kept)] = 0.0, 1.0
        scaling = cls(shift, scale, y64.mean(), _deviation(y64))
        # Variances come back in the square of y's unit, which float32 cannot hold for y of 1e-20, say.
        square, limits = float(scaling.target_scale) ** 2, torch.finfo(X.dtype)
        if not limits.tiny <= square <= limits.max:
            raise ValueError(
                f"y varies by {float(scaling.target_scale):.0e}, and its variance leaves the range of {X.dtype}: "
                "use another unit for y, or float64 inputs"
            )
        return scaling

    def inputs(self, X: Tensor) -> Tensor:
        if bool((self.shift == 0).all()) and bool((self.scale == 1).all()):
            return X
        return ((X.to(torch.float64) - self.shift) / self.scale).to(X.dtype)

    def targets(self, y: Tensor) -> Tensor:
        return ((y.to(torch.float64) - self.target_shift) / self.target_scale).to(y.dtype)

    def restore(self, values: Tensor) -> Tensor:
        """Function values back in the units of y."""
        return values * self.target_scale.to(values) + self.target_shift.to(values)

    def rounding(self, targets: Tensor, dtype: torch.dtype | None) -> float:
        """The error of values as large as these targets, restored and rounded to a dtype."""
        largest = abs(float(self.target_shift)) + float(self.target_scale) * float(targets.abs().max())
        return torch.finfo(dtype or targets.dtype).eps * largest

    def restore_variance(self, values: Tensor) -> Tensor:
        return values * self.target_scale.square().to(values)


def task_columns(kernel: Kernel, X: Tensor) -> list[int]:
    """The columns of X in which a kernel looks for task numbers, which are names: they cannot be scaled."""
    return [c for k, columns in leaves(kernel, range(X.shape[1])) if isinstance(k, Task) for c in columns]


def _deviation(values: Tensor) -> Tensor:
    deviation = values.std(0, correction=0)
    # A column that is constant up to rounding would otherwise be blown up to unit variance.
    negligible = deviation <= 1e-12 * values.abs().amax(0).clamp_min(1e-300)
    return torch.where(negligible, torch.ones_like(deviation), deviation)
