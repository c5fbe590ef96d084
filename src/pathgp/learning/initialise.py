"""Initial values of a fit: from the data, or from fits of small subsets.

The values are in the model's units: those of standardised data if the model standardises. A fit that explores also
starts from a second initial noise. `policy.make_stages` plans its stages, and `exact_stages` decides which of the two
results is continued.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pathgp.compute.neighbours import search_tree
from pathgp.compute.random import permutation
from pathgp.data.grid import GridObservations
from pathgp.data.observations import Data, Observations
from pathgp.kernels.algebra import Scale
from pathgp.kernels.parameters import Positive, positive
from pathgp.kernels.scales import length_scales
from pathgp.kernels.task import Task
from pathgp.learning.guard import Guard
from pathgp.learning.hyperparameters import hyperparameters, value_of
from pathgp.learning.loop import Fit
from pathgp.learning.model import Learnable
from pathgp.learning.policy import SECOND_NOISE, FitOptions
from pathgp.means import Constant
from pathgp.posterior.conditioning import Settings

# Rows used for the medians.
_ROWS = 1000
# Up to this number of rows all pairs are used: the sides of a grid may be short.
_FEW = 50
# Number of subsets, and rows of each, in the procedure of the thesis (section 3.3.1).
SUBSETS = 10
SUBSET_ROWS_GPU = 10_000
SUBSET_ROWS_CPU = 1_000


def initialise(how: str, model: Learnable, data: Data, settings: Settings, generator: torch.Generator) -> None:
    """Set the learned hyperparameters of a model: "model" keeps its values, see `GP.fit` for the other ways."""
    if how == "best":
        set_best(model, data, settings, generator)
    elif how != "model":
        set_values(model, data, generator, has_sides=how == "neighbours")
    if how == "noise":
        exchange_signal_and_noise(model)
    if how == "subsets":
        assert isinstance(data, Observations)
        from_subsets(model, data, settings, generator)


def set_values(model: Learnable, data: Data, generator: torch.Generator, has_sides: bool) -> None:
    """Length scales from the inputs, the signal from the spread of y, the noise a tenth of it, a constant mean from
    the average of y.
    """
    with torch.no_grad():
        spread = data.targets(model.mean_at(data.X_raw)).to(torch.float64).std(correction=0)
    deviation = float(spread) or 1.0
    for whole, inputs in zip(model.sides, data.factors, strict=True):
        X = inputs if has_sides else inputs[permutation(len(inputs), generator, inputs.device)[:_ROWS]]
        estimate = _lengthscale_of_side if has_sides else _lengthscale
        for parameter, points in length_scales(whole, X.to(torch.float64)):
            if parameter.raw.requires_grad:
                _assign(parameter, estimate(points, parameter.raw.ndim == 1).cpu())
    scales = [module for module in model.modules() if isinstance(module, Scale)]
    if isinstance(data, GridObservations):
        _set_tasks(model, data, deviation if scales else 1.0)
    for module in scales:
        _set(module, "signal", deviation / len(scales) ** 0.5)
    if isinstance(model.mean, Constant) and model.mean.value.requires_grad:
        with torch.no_grad():
            model.mean.value.fill_(float(data.y.mean()))
    _set(model, "noise", 0.1 * deviation)


def exchange_signal_and_noise(model: Learnable) -> None:
    """After `set_values`: the noise becomes the standard deviation of y, and the signal a tenth of it."""
    for parameter in (positive(module, "signal") for module in model.modules() if isinstance(module, Scale)):
        _assign(parameter, 0.1 * value_of(parameter).cpu())
    noise = positive(model, "noise")
    _assign(noise, 10.0 * value_of(noise).cpu())


def set_best(model: Learnable, data: Data, settings: Settings, generator: torch.Generator) -> None:
    """The most likely of three: the current values, those of `set_values`, and these with seven times the noise.

    The exact likelihood of at most 1,000 random rows decides.
    """
    guard = Guard.draw(data)

    def evaluate() -> tuple[float, dict[str, Tensor]]:
        value = settings.compute.on_main_process(lambda: guard.value(model, data))
        return value, {name: values.clone() for name, values in model.state_dict().items()}

    candidates = [evaluate()]
    set_values(model, data, generator, has_sides=False)
    candidates.append(evaluate())
    noise = positive(model, "noise")
    _assign(noise, SECOND_NOISE * value_of(noise).cpu())
    candidates.append(evaluate())
    model.load_state_dict(max(candidates, key=lambda candidate: candidate[0])[1])


def _set_tasks(model: Learnable, data: GridObservations, unit: float) -> None:
    """Task kernels from half of the covariances of the observed cells, in ``unit``s, the rest to every task alone.

    A start with correlations of the wrong sign may stay there: the gradient in B of B B^T vanishes at zero.
    """
    with torch.no_grad():
        observed = data.observed
        targets = data.targets(model.mean_at(data.X_raw)).to(torch.float64)
        grid = torch.zeros(observed.shape, dtype=torch.float64, device=targets.device).masked_scatter(observed, targets)
    for side, kernel in enumerate(model.sides):
        if isinstance(kernel, Task) and len(data.factors[side]) == kernel.num_tasks:
            rows, known = (G.movedim(side, 0).flatten(1).to("cpu", torch.float64) for G in (grid, observed))
            kernel.start_from(rows @ rows.T / (known @ known.T).clamp_min(1.0) / unit**2)


def _set(module: nn.Module, name: str, value: float | Tensor) -> None:
    """Assign a hyperparameter within its bounds, unless it is fixed."""
    _assign(positive(module, name), value)


def _assign(parameter: Positive, value: float | Tensor) -> None:
    """The same for the parameter itself."""
    if parameter.raw.requires_grad:
        parameter.assign(value)
        parameter.project()


def from_subsets(model: Learnable, data: Observations, settings: Settings, generator: torch.Generator) -> None:
    """The average of what exact fits of several subsets find: each a random row and its nearest neighbours.

    Thesis, section 3.3.1: ten subsets of 10,000 rows; on a CPU ten of 1,000, which take about half a minute.
    """
    n = len(data.y)
    size = min(n, SUBSET_ROWS_CPU if data.X.device.type == "cpu" else SUBSET_ROWS_GPU)
    options = FitOptions(settings, steps=50, estimator="exact", initialise="model", min_gain=1e-4).resolve(size, False)
    found: dict[str, list[Tensor]] = {}
    for centre in permutation(n, generator, data.X.device)[:SUBSETS]:
        nearest = (data.X - data.X[centre]).square().sum(1).topk(size, largest=False).indices.sort().values
        fit = Fit(copy.deepcopy(model), data.subset(nearest), options, generator)
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
        if isinstance(parameter, Positive) and parameter.raw.requires_grad:
            factor = torch.randn(parameter.raw.shape, generator=generator, dtype=torch.float64, device=generator.device)
            parameter.assign(value_of(parameter).cpu() * factor.cpu().exp())
            parameter.project()


def neighbour_lengthscale(X: NDArray[np.floating]) -> float:
    """Three times the median distance between neighbours, for inputs X (p, d) of a side of a grid; 1 for one point.

    From there a fit finds longer length scales. From long ones it may not find the short ones of a season, which then
    look like noise. Time O(p log p) in few dimensions.
    """
    points = np.unique(X, axis=0)
    if len(points) < 2:
        return 1.0
    return 3.0 * float(np.median(search_tree(points).query(points, k=2)[0][:, 1]))


def _lengthscale_of_side(X: Tensor, per_column: bool) -> Tensor:
    """Length scale for the inputs X (p, d) of a side of a grid; those of several columns as for tables."""
    if per_column and X.shape[1] > 1:
        return _lengthscale(X[:: -(-len(X) // _ROWS)], per_column)
    return torch.tensor(neighbour_lengthscale(X.cpu().numpy()), dtype=torch.float64).expand(
        X.shape[1] if per_column else ()
    )


def _lengthscale(X: Tensor, per_column: bool) -> Tensor:
    """Length scale for rows X (n, d): a scalar, or one per column (d,); 1 if all rows coincide.

    Proportional to the median distance of two rows, in each column or in all. Its size is the geometric mean of the
    typical distance and the nearest-neighbour distance. From longer initial values a fit may explain fast variation as
    noise, from shorter ones it may explain everything as noise.
    """
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
    """sqrt(nearest / typical), both median distances between distinct rows of Z (n, d); at least sqrt(1 / n), as for
    evenly spread points of one column.

    Distances come from differences: products of rows would give a row and itself, or equal rows, a distance of about
    1e-7, and length scales a thousandth of the right ones. Rows that are almost equal must not have this effect either.
    """
    distances = torch.cdist(Z, Z, compute_mode="donot_use_mm_for_euclid_dist")
    distances = distances.where(distances > 0, torch.inf)
    nearest = distances.amin(1)
    nearest, typical = nearest[nearest.isfinite()], distances[distances.isfinite()]
    if not len(nearest):
        return Z.new_ones(())
    return (nearest.median() / typical.median()).clamp_min(1.0 / len(Z)).sqrt()
