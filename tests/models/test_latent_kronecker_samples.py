"""Samples, variances and paths on grids with holes: exact in distribution.

4,096 samples are tested at a false-alarm rate of one in a million each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
from grid_cases import (
    NOISE,
    PLACES,
    TIGHT,
    Grid,
    assert_variance,
    cells,
    close,
    covariance,
    places,
    sampled,
    seeded,
    sides,
    uniform,
)
from pathgp import kernels as K
from pathgp.models import LatentKroneckerGP
from statistics_tools import assert_mean_and_covariance


@pytest.mark.statistical
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_samples_have_the_exact_covariance(k: int, place: str) -> None:
    """Also where the caller uses one seed for everything: new draws must not repeat the old numbers."""
    inputs = places(Grid(k))[place]
    draws = sampled(k).sample(*inputs, generator=seeded())
    assert draws.shape[1:] == sampled(k).mean(*inputs).shape
    assert_mean_and_covariance(draws.flatten(1), *Grid(k).exact(inputs))


@pytest.mark.statistical
@pytest.mark.parametrize("missing", [0.0, 0.8])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_samples_of_complete_and_almost_empty_grids(k: int, missing: float) -> None:
    grid = Grid(k, missing)
    draws = sampled(k, missing).sample(*grid.mixed, generator=seeded(1))
    assert_mean_and_covariance(draws.flatten(1), *grid.exact(grid.mixed))


@pytest.mark.statistical
@pytest.mark.parametrize("k", [1, 2, 3])
def test_scattered_points(k: int) -> None:
    """Some on the grid, some in its lines, some nowhere near; jointly, at a false-alarm rate of 1e-6."""
    grid = Grid(k)
    X, y, _ = grid.observed()
    points = torch.cat([X[:2], cells(grid.mixed)[::7][:5], uniform(5, X.shape[1], seed=30)])
    found = sampled(k).at(points, generator=seeded())
    mean, exact = grid.at(points, X, y)
    close(found.mean, mean)
    assert_mean_and_covariance(found.samples, mean, exact)
    assert_variance(found.variance, exact.diagonal())


@pytest.mark.statistical
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_variance_within_its_error(k: int, place: str) -> None:
    inputs = places(Grid(k))[place]
    exact = Grid(k).exact(inputs)[1].diagonal()
    found = sampled(k).variance(*inputs, method="samples")
    assert_variance(found, exact)
    assert torch.equal(sampled(k).variance(*inputs, method="samples"), found)
    torch.testing.assert_close(sampled(k).variance(*inputs, noise=True, method="samples"), found + NOISE**2)
    close(sampled(k).variance(*inputs), exact)


def test_draws_on_the_grid_are_kept_and_new_ones_are_fresh() -> None:
    post, new = sampled(2), Grid(2).new
    assert torch.equal(post.sample(), post.sample())
    torch.testing.assert_close(post.sample(num=5), post.sample()[:5], rtol=0.0, atol=1e-12)
    assert torch.equal(post.sample(*new, generator=seeded(3)), post.sample(*new, generator=seeded(3)))
    assert not torch.equal(post.sample(*new), post.sample(*new))
    # Inputs seen before get the draws they have, whatever comes with them.
    mixed = post.sample(*Grid(2).mixed)
    torch.testing.assert_close(mixed[:, :2, :2], post.sample()[:, :2, :2], rtol=0.0, atol=1e-3)
    with pytest.raises(ValueError, match=r"4097 samples asked for, 4096 solved: use condition\(samples=4097\)"):
        post.sample(num=4097)


def test_a_small_budget_changes_no_number() -> None:
    grid = Grid(2)
    options: dict[str, Any] = {"samples": 9, "solver": "cg", **TIGHT}
    ample = grid.model.condition(grid.factors, grid.Y, generator=seeded(), **options)
    tight = grid.model.condition(
        grid.factors, grid.Y, generator=seeded(), compute=pathgp.Compute(memory=5000), **options
    )
    for post in (ample, tight):
        assert post.report.backend == "kronecker"
    for inputs in places(grid).values():
        close(tight.mean(*inputs), ample.mean(*inputs).flatten())
        draws = [post.sample(*inputs, generator=seeded(1)) for post in (ample, tight)]
        close(draws[0], draws[1].flatten())
        close(*(post.variance(*inputs, method="samples").flatten() for post in (tight, ample)))


@pytest.mark.statistical
def test_paths_are_functions() -> None:
    """The same wherever they are asked; their covariance, with heavier tails, at a false-alarm rate of about 1e-6."""
    grid = Grid(2)
    post = grid.model.condition(grid.factors, grid.Y, samples=1024, features=128, generator=seeded(), **TIGHT)
    whole = post.paths(*grid.mixed)
    torch.testing.assert_close(post.paths(grid.mixed[0][1:4], grid.mixed[1][2:]), whole[:, 1:4, 2:])
    torch.testing.assert_close(post.paths(None, grid.mixed[1])[:, :2], whole[:, :2])
    few = [torch.cat([grid.factors[0][:1], grid.new[0][:2]]), torch.cat([grid.factors[1][:1], grid.new[1][:2]])]
    assert_mean_and_covariance(post.paths(*few).flatten(1), *grid.exact(few), gaussian=False)
    rows = grid.new[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(post.paths(rows, None).sum(), rows)
    assert bool((slope != 0).all())


@pytest.mark.parametrize("k", [1, 2, 3])
def test_covariance_is_exact(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a factor of H, and from solves through the factors of the grid."""
    for rows in (10_000, 1):
        monkeypatch.setattr("pathgp.posterior.exact_covariance.FACTOR_ROWS", rows)
        grid = Grid(k)
        post = grid.model.condition(grid.factors, grid.Y, solver="cg", samples=1, **TIGHT)
        for inputs in places(grid).values():
            close(post.covariance(*inputs), grid.exact(inputs)[1].flatten())
    scaled = LatentKroneckerGP(sides(k), NOISE, standardise=True)
    once, larger = (scaled.condition(grid.factors, c * grid.Y, samples=1, **TIGHT).covariance() for c in (1.0, 3.0))
    close(larger, 9.0 * once.flatten())


