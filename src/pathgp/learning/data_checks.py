"""What is odd about the data of a fit, in words: a distant mean, equal targets, copies of rows."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from pathgp.compute.counts import CountRows
from pathgp.compute.distinct import label_distinct_rows
from pathgp.compute.stacklevel import levels_to_the_caller
from pathgp.data.observations import Data, Observations
from pathgp.kernels.parameters import positive
from pathgp.learning.model import Learnable

# A mean is far from y if it differs from the average of y by more than this number of standard deviations of y.
_FAR = 50.0
# The share of rows that repeat others from which a note says so: rounded values repeat by chance.
_MANY_COPIES = 0.05


def warn_of_distant_mean(gp: Learnable, data: Data) -> None:
    """Warn if y is far from a mean that is not learned: a fit may take the level of y for signal or noise."""
    if isinstance(gp.mean, nn.Module) or data.basis is not None:
        return
    with torch.no_grad():
        targets = data.targets(gp.mean_at(data.X_raw)).to(torch.float64)
    average, spread = float(targets.mean()), float(targets.std(correction=0))
    if abs(average) > _FAR * spread > 0.0:
        warnings.warn(
            f"y minus the mean of the model has an average of {average:.3g} and a standard deviation of {spread:.3g}: "
            "its level may be taken for signal or noise; set mean=pathgp.means.Constant() or standardise=True",
            stacklevel=levels_to_the_caller(),
        )


def describe_equal_targets(gp: Learnable, data: Data) -> str:
    """The warning about a fit to equal values, whose noise and signal are as small as they may be; "" for others."""
    noise = positive(gp, "noise")
    if not noise.raw.requires_grad or noise.prior is not None or not bool((data.y == data.y[0]).all()):
        return ""
    equal = "y has one value" if len(data.y) == 1 else f"all {len(data.y):,} values of y are equal"
    return (
        f"{equal}: noise and signal cannot be learned from it, and standard deviations may be far too small; set "
        "priors with constrain(), or use condition() with known hyperparameters"
    )


def describe_copies(data: Data) -> str:
    """The note on rows that repeat another one, inputs and target; "" for few, which rounding explains.

    Grids have no copies. Sparse inputs are not searched: they would become dense.
    """
    if not isinstance(data, Observations) or isinstance(data.X_raw, CountRows):
        return ""
    n = len(data.y)
    copies = n - len(label_distinct_rows(torch.cat([data.X_raw, data.y.unsqueeze(1)], 1))[1])
    if copies <= _MANY_COPIES * n:
        return ""
    return (
        f"{copies:,} of {n:,} rows repeat another one, inputs and target: if they are copies, remove them, since they "
        "make the noise and the errors of cross-validation too small"
    )
