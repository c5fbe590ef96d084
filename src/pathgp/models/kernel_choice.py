"""The choice of kernels for the sides of a grid, by the exact log marginal likelihood of sub-grids.

For every side in turn: Matern kernels of three degrees of smoothness with one length scale; then, with the best of
them, one length scale per column, or for a side with one column a local part plus a season, if that pays for its
further hyperparameters. The period of the season is the strongest one in the differences of the data.

If many holes lie at entries of a side without any observation, such as whole times, predictions there are
interpolations along this side alone, with the same weights for all scales along the others. The likelihood of all cells
determines these weights by the smallest scales, which are most numerous and vary fastest. Such a side gets the kernel
that is most likely for single lines along it, in which every scale has the weight of its variance, and keeps it.

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
from pathgp.learning.policy import CHOICE_CELLS, CHOICE_LINES, CHOICE_STEPS, CHOICES_PER_SIDE, JOINT_CELLS
from pathgp.learning.subgrids import SubGrid, choose_lines, choose_subgrids, fit_subgrids
from pathgp.models.gp import GP

if TYPE_CHECKING:
    from pathgp.models.latent_kronecker import LatentKroneckerGP

_SMOOTHNESS = (1.5, 0.5, 2.5)
# The least entries of a side with a season, and the number of lines from which its period is estimated.
_LEAST_ENTRIES, _LINES = 24, 64
# Values of a season to start from: its length scale, and its signal relative to that of the local part.
_SEASONS = ((1.0, 1.0), (0.3, 0.3))
# A side is learned from single lines if at least this part of all holes lie at its entries without observations. An
# error there is several times as large as in a hole between observed neighbours.
_EMPTY_SHARE = 0.1
# Multiples of a frequency that count as the same season.
_OVERTONES = 4


def choose_kernels(model: LatentKroneckerGP, data: GridObservations, sides: Sequence[int]) -> LatentKroneckerGP:
    """Return a copy of the model with the chosen kernels of these sides; given kernels keep their form.

    About five fits of at most 25 evaluations per side, each of the likelihood of a few sub-grids of 500 cells, or of
    single lines for a side with many empty entries.
    """
    subgrids = choose_subgrids(data, CHOICE_CELLS, CHOICES_PER_SIDE)
    best, given = copy.deepcopy(model), copy.deepcopy(model)
    set_values(best, data, torch.Generator().manual_seed(0), has_sides=True)
    for side in set(range(len(model.sides))).difference(sides):
        best.kernels[side] = given.kernels[side]
    for side in sides:
        best = _choose_side(best, data, subgrids, side)
    from_lines = [side for side in sides if has_empty_entries(data, side)]
    return _learn_from_lines(best, data, subgrids, from_lines) if from_lines else best


def has_empty_entries(data: GridObservations, side: int) -> bool:
    """Whether many of the holes lie at entries of a side at which nothing is observed; False for the only side."""
    if data.observed.ndim == 1:
        return False
    observed = data.observed.movedim(side, 0).reshape(data.observed.shape[side], -1)
    holes, empty = int((~observed).sum()), int((~observed.any(1)).sum())
    return empty > 0 and empty * observed.shape[1] >= _EMPTY_SHARE * holes


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
    chosen, _ = model.choose_kernels(data)
    model.adopt_kernels(chosen)
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


def _learn_from_lines(
    model: LatentKroneckerGP, data: GridObservations, subgrids: list[SubGrid], sides: Sequence[int]
) -> LatentKroneckerGP:
    """The model with kernels of these sides that are chosen by single lines along them, and no longer learned.

    The noise is that of the sub-grids: a line alone does not tell it from variation that neighbouring lines share.
    """
    best, noise = copy.deepcopy(model), positive(model, "noise")
    is_learned = noise.raw.requires_grad
    positive(best, "noise").raw.requires_grad_(False)
    for side in sides:
        best = _choose_side(best, data, choose_lines(data, side, CHOICE_CELLS // 2, CHOICE_LINES), side)
    positive(best, "noise").raw.requires_grad_(is_learned)
    for side in sides:
        inner(best.sides[side]).requires_grad_(False)
    _maximise(best, data, subgrids)
    return best


def _choose_side(
    model: LatentKroneckerGP, data: GridObservations, subgrids: list[SubGrid], side: int
) -> LatentKroneckerGP:
    """The model with the best kernel of one side."""
    cells = sum(len(subgrid.y) for subgrid in subgrids)
    best, value = model, -math.inf
    for nu in _SMOOTHNESS:
        present = next(part for part in best.sides[side].modules() if isinstance(part, Matern))
        lengthscale = present.lengthscale.detach().log().mean().exp()
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
        period, extent = strongest_period(data, side), float(F.max() - F.min())
        for width, signal in _SEASONS:
            season = Periodic(period, width)
            # Beyond half a cycle more or less along the side lie other optima.
            factor = 1.0 + 0.5 * period / extent
            positive(season, "period").bounds = (period / factor, period * factor)
            yield copy.deepcopy(local) + Scale(season * Matern(1.5, extent), signal), 4


def strongest_period(data: GridObservations, side: int) -> float:
    """The period that explains most of the differences between successive observations along a side.

    In the units of the factor, between three typical distances of neighbours and half of the extent of the side. For
    every frequency a sine and a cosine are fitted to the differences of a few lines, as if the rest of the field were a
    random walk: slow changes and any pattern of holes then add equal power to all frequencies.
    """
    t = data.factors[side][:, 0].to(torch.float64)
    t, order = t.sort()
    extent, gap = float(t[-1] - t[0]), float(t.diff().median())
    # Repeated values of the factor have no difference in time.
    least = 0.1 * (gap or extent / len(t))
    highest = max(1.0 / (3.0 * gap) if gap > 0 else math.inf, 3.0 / extent)
    frequencies = torch.arange(
        2.0 / extent, min(highest, len(t) / extent), 0.25 / extent, dtype=t.dtype, device=t.device
    )
    grid = torch.zeros(data.observed.shape, dtype=torch.float64, device=t.device).masked_scatter(data.observed, data.y)
    observed = data.observed.movedim(side, 0).reshape(len(t), -1)[order]
    values = grid.movedim(side, 0).reshape(len(t), -1)[order]
    lines = observed.sum(0).topk(min(_LINES, observed.shape[1])).indices.tolist()
    weights, norms = torch.zeros(len(t), len(lines), dtype=t.dtype, device=t.device), []
    for number, line in enumerate(lines):
        known = observed[:, line].nonzero().flatten()
        gaps = t[known].diff().clamp_min(least)
        # Differences of a random walk have variances in proportion to the gaps. Their products with differences of
        # waves are products of ``weights`` with the waves.
        scaled = values[known, line].diff() / gaps
        weights[known[1:], number] += scaled
        weights[known[:-1], number] -= scaled
        # Gaps that differ by less than a hundredth count as equal.
        lengths, counts = (100.0 * gaps.log()).round().unique(return_counts=True)
        lengths = (lengths / 100.0).exp()
        norms.append((counts / lengths * (math.pi * frequencies.unsqueeze(1) * lengths).sin().square()).sum(1))
    phase = 2.0 * math.pi * frequencies.unsqueeze(1) * (t - t[0])
    power = (phase.cos() @ weights).square() + (phase.sin() @ weights).square()
    norm = torch.stack(norms, 1).clamp_min(torch.finfo(t.dtype).tiny)
    explained = (power / norm).sum(1)
    return float(1.0 / frequencies[_fundamental(explained - explained.median())])


def _fundamental(power: Tensor) -> int:
    """The frequency at which the power of the fundamental and its overtones is largest, for power at (8 + i) f0."""
    total = torch.zeros_like(power)
    for multiple in range(1, _OVERTONES + 1):
        overtone = power[multiple * 8 - 8 :: multiple]
        total[: len(overtone)] += overtone / multiple**0.5
    return int(total.argmax())
