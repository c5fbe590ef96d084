"""The window that spreads points to a regular grid: a product of Kaiser-Bessel functions, one per dimension.

    phi(x) = I_0(beta sqrt(1 - (2 x / w)^2)) / I_0(beta),  |x| <= w / 2 steps of the grid

A function whose spectrum ends at half of the grid's largest frequency is interpolated by w points per dimension, after
division of its spectrum by that of phi, with a relative error of about exp(-2.2 w). Lagrange's interpolation would need
several times as many points of the grid per dimension.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Points of the grid per period of the largest frequency, over two; and the parameter beta over w, the largest for
# which frequencies beyond the band do not alias into it.
OVERSAMPLING = 2.0
_BETA = math.pi * (1.0 - 1.0 / (2.0 * OVERSAMPLING))
# Nodes between which `levelling` is linear.
_LEVEL_NODES = 2**16


def window_width(accuracy: float) -> int:
    """The number of points w per dimension for a relative error."""
    rate = math.pi * math.sqrt(1.0 - 1.0 / OVERSAMPLING)
    return min(14, max(4, math.ceil(-math.log(accuracy) / rate)))


def window_weights(offset: Tensor, width: int) -> Tensor:
    """phi at the w points around positions: (..., w); offset: distance to the first of them, in steps, float64."""
    x = offset.unsqueeze(-1) - torch.arange(width, dtype=offset.dtype, device=offset.device)
    root = (1.0 - (2.0 / width * x).square()).clamp_min_(0.0).sqrt_()
    beta = _BETA * width
    return (
        torch.special.i0e(beta * root)
        * torch.exp(beta * (root - 1.0))
        / torch.special.i0e(torch.tensor(beta, dtype=offset.dtype, device=offset.device))
    )


def window_spectrum(size: int, width: int) -> Tensor:
    """The Fourier transform of phi at the non-negative frequencies of a grid: (size // 2 + 1,), float64."""
    frequency = torch.arange(size // 2 + 1, dtype=torch.float64) / size
    beta = _BETA * width
    square = beta**2 - (math.pi * width * frequency).square()
    root = square.abs().sqrt().clamp_min(1e-12)
    value = torch.where(square > 0, torch.sinh(root) / root, torch.sin(root) / root)
    return width * value / float(torch.special.i0(torch.tensor(beta, dtype=torch.float64)))


def levelling(t: Tensor, beta: float) -> Tensor:
    """A function of t in [0, 1], 0 for less, with slope 1 at t = 0 and 0 at t = 1: a window, integrated twice.

    The spectrum of the window is below exp(-beta) beyond the frequency 2 beta.
    """
    fine = torch.linspace(-1.0, 1.0, _LEVEL_NODES + 1, dtype=torch.float64)
    root = (1.0 - fine.square()).clamp_min(0.0).sqrt()
    density = torch.special.i0e(beta * root) * torch.exp(beta * (root - 1.0))
    fallen = _integrate(density)
    value = _integrate(1.0 - fallen / fallen[-1]) / _LEVEL_NODES
    place = t.clamp(0.0, 1.0) * _LEVEL_NODES
    number = place.long().clamp(max=_LEVEL_NODES - 1)
    return torch.lerp(value[number], value[number + 1], place - number)


def _integrate(values: Tensor) -> Tensor:
    """Integrals up to every node, in units of the distance of nodes."""
    return torch.cat([values.new_zeros(1), ((values[1:] + values[:-1]) / 2).cumsum(0)])


def good_size(least: float) -> int:
    """The smallest even product of powers of 2, 3 and 5 that is at least this large."""
    sizes = (
        2 ** math.ceil(max(1.0, math.log2(max(least, 2.0) / (three * five)))) * three * five
        for three in (1, 3, 9, 27)
        for five in (1, 5, 25, 125)
    )
    return min(int(size) for size in sizes if size >= least)
