"""The likelihood of sub-grids, and kernels chosen by it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import kernels
from pathgp.data.grid import GridObservations
from pathgp.learning.hyperparameters import Coordinates
from pathgp.learning.subgrids import choose_subgrids, fit_subgrids
from pathgp.models.kernel_choice import strongest_period


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def model() -> pathgp.LatentKroneckerGP:
    parts = [kernels.Scale(kernels.Matern(1.5, 0.3), 1.2), kernels.Matern(0.5, 0.6)]
    return pathgp.LatentKroneckerGP(parts, noise=0.2, mean=pathgp.means.Constant(0.5))


def observations(p: int, q: int, missing: float = 0.2) -> tuple[list[Tensor], Tensor]:
    """A draw of the model, with holes."""
    g = seeded()
    factors = [
        torch.rand(p, 2, generator=g, dtype=torch.float64),
        torch.linspace(0, 4, q, dtype=torch.float64)[:, None],
    ]
    with torch.no_grad():
        left, right = (torch.linalg.cholesky(k(F)) for k, F in zip(model().sides, factors, strict=True))
    Y = 0.5 + left @ torch.randn(p, q, generator=g, dtype=torch.float64) @ right.T
    Y += 0.2 * torch.randn(p, q, generator=g, dtype=torch.float64)
    return factors, Y.masked_fill(torch.rand(p, q, generator=g) < missing, math.nan)


@pytest.mark.parametrize(("p", "q", "repeats", "number"), [(9, 8, 3, 1), (9, 9, 3, 6), (9, 8, 1, 2), (72, 1, 3, 3)])
def test_the_whole_grid_replaces_sub_grids_that_cost_as_much(p: int, q: int, repeats: int, number: int) -> None:
    """Six of 40 cells take as many operations as one of 72 cells, 6 ** (1 / 3) times as many cells."""
    factors, Y = observations(p, q, missing=0.0)
    found = choose_subgrids(model().prepare_data(factors, Y), cells=40, repeats=repeats)
    assert len(found) == number
    assert (len(found[0].y) == p * q) == (number == 1)


def test_the_likelihood_of_a_sub_grid_is_that_of_its_cells() -> None:
    """Value and gradient against the density of the same cells as a table, with known noise."""
    factors, Y = observations(9, 7)
    gp, known = model(), torch.linspace(0.1, 0.4, 7, dtype=torch.float64)
    (whole,) = choose_subgrids(gp.prepare_data(factors, Y, known))
    value, surrogate = whole.log_likelihood(gp)
    parameters = list(gp.parameters())
    found = torch.autograd.grad(surrogate, parameters)
    cells = ~torch.isnan(Y)
    X = torch.cat([factors[0].repeat_interleave(7, 0), factors[1].repeat(9, 1)], 1)[cells.flatten()]
    variance = gp.noise.square() + known.square().expand(9, 7)[cells]
    covariance = gp.product([2, 1])(X) + torch.diag(variance)
    density = torch.distributions.MultivariateNormal(gp.mean_at(X).expand(len(X)), covariance).log_prob(Y[cells])
    assert value == pytest.approx(float(density.detach()), rel=1e-10)
    for mine, exact in zip(found, torch.autograd.grad(density, parameters), strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-8, atol=1e-8)


def test_sub_grids_are_parts_of_the_grid() -> None:
    factors, Y = observations(80, 50)
    data = model().prepare_data(factors, Y)
    assert isinstance(data, GridObservations)
    found = choose_subgrids(data, cells=200, repeats=2)
    assert len(found) == 4
    for number, subgrid in enumerate(found):
        assert 100 < len(subgrid.y) < 300
        sizes = [len(F) for F in subgrid.factors]
        assert sizes.index(max(sizes)) == number // 2
        # Every observation is that of its own cell.
        for x, y in zip(subgrid.X_raw[::17], subgrid.y[::17], strict=True):
            site = int((factors[0] - x[:2]).abs().sum(1).argmin())
            time = int((factors[1] - x[2:]).abs().sum(1).argmin())
            assert float(y) == float(Y[site, time])
    again = choose_subgrids(data, cells=200, repeats=2)
    assert all(torch.equal(a.y, b.y) for a, b in zip(found, again, strict=True))


def test_a_fit_of_sub_grids_finds_the_hyperparameters_of_the_grid() -> None:
    factors, Y = observations(25, 20)
    gp = model()
    data = gp.prepare_data(factors, Y)
    gp.sides[0].kernel.lengthscale, gp.sides[1].lengthscale, gp.noise = 0.1, 0.2, 0.5
    found = fit_subgrids(gp, data, choose_subgrids(data), Coordinates(gp, {}), 50)
    values = gp.hyperparameters()
    assert float(values["0.lengthscale"]) == pytest.approx(0.3, rel=0.4)
    assert float(values["1.lengthscale"]) == pytest.approx(0.6, rel=0.5)
    assert float(values["noise"]) == pytest.approx(0.2, rel=0.3)
    assert 0 < len(found.curvature) <= 10
    assert all(float(s @ y) > 0 for s, y in found.curvature)


def test_kernels_are_chosen_by_the_likelihood() -> None:
    """Rough in time; a season only where there is one; given kernels stay."""
    factors, Y = observations(6, 50, missing=0.1)
    gp = pathgp.LatentKroneckerGP([kernels.Scale(kernels.Matern(1.5, 0.3), 1.0), None], noise=0.3)
    with pytest.raises(ValueError, match="the kernel of side 1 is None: give one, or let fit choose it"):
        gp.condition(factors, Y)
    report = gp.fit(factors, Y, steps=1, samples=2, generator=seeded())
    assert "kernels chosen by the likelihood of sub-grids: Matern(nu=0.5" in report.note
    assert isinstance(gp.sides[0], kernels.Scale)
    cycle = torch.sin(2 * math.pi * factors[1][:, 0] / 0.8)
    report = gp.fit(factors, Y + 3.0 * cycle, steps=1, samples=2, generator=seeded())
    season = next(part for part in gp.sides[1].modules() if isinstance(part, kernels.Periodic))
    assert float(season.period.detach()) == pytest.approx(0.8, rel=0.05)
    assert gp.posterior.report.status.name == "CONVERGED"


def test_the_strongest_period() -> None:
    t = torch.linspace(0.0, 100.0, 301, dtype=torch.float64)[:, None]
    slow = 5.0 * torch.sin(t.T / 60) + torch.sin(2 * math.pi * t.T / 12.5) * torch.tensor([[1.0], [-1.0], [0.5]])
    slow[:, 40:90] = math.nan
    data = pathgp.LatentKroneckerGP([None, None]).prepare_data([None, t], slow)
    assert strongest_period(data, 1) == pytest.approx(12.5, rel=0.05)


def test_the_first_open_side_gets_the_signal_unless_another_has_one() -> None:
    assert isinstance(pathgp.LatentKroneckerGP([None, None]).sides[0], kernels.Scale)
    scaled = pathgp.LatentKroneckerGP([None, kernels.Scale(kernels.Matern(1.5))])
    assert not isinstance(scaled.sides[0], kernels.Scale)
    assert not isinstance(pathgp.LatentKroneckerGP([kernels.Task(3), None]).sides[1], kernels.Scale)


def test_entries_without_observations_leave_the_operator() -> None:
    factors, Y = observations(12, 9)
    Y[3], Y[:, 5] = math.nan, math.nan
    gp = model()
    kept = [torch.arange(12) != 3, torch.arange(9) != 5]
    smaller = Y[kept[0]][:, kept[1]]
    post = gp.condition(factors, Y, samples=2, tol=1e-8, generator=seeded())
    part = gp.condition([F[k] for F, k in zip(factors, kept, strict=True)], smaller, samples=2, tol=1e-8)
    torch.testing.assert_close(post.mean(*[F[k] for F, k in zip(factors, kept, strict=True)]), part.mean())
    torch.testing.assert_close(post.mean(), part.mean(*factors))
    H = gp.operator(gp.prepare_data(factors, Y), post.settings)
    assert H.shape[0] == int((~torch.isnan(smaller)).sum())
    assert getattr(H, "sizes", (11, 8)) == (11, 8)


def test_sub_grids_of_mostly_holes_have_the_same_likelihood() -> None:
    g = torch.Generator().manual_seed(0)
    factors = [torch.arange(p, dtype=torch.float64).unsqueeze(1) for p in (6, 5)]
    model = pathgp.LatentKroneckerGP([kernels.Scale(kernels.Matern(1.5, 2.0)), kernels.Matern(0.5, 3.0)], noise=0.3)
    Y = torch.randn(6, 5, generator=g, dtype=torch.float64)
    Y[torch.rand(6, 5, generator=g) < 0.7] = torch.nan
    data = model.prepare_data(factors, Y)
    (subgrid,) = choose_subgrids(data)
    assert 2 * len(data.y) < Y.numel()
    value, _ = subgrid.log_likelihood(model)
    X = data.inputs()
    K = model.product((1, 1))(X).detach() + 0.09 * torch.eye(len(X), dtype=torch.float64)
    expected = torch.distributions.MultivariateNormal(torch.zeros(len(X)).double(), K).log_prob(data.y)
    assert value == pytest.approx(float(expected), abs=1e-8)
    assert torch.equal(subgrid.rows, torch.arange(len(data.y)))


@pytest.mark.parametrize("missing", [0.2, 0.8])
def test_kernels_are_evaluated_at_the_entries_of_the_sides(missing: float) -> None:
    """The likelihood of three sides, with its gradient, from kernel matrices of the sides alone."""
    g = torch.Generator().manual_seed(0)
    sizes, kernel = (6, 5, 4), kernels.Scale(kernels.Matern(1.5, 2.0))
    factors = [torch.arange(p, dtype=torch.float64).unsqueeze(1) for p in sizes]
    model = pathgp.LatentKroneckerGP([kernel, kernels.Matern(0.5, 3.0), kernels.Matern(2.5, 2.0)], noise=0.3)
    Y = torch.randn(sizes, generator=g, dtype=torch.float64)
    Y[torch.rand(sizes, generator=g) < missing] = torch.nan
    data = model.prepare_data(factors, Y)
    (subgrid,) = choose_subgrids(data)
    rows: list[int] = []
    hooks = [side.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0]))) for side in model.sides]
    value, surrogate = subgrid.log_likelihood(model)
    for hook in hooks:
        hook.remove()
    assert rows == list(sizes)
    X, parameters = data.inputs(), list(model.parameters())
    covariance = model.product((1, 1, 1))(X) + model.noise.square() * torch.eye(len(X), dtype=torch.float64)
    density = torch.distributions.MultivariateNormal(torch.zeros(len(X)).double(), covariance).log_prob(data.y)
    assert value == pytest.approx(float(density.detach()), rel=1e-10)
    found = torch.autograd.grad(surrogate, parameters)
    for mine, exact in zip(found, torch.autograd.grad(density, parameters), strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-8, atol=1e-8)
