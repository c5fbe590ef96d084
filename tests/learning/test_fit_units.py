"""Means, known noise, standardisation and dtypes in GP.fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pathgp
import reference
from fit_cases import XS, X, Y, close, model, optimum, seeded
from learning_cases import SCALED_MATERN, Values
from pathgp.kernels import Matern, Scale
from plain_fits import plain_fit

# Means, noise, units


class Trend(nn.Module):
    """A mean function of a user: a line in the first column."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
        self.intercept = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))

    def forward(self, Z: Tensor) -> Tensor:
        return self.intercept + self.slope * Z[:, 0]


MEANS = {"estimator": "exact", "min_gain": 0.0, "samples": 1}


@pytest.mark.parametrize(("optimiser", "steps"), [("adam", 400), ("lbfgs", 120)])
def test_a_learned_trend(optimiser: str, steps: int) -> None:
    """Offset and slope as exact optimisation finds them, together with the kernel."""
    y = Y + 5.0 - 8.0 * X[:, 0]
    gp = model(mean=Trend())

    def objective(theta: Values) -> Tensor:
        line = theta["mean.intercept"] + theta["mean.slope"] * X[:, 0]
        return SCALED_MATERN.log_likelihood(theta, X, y, mean=line)

    expected = optimum(objective, gp.hyperparameters())
    plain_fit(gp, X, y, optimiser=optimiser, steps=steps, **MEANS)
    assert close(gp.hyperparameters(), expected, 5e-3)


def test_a_learned_constant() -> None:
    gp = model(mean=pathgp.means.Constant())
    expected = optimum(
        lambda t: SCALED_MATERN.log_likelihood(t, X, Y + 5.0, mean=t["mean.value"]), gp.hyperparameters()
    )
    plain_fit(gp, X, Y + 5.0, optimiser="lbfgs", steps=120, **MEANS)
    assert close(gp.hyperparameters(), expected, 5e-3)
    assert gp.mean.value.item() == pytest.approx(5.0, abs=1.0)
    assert "Constant(" in repr(gp.mean)


def test_a_constant_mean_is_learned_by_paths_too() -> None:
    gp = model(mean=pathgp.means.Constant())
    plain_fit(gp, X, Y + 5.0, samples=32, features=64, generator=seeded(1), min_gain=0.0)
    assert gp.mean.value.item() == pytest.approx(5.0, abs=1.5)
    far = torch.full((1, 2), 1e3, dtype=torch.float64)
    assert gp.posterior.mean(far).item() == pytest.approx(gp.mean.value.item())


def test_a_learned_mean_and_standardisation_agree_afterwards() -> None:
    """The units must not move with the mean that is learned: conditioning anew gives the fitted posterior."""
    gp = model(standardise=True, mean=pathgp.means.Constant())
    plain_fit(
        gp, X, 30.0 + 4.0 * Y, steps=30, estimator="exact", optimiser="lbfgs", initialise="data", generator=seeded()
    )
    assert abs(float(gp.mean.value.detach()) - 30.0) < 8.0
    again = gp.condition(X, 30.0 + 4.0 * Y, solver="cholesky", samples=0)
    torch.testing.assert_close(again.mean(XS), gp.posterior.mean(XS), rtol=1e-8, atol=1e-8)


def test_means_that_are_not_learned() -> None:
    """Zero, a number, a function, and a module without gradients: the same fit of the same residuals."""
    frozen = pathgp.means.Constant(3.0)
    frozen.value.requires_grad_(False)
    found = []
    for mean in (0.0, 3.0, lambda Z: torch.full_like(Z[:, 0], 3.0), frozen):
        offset = 0.0 if mean == 0.0 else 3.0
        gp = model(mean=mean)
        plain_fit(gp, X, Y + offset, estimator="exact", steps=10, samples=1)
        found.append((gp.noise.item(), gp.posterior.mean(XS) - offset))
    for noise, mean in found[1:]:
        assert noise == pytest.approx(found[0][0], rel=1e-9)
        assert torch.allclose(mean, found[0][1], atol=1e-6)
    assert frozen.value.item() == 3.0


