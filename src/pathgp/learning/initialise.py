"""Where a fit starts: values from the data, or from fits of small subsets.

The values are set in the model's units, which are those of standardised data where the model standardises.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from pathgp.compute.random import permutation
from pathgp.data.observations import Observations
from pathgp.kernels.algebra import Scale
from pathgp.kernels.expression import leaves
from pathgp.kernels.parameters import Positive, positive
from pathgp.kernels.stationary import Stationary
from pathgp.learning.estimators import Exact
from pathgp.learning.hyperparameters import hyperparameters, value_of
from pathgp.learning.loop import Fit, Plan, Stage
from pathgp.learning.model import Data, Learnable
from pathgp.means import Constant
from pathgp.posterior.conditioning import Settings

# Rows that stand for all in the medians; subsets and their size in the procedure of the thesis (section 3.3.1).
_ROWS = 1000
# Up to here all pairs are looked at: the sides of a grid may be short.
_FEW = 50
SUBSETS = 10
SUBSET_ROWS_GPU, SUBSET_ROWS_CPU = 10_000, 1_000


def from_data(model: Learnable, data: Data, generator: torch.Generator) -> None:
    """Length scales from median distances, the signal from the spread of y, the noise a tenth of it, a learned
    constant mean from the average of y.

    Length scales of a radial kernel are proportional to the median distance of two rows in each column. Their size is
    the geometric mean of the typical distance and the nearest-neighbour distance. From longer initial values a fit may
    explain fast variation as noise, from shorter ones it may explain everything as noise.
    """
    with torch.no_grad():
        spread = data.targets(model.mean_at(data.given, exact=True)).to(torch.float64).std(correction=0)
    spread = spread if bool(spread > 0) else torch.ones_like(spread)
    scales = [module for module in model.modules() if isinstance(module, Scale)]
    for whole, inputs in model.kernels_and_inputs(data):
        X = inputs[permutation(len(inputs), generator, data.device)[:_ROWS]].to(torch.float64)
        for kernel, columns in leaves(whole, range(X.shape[1])):
            if isinstance(kernel, Stationary) and _learned(positive(kernel, "lengthscale")):
                kernel.lengthscale = _lengthscale(X[:, list(columns)], kernel.lengthscale.ndim == 1).cpu()
                positive(kernel, "lengthscale").project()
    for module in scales:
        if _learned(positive(module, "signal")):
            module.signal = float(spread) / len(scales) ** 0.5
            positive(module, "signal").project()
    if isinstance(model.mean, Constant) and model.mean.value.requires_grad:
        with torch.no_grad():
            model.mean.value.fill_(float(data.y.mean()))
    if _learned(positive(model, "noise")):
        model.noise = 0.1 * float(spread)
        positive(model, "noise").project()


def from_subsets(model: Learnable, data: Observations, settings: Settings, generator: torch.Generator) -> None:
    """The average of what exact fits of several subsets find: each a random row and its nearest neighbours.

    Thesis, section 3.3.1: ten subsets of 10,000 rows; on a CPU ten of 1,000, which take about half a minute.
    """
    n = len(data.y)
    size = min(n, SUBSET_ROWS_CPU if data.X.device.type == "cpu" else SUBSET_ROWS_GPU)
    plan = Plan((Stage(size, 50),), 0.1, "lbfgs", 1e-4, Exact(), settings)
    found: dict[str, list[Tensor]] = {}
    for centre in permutation(n, generator, data.X.device)[:SUBSETS]:
        nearest = (data.X - data.X[centre]).square().sum(1).topk(size, largest=False).indices.sort().values
        fit = Fit(copy.deepcopy(model), data.subset(nearest), plan, generator)
        fit.run()
        for name, parameter in hyperparameters(fit.model).items():
            found.setdefault(name, []).append(value_of(parameter))
    for name, parameter in hyperparameters(model).items():
        average = torch.stack(found[name]).mean(0)
        if isinstance(parameter, Positive):
            parameter.assign(average.cpu())
        else:
            with torch.no_grad():
                parameter.copy_(average)


def perturb(model: Learnable, generator: torch.Generator) -> None:
    """Multiply every learned positive hyperparameter by a factor exp(z), z standard normal."""
    for parameter in hyperparameters(model).values():
        if isinstance(parameter, Positive) and _learned(parameter):
            factor = torch.randn(parameter.raw.shape, generator=generator, dtype=torch.float64, device=generator.device)
            parameter.assign(value_of(parameter).cpu() * factor.cpu().exp())
            parameter.project()


def _lengthscale(X: Tensor, per_column: bool) -> Tensor:
    """Initial length scale for rows X (n, d): a scalar, or one per column (d,); 1 if all rows coincide."""
    n, half = len(X), len(X) // 2
    if half == 0:
        return torch.ones(X.shape[1] if per_column else (), dtype=torch.float64)
    apart = X[:half] - X[half : 2 * half]
    if n <= _FEW:
        first, second = torch.triu_indices(n, n, 1, device=X.device)
        apart = X[first] - X[second]
    if not per_column:
        median = torch.linalg.vector_norm(apart, dim=1).median()
        typical = median if bool(median > 0) else torch.ones_like(median)
        return typical * _towards_neighbours(X / typical)
    # The mean absolute difference where the median vanishes: a column that is zero in most rows.
    distance = torch.where(apart.abs().median(0).values > 0, apart.abs().median(0).values, apart.abs().mean(0))
    typical = torch.where(distance > 0, distance * X.shape[1] ** 0.5, torch.ones_like(distance))
    return typical * _towards_neighbours(X / typical)


def _towards_neighbours(Z: Tensor) -> Tensor:
    """sqrt(nearest / typical), both median distances between distinct rows of Z (n, d)."""
    distances = torch.cdist(Z, Z)
    distances = distances.where(distances > 0, torch.inf)
    nearest = distances.amin(1)
    nearest, typical = nearest[nearest.isfinite()], distances[distances.isfinite()]
    return (nearest.median() / typical.median()).sqrt() if len(nearest) else Z.new_ones(())


def _learned(parameter: Positive) -> bool:
    return parameter.raw.requires_grad
