"""Learning on grids with holes: the same loop as for tables, checked against the dense likelihood."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pathgp
import reference
from grid_cases import GRIDS, NOISE, Grid, cells, seeded, sides, uniform
from learning_cases import Values, reference_gradient, stored_gradient
from pathgp import Compute, Devices
from pathgp import kernels as K
from pathgp.learning.estimators import Exact, Iterative, State, StepRequest
from pathgp.models import LatentKroneckerGP
from pathgp.posterior.conditioning import Settings
from plain_fits import plain_fit
from statistics_tools import assert_unbiased

every_grid = pytest.mark.parametrize("grid", GRIDS, ids=str)
SETTINGS = Settings.read("cholesky", 1e-9, None)


def log_likelihood(
    grid: Grid, theta: Values, X: Tensor | None = None, y: Tensor | None = None, known: Tensor | None = None
) -> Tensor:
    """log N(y | mean, K + noise^2 + known^2) from the textbook, at hyperparameters by name."""
    inputs, values, _ = grid.observed()
    X, y = inputs if X is None else X, values if y is None else y

    def k(A: Tensor, B: Tensor) -> Tensor:
        matern = reference.matern(A[:, :2], B[:, :2], 1.5, theta["0.lengthscale"])
        total = theta["0.signal"].square() * matern
        if grid.k > 1:
            total = total * reference.squared_exponential(A[:, 2:3], B[:, 2:3], theta["1.lengthscale"])
        if grid.k > 2:
            total = total * reference.matern(A[:, 3:], B[:, 3:], 0.5, theta["2.lengthscale"])
        return total

    noise = theta["noise"] if known is None else (theta["noise"].square() + known.square()).sqrt()
    return reference.log_marginal_likelihood(k, X, y, noise, theta.get("mean.value", torch.zeros(()).double()))


# Gradients


@every_grid
def test_the_exact_gradient_and_value(grid: Grid) -> None:
    gp = grid.model
    estimate = Exact().evaluate(gp, gp.prepare_data(grid.factors, grid.Y), State(), StepRequest(SETTINGS, seeded()))
    estimate.objective.backward()
    expected = reference_gradient(gp, lambda t: log_likelihood(grid, t))
    torch.testing.assert_close(stored_gradient(gp), expected, rtol=1e-6, atol=1e-8)
    assert estimate.value == pytest.approx(float(log_likelihood(grid, gp.hyperparameters())), rel=1e-10)


@pytest.mark.parametrize("k", [2, 3])
def test_the_exact_gradient_with_known_noise_a_learned_mean_and_units(k: int) -> None:
    grid = Grid(k)
    Y, known = 5.0 + 4.0 * grid.Y, 0.5 + uniform(grid.Y.numel(), 1, seed=40).view(grid.Y.shape)
    gp = LatentKroneckerGP(sides(k), NOISE, mean=pathgp.means.Constant(4.0), standardise=True)
    estimate = Exact().evaluate(gp, gp.prepare_data(grid.factors, Y, known), State(), StepRequest(SETTINGS, seeded()))
    estimate.objective.backward()
    _, y, there = grid.observed(Y)
    scale = y.std(correction=0)
    X = cells([(F - F.mean(0)) / F.std(0, correction=0) for F in grid.factors])[there]

    def expected(theta: Values) -> Tensor:
        units = theta | {"mean.value": theta["mean.value"] / scale}
        return log_likelihood(grid, units, X, y / scale, known.flatten()[there] / scale)

    torch.testing.assert_close(stored_gradient(gp), reference_gradient(gp, expected), rtol=1e-6, atol=1e-8)
    assert estimate.value == pytest.approx(float(expected(gp.hyperparameters())), rel=1e-10)


@pytest.mark.statistical
@pytest.mark.parametrize("pathwise", [False, True], ids=["standard", "pathwise"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_iterative_gradients_are_unbiased(k: int, pathwise: bool) -> None:
    """80 estimates of 16 probes each, at a false-alarm rate of about 1e-6."""
    grid, gradients = Grid(k), []
    gp, generator = grid.model, seeded()
    data, estimator = gp.prepare_data(grid.factors, grid.Y), Iterative(pathwise, 16, 1, False)
    for _ in range(80):
        gp.zero_grad()
        estimator.evaluate(gp, data, State(), StepRequest(SETTINGS, generator)).objective.backward()
        gradients.append(stored_gradient(gp))
    assert_unbiased(torch.stack(gradients), reference_gradient(gp, lambda t: log_likelihood(grid, t)))


# The fit


@every_grid
def test_the_likelihood_of_every_step(grid: Grid) -> None:
    gp = grid.model
    report = plain_fit(gp, grid.factors, grid.Y, estimator="exact", steps=5, samples=2)
    for step in report.history:
        theta = {
            name: torch.tensor(numbers, dtype=torch.float64).view(gp.hyperparameters()[name].shape)
            for name, numbers in step.values.items()
        }
        assert step.log_likelihood == pytest.approx(float(log_likelihood(grid, theta)), abs=1e-8)
    assert report.history[-1].log_likelihood > report.history[0].log_likelihood
    assert gp.posterior.num_samples == 2


@pytest.mark.parametrize("k", [2, 3])
def test_the_pathwise_fit_is_near_the_exact_optimum(k: int) -> None:
    """To first order the likelihood falls short by a chi-square over 512, one degree for each hyperparameter.

    The false-alarm rate is then below 1e-6.
    """
    grid = Grid(k)
    exact, pathwise = grid.model, grid.model
    for gp in (exact, pathwise):
        gp.constrain("lengthscale", bounds=(0.05, 5.0)).constrain("0.signal", bounds=(0.0, math.inf))
    plain_fit(exact, grid.factors, grid.Y, estimator="exact", optimiser="lbfgs", steps=50, min_gain=0.0, samples=1)
    options = {"samples": 256, "solver": "cholesky", "tol": 1e-9, "min_gain": 0.0}
    report = plain_fit(pathwise, grid.factors, grid.Y, optimiser="lbfgs", steps=50, generator=seeded(1), **options)
    assert report.estimator == "pathwise, 256 probes, warm starts"
    best, start = (float(log_likelihood(grid, gp.hyperparameters())) for gp in (exact, grid.model))
    assert best > start + 1.0
    assert float(log_likelihood(grid, pathwise.hyperparameters())) > best - 0.1


@pytest.mark.parametrize("solver", ["auto", "cg", "cholesky"])
def test_the_posterior_is_ready(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid(2)
    gp = grid.model
    plain_fit(gp, grid.factors, grid.Y, steps=5, samples=8, solver=solver, tol=1e-9, generator=seeded())
    with monkeypatch.context() as patch:
        patch.setattr(Settings, "solve", None)
        found = gp.posterior.mean(*grid.mixed)
        assert gp.posterior.sample(*grid.mixed).shape == (8, 5, 5)
        assert gp.posterior.variance().shape == (8, 6)
    again = gp.condition(grid.factors, grid.Y, samples=1, tol=1e-9)
    torch.testing.assert_close(found, again.mean(*grid.mixed), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("estimator", ["pathwise", "standard", "exact"])
def test_a_checkpoint_is_continued_bit_for_bit(estimator: str, tmp_path: Path) -> None:
    grid = Grid(2)
    options: dict[str, Any] = {"estimator": estimator, "samples": 4, "solver": "cg", "min_gain": 0.0}
    whole, parts = grid.model, grid.model
    expected = plain_fit(whole, grid.factors, grid.Y, steps=8, generator=seeded(3), **options)
    for steps in (5, 8):
        if steps == 8:
            parts = grid.model
        saved = {"checkpoint": tmp_path / "fit.pt", "generator": seeded(3)}
        found = plain_fit(parts, grid.factors, grid.Y, steps=steps, **saved, **options)
    assert [step.values for step in found.history] == [step.values for step in expected.history]
    assert torch.equal(parts.posterior.sample(), whole.posterior.sample())
    assert torch.equal(parts.posterior.mean(*grid.mixed), whole.posterior.mean(*grid.mixed))
    other = torch.where(grid.Y.isnan(), 0.0, grid.Y)
    with pytest.raises(ValueError, match="belongs to another fit"):
        plain_fit(grid.model, grid.factors, other, steps=8, checkpoint=tmp_path / "fit.pt", **options)


def test_constraints_learned_means_and_several_starts() -> None:
    grid = Grid(2)
    gp = LatentKroneckerGP(sides(2), NOISE, mean=pathgp.means.Constant())
    assert set(gp.hyperparameters()) == {"0.lengthscale", "0.signal", "1.lengthscale", "noise", "mean.value"}
    gp.constrain("0.signal", fixed=True).constrain("noise", bounds=(0.2, 0.4))
    plain_fit(gp, grid.factors, 50.0 + grid.Y, initialise="data", estimator="exact", steps=30, samples=1)
    found = gp.hyperparameters()
    assert found["mean.value"].item() == pytest.approx(50.0, abs=2.0)
    assert found["0.signal"].item() == pytest.approx(1.2)
    assert 0.2 - 1e-12 <= found["noise"].item() <= 0.4 + 1e-12
    several = grid.model
    report = plain_fit(
        several, grid.factors, grid.Y, steps=5, starts=3, estimator="exact", samples=1, generator=seeded()
    )
    value = several.posterior.log_marginal_likelihood().value
    assert value == pytest.approx(float(log_likelihood(grid, several.hyperparameters())))
    assert f"of 3 kept, log likelihood {value:.1f}" in report.note


def test_initialise_from_data() -> None:
    """Distances along every side, typical ones and those of neighbours, and the spread of the observed values."""
    grid = Grid(2)
    factors = [100.0 * grid.factors[0], 0.01 * grid.factors[1]]
    gp = grid.model
    plain_fit(gp, factors, 50.0 * grid.Y, steps=0, initialise="data", samples=1, generator=seeded())
    found, spread = gp.hyperparameters(), 50.0 * grid.observed()[1].std(correction=0).item()
    assert found["0.signal"].item() == pytest.approx(spread)
    assert found["noise"].item() == pytest.approx(0.1 * spread)
    columns = torch.stack([torch.pdist(F).median() for F in factors[0].split(1, 1)])
    scaled = factors[0] / columns
    assert float((found["0.lengthscale"] / columns).std()) < 1e-8
    for side, ell in ((scaled, found["0.lengthscale"][0] / columns[0]), (factors[1], found["1.lengthscale"])):
        apart = torch.cdist(side, side)
        nearest = apart.where(apart > 0, torch.inf).amin(1).median()
        assert ell.item() == pytest.approx(math.sqrt(nearest * torch.pdist(side).median()), rel=0.2)


def test_a_task_factor_is_learned() -> None:
    """Two outputs that are the same function and one that is its negative, half of the cells missing."""
    X = uniform(30, 1, seed=0)
    Y = torch.sin(6.0 * X) * torch.tensor([1.0, 1.0, -1.0]) + 0.05 * torch.randn(30, 3, generator=seeded(1)).double()
    Y[torch.rand(30, 3, generator=seeded(2)) < 0.5] = torch.nan
    gp = LatentKroneckerGP([K.SquaredExponential(0.3), K.Task(3)], 0.1)
    plain_fit(gp, [X, None], Y, estimator="exact", steps=80, samples=1, min_gain=0.0)
    between = gp.posterior.model.sides[1].covariance
    correlation = between / (between.diagonal().outer(between.diagonal())).sqrt()
    assert correlation[0, 1] > 0.8
    assert correlation[0, 2] < -0.8
    error = gp.posterior.mean() - torch.sin(6.0 * X) * torch.tensor([1.0, 1.0, -1.0])
    assert float(error.square().mean().sqrt()) < 0.1


@pytest.mark.filterwarnings("ignore:.* of y are equal", "ignore:y has one value")
def test_few_cells() -> None:
    """One cell, one row, a constant: nothing to learn from, and no error."""
    one = torch.full((8, 6), torch.nan, dtype=torch.float64)
    one[2, 3] = 0.5
    row = torch.full_like(one, torch.nan)
    row[4] = Grid(2, 0.0).Y[4]
    for Y in (one, row, torch.ones_like(one), torch.zeros_like(one)):
        gp = LatentKroneckerGP(sides(2), NOISE, standardise=True)
        plain_fit(gp, Grid(2).factors, Y, steps=4, samples=2, initialise="data", generator=seeded())
        assert bool(torch.isfinite(gp.posterior.mean()).all())


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"step": 3}, TypeError, "unexpected keyword argument 'step'"),
        ({"dtype": torch.float64}, ValueError, "dtype= is for tables"),
        ({"compute": Compute("dense")}, ValueError, r"by one process: Compute\(backend=...\) is for tables"),
        ({"compute": Compute(precision="low")}, ValueError, r"Compute\(precision=...\) is for tables"),
        ({"compute": Compute(group=Devices(["cpu"]))}, ValueError, r"Compute\(group=...\) is for tables"),
        ({"initialise": "subsets"}, ValueError, "initialise='subsets' is for tables"),
        ({"initialise": "random"}, ValueError, "initialise must be one of 'auto', 'model', 'data'"),
        ({"steps": -1}, ValueError, "steps must be at least 0"),
        ({"samples": 0}, ValueError, "samples must be at least 1"),
        (
            {"estimator": "exact", "compute": Compute(memory=1e4)},
            ValueError,
            "exact estimator needs .*pathwise",
        ),
        ({"noise": torch.ones(5)}, ValueError, "does not broadcast"),
        ({"solver": "gauss"}, ValueError, "solver must be one of"),
        ({"learning_rate": math.nan}, ValueError, "learning_rate must be finite"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], match: str) -> None:
    gp = Grid(2).model
    with pytest.raises(error, match=match):
        plain_fit(gp, Grid(2).factors, Grid(2).Y, **options)
    with pytest.raises(RuntimeError, match="there is no posterior yet"):
        _ = gp.posterior


def test_an_aborted_fit_leaves_open_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid(2)
    gp = LatentKroneckerGP([None, None], 0.2)
    before = repr(gp)

    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pathgp.learning.fitting.predict_costs", fail)
        with pytest.raises(KeyboardInterrupt):
            gp.fit(grid.factors, grid.Y)
    assert repr(gp) == before
    with pytest.raises(ValueError, match="the kernel of side 0 is None"):
        gp.condition(grid.factors, grid.Y)
    gp.fit(grid.factors, grid.Y, steps=1, samples=2)
    assert repr(gp.kernels) == repr(gp.posterior.model.kernels)
