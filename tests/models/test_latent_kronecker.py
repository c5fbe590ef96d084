"""Posteriors on grids with holes against the dense float64 GP, one to three factors, 0 to 80 % missing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import pathgp
import reference
from grid_cases import (
    GRIDS,
    NOISE,
    TIGHT,
    Grid,
    cells,
    close,
    covariance,
    places,
    seeded,
    sides,
    uniform,
)
from pathgp import kernels as K
from pathgp.models import LatentKroneckerGP
from pathgp.operators import LatentKroneckerOperator
from statistics_tools import assert_mean_and_covariance

every_grid = pytest.mark.parametrize("grid", GRIDS, ids=str)


# The mean


@every_grid
@pytest.mark.parametrize("solver", ["auto", "cg"])
def test_the_mean_is_exact(grid: Grid, solver: str) -> None:
    post = grid.model.condition(grid.factors, grid.Y, samples=1, solver=solver, generator=seeded(), **TIGHT)
    close(post.mean(), grid.exact()[0])
    for inputs in places(grid).values():
        found = post.mean(*inputs)
        shape = tuple(len(F if G is None else G) for G, F in zip(inputs, grid.factors, strict=True))
        assert found.shape == shape
        close(found, grid.exact(inputs)[0])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_float32(k: int) -> None:
    grid = Grid(k)
    factors = [F.float() for F in grid.factors]
    post = grid.model.condition(factors, grid.Y.float(), samples=4, tol=1e-5, generator=seeded())
    found = [post.mean(*(G.float() for G in grid.mixed)), post.sample(), post.variance(), post.paths()]
    assert all(result.dtype == torch.float32 for result in found)
    close(found[0].double(), grid.exact(grid.mixed)[0], atol=1e-3)


def test_evidence() -> None:
    for grid in GRIDS:
        X, y, _ = grid.observed()
        post = grid.model.condition(grid.factors, grid.Y, samples=1)
        expected = float(reference.log_marginal_likelihood(covariance(grid.k), X, y, NOISE))
        assert post.log_marginal_likelihood().value == pytest.approx(expected, abs=1e-8)
    gp = LatentKroneckerGP(sides(2), NOISE, standardise=True)
    values = [gp.condition(Grid(2).factors, c * Grid(2).Y, samples=1).log_marginal_likelihood().value for c in (1, 10)]
    n = int((~Grid(2).Y.isnan()).sum())
    assert values[0] - values[1] == pytest.approx(n * math.log(10.0))


# Kernels of other kinds


@pytest.mark.statistical
def test_smooth_curves() -> None:
    """Squared exponential on 52 log-epochs: singular up to rounding, and the samples are right all the same."""
    epochs = (torch.arange(1, 53, dtype=torch.float64).log() / math.log(53.0)).unsqueeze(1)
    kernel, runs = K.SquaredExponential(1.0), uniform(6, 2, seed=0)
    assert int(torch.linalg.cholesky_ex(kernel(epochs).detach()).info) > 0
    Y = torch.randn(6, 52, generator=seeded(1), dtype=torch.float64)
    ends = torch.tensor([52, 30, 21, 14, 9, 40])
    Y[torch.arange(52) >= ends.unsqueeze(1)] = torch.nan
    gp = LatentKroneckerGP([K.Scale(K.SquaredExponential(0.7), 1.5), kernel], NOISE)
    post = gp.condition([runs, epochs], Y, samples=4096, generator=seeded(), **TIGHT)
    there = ~Y.flatten().isnan()
    X = cells([runs, epochs])[there]
    for rows, columns in (
        (runs, epochs[::17]),
        (uniform(2, 2, seed=2), torch.tensor([[0.013], [0.5], [1.2]]).double()),
    ):
        mean, exact = reference.posterior(
            lambda A, B: (
                2.25
                * reference.squared_exponential(A[:, :2], B[:, :2], 0.7)
                * reference.squared_exponential(A[:, 2:], B[:, 2:], 1.0)
            ),
            X,
            Y.flatten()[there],
            NOISE,
            cells([rows, columns]),
        )
        close(post.mean(rows, columns), mean)
        draws = post.sample(rows, columns, generator=seeded(3)).flatten(1)
        # Directions of less than 1e-5 of the largest variance are within reach of the jitter.
        assert_mean_and_covariance(draws, mean, exact, rtol=1e-5)


@pytest.mark.statistical
def test_tasks_with_missing_outputs() -> None:
    """Multi-task regression as a grid: the full-rank Task kernel as a factor."""
    factor, own = uniform(3, 3, seed=0) - 0.5, torch.tensor([0.3, 0.5, 0.7], dtype=torch.float64)
    X, Xs = uniform(12, 2, seed=1), uniform(3, 2, seed=2)
    Y = torch.sin(4.0 * X[:, :1]) + torch.arange(3) + 0.1 * torch.randn(12, 3, generator=seeded(3)).double()
    Y[torch.rand(12, 3, generator=seeded(4)) < 0.4] = torch.nan
    gp = LatentKroneckerGP([K.Matern(1.5, 0.6), K.Task(3, rank=3, factor=factor, scale=own)], 0.1)
    post = gp.condition([X, None], Y, samples=4096, generator=seeded(), **TIGHT)
    there = ~Y.flatten().isnan()
    tasks = torch.arange(3, dtype=torch.float64).unsqueeze(1)
    mean, exact = reference.posterior(
        lambda A, B: (
            reference.matern(A[:, :2], B[:, :2], 1.5, 0.6) * reference.task(A[:, 2:], B[:, 2:], factor, own.square())
        ),
        cells([X, tasks])[there],
        Y.flatten()[there],
        0.1,
        cells([Xs, tasks]),
    )
    close(post.mean(Xs, None), mean)
    assert_mean_and_covariance(post.sample(Xs, None, generator=seeded(5)).flatten(1), mean, exact)
    close(post.mean(Xs, tasks[[1]]), mean.view(3, 3)[:, 1])
    with pytest.raises(ValueError, match=r"task numbers are 0\.\.2"):
        post.mean(Xs, torch.tensor([[3.0]], dtype=torch.float64))


# Which way


def test_dense_beyond_the_break_even(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 x 6 cells pay for their structure up to 46 % missing; predictions do not depend on the way."""
    limit = pathgp.break_even(8, 6).time
    assert limit == pytest.approx(1.0 - math.sqrt(14.0 / 48.0))
    for missing in (limit - 0.03, limit + 0.03):
        grid = Grid(2, missing)
        post = grid.model.condition(grid.factors, grid.Y, samples=4, generator=seeded(), **TIGHT)
        assert post.report.backend == ("kronecker" if missing < limit else "dense")
    with monkeypatch.context() as patch:
        patch.setattr(LatentKroneckerGP, "operator", _always_structured)
        other = grid.model.condition(grid.factors, grid.Y, samples=4, generator=seeded(), **TIGHT)
    assert other.report.backend == "kronecker"
    close(other.mean(*grid.mixed), post.mean(*grid.mixed).flatten())
    close(other.sample(), post.sample().flatten())


def _always_structured(self: LatentKroneckerGP, data: Any, settings: Any) -> LatentKroneckerOperator:
    return LatentKroneckerOperator(self.sides, data.factors, data.observed, self.deviation(data))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_complete_grids_are_solved_through_their_factors(k: int) -> None:
    grid = Grid(k, 0.0)
    post = grid.model.condition(grid.factors, grid.Y, samples=2, solver="cg")
    assert post.report.solution.iterations == 1
    assert "inverse on the whole grid" in post.report.solution.note


def test_reports() -> None:
    grid = Grid(2)
    post = grid.model.condition(grid.factors, grid.Y, samples=5, generator=seeded(3))
    assert (post.num_samples, post.report.rows, post.report.columns, post.report.seed) == (5, 34, 3, 3)
    for words in ("GridPosterior", "kronecker", "CONVERGED", "error bound"):
        assert words in repr(post)
    assert repr(grid.model).startswith("LatentKroneckerGP([1.2^2 * Matern(nu=1.5, ")
    exact = grid.exact()[0]
    loose = grid.model.condition(grid.factors, grid.Y, samples=2, solver="cg", tol=1e-2, generator=seeded(4))
    assert float((loose.mean().flatten() - exact).abs().max()) <= loose.report.error_bound