@pytest.mark.statistical
def test_prior_functions() -> None:
    """Their mean and covariance, with heavier tails, at a false-alarm rate of about 1e-6; the same at every call."""
    grid = Grid(2)
    gp = LatentKroneckerGP(sides(2), NOISE, mean=lambda X: X[:, 0])
    functions = gp.prior(2048, features=128, generator=seeded())
    few = [G[:2] for G in grid.new]
    draws = functions(*few)
    assert draws.shape == (2048, 2, 2)
    assert_mean_and_covariance(
        draws.flatten(1), cells(few)[:, 0], covariance(2)(cells(few), cells(few)), gaussian=False
    )
    torch.testing.assert_close(functions(grid.new[0], grid.new[1])[:, :2, :2], draws)
    assert isinstance(functions(grid.new[0].numpy(), [0.1, 0.2]), np.ndarray)
    with pytest.raises(ValueError, match="1 sets of inputs for a grid with 2 sides"):
        functions(grid.new[0])
    with pytest.raises(ValueError, match="standardise=True: the prior is known"):
        LatentKroneckerGP(sides(2), NOISE, standardise=True).prior(3)


def test_paths_that_were_not_solved_for_warn() -> None:
    grid = Grid(2)
    with pytest.warns(pathgp.ConvergenceWarning):
        post = grid.model.condition(grid.factors, grid.Y, solver="cg", samples=2, tol=1e-9, max_epochs=3)
    with pytest.warns(pathgp.ConvergenceWarning, match="ended BUDGET_EXHAUSTED") as caught:
        post.paths()
    assert caught[0].filename == __file__


class Brownian(K.Kernel):
    """min(x, z): a kernel of a user, who knows no features of it."""

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        return torch.minimum(X, Z.T)

    def _diagonal(self, X: Tensor) -> Tensor:
        return X[:, 0]


def test_paths_need_features() -> None:
    gp = LatentKroneckerGP([Brownian(), K.Matern(1.5, 0.5)], NOISE)
    post = gp.condition([uniform(4, 1, seed=0), None], torch.ones(4, 3, dtype=torch.float64), samples=2)
    assert post.sample(uniform(5, 1, seed=1), None).shape == (2, 5, 3)
    with pytest.raises(NotImplementedError, match="Brownian has no random features"):
        post.paths()
