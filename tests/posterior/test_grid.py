"""Posteriors on grids have the methods of those on tables: exact variances, leave-one-out, reports of their paths."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pathgp
import reference
from grid_cases import NOISE, TIGHT, Grid, cells, close, covariance, places, sampled, seeded, sides
from pathgp import GridPosterior, LatentKroneckerGP
from pathgp import kernels as K

FACTOR_ROWS = "pathgp.posterior.exact_covariance.FACTOR_ROWS"


class Brownian(K.Kernel):
    """min(x, z), without random features."""

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        return torch.minimum(X, Z.T)

    def _diagonal(self, X: Tensor) -> Tensor:
        return X[:, 0]


def without_samples(post: GridPosterior) -> GridPosterior:
    return replace(post, prior=None, weights=post.weights[:, :1])


def left_out(grid: Grid) -> tuple[Tensor, Tensor]:
    """Mean and variance of every observation given all others, by the textbook: (n,) each."""
    X, y, _ = grid.observed()
    means, variances = torch.empty_like(y), torch.empty_like(y)
    for i in range(len(y)):
        others = torch.arange(len(y)) != i
        mean, variance = reference.posterior(covariance(grid.k), X[others], y[others], NOISE, X[i : i + 1])
        means[i], variances[i] = mean[0], variance[0, 0] + NOISE**2
    return means, variances


@pytest.mark.parametrize("rows", [10_000, 0], ids=["factor", "solves"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_variances_by_solves_are_exact(k: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FACTOR_ROWS, rows)
    grid = Grid(k)
    post = grid.model.condition(grid.factors, grid.Y, solver="cg", samples=1, **TIGHT)
    for inputs in places(grid).values():
        found = post.variance(*inputs, method="solve")
        assert found.shape == post.mean(*inputs).shape
        close(found, grid.exact(inputs)[1].diagonal())
    close(post.variance(noise=True, method="solve"), grid.exact()[1].diagonal() + NOISE**2)


def test_the_method_of_variances(monkeypatch: pytest.MonkeyPatch) -> None:
    post = sampled(2)
    assert torch.equal(post.variance(), post.variance(method="solve"))
    assert torch.equal(without_samples(post).variance(), post.variance(method="solve"))
    monkeypatch.setattr("pathgp.posterior.base.EXACT_ROWS", 0)
    assert torch.equal(post.variance(), post.variance(method="samples"))
    with pytest.raises(ValueError, match="no samples: use condition"):
        without_samples(post).variance(method="samples")
    with pytest.raises(ValueError, match=r"'neighbours' is for tables.*use 'samples', or 'solve'"):
        post.variance(method="neighbours")
    with pytest.raises(ValueError, match="method must be 'samples', 'solve' or 'smooth', got 'exact'"):
        post.variance(method="exact")


@pytest.mark.parametrize("k", [1, 2, 3])
def test_leave_one_out_is_exact(k: int) -> None:
    grid = Grid(k)
    found = grid.model.condition(grid.factors, grid.Y, samples=1, **TIGHT).leave_one_out()
    means, variances = left_out(grid)
    observed = ~grid.Y.isnan()
    densities = torch.distributions.Normal(means, variances.sqrt()).log_prob(grid.Y[observed])
    pairs = ((found.means, means), (found.variances, variances), (found.log_densities, densities))
    for values, expected in pairs:
        assert values.shape == grid.Y.shape
        assert torch.equal(values.isnan(), ~observed)
        close(values[observed], expected)
    assert found.mean_log_density == pytest.approx(float(densities.mean()))
    assert found.method == "exact, Cholesky"


@pytest.mark.statistical
def test_leave_one_out_from_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative standard error at most sqrt(2 / 4096) = 2.2 %; five of them."""
    grid = Grid(2)
    post = grid.model.condition(grid.factors, grid.Y, samples=4096, generator=seeded(), **TIGHT)
    monkeypatch.setattr(FACTOR_ROWS, 0)
    found = post.leave_one_out()
    variances = left_out(grid)[1]
    assert found.method.startswith("4096 samples")
    assert float((found.variances[~grid.Y.isnan()] / variances - 1.0).abs().max()) <= 0.11


def test_leave_one_out_is_in_the_units_of_y() -> None:
    grid = Grid(2)

    def trend(X: Tensor) -> Tensor:
        return 3.0 * X[:, 0]

    model = LatentKroneckerGP(sides(2), NOISE, mean=trend, standardise=True)
    Y = 50.0 + 7.0 * grid.Y + trend(cells(grid.factors)).view(grid.Y.shape)
    plain = LatentKroneckerGP(sides(2), NOISE, standardise=True).condition(grid.factors, grid.Y, **TIGHT)
    post, before = model.condition(grid.factors, Y, **TIGHT), plain.leave_one_out()
    found = post.leave_one_out()
    assert post.noise_std == pytest.approx(7.0 * plain.noise_std)
    mean = trend(cells(grid.factors)).view(grid.Y.shape)
    torch.testing.assert_close(found.means, 50.0 + 7.0 * before.means + mean, equal_nan=True)
    torch.testing.assert_close(found.variances, 49.0 * before.variances, equal_nan=True)
    assert found.mean_log_density == pytest.approx(before.mean_log_density - torch.log(torch.tensor(7.0)).item())


