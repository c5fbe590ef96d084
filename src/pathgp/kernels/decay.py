"""Exponents whose exponential stays clear of subnormal numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def bounded_(exponent: Tensor) -> Tensor:
    """Raise exponents in place to where the exponential is at least 2^16 times the least normal number.

    That bound is 8e-34 in float32: negligible beside the variance of the kernel. Processors take a hundred times longer
    for subnormal numbers, and a few of them in a hundred make every product with K several times slower.
    """
    return exponent.clamp_(min=math.log(torch.finfo(exponent.dtype).tiny) + 16.0 * math.log(2.0))
