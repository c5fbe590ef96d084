"""Grids with holes in the units of their users: updates, standardisation, means, known noise, NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
import reference
from grid_cases import (
    NOISE,
    TIGHT,
    Grid,
    assert_variance,
    cells,
    close,
    covariance,
    sampled,
    seeded,
    sides,
    uniform,
)
from pathgp import kernels as K
from pathgp.models import LatentKroneckerGP
from statistics_tools import assert_mean_and_covariance

# Updates


@pytest.mark.statistical
@pytest.mark.parametrize("k", [1, 2, 3])
def test_an_update_is_conditioning_anew(k: int) -> None:
    """More cells, fewer and other ones: mean to 1e-6, samples at a false-alarm rate of 1e-6, even with one seed."""
    grid = Grid(k)
    more = torch.where(grid.Y.isnan() & (torch.rand(grid.Y.shape, generator=seeded(7)) < 0.7), 0.25, grid.Y)
    other = torch.where(torch.rand(grid.Y.shape, generator=seeded(8)) < 0.3, torch.nan, more)
    for Y in (more, other):
        post = sampled(k).update(Y, generator=seeded())
        assert post.report.rows == int((~Y.isnan()).sum())
        close(post.mean(*grid.mixed), grid.exact(grid.mixed, Y)[0])
        assert_mean_and_covariance(post.sample().flatten(1), *grid.exact(Y=Y))
    same = sampled(k).update(grid.Y)
    close(same.sample(), sampled(k).sample().flatten())
    assert same.report.solution.note == "the start was good enough"


def test_an_update_in_the_units_of_the_first_data() -> None:
    grid, known = Grid(2), torch.linspace(0.1, 0.4, 6, dtype=torch.float64)
    gp = LatentKroneckerGP(sides(2), NOISE, standardise=True)
    first = torch.where(torch.arange(6) < 4, grid.Y, torch.nan)
    post = gp.condition(grid.factors, first, known, samples=2, **TIGHT)
    with pytest.raises(ValueError, match=r"give that of all cells to update\(Y, noise=...\)"):
        post.update(grid.Y)
    updated = post.update(grid.Y, known)
    mean, _ = standardised(grid, grid.Y, known, units=first)
    close(updated.mean(), mean)
    with pytest.raises(ValueError, match="factor 1 has 6 rows, side 1 of Y has 5 cells"):
        post.update(grid.Y[:, :5], known)


def standardised(
    grid: Grid, Y: Tensor, known: Tensor | None = None, units: Tensor | None = None, level: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """The dense posterior on the grid, standardised by hand by the observed cells of ``units``, around a mean."""
    there, first = ~Y.isnan(), Y if units is None else units
    levels = torch.as_tensor(level, dtype=torch.float64).expand(Y.shape)
    centred = (first - levels)[~first.isnan()]
    shift, scale = centred.mean(), centred.std(correction=0)
    X = cells([(F - F.mean(0)) / F.std(0, correction=0) for F in grid.factors])
    noise = torch.tensor(NOISE, dtype=torch.float64)
    if known is not None:
        noise = (noise.square() + (known.expand_as(Y)[there] / scale).square()).sqrt()
    y = ((Y - levels)[there] - shift) / scale
    mean, exact = reference.posterior(covariance(grid.k), X[there.flatten()], y, noise, X)
    return mean * scale + shift + levels.flatten(), exact * scale**2


# Units, means, noise


@pytest.mark.parametrize("mean", ["zero", "number", "function"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_standardised_models_and_means(k: int, mean: str) -> None:
    """Around a fixed mean, what is left of y is standardised, as for tables."""
    grid = Grid(k)
    function = {"zero": 0.0, "number": 40.0, "function": lambda X: 30.0 * X[:, 0] - 20.0 * X[:, -1]}[mean]
    X = cells(grid.factors)
    level = (function(X) if callable(function) else torch.full((len(X),), function)).view(grid.Y.shape)
    Y = 5.0 * grid.Y + level
    gp = LatentKroneckerGP(sides(k), NOISE, mean=function, standardise=True)
    post = gp.condition(grid.factors, Y, samples=4096, generator=seeded(), **TIGHT)
    expected, exact = standardised(grid, Y, level=level)
    close(post.mean(), expected)
    close(post.at(X).mean, expected)
    assert_variance(post.variance(), exact.diagonal())
    assert_mean_and_covariance(post.sample().flatten(1), expected, exact)
    plain = LatentKroneckerGP(sides(k), NOISE, mean=function)
    found = plain.condition(grid.factors, grid.Y + level, samples=1, **TIGHT)
    close(found.mean(), grid.exact()[0] + level.flatten())


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("kind", ["per cell", "per row", "per column"])
def test_known_noise(k: int, kind: str) -> None:
    grid = Grid(k)
    ones = (1,) * (k - 1)
    shape = {"per cell": grid.Y.shape, "per row": (len(grid.Y), *ones), "per column": (*ones, grid.Y.shape[-1])}
    known = 0.1 + uniform(math.prod(shape[kind]), 1, seed=40).view(shape[kind])
    if kind == "per cell":
        known[grid.Y.isnan()] = torch.nan
    post = grid.model.condition(grid.factors, grid.Y, known, samples=4096, generator=seeded(), **TIGHT)
    X, y, there = grid.observed()
    noise = (NOISE**2 + known.expand_as(grid.Y).flatten()[there].square()).sqrt()
    mean, exact = reference.posterior(covariance(k), X, y, noise, cells(grid.mixed))
    close(post.mean(*grid.mixed), mean)
    assert_mean_and_covariance(post.sample(*grid.mixed, generator=seeded(1)).flatten(1), mean, exact)


def test_known_noise_of_a_side() -> None:
    """A vector belongs to the side of its length; where several have it, the caller must say which."""
    for k in (2, 3):
        grid = Grid(k)
        rows = 0.1 + uniform(len(grid.Y), 1, seed=41)[:, 0]
        posts = [
            grid.model.condition(grid.factors, grid.Y, noise, samples=1, **TIGHT)
            for noise in (rows, rows.view(-1, *[1] * (k - 1)), rows.view(-1, *[1] * (k - 1)).expand_as(grid.Y))
        ]
        for post in posts[1:]:
            close(post.mean(), posts[0].mean().flatten())
    with pytest.raises(ValueError, match=r"fits several sides of Y: say which by one of \(1, 4, 1\), \(1, 1, 4\)"):
        Grid(3).model.condition(Grid(3).factors, Grid(3).Y, torch.ones(4))


def test_task_numbers_are_not_standardised() -> None:
    """Sides and columns of task numbers keep them; everything else is brought to unit scale."""
    X, tasks = 100.0 * uniform(12, 2, seed=1), torch.arange(3, dtype=torch.float64).unsqueeze(1)
    Y = 50.0 + 10.0 * torch.sin(X[:, :1] / 30.0) + tasks.T
    Y[::4, 1] = torch.nan
    kernels = [K.Matern(1.5, 0.6), K.Task(3, rank=2)]
    post = LatentKroneckerGP(kernels, 0.1, standardise=True).condition([X, None], Y, samples=1, **TIGHT)
    there = ~Y.isnan()
    shift, scale = Y[there].mean(), Y[there].std(correction=0)
    plain = LatentKroneckerGP(kernels, 0.1)
    scaled = plain.condition([(X - X.mean(0)) / X.std(0, correction=0), None], (Y - shift) / scale, samples=1, **TIGHT)
    close(post.mean(), (scaled.mean() * scale + shift).flatten())
    # The same model on a table: the columns of the grid are balanced where nothing is missing.
    complete = Y.nan_to_num(50.0)
    product = K.Matern(1.5, 0.6, active_dims=[0, 1]) * K.Task(3, rank=2, active_dims=[2])
    whole = cells([X, tasks])
    table = pathgp.GP(product, 0.1, standardise=True).condition(whole, complete.flatten(), samples=0, **TIGHT)
    grid = LatentKroneckerGP(kernels, 0.1, standardise=True).condition([X, None], complete, samples=1, **TIGHT)
    close(grid.mean(), table.mean(whole))


def test_numpy_in_numpy_out() -> None:
    grid = Grid(2)
    factors = [F.numpy() for F in grid.factors]
    post = grid.model.condition(factors, grid.Y.numpy(), samples=3, **TIGHT)
    at = post.at(cells(grid.new).numpy())
    found = [post.mean(), post.mean(grid.new[0].numpy(), None), post.variance(), post.sample(), post.paths()]
    for result in (*found, at.mean, at.variance, at.samples, post.update(grid.Y.numpy()).mean()):
        assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(found[0].ravel(), grid.exact()[0].numpy(), atol=1e-6)
    assert isinstance(post.mean(*grid.new), Tensor)
    assert isinstance(grid.model.condition(grid.factors, grid.Y, samples=1).mean(), Tensor)
