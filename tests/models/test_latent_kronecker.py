"""Posteriors on grids with holes against the dense float64 GP, one to three factors, 0 to 80 % missing.

Samples are exact in distribution: 4,096 of them are tested at a false-alarm rate of one in a million each time.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import pathgp
import reference
from grid_cases import GRIDS, NOISE, Grid, Inputs, cells, covariance, seeded, sides, uniform
from pathgp import kernels as K
from pathgp.grid_posterior import GridPosterior
from pathgp.models import LatentKroneckerGP
from pathgp.operators import LatentKroneckerOperator
from statistics_tools import assert_mean_and_covariance

TIGHT: dict[str, Any] = {"tol": 1e-10}
every_grid = pytest.mark.parametrize("grid", GRIDS, ids=str)


def places(grid: Grid) -> dict[str, Inputs]:
    """Where a posterior is asked: on the grid, at inputs new in one side, in all, and mixed."""
    rest: Inputs = [None] * (grid.k - 1)
    return {
        "training": [None, *rest],
        "new rows": [grid.new[0], *rest],
        "new columns": [*rest, grid.new[-1]],
        "all new": grid.new,
        "mixed": grid.mixed[: max(1, grid.k - 1)] + ([grid.new[-1]] if grid.k > 1 else []),
    }


PLACES = list(places(Grid(1)))


@cache
def sampled(k: int, missing: float = 0.3) -> GridPosterior:
    grid = Grid(k, missing)
    return grid.model.condition(grid.factors, grid.Y, samples=4096, generator=seeded(), **TIGHT)


def close(found: Tensor, expected: Tensor, atol: float = 1e-6) -> None:
    torch.testing.assert_close(found.flatten(), expected, rtol=0.0, atol=atol)


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


# Samples and variances


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


def assert_variance(found: Tensor, exact: Tensor, samples: int = 4096) -> None:
    """Relative standard error at most sqrt(2 / s): normal to first order, Bonferroni, a false-alarm rate of 1e-6."""
    limit = stats.norm.isf(0.5e-6 / exact.numel()) * math.sqrt(2.0 / samples)
    assert float((found.flatten() / exact - 1.0).abs().max()) <= limit


@pytest.mark.statistical
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_variance_within_its_error(k: int, place: str) -> None:
    inputs = places(Grid(k))[place]
    found = sampled(k).variance(*inputs)
    assert_variance(found, Grid(k).exact(inputs)[1].diagonal())
    assert torch.equal(sampled(k).variance(*inputs), found)
    torch.testing.assert_close(sampled(k).variance(*inputs, noise=True), found + NOISE**2)


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
    tight = grid.model.condition(grid.factors, grid.Y, generator=seeded(), memory=5000, **options)
    for post in (ample, tight):
        assert post.report.backend == "kronecker"
    for inputs in places(grid).values():
        close(tight.mean(*inputs), ample.mean(*inputs).flatten())
        draws = [post.sample(*inputs, generator=seeded(1)) for post in (ample, tight)]
        close(draws[0], draws[1].flatten())
        close(tight.variance(*inputs), ample.variance(*inputs).flatten())


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
    shape = {"per cell": grid.Y.shape, "per row": (grid.Y.shape[0],) + (1,) * (k - 1), "per column": grid.Y.shape[-1:]}
    known = 0.1 + uniform(math.prod(shape[kind]), 1, seed=40).view(shape[kind])
    if kind == "per cell":
        known[grid.Y.isnan()] = torch.nan
    post = grid.model.condition(grid.factors, grid.Y, known, samples=4096, generator=seeded(), **TIGHT)
    X, y, there = grid.observed()
    noise = (NOISE**2 + known.expand_as(grid.Y).flatten()[there].square()).sqrt()
    mean, exact = reference.posterior(covariance(k), X, y, noise, cells(grid.mixed))
    close(post.mean(*grid.mixed), mean)
    assert_mean_and_covariance(post.sample(*grid.mixed, generator=seeded(1)).flatten(1), mean, exact)


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


# What is given


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("side", ["row", "column"])
def test_a_row_or_a_column_without_observations(k: int, side: str) -> None:
    grid = Grid(k)
    Y = grid.Y.clone()
    Y[(2,) if side == "row" else (..., 1)] = torch.nan
    post = grid.model.condition(grid.factors, Y, samples=2, **TIGHT)
    close(post.mean(), grid.exact(Y=Y)[0])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_one_cell(k: int) -> None:
    grid = Grid(k)
    only = torch.full_like(grid.Y, torch.nan)
    only[(1,) * k] = 0.7
    close(grid.model.condition(grid.factors, only, samples=2, **TIGHT).mean(), grid.exact(Y=only)[0])
    tiny = [F[:1] for F in grid.factors]
    post = grid.model.condition(tiny, torch.full((1,) * k, 0.7, dtype=torch.float64), samples=2, **TIGHT)
    close(post.mean(), torch.tensor([0.7 * 1.44 / (1.44 + NOISE**2)], dtype=torch.float64))
    assert post.sample(*grid.new).shape == (2, *(3,) * k)


@pytest.mark.statistical
def test_rows_alike() -> None:
    """Two rows and two columns with the same inputs are two observations of one function: samples agree there."""
    grid = Grid(2)
    factors = grid.factors
    factors[0][3], factors[1][4] = factors[0][0], factors[1][1]
    post = grid.model.condition(factors, grid.Y, samples=4096, generator=seeded(), **TIGHT)
    there = ~grid.Y.flatten().isnan()
    mean, exact = reference.posterior(
        covariance(2), cells(factors)[there], grid.Y.flatten()[there], NOISE, cells(factors)
    )
    close(post.mean(), mean)
    draws = post.sample()
    assert_mean_and_covariance(draws.flatten(1), mean, exact)
    torch.testing.assert_close(draws[:, 3], draws[:, 0], rtol=0.0, atol=2e-3)


def test_one_dimensional_missing_and_integer_factors() -> None:
    """(p,) is one column, None is 0, 1, ..., integers are numbers; Y of integers is complete."""
    gp = LatentKroneckerGP([K.Matern(1.5, 2.0), K.SquaredExponential(1.5)], NOISE)
    Y = torch.arange(20).view(5, 4) % 3
    column = [torch.arange(p, dtype=torch.float64).unsqueeze(1) for p in (5, 4)]
    expected = gp.condition(column, Y.double(), samples=1, **TIGHT)
    for factors in ([torch.arange(5), None], [None, column[1][:, 0]], [list(range(5)), np.arange(4)], (None, None)):
        post = gp.condition(factors, Y, samples=1, **TIGHT)
        torch.testing.assert_close(post.mean(), expected.mean())
        at = torch.tensor([0.5, 2.0], dtype=torch.float64)
        torch.testing.assert_close(post.mean(at, None), expected.mean(at.unsqueeze(1), None))
    assert gp.condition(column, Y.tolist(), samples=1).mean().dtype == np.float64


def test_inputs_are_not_changed_and_not_kept() -> None:
    grid = Grid(2)
    factors, Y = grid.factors, grid.Y.clone()
    gp = LatentKroneckerGP(sides(2), NOISE, mean=lambda X: X[:, 0], standardise=True)
    post = gp.condition(factors, Y, samples=2, **TIGHT)
    assert all(torch.equal(a, b) for a, b in zip(factors, grid.factors, strict=True))
    assert torch.equal(Y.nan_to_num(9.0), grid.Y.nan_to_num(9.0))
    before = post.mean()
    for tensor in (*factors, Y):
        tensor.zero_()
    assert torch.equal(post.mean(), before)


def bad_cell(value: float) -> Tensor:
    Y = Grid(2).Y.clone()
    Y[3, 2] = value
    return Y


FACTORS, GOOD = Grid(2).factors, Grid(2).Y
BAD: dict[str, tuple[Any, Any, dict[str, Any], type[Exception], str]] = {
    "all missing": (FACTORS, torch.full_like(GOOD, torch.nan), {}, ValueError, "every value of Y is missing"),
    "infinite": (FACTORS, bad_cell(math.inf), {}, ValueError, r"Y is infinite at cell \[3, 2\]: mark missing values"),
    "negative infinity": (FACTORS, bad_cell(-math.inf), {}, ValueError, r"infinite at cell \[3, 2\]"),
    "empty": (FACTORS, GOOD[:0], {}, ValueError, "at least one cell"),
    "number": (FACTORS, 3.0, {}, ValueError, "at least one cell"),
    "complex": (FACTORS, GOOD.to(torch.complex128), {}, TypeError, "Y must be real"),
    "words": (FACTORS, [["a", "b"]], {}, TypeError, "Y must be numeric"),
    "transposed": (FACTORS, GOOD.T, {}, ValueError, "factor 0 has 8 rows, side 0 of Y has 6 cells"),
    "one factor": (FACTORS[:1], GOOD, {}, ValueError, "factors must be a list of 2 sets of inputs"),
    "three factors": ([*FACTORS, None], GOOD, {}, ValueError, "factors must be a list of 2 sets of inputs"),
    "factors in one": (FACTORS[0], GOOD, {}, ValueError, "factors must be a list of 2"),
    "no factors": (None, GOOD, {}, ValueError, "factors must be a list of 2"),
    "flat Y": (FACTORS, GOOD.flatten(), {}, ValueError, "Y has 1 dimensions, the model has 2 kernels"),
    "deep Y": (FACTORS, GOOD.unsqueeze(2), {}, ValueError, "Y has 3 dimensions, the model has 2 kernels"),
    "NaN factor": ([FACTORS[0] / 0.0, None], GOOD, {}, ValueError, "factor 0 contains inf at row 0, column 0"),
    "deep factor": ([FACTORS[0].unsqueeze(2), None], GOOD, {}, ValueError, "factor 0 must have two dimensions"),
    "noise shape": (
        FACTORS,
        GOOD,
        {"noise": torch.ones(8)},
        ValueError,
        r"\(8,\), which does not broadcast .* \(8, 6\)",
    ),
    "negative noise": (FACTORS, GOOD, {"noise": -torch.ones(6)}, ValueError, "noise must hold standard deviations"),
    "missing noise": (FACTORS, GOOD, {"noise": torch.full((6,), torch.nan)}, ValueError, "not missing, in observed"),
    "infinite noise": (FACTORS, GOOD, {"noise": torch.full((6,), torch.inf)}, ValueError, "noise is infinite at cell"),
    "samples": (FACTORS, GOOD, {"samples": 0}, ValueError, "samples must be at least 1"),
    "solver": (FACTORS, GOOD, {"solver": "lu"}, ValueError, "solver must be one of"),
    "memory": (FACTORS, GOOD, {"memory": -5}, ValueError, "must be positive"),
    "primal SGD": (FACTORS, GOOD, {"solver": "sgd"}, NotImplementedError, "no random features for primal SGD: use CG"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused(case: str) -> None:
    factors, Y, options, error, match = BAD[case]
    with pytest.raises(error, match=match):
        Grid(2).model.condition(factors, Y, **options)


def test_no_inputs_no_values() -> None:
    post, none = sampled(2), torch.zeros(0, 2, dtype=torch.float64)
    assert post.mean(none, None).shape == post.variance(none, None).shape == (0, 6)
    assert post.sample(none, None).shape == post.paths(none, None).shape == (4096, 0, 6)
    assert post.at(torch.zeros(0, 3, dtype=torch.float64)).samples.shape == (4096, 0)


def test_bad_models_and_questions() -> None:
    with pytest.raises(TypeError, match="kernels must be a list, one kernel per side"):
        LatentKroneckerGP(K.Matern())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="kernels must be a list"):
        LatentKroneckerGP([])
    with pytest.raises(TypeError, match="must be pathgp kernels such as Matern"):
        LatentKroneckerGP([K.Matern(), "matern"])  # type: ignore[list-item]
    grid, post = Grid(2), sampled(2)
    with pytest.raises(ValueError, match="1 sets of inputs for a grid with 2 sides"):
        post.mean(grid.new[0])
    with pytest.raises(ValueError, match="inputs 0 has 1 columns, the model was given 2"):
        post.sample(grid.new[1], None)
    with pytest.raises(ValueError, match="inputs 1 contains nan"):
        post.variance(None, torch.full((2,), torch.nan))
    with pytest.raises(ValueError, match="points has 2 columns, the model was given 3"):
        post.at(torch.ones(4, 2))