@pytest.mark.parametrize("kind", ["table", "grid"])
def test_the_factor_is_freed_with_the_posterior(kind: str) -> None:
    """Without waiting for the garbage collector: a factor of 10,000 rows has 0.8 GB."""
    grid = Grid(2)
    X, y, _ = grid.observed()
    if kind == "grid":
        post: Any = grid.model.condition(grid.factors, grid.Y, samples=1)
    else:
        post = pathgp.GP(K.Matern(1.5, 0.5), NOISE).condition(X, y, samples=1)
    post.leave_one_out()
    factor = weakref.ref(post._exact.factor[0])
    gc.disable()
    del post
    freed = factor() is None
    gc.enable()
    assert freed


def test_the_inputs_are_those_of_the_caller() -> None:
    grid = Grid(2)
    post = LatentKroneckerGP(sides(2), NOISE, standardise=True).condition(grid.factors, grid.Y, samples=1)
    for found, given in zip(post.X, grid.factors, strict=True):
        assert torch.equal(found, given)


def test_the_report_tells_what_paths_cost() -> None:
    grid = Grid(2)
    post = grid.model.condition(grid.factors, grid.Y, samples=3, features=64, generator=seeded())
    assert post.has_paths
    assert post.report.paths is None
    assert "paths" not in dict(post.report.summary_items())
    post.paths()
    solved = post.report.paths
    assert solved is not None
    assert solved.epochs > 0
    assert f"{solved.epochs:.1f} epochs" in dict(post.report.summary_items())["paths"]
    post.paths(*grid.new)
    assert post.report.paths is solved


def test_has_paths_only_where_paths_can_be_evaluated(tmp_path: Path) -> None:
    grid = Grid(2)
    post = grid.model.condition(grid.factors, grid.Y, samples=2)
    post.save(tmp_path / "post", data=False)
    assert not pathgp.load(tmp_path / "post").has_paths
    assert not without_samples(post).has_paths
    brownian = LatentKroneckerGP([Brownian(), K.Matern(1.5, 0.5)], NOISE)
    inputs = torch.linspace(0.1, 1.0, 4, dtype=torch.float64)
    assert not brownian.condition([inputs, None], torch.ones(4, 3, dtype=torch.float64), samples=2).has_paths


def test_posteriors_of_one_generator_have_different_paths(tmp_path: Path) -> None:
    """Their prior paths were equal if the generator had been used before."""
    grid, generator = Grid(2), seeded()
    torch.rand(1, generator=generator)
    posts = [grid.model.condition(grid.factors, grid.Y, samples=4, generator=generator) for _ in range(2)]
    # Far from the data, where the posterior is the prior.
    far = [F + 50.0 for F in grid.factors]
    first, second = (post.paths(*far) for post in posts)
    assert float((first - second).abs().max()) > 0.1
    posts[1].save(tmp_path / "post")
    again = pathgp.load(tmp_path / "post")
    assert torch.equal(again.paths(*far), second)
    # Files of earlier versions have no seed.
    assert replace(again, paths_seed=None).paths(*grid.mixed).isfinite().all()


def test_an_update_that_does_not_converge_warns() -> None:
    grid = Grid(2)
    options = {"solver": "cg", "samples": 2, "tol": 1e-9, "max_epochs": 3}
    with pytest.warns(pathgp.ConvergenceWarning, match="mean and samples: CG.*ended BUDGET_EXHAUSTED"):
        post = grid.model.condition(grid.factors, grid.Y, **options)
    with pytest.warns(pathgp.ConvergenceWarning, match="mean and samples: CG.*ended BUDGET_EXHAUSTED") as caught:
        post.update(grid.Y.nan_to_num(0.3))
    assert caught[0].filename == __file__


def test_an_update_with_tiny_noise_in_float32() -> None:
    side = torch.linspace(0.0, 1.0, 12).unsqueeze(1)
    Y = torch.sin(5.0 * side) + side.T
    model = LatentKroneckerGP([K.Matern(2.5, 0.5), K.Matern(2.5, 0.5)], noise=1e-3)
    noisy = model.condition([side, side], Y, torch.full_like(Y, 0.5), samples=2, generator=seeded())
    found = noisy.update(Y, torch.zeros_like(Y), generator=seeded())
    assert (noisy.report.precision, found.report.precision) == ("float32", "float64")
    assert found.mean().dtype == torch.float32
    assert float((found.mean() - Y).abs().max()) < 0.01
