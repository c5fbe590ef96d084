"""Where hyperparameters are learned unless the user sets bounds: no further than the data can tell.

Beyond these limits the likelihood hardly changes, while K comes so close to a constant or to the identity that rounding
decides where a fit goes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pathgp.kernels.algebra import Scale
from pathgp.kernels.expression import leaves
from pathgp.kernels.parameters import Positive, positive
from pathgp.kernels.stationary import Stationary
from pathgp.learning.model import Data, Learnable

# Length scales lie between a tenth of the smallest gaps between the values of a column and ten thousand times its
# extent; a part of the smallest gaps is left out, for they may come from rounding.
SHORTEST, LONGEST, SMALLEST_GAPS = 0.1, 1e4, 0.05
# The largest signal, in standard deviations of y.
LARGEST_SIGNAL = 100.0
# Rows whose gaps are looked at.
_ROWS = 10_000


def set_default_bounds(model: Learnable, data: Data, spread: float) -> list[Positive]:
    """Bound length scales and signals of a model that are learned and have no bounds; returns those that it bounded.

    ``spread``: the standard deviation of the targets in the model's units. A value that lies outside widens its bounds.
    """
    found: list[tuple[Positive, float, float]] = []
    for whole, X in model.kernels_and_inputs(data):
        for kernel, columns in leaves(whole, range(X.shape[1])):
            if isinstance(kernel, Stationary):
                found.append((positive(kernel, "lengthscale"), *_limits(X[:, list(columns)])))
    for module in model.modules():
        if isinstance(module, Scale):
            found.append((positive(module, "signal"), 0.0, LARGEST_SIGNAL * spread))
    bounded = []
    for parameter, low, high in found:
        if parameter.bounds is None and parameter.raw.requires_grad and low < high:
            values = parameter.value.detach()
            parameter.bounds = (min(low, float(values.min())), max(high, float(values.max())))
            bounded.append(parameter)
    return bounded


def _limits(X: Tensor) -> tuple[float, float]:
    """The shortest and the longest length scale that rows X (n, d) can tell from none and from a constant."""
    extents, gaps = [], []
    for column in X.detach().to(torch.float64).T:
        values = column.unique()
        if len(values) > 1:
            extents.append(float(values[-1] - values[0]))
            differences = values[:: max(1, len(values) // _ROWS)].diff()
            gaps.append(float(differences.quantile(SMALLEST_GAPS)))
    if not extents:
        return 0.0, math.inf
    return SHORTEST * min(gaps), LONGEST * max(extents)
