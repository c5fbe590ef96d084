"""Positive hyperparameters: stored in float64 behind a softplus, read as ordinary tensors.

All scales of a kernel (standard deviations, length scales, periods) are positive. They are stored
unconstrained and mapped through softplus(u) = log(1 + e^u), as in chapter 5 of the thesis.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus

# What users may give for a parameter: one number, or one per dimension.
Values: TypeAlias = float | Sequence[float] | NDArray[Any] | Tensor


def inverse_softplus(value: Tensor) -> Tensor:
    """The u with softplus(u) = value, accurate for tiny and for large values."""
    return value + torch.log(-torch.expm1(-value))


@dataclass(frozen=True)
class LogNormal:
    """A prior under which log(value) is normal with mean log(median) and standard deviation ``spread``.

    The density is with respect to log(value), so that the most probable value is the median: a median of 0.1 and a
    spread of 1 mean "about 0.1, give or take a factor of e".
    """

    median: float
    spread: float = 1.0

    def __post_init__(self) -> None:
        for name in ("median", "spread"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} of a LogNormal must be positive and finite, got {getattr(self, name)}")

    def log_density(self, value: Tensor) -> Tensor:
        """The sum of the log densities of all entries."""
        z = (value.log() - math.log(self.median)) / self.spread
        return (-0.5 * z.square() - math.log(self.spread * math.sqrt(2 * math.pi))).sum()


class Positive(nn.Module):
    """A positive scalar or vector, stored in float64 as ``raw`` with value softplus(raw).

    ``bounds`` and ``prior`` are for learning: the limits of the value, and its prior distribution. A parameter that
    does not require a gradient is not learned.
    """

    def __init__(self, value: Values, name: str, scalar: bool = False) -> None:
        super().__init__()
        self.name = name
        self.raw = nn.Parameter(inverse_softplus(self._check(value)))
        if scalar and self.raw.ndim:
            raise ValueError(f"{name} must be one number")
        self.bounds: tuple[float, float] | None = None
        self.prior: LogNormal | None = None

    @property
    def value(self) -> Tensor:
        return softplus(self.raw)

    def project(self) -> None:
        """Move the value to the nearest one within the bounds."""
        low, high = self._raw_bounds()
        with torch.no_grad():
            self.raw.clamp_(low, high)

    def inward(self, gradient: Tensor) -> Tensor:
        """The gradient of a loss in ``raw`` without those entries whose descent a bound forbids."""
        low, high = self._raw_bounds()
        raw = self.raw.detach()
        return gradient.masked_fill(((raw <= low) & (gradient > 0)) | ((raw >= high) & (gradient < 0)), 0.0)

    def _raw_bounds(self) -> tuple[float, float]:
        if self.bounds is None:
            return -math.inf, math.inf
        low, high = (float(inverse_softplus(torch.tensor(b, dtype=torch.float64))) for b in self.bounds)
        return low, high

    def matching(self, columns: int, device: torch.device) -> Tensor:
        """The value on a device, after a check that a vector has one entry per column."""
        if self.raw.ndim == 1 and self.raw.shape[0] != columns:
            raise ValueError(f"{self.name} has {self.raw.shape[0]} entries, but the inputs have {columns} columns")
        return self.value.to(device)

    def assign(self, value: Values) -> None:
        """Overwrite the value in place; the shape stays."""
        new = self._check(value)
        if new.shape != self.raw.shape and new.ndim != 0:
            raise ValueError(f"{self.name} has shape {tuple(self.raw.shape)}, got a value of shape {tuple(new.shape)}")
        with torch.no_grad():
            self.raw.copy_(inverse_softplus(new).expand_as(self.raw))

    def _check(self, value: Values) -> Tensor:
        tensor = torch.as_tensor(value, dtype=torch.float64).detach().clone()
        if tensor.ndim > 1 or tensor.numel() == 0:
            raise ValueError(
                f"{self.name} must be a number or a one-dimensional tensor, got shape {tuple(tensor.shape)}"
            )
        if not bool(torch.isfinite(tensor).all()) or not bool((tensor > 0).all()):
            raise ValueError(f"{self.name} must be positive and finite, got {tensor.tolist()}")
        return tensor


class PositiveValue:
    """The attribute ``name`` of a module that keeps a `Positive` as ``_name``: reads its value, assigns in place."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._stored = f"_{name}"

    def __get__(self, module: nn.Module | None, owner: type) -> Tensor:
        if module is None:
            return self  # type: ignore[return-value]  # the descriptor itself, for documentation
        positive: Positive = getattr(module, self._stored)
        return positive.value

    def __set__(self, module: nn.Module, value: Values) -> None:
        getattr(module, self._stored).assign(value)


def refuse_value_of_part(module: nn.Module, name: str) -> None:
    """Raise AttributeError if only a part of the module has a value of this name: setting it would have no effect."""
    if hasattr(type(module), name):
        return
    for path, part in module.named_modules():
        if part is not module and isinstance(getattr(type(part), name, None), PositiveValue):
            path = re.sub(r"\.(\d+)", r"[\1]", path)
            raise AttributeError(
                f"{type(module).__name__} has no {name} of its own: set that of its part, .{path}.{name} = ..."
            )


def positive(module: nn.Module, name: str) -> Positive:
    """The parameter behind the attribute ``name`` of a kernel or a model, with its bounds and its prior."""
    found: Positive = getattr(module, f"_{name}")
    return found


def short(value: Tensor) -> str:
    """A number, or a list of at most six, with four digits; for reprs."""
    if value.ndim == 0:
        return f"{value.item():.4g}"
    numbers = [f"{v:.4g}" for v in value.tolist()]
    if len(numbers) > 6:
        numbers = [*numbers[:3], "...", *numbers[-2:]]
    return f"[{', '.join(numbers)}]"
