"""Exponents whose exponential stays clear of subnormal numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def bounded(exponent: Tensor) -> Tensor:
    """The exponent where its exponential is at least 2^16 times the least normal number, and that bound elsewhere.

    The bound is 8e-34 in float32: nothing beside the variance of the kernel, but processors take a hundred times longer
    over subnormal numbers, and a few of them in a hundred make every product with K several times slower.
    """
    return exponent.clamp(min=_lowest(exponent.dtype))


def bounded_(exponent: Tensor) -> Tensor:
    """The same in place."""
    return exponent.clamp_(min=_lowest(exponent.dtype))


def _lowest(dtype: torch.dtype) -> float:
    return math.log(torch.finfo(dtype).tiny) + 16.0 * math.log(2.0)