def test_known_noise_and_a_learned_floor() -> None:
    known = torch.linspace(0.0, 1.0, len(Y), dtype=torch.float64)
    y = Y + known * torch.randn(len(Y), generator=seeded(10), dtype=torch.float64)
    gp = model()
    expected = optimum(lambda t: SCALED_MATERN.log_likelihood(t, X, y, known), gp.hyperparameters())
    plain_fit(gp, X, y, noise=known, estimator="exact", optimiser="lbfgs", steps=150, min_gain=0.0, samples=1)
    assert close(gp.hyperparameters(), expected, 1e-3)
    total = (gp.noise.detach().square() + known.square()).sqrt()
    mean, _ = reference.posterior(SCALED_MATERN.covariance(gp.hyperparameters()), X, y, total, XS)
    assert torch.allclose(gp.posterior.mean(XS), mean, atol=0.05)


@pytest.mark.parametrize("estimator", ["exact", "pathwise"])
def test_standardisation_goes_there_and_back(estimator: str) -> None:
    """The same model in other units: equal hyperparameters, predictions in the units of the data."""
    options = {"estimator": estimator, "steps": 15, "samples": 8, "features": 64, "solver": "cholesky", "tol": 1e-9}
    scale, shift = torch.tensor([1e3, 1e-2], dtype=torch.float64), torch.tensor([-40.0, 7.0], dtype=torch.float64)
    plain, other = model(standardise=True), model(standardise=True, mean=300.0)
    known = torch.linspace(0.0, 0.3, len(Y), dtype=torch.float64)
    plain_fit(plain, X, Y, known, generator=seeded(11), **options)
    plain_fit(other, shift + scale * X, 250.0 + 1e4 * Y, 1e4 * known, generator=seeded(11), **options)
    assert close(other.hyperparameters(), plain.hyperparameters(), 1e-6)
    post, there = plain.posterior, other.posterior
    Z = shift + scale * XS
    assert torch.allclose(there.mean(Z), 250.0 + 1e4 * post.mean(XS), rtol=1e-6)
    assert torch.allclose(there.paths(Z), 250.0 + 1e4 * post.paths(XS), rtol=1e-5)
    assert torch.allclose(there.variance(Z, noise=True), 1e8 * post.variance(XS, noise=True), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_and_kind_of_the_inputs(dtype: torch.dtype) -> None:
    options = {"steps": 8, "samples": 4, "features": 32}
    gp, same = model(), model()
    plain_fit(gp, X.to(dtype), Y.to(dtype), generator=seeded(12), **options)
    assert gp.posterior.mean(XS.to(dtype)).dtype == dtype
    assert gp.noise.dtype == torch.float64
    plain_fit(same, X.to(dtype).numpy(), Y.to(dtype).numpy(), generator=seeded(12), **options)
    assert close(same.hyperparameters(), gp.hyperparameters(), 1e-12)
    assert isinstance(same.posterior.mean(XS.to(dtype).numpy()), np.ndarray)


@pytest.mark.parametrize("options", [{"estimator": "exact"}, {"estimator": "pathwise"}, {"steps": 0}])
def test_a_fit_that_leaves_float32_says_so(options: dict[str, Any]) -> None:
    """Without noise in y the learned noise falls below what float32 resolves; with steps=0 the given one is below."""
    inputs = torch.rand(100, 2, generator=seeded(), dtype=torch.float32)
    y = torch.sin(6.0 * inputs[:, 0]) + inputs[:, 1].square()
    gp = pathgp.GP(Scale(Matern(2.5)), noise=1e-4 if "steps" in options else 0.3)
    report = gp.fit(inputs, y, samples=4, features=64, generator=seeded(), **options)
    assert report.condition.precision == "float64"
    assert report.note == "float64, because float32 is not accurate enough for these hyperparameters"
    assert repr(report).count("float64") == 1
    rough = y + torch.randn(100, generator=seeded(1))
    assert gp.fit(inputs, rough, steps=3, samples=4, features=64, generator=seeded()).note == ""


def test_data_with_a_graph() -> None:
    """The graph of the known noise was differentiated at every step, which fails at the second one."""
    known = torch.full_like(Y, 0.1).requires_grad_() * 1.0
    y = Y.clone().requires_grad_()
    for gp in (model(), pathgp.InducingGP(Scale(Matern(1.5)), inducing=5)):
        gp.fit(X, y, known, steps=2, samples=1)
        assert not gp.posterior.update(XS[:2].clone().requires_grad_(), y[:2], known[:2]).weights.requires_grad
    grid = pathgp.LatentKroneckerGP([Scale(Matern(1.5)), Matern(1.5)])
    grid.fit([None, None], Y[:12].view(4, 3), known[:12].view(4, 3), steps=2, samples=1)
    assert not grid.posterior.weights.requires_grad
