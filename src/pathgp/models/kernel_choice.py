"""The choice of kernels for the sides of a grid, by the exact log marginal likelihood of sub-grids.

For every side in turn: Matern kernels of three degrees of smoothness with one length scale; then, with the best of
them, one length scale per column, or for a side with one column a local part plus a season, if that pays for its
further hyperparameters. The period of the season is the strongest one in the differences of the data.

A product of kernels of the sides is not isotropic: for fields in space, one kernel of all coordinates together competes
with it (`prefer_joint_kernel`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathgp.data.grid import GridObservations
from pathgp.data.observations import Data
from pathgp.kernels import Kernel, Matern, Periodic, Scale
from pathgp.kernels.parameters import positive
from pathgp.learning.bounds import DefaultBounds
from pathgp.learning.hyperparameters import Coordinates
from pathgp.learning.initialise import set_values
from pathgp.learning.model import Learnable
from pathgp.learning.policy import CHOICE_CELLS, CHOICE_STEPS, CHOICES_PER_SIDE, JOINT_CELLS
from pathgp.learning.subgrids import SubGrid, choose_subgrids, fit_subgrids
from pathgp.models.gp import GP

if TYPE_CHECKING:
    from pathgp.models.latent_kronecker import LatentKroneckerGP

_SMOOTHNESS = (1.5, 0.5, 2.5)
# The least entries of a side with a season, and the number of lines from which its period is estimated.
_LEAST_ENTRIES, _LINES = 24, 64
# The largest factor between the estimated and the learned period.
_PERIOD_FACTOR = 1.2


def choose_kernels(model: LatentKroneckerGP, data: GridObservations, sides: Sequence[int]) -> LatentKroneckerGP:
    """Return a copy of the model with the chosen kernels of these sides; given kernels keep their form.

    About four fits of at most 25 evaluations per side, each of the likelihood of a few sub-grids of 500 cells.
    """
    subgrids = choose_subgrids(data, CHOICE_CELLS, CHOICES_PER_SIDE)
    cells = sum(len(subgrid.y) for subgrid in subgrids)
    best, given = copy.deepcopy(model), copy.deepcopy(model)
    set_values(best, data, torch.Generator().manual_seed(0), has_sides=True)
    for side in set(range(len(model.sides))).difference(sides):
        best.kernels[side] = given.kernels[side]
    for side in sides:
        value = -math.inf
        for nu in _SMOOTHNESS:
            lengthscale = positive(inner(best.sides[side]), "lengthscale").value.detach()
            candidate = _fit(best, data, subgrids, side, Matern(nu, lengthscale))
            if candidate[0] > value:
                value, best = candidate
        local = inner(best.sides[side])
        for kernel, parameters in _refinements(local, data, side):
            candidate = _fit(best, data, subgrids, side, kernel)
            # The Bayesian information criterion (Schwarz 1978).
            if (candidate[0] - value) * cells > 0.5 * parameters * math.log(cells):
                value, best = candidate
    return best


def prefer_joint_kernel(
    model: LatentKroneckerGP,
    data: GridObservations,
    X: Tensor,
    candidate: Callable[[float], Kernel],
    is_forced: bool = False,
) -> tuple[GP | None, str]:
    """A `GP` with one kernel of all coordinates, if sub-grids are more likely under it than under a product.

    Both have their best smoothness and hyperparameters; the same cells of the same sub-grids are compared.

    Args:
        model: the grid model. The kernels of its open sides are chosen here, and not again by its fit.
        data: its data.
        X: the inputs of the kernel at the observed cells (n, d).
        candidate: the kernel for each degree of smoothness nu.
        is_forced: return the GP in any case.

    Returns:
        The GP at the optimum of the sub-grids, or None if the product is better, and a note with both likelihoods.
        None and an empty note, and the model as it was, if there are too many cells for a comparison.
    """
    if len(data.y) > JOINT_CELLS and not is_forced:
        return None, ""
    model.choose_kernels(data)
    model.open_sides = ()
    subgrids = choose_subgrids(data, CHOICE_CELLS, CHOICES_PER_SIDE)
    count = sum(len(subgrid.y) for subgrid in subgrids)
    with torch.no_grad():
        of_product = sum(subgrid.log_likelihood(model)[0] for subgrid in subgrids) / count
    scattered = [
        replace(subgrid, factors=[X[subgrid.rows].to(torch.float64)], observed=torch.ones_like(subgrid.rows).bool())
        for subgrid in subgrids
    ]
    best, value = None, -math.inf
    for nu in _SMOOTHNESS:
        gp = GP(Scale(candidate(nu)), float(model.noise.detach()), model.mean)
        table = gp.prepare_data(X, data.y)
        set_values(gp, table, torch.Generator().manual_seed(0), has_sides=False)
        found = _maximise(gp, table, scattered)
        if found > value:
            best, value = gp, found
    note = f"sub-grids: {value:.3f} nats per cell with one kernel of all coordinates, {of_product:.3f} with a product"
    return (best if is_forced or value > of_product else None), note


def _fit(
    model: LatentKroneckerGP, data: GridObservations, subgrids: list[SubGrid], side: int, kernel: Kernel
) -> tuple[float, LatentKroneckerGP]:
    """The likelihood with another kernel of a side, in nats per cell, and the model at its optimum."""
    trial = copy.deepcopy(model)
    trial.replace_kernel(side, kernel)
    return _maximise(trial, data, subgrids), trial


def _maximise(model: Learnable, data: Data, subgrids: list[SubGrid]) -> float:
    """Move a model to the optimum of sub-grids; return the likelihood there, in nats per cell."""
    bounds = DefaultBounds(model, data)
    found = fit_subgrids(model, data, subgrids, Coordinates(model, {}), CHOICE_STEPS)
    bounds.release()
    return found.value


def inner(kernel: Kernel) -> Kernel:
    """The kernel of a side without its signal."""
    return kernel.kernel if isinstance(kernel, Scale) else kernel


def _refinements(local: Kernel, data: GridObservations, side: int) -> Iterator[tuple[Kernel, int]]:
    """Kernels that extend the local one, and the number of their further hyperparameters."""
    assert isinstance(local, Matern)
    F, lengthscale = data.factors[side], local.lengthscale.detach()
    columns = F.shape[1]
    if columns > 1:
        yield Matern(local.nu, lengthscale.expand(columns).clone()), columns - 1
    elif len(F) >= _LEAST_ENTRIES:
        period = strongest_period(data, side)
        season = Periodic(period, 1.0)
        # A multiple of the period is another optimum.
        positive(season, "period").bounds = (period / _PERIOD_FACTOR, period * _PERIOD_FACTOR)
        yield copy.deepcopy(local) + Scale(season * Matern(1.5, float(F.max() - F.min())), 1.0), 4


def strongest_period(data: GridObservations, side: int) -> float:
    """The period with the largest power in the differences of the data along a side, in the units of the factor.

    Between three typical distances of neighbours and half of the extent of the side. Power is summed over a few lines;
    each frequency is weighted by its square, as differences do, for slow changes have most of the power otherwise.
    """
    t = data.factors[side][:, 0].to(torch.float64)
    grid = torch.zeros(data.observed.shape, dtype=torch.float64, device=t.device).masked_scatter(data.observed, data.y)
    observed = data.observed.movedim(side, 0).flatten(1)
    lines = observed.sum(0).topk(min(_LINES, observed.shape[1])).indices
    weight = observed[:, lines].to(torch.float64)
    values = grid.movedim(side, 0).flatten(1)[:, lines]
    counts = weight.sum(0).clamp_min(1.0)
    values = (values - values.sum(0) / counts) * weight
    extent, gap = float(t.max() - t.min()), float(t.sort().values.diff().median())
    highest = max(1.0 / (3.0 * gap) if gap > 0 else math.inf, 3.0 / extent)
    frequencies = torch.arange(
        2.0 / extent, min(highest, len(t) / extent), 0.25 / extent, dtype=t.dtype, device=t.device
    )
    phase = 2.0 * math.pi * frequencies.unsqueeze(1) * (t - t.min())
    power = ((phase.cos() @ values).square() + (phase.sin() @ values).square()) / counts
    return float(1.0 / frequencies[int((power.sum(1) * frequencies.square()).argmax())])
