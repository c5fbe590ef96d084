"""Fits of functions without noise or with little: they agree for all generators, and their systems are solved."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import pathgp
from fit_cases import seeded
from pathgp.kernels import Kernel, Matern, Scale
from pathgp.learning.hyperparameters import Coordinates
from pathgp.operators import KernelOperator


def test_generators_agree_on_a_function_without_noise() -> None:
    """With estimated gradients two fits of 1,001 rows had test log-likelihoods that differed by 0.2 nats per row."""
    X = torch.rand(1201, 10, generator=seeded(0), dtype=torch.float64)
    y = 10.0 * (torch.pi * X[:, 0] * X[:, 1]).sin() + 20.0 * (X[:, 2] - 0.5).square() + 10.0 * X[:, 3] + 5.0 * X[:, 4]
    found = []
    for seed in range(2):
        gp = pathgp.GP(Scale(Matern(2.5, torch.ones(10)), 1.0), noise=0.1, standardise=True)
        gp.fit(X[:1001], y[:1001], samples=8, features=64, generator=seeded(seed))
        mean, std = gp.posterior.mean(X[1001:]), gp.posterior.variance(X[1001:], noise=True).sqrt()
        found.append(float(torch.distributions.Normal(mean, std).log_prob(y[1001:]).mean()))
    assert abs(found[0] - found[1]) < 0.02


def test_a_sum_with_weights_equals_the_bilinear_form_of_their_columns() -> None:
    X, W = torch.rand(30, 2, dtype=torch.float64), torch.rand(30, 30, dtype=torch.float64)
    W = W + W.T
    H = KernelOperator(Scale(Matern(1.5, torch.ones(2)), 1.0), X, noise=0.3)
    identity = torch.eye(30, dtype=torch.float64)
    parameters = list(H.kernel.parameters())
    forms = (H.contract(W), H.bilinear(W, identity, symmetric=True))
    gradients = [torch.autograd.grad(form, parameters) for form in forms]
    torch.testing.assert_close(*forms)
    torch.testing.assert_close(*gradients)


def fit_smooth_field(*parts: Kernel, noise: float) -> tuple[pathgp.LatentKroneckerGP, list[str]]:
    """A fit of a smooth function on a grid with holes, as by default on larger grids, and how its solves ended."""
    generator = seeded(0)
    rows, columns = (torch.linspace(0.0, 1.0, p, dtype=torch.float64).unsqueeze(1) for p in (20, 16))
    Y = torch.sin(6.0 * rows) + columns.T.square()
    Y += noise * Y.std() * torch.randn(Y.shape, generator=generator, dtype=torch.float64)
    Y[torch.rand(Y.shape, generator=generator) < 0.2] = math.nan
    Y[6:11, 5:9] = math.nan
    gp = pathgp.LatentKroneckerGP(list(parts), noise=0.1, mean=float(Y.nanmean()))
    report = gp.fit([rows, columns], Y, samples=8, estimator="pathwise", generator=seeded(0))
    return gp, [step.status for step in report.history]


def test_steps_on_a_grid_end_converged() -> None:
    """Their budget ended every solve early. Gradients were those of no likelihood, and fits ended below their start."""
    gp, statuses = fit_smooth_field(Scale(Matern(2.5, 1.0), 1.0), Matern(2.5, 1.0), noise=1e-4)
    assert set(statuses) == {"CONVERGED"}
    assert gp.posterior.report.status.name == "CONVERGED"


def test_all_cells_get_the_noise_that_they_need() -> None:
    """Two signals multiply. With the noise of sub-grids the first step and the posterior could not be solved."""
    gp, statuses = fit_smooth_field(Scale(Matern(2.5, 1.0), 1.0), Scale(Matern(2.5, 1.0), 1.0), noise=0.0)
    assert set(statuses) == {"CONVERGED"}
    assert gp.posterior.report.status.name == "CONVERGED"


@pytest.mark.parametrize("distance", [-800.0, 800.0])
def test_long_steps_stay_within_the_range_of_numbers(distance: float) -> None:
    """A line search along a hyperparameter without bounds may try any value."""
    kernel = Matern(1.5, torch.ones(2))
    coordinates = Coordinates(kernel, {})
    coordinates.move(coordinates.position() + torch.tensor([distance, 1.0]))
    squares: Tensor = kernel.lengthscale.detach().square()
    assert bool(((squares > 0) & (squares < math.inf)).all())
    assert float(squares[1]) == pytest.approx(math.e**2)
