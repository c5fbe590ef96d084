"""A field with holes as a model in the units of its coordinates: prior mean, noise to start from, kernels of names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pathgp.compute.inputs import real_number
from pathgp.kernels import Kernel, Scale, Task
from pathgp.models.latent_kronecker import LatentKroneckerGP

# The largest number of names whose correlations can be learned.
_MOST_NAMES = 100
# The noise to start from, in standard deviations of the observed values.
_NOISE = 0.1


def model_of_field(
    values: NDArray[Any], kernels: Sequence[Kernel | None], noise: float | None, is_learned: bool
) -> LatentKroneckerGP:
    """The model of a grid of values with NaN in its holes, one kernel per side; None lets `fit` choose it.

    The prior mean is the average of the observed values. Without ``noise`` its standard deviation starts at a tenth of
    theirs. ``is_learned``: whether hyperparameters will be learned, for which one observation is not enough.
    """
    observed = values[np.isfinite(values)].astype(np.float64)
    if not len(observed):
        raise ValueError("every value of the field is missing: at least one observation is needed")
    if len(observed) == 1 and (is_learned or None in kernels):
        raise ValueError("the field has one observation, from which nothing can be learned: at least two are needed")
    parts = [part for kernel in kernels if kernel is not None for part in kernel.modules()]
    if None not in kernels and not any(isinstance(part, (Scale, Task)) for part in parts):
        raise ValueError("no kernel carries the signal: wrap one of them in kernels.Scale(kernel, signal)")
    with np.errstate(over="ignore"):
        spread = float(observed.std())
    if not np.isfinite(spread):
        raise ValueError("the variance of the field leaves the range of float64: use another unit")
    deviation = real_number(noise, "noise") if noise is not None else _NOISE * spread or _NOISE
    return LatentKroneckerGP(kernels, noise=deviation, mean=float(observed.mean()))


def kernel_of_names(count: int, side: str) -> Task:
    """The kernel of a side whose entries are names: their correlations are learned."""
    if count > _MOST_NAMES:
        raise ValueError(
            f"{side} has {count} names, and correlations between at most {_MOST_NAMES} can be learned: give it "
            "latitudes and longitudes, or another coordinate of numbers"
        )
    return Task(count)
