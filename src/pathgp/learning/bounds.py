"""Default bounds of hyperparameters: no further than the data can tell.

Beyond these limits the likelihood hardly changes, while K comes so close to a constant or to the identity that rounding
decides where a fit goes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pathgp.data.observations import Data
from pathgp.kernels.algebra import Scale
from pathgp.kernels.parameters import Positive, positive
from pathgp.kernels.scales import length_scales
from pathgp.learning.model import Learnable
from pathgp.posterior.conditioning import RESOLVED

# Length scales lie between a tenth of the smallest gaps between the values of a column and ten thousand times its
# extent; a part of the smallest gaps is left out, for they may come from rounding.
SHORTEST, LONGEST, SMALLEST_GAPS = 0.1, 1e4, 0.05
# The largest signal, in standard deviations of y, of tables and of grids. For a nearly linear field the likelihood
# grows with the signal, and H becomes ill-conditioned. Many rows have a lower limit, see `_signal_at_least_noise`.
LARGEST_SIGNAL, LARGEST_SIGNAL_OF_GRID = 100.0, 30.0
# The least noise that is learned unless bounds say otherwise, as a share of the standard deviation of y. Held-out log
# likelihoods of 20 sets do not tell 1e-5 to 1e-3 apart if there is noise; without any, 1e-4 costs 0.3 nats per row on
# average compared with 1e-5 (1.3 at most). It is more than most measurements resolve, and its systems can be solved.
LEAST_NOISE = 1e-4
# Values of a column whose gaps are used.
_ROWS = 10_000


class DefaultBounds:
    """Bounds of the length scales, signals and noise of a model that are learned and have no bounds.

    A value that lies outside widens its bounds. Those of the noise follow the hyperparameters (`project_noise`).
    """

    def __init__(self, model: Learnable, data: Data) -> None:
        self._model = model
        # The standard deviation of the targets in the model's units.
        self._spread = float(data.targets(data.y.mean()).to(torch.float64).std(correction=0)) or 1.0
        noise = positive(model, "noise")
        self._bounds_noise = noise.bounds is None and noise.raw.requires_grad
        limits: list[tuple[Positive, float, float]] = []
        for whole, X in zip(model.sides, data.factors, strict=True):
            limits += [(parameter, *_limits(points)) for parameter, points in length_scales(whole, X)]
        scales = [module for module in model.modules() if isinstance(module, Scale)]
        largest = LARGEST_SIGNAL_OF_GRID if model.is_grid else LARGEST_SIGNAL
        if self._bounds_noise:
            largest = min(largest, max(LARGEST_SIGNAL_OF_GRID, _signal_at_least_noise(len(data.y))))
        largest *= self._spread
        limits += [(positive(scale, "signal"), 0.0, largest) for scale in scales]
        self._bounded = []
        for parameter, low, high in limits:
            if parameter.bounds is None and parameter.raw.requires_grad and low < high:
                values = parameter.value.detach()
                parameter.bounds = (min(low, float(values.min())), max(high, float(values.max())))
                self._bounded.append(parameter)

    def is_noise_below(self, data: Data) -> bool:
        """Whether the noise is learned, and too small for systems in the dtype of the data."""
        return self._bounds_noise and float(self._model.noise.detach()) < self._least_noise(data)

    def project_noise(self, data: Data) -> None:
        """Raise learned noise to where systems in the dtype of the data can be solved."""
        if self._bounds_noise:
            noise = positive(self._model, "noise")
            noise.bounds = (self._least_noise(data), math.inf)
            noise.project()

    def release(self) -> None:
        """Remove the bounds of length scales and signals."""
        for parameter in self._bounded:
            parameter.bounds = None

    def _least_noise(self, data: Data) -> float:
        return max(self._model.least_noise(data), LEAST_NOISE * self._spread)


def _signal_at_least_noise(n: int) -> float:
    """The signal with which n rows resolve the least noise in float64, in standard deviations of y.

    With a larger signal the bound of the noise grows with it (`Learnable.least_noise`). Without noise in the data a fit
    could then end where neither of them can move alone: 500 rows of sin(6 x_1) + x_2^2 ended up to 0.05 nats per row
    below the optimum, depending on the generator.
    """
    return LEAST_NOISE / math.sqrt(RESOLVED[torch.float64] * torch.finfo(torch.float64).eps * math.sqrt(n))


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
