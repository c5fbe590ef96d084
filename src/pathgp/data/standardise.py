"""Shift and scale of inputs and targets, kept with the model so that predictions come back in the user's units.

Numbers with an offset, such as seconds since 1970, have too many digits for float32. They are shifted and scaled in
float64, and only then rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.inputs import rounding_error
from pathgp.kernels import Kernel, Task
from pathgp.kernels.expression import leaves


@dataclass(frozen=True)
class Standardisation:
    """x -> (x - shift) / scale per column, y -> (y - target_shift) / target_scale, all float64.

    result_dtype: that of predictions in the units of y, "float32" or "float64"; see `inputs.result_dtype`.
    """

    shift: Tensor
    scale: Tensor
    target_shift: Tensor
    target_scale: Tensor
    result_dtype: str = "float64"

    @classmethod
    def identity(cls, X: Tensor, results: torch.dtype | None = None) -> Standardisation:
        zero = torch.zeros(X.shape[1], dtype=torch.float64, device=X.device)
        return cls(zero, zero + 1.0, zero.new_zeros(()), zero.new_ones(()), _name(results or X.dtype))

    @classmethod
    def of(cls, X: Tensor, y: Tensor, kept: Sequence[int] = (), results: torch.dtype | None = None) -> Standardisation:
        """Mean zero and standard deviation one on these rows; what is constant is only shifted.

        kept: columns of X that stay as they are.  results: the dtype of predictions, by default that of X.
        """
        results = results or X.dtype
        X64, y64 = X.detach().to(torch.float64), y.detach().to(torch.float64)
        shift, scale = X64.mean(0), _deviation(X64)
        shift[list(kept)], scale[list(kept)] = 0.0, 1.0
        scaling = cls(shift, scale, y64.mean(), _deviation(y64), _name(results))
        # Variances come back in the square of y's unit, which float32 cannot hold for y of 1e-20, say.
        square, limits = float(scaling.target_scale) ** 2, torch.finfo(results)
        if not limits.tiny <= square <= limits.max:
            raise ValueError(
                f"y varies by {float(scaling.target_scale):.0e}, and its variance leaves the range of {results}: "
                "use another unit for y, or float64 inputs"
            )
        return scaling

    def inputs(self, X: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """X in the model's units, rounded to a dtype at the end, by default that of X."""
        dtype = dtype or X.dtype
        if bool((self.shift == 0).all()) and bool((self.scale == 1).all()):
            return X.to(dtype)
        return ((X.to(torch.float64) - self.shift) / self.scale).to(dtype)

    def original_inputs(self, X: Tensor) -> Tensor:
        """Inputs in the model's units back in those of the caller, in the same dtype: what mean functions see."""
        return (X.to(torch.float64) * self.scale + self.shift).to(X.dtype)

    def targets(self, y: Tensor) -> Tensor:
        """y in the model's units, float64."""
        return (y.to(torch.float64) - self.target_shift) / self.target_scale

    def restore(self, values: Tensor, mean: Tensor | float = 0.0) -> Tensor:
        """Function values, without their ``mean`` in the units of y, back in these units."""
        dtype = self._results
        return values.to(dtype) * self.target_scale.to(dtype) + (self.target_shift + mean).to(dtype)

    def rounding(self, targets: Tensor) -> float:
        """The error of restored values as large as these targets, as results are rounded."""
        largest = abs(float(self.target_shift)) + float(self.target_scale) * float(targets.abs().max())
        return torch.finfo(self._results).eps * largest

    def restore_variance(self, values: Tensor) -> Tensor:
        dtype = self._results
        return values.to(dtype) * self.target_scale.square().to(dtype)

    @property
    def _results(self) -> torch.dtype:
        return torch.float32 if self.result_dtype == "float32" else torch.float64


def task_columns(kernel: Kernel, X: Tensor) -> list[int]:
    """The columns of X in which a kernel looks for task numbers, which are names: they cannot be scaled."""
    return [c for k, columns in leaves(kernel, range(X.shape[1])) if isinstance(k, Task) for c in columns]


def blurred_column(X: Tensor, dtype: torch.dtype) -> int | None:
    """The first column of X (n, d) that rounding to a dtype would spoil, or None.

    Rounding spoils a column if it merges more than a twentieth of its distinct values, or moves a typical value by more
    than a hundredth of a typical gap between neighbours; a constant column, if it moves by more than 1e-4, for new
    inputs may differ from it. Time O(n d log n), none where X has this dtype.
    """
    if X.dtype == dtype or torch.finfo(X.dtype).eps >= torch.finfo(dtype).eps:
        return None
    for column in range(X.shape[1]):
        values = X[:, column].detach().unique()
        rounded = values.to(dtype)
        merged = len(values) - len(rounded.unique_consecutive())
        moved = (rounded.to(values.dtype) - values).abs().median()
        limit = 0.01 * values.diff().median() if len(values) > 1 else 1e-4
        if merged > len(values) / 20 or bool(moved > limit):
            return column
    return None


def require_digits(y: Tensor, dtype: torch.dtype) -> None:
    """ValueError where targets y (n,), float64 and in the model's units, vary too little about a level for a dtype."""
    if 0.01 < rounding_error(y, dtype) < math.inf:
        raise ValueError(
            f"y varies by {float(y.std()):.1g} about {float(y.mean()):.3g}, digits that {_name(dtype)} lacks: use "
            "standardise=True or mean=, which take the level off before y is rounded, or float64 inputs"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _deviation(values: Tensor) -> Tensor:
    deviation = values.std(0, correction=0)
    # A column that is constant up to rounding would otherwise be blown up to unit variance.
    negligible = deviation <= 1e-12 * values.abs().amax(0).clamp_min(1e-300)
    return torch.where(negligible, torch.ones_like(deviation), deviation)
