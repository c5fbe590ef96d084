"""Shift and scale of inputs and targets, kept with the model so that results are in the caller's units.

All conversions between the two units are methods of `Standardisation`. Numbers with an offset, such as seconds since
1970, have too many digits for float32: they are shifted and scaled in float64, and only then rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from pathgp.compute.counts import CountRows
from pathgp.compute.inputs import rounding_error
from pathgp.data.trend import TrendScaling
from pathgp.kernels import Kernel, Sphere, Tanimoto, Task
from pathgp.kernels.expression import leaves

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class Standardisation:
    """x -> (x - shift) / scale per column, y -> (y - target_shift) / target_scale, all float64.

    result_dtype: that of predictions in the units of y, "float32" or "float64"; see `inputs.result_dtype`.
    trend: the conversion of the basis of a trend, which is also taken off y, or None.
    """

    shift: Tensor
    scale: Tensor
    target_shift: Tensor
    target_scale: Tensor
    result_dtype: str = "float64"
    trend: TrendScaling | None = None

    @classmethod
    def identity(cls, X: Tensor, results: torch.dtype | None = None) -> Standardisation:
        zero = torch.zeros(X.shape[1], dtype=torch.float64, device=X.device)
        return cls(zero, zero + 1.0, zero.new_zeros(()), zero.new_ones(()), _name(results or X.dtype))

    @classmethod
    def of(
        cls,
        X: Tensor,
        y: Tensor,
        kept: Sequence[int] = (),
        results: torch.dtype | None = None,
        common: bool = False,
    ) -> Standardisation:
        """Mean zero and standard deviation one on these rows; constant columns are only shifted.

        kept: columns of X that stay as they are.  results: the dtype of predictions, by default that of X.
        common: one scale for all other columns, the root mean square of their standard deviations.
        """
        results = results or X.dtype
        y64 = y.detach().to(torch.float64)
        identity = cls.identity(X)
        shift, scale = identity.shift, identity.scale
        if scaled := sorted(set(range(X.shape[1])) - set(kept)):
            X64 = X.detach()[:, scaled].to(torch.float64)
            shift[scaled], scale[scaled] = X64.mean(0), _common_deviation(X64) if common else _deviation(X64)
        scaling = cls(shift, scale, y64.mean(), _deviation(y64), _name(results))
        # Variances have the squared unit of y, which float32 cannot represent for y of 1e-20, for example.
        square, limits = float(scaling.target_scale) ** 2, torch.finfo(results)
        if not limits.tiny <= square <= limits.max:
            advice = ", or float64 inputs" if results == torch.float32 else ""
            raise ValueError(
                f"y varies by {float(scaling.target_scale):.0e}, and its variance leaves the range of "
                f"{_name(results)}: use another unit for y{advice}"
            )
        return scaling

    def inputs(self, X: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """X in the model's units, rounded to a dtype at the end, by default that of X."""
        dtype = dtype or X.dtype
        if self.keeps_inputs:
            return X.to(dtype)
        return ((X.to(torch.float64) - self.shift) / self.scale).to(dtype)

    def restore_inputs(self, X: Tensor) -> Tensor:
        """Inputs in the caller's units, in the dtype of X: the inputs of mean functions."""
        return X if self.keeps_inputs else (X.to(torch.float64) * self.scale + self.shift).to(X.dtype)

    @property
    def keeps_inputs(self) -> bool:
        """Whether inputs stay as they are."""
        return bool((self.shift == 0).all()) and bool((self.scale == 1).all())

    def targets(self, y: Tensor) -> Tensor:
        """y in the model's units, float64."""
        return (y.to(torch.float64) - self.target_shift) / self.target_scale

    def restore(self, values: Tensor, mean: Tensor | float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        """Function values in the units of y, plus their ``mean`` in these units; in the dtype of results by default."""
        dtype = dtype or self._results
        return values.to(dtype) * self.target_scale.to(dtype) + (self.target_shift + mean).to(dtype)

    def restore_variance(self, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Variances and covariances in the squared units of y."""
        dtype = dtype or self._results
        return values.to(dtype) * self.target_scale.square().to(dtype)

    def restore_deviation(self, value: Number) -> Number:
        """A standard deviation or an error bound in the units of y."""
        return value * float(self.target_scale)

    def restore_log_density(self, value: Number, count: int = 1) -> Number:
        """The log density of ``count`` observations in the units of y; a number or a tensor."""
        return value - count * math.log(float(self.target_scale))

    def rounding(self, targets: Tensor) -> float:
        """Rounding error of restored values as large as these targets (n,) in the model's units."""
        largest = abs(float(self.target_shift)) + float(self.target_scale) * float(targets.abs().max())
        return torch.finfo(self._results).eps * largest

    @property
    def _results(self) -> torch.dtype:
        return torch.float32 if self.result_dtype == "float32" else torch.float64


def unscaled_columns(kernel: Kernel, X: Tensor) -> list[int]:
    """The columns of X that must not be scaled: task numbers, counts for `Tanimoto`, and degrees for `Sphere`."""
    kinds = (Task, Tanimoto, Sphere)
    return [c for k, columns in leaves(kernel, range(X.shape[1])) if isinstance(k, kinds) for c in columns]


def blurred_column(X: Tensor, dtype: torch.dtype) -> int | None:
    """The first column of X (n, d) that rounding to a dtype would spoil, or None.

    Rounding spoils a column if it merges more than a twentieth of its distinct values, or moves the median value by
    more than a hundredth of the median gap between neighbours; a constant column, if it moves by more than 1e-4, as new
    inputs may differ from it. Time O(n d log n); none if X already has this dtype.
    """
    if X.dtype == dtype or torch.finfo(X.dtype).eps >= torch.finfo(dtype).eps or isinstance(X, CountRows):
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
    """Raise ValueError if targets y (n,), float64 and in the model's units, vary too little about their mean."""
    if 0.01 < rounding_error(y, dtype) < math.inf:
        raise ValueError(
            f"y varies by {float(y.std()):.1g} about {float(y.mean()):.3g}, digits that {_name(dtype)} lacks: use "
            "standardise=True or mean=, which take the level off before y is rounded, or float64"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _common_deviation(X: Tensor) -> Tensor:
    """One scale for all columns of X (n, d), 0-d: the root mean square of their deviations; 1 if all are constant."""
    size = (X - X.mean(0)).square().mean().sqrt()
    return torch.where(size <= 1e-12 * X.abs().amax().clamp_min(1e-300), torch.ones_like(size), size)


def _deviation(values: Tensor) -> Tensor:
    deviation = values.std(0, correction=0)
    # Dividing a column that is constant up to rounding would amplify rounding errors to unit variance.
    negligible = deviation <= 1e-12 * values.abs().amax(0).clamp_min(1e-300)
    return torch.where(negligible, torch.ones_like(deviation), deviation)
