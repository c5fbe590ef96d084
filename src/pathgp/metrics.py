"""Scores of predictions on held-out data: error, density and calibration.

All take NumPy arrays or tensors of shape (m,) and return a float, computed in float64. Variances are those of an
observation, noise included: ``post.variance(Xs, noise=True)``.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from pathgp.compute.inputs import Array


def rmse(y: Array, mean: Array) -> float:
    """Root mean square error, sqrt(mean (y - mean)^2).

    >>> rmse([1.0, 2.0], [1.0, 4.0])
    1.414
    """
    y, mean = _vectors(y=y, mean=mean)
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def nll(y: Array, mean: Array, variance: Array) -> float:
    """Mean negative log density of y under N(mean, variance), in nats.

    1/2 mean[log(2 pi variance) + (y - mean)^2 / variance]

    >>> nll([0.0], [0.0], [1.0])
    0.9189
    """
    y, mean, variance = _vectors(y=y, mean=mean, variance=variance)
    return float(0.5 * np.mean(np.log(2 * math.pi * variance) + (y - mean) ** 2 / variance))


def coverage(y: Array, mean: Array, variance: Array, level: float = 0.95) -> float:
    """Fraction of y inside the central interval of N(mean, variance) that should hold ``level`` of them.

    >>> coverage([0.0, 1.9, 2.0, -5.0], [0.0] * 4, [1.0] * 4)
    0.5
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    y, mean, variance = _vectors(y=y, mean=mean, variance=variance)
    half_width = NormalDist().inv_cdf(0.5 + 0.5 * level) * np.sqrt(variance)
    return float(np.mean(np.abs(y - mean) <= half_width))


def crps(y: Array, mean: Array, variance: Array) -> float:
    """Mean continuous ranked probability score of N(mean, variance), in the units of y; lower is better.

    sigma [z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)], z = (y - mean) / sigma. For a certain prediction it is the
    absolute error. Gneiting and Raftery (2007).

    >>> crps([0.0], [0.0], [1.0])
    0.2337
    """
    y, mean, variance = _vectors(y=y, mean=mean, variance=variance)
    sigma = np.sqrt(variance)
    z = (y - mean) / sigma
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return float(np.mean(sigma * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))))


def _vectors(**arrays: Array) -> list[NDArray[np.float64]]:
    """Float64 vectors of one length: (m, 1) and (m,) would silently broadcast to (m, m)."""
    vectors = [
        np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)
        for value in arrays.values()
    ]
    shapes = {name: vector.shape for name, vector in zip(arrays, vectors, strict=True)}
    if len(set(shapes.values())) > 1 or vectors[0].ndim != 1:
        listing = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"expected vectors of one length, got {listing}")
    if vectors[0].size == 0:
        raise ValueError("expected at least one value, got none")
    if "variance" in arrays and not (vectors[-1] > 0).all():
        raise ValueError("variance must be positive everywhere: ask for variance(Xs, noise=True)")
    return vectors
