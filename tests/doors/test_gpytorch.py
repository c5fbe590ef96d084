"""Kernels and models through the door to GPyTorch and back."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import kernels, means

gpytorch = pytest.importorskip("gpytorch", reason="the door to GPyTorch needs GPyTorch")

from pathgp.gpytorch import from_gpytorch, to_gpytorch  # noqa: E402

OURS: dict[str, Callable[[], kernels.Kernel]] = {
    "SE": lambda: kernels.SquaredExponential(0.7),
    "SE, ARD": lambda: kernels.SquaredExponential(torch.tensor([0.4, 0.9, 2.0])),
    "Matern-1/2": lambda: kernels.Matern(0.5, 0.6),
    "Matern-3/2": lambda: kernels.Scale(kernels.Matern(1.5, torch.tensor([0.4, 0.9, 2.0])), 1.7),
    "Matern-5/2": lambda: kernels.Matern(2.5, 0.3),
    "RQ": lambda: kernels.RationalQuadratic(0.8, torch.tensor([0.4, 0.9, 2.0])),
    "Periodic": lambda: kernels.Periodic(1.3, 0.7),
    "Periodic, ARD": lambda: kernels.Periodic(1.3, torch.tensor([0.7, 1.1, 0.4])),
    "Linear": lambda: kernels.Linear(torch.tensor([0.4, 0.9, 2.0])),
    "Linear with intercept": lambda: kernels.Linear(0.3, bias=1.2),
    "sum": lambda: kernels.Scale(kernels.SquaredExponential(0.5), 0.8) + kernels.Linear(0.5),
    "product": lambda: kernels.Periodic(1.3, 0.7) * kernels.Matern(2.5, 1.0),
    "active dims": lambda: (
        kernels.Matern(1.5, torch.tensor([0.4, 0.9]), active_dims=[2, 0])
        * kernels.Scale(kernels.SquaredExponential(0.5, active_dims=[1]), 1.4)
    ),
    "nested dims": lambda: kernels.Scale(
        kernels.Sum(kernels.Matern(0.5, 0.3, active_dims=[1]), kernels.Linear(0.5), active_dims=[2, 0]), 1.1
    ),
}


def inputs(n: int = 30) -> Tensor:
    return torch.rand(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def quiet(action: Callable[[], Any]) -> Any:
    """GPyTorch warns about its own jitter and rounding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return action()


@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
def test_kernels_go_there_and_come_back(make: Callable[[], kernels.Kernel]) -> None:
    kernel, X = make(), inputs()
    there = to_gpytorch(kernel)
    values = quiet(lambda: there(X[:20], X[20:]).to_dense())
    torch.testing.assert_close(values, kernel(X[:20], X[20:]), rtol=1e-6, atol=1e-7)
    back = from_gpytorch(there)
    torch.testing.assert_close(back(X[:20], X[20:]), kernel(X[:20], X[20:]), rtol=1e-6, atol=1e-7)


def test_what_cannot_pass_is_named() -> None:
    for kernel in (gpytorch.kernels.CosineKernel(), gpytorch.kernels.RBFKernel() + gpytorch.kernels.CosineKernel()):
        with pytest.raises(ValueError, match=r"CosineKernel cannot be imported; these can: .*MaternKernel"):
            from_gpytorch(kernel)
    with pytest.raises(ValueError, match="ConstantKernel cannot be imported without a LinearKernel"):
        from_gpytorch(gpytorch.kernels.RBFKernel() + gpytorch.kernels.ConstantKernel())
    with pytest.raises(ValueError, match="batch shape"):
        from_gpytorch(gpytorch.kernels.RBFKernel(batch_shape=torch.Size([2])))
    with pytest.raises(ValueError, match="Task has no counterpart"):
        to_gpytorch(kernels.SquaredExponential(1.0) * kernels.Task(2, active_dims=[0]))
    with pytest.raises(ValueError, match=r"nu=3\.5"):
        to_gpytorch(kernels.Matern(3.5))
    for door in (from_gpytorch, to_gpytorch):
        with pytest.raises(TypeError, match="got int"):
            door(3)
    X = inputs(20)
    sparse = pathgp.InducingGP(kernels.Matern(1.5), inducing=5).condition(X, X[:, 0], samples=0)
    with pytest.raises(TypeError, match="an InducingPosterior has no counterpart"):
        to_gpytorch(sparse)


class Model(gpytorch.models.ExactGP):
    def __init__(self, X: Tensor, y: Tensor, likelihood: Any, mean: Any) -> None:
        super().__init__(X, y, likelihood)
        self.mean_module = mean
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=3))

    def forward(self, X: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def fitted(likelihood: Any, mean: Any) -> Any:
    """A few steps of GPyTorch's own training."""
    X = inputs(60)
    model = Model(X, (4 * X[:, 0]).sin() + X[:, 1], likelihood, mean).to(torch.float64).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(20):
        optimiser.zero_grad()
        loss = -objective(model(X), model.train_targets)
        loss.backward()
        optimiser.step()
    return model.eval()


LIKELIHOODS = {
    "learned": lambda: gpytorch.likelihoods.GaussianLikelihood(),
    "known": lambda: gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.linspace(0.01, 0.1, 60).double()),
    "both": lambda: gpytorch.likelihoods.FixedNoiseGaussianLikelihood(
        torch.linspace(0.01, 0.1, 60).double(), learn_additional_noise=True
    ),
}


@pytest.mark.parametrize("mean", [gpytorch.means.ZeroMean, gpytorch.means.ConstantMean])
@pytest.mark.parametrize("make", LIKELIHOODS.values(), ids=LIKELIHOODS)
def test_a_fitted_model_predicts_the_same(make: Callable[[], Any], mean: type) -> None:
    model = quiet(lambda: fitted(make(), mean()))
    Xs = torch.rand(15, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = quiet(lambda: model(Xs))
    imported = from_gpytorch(model)
    posterior = imported.condition(solver="cholesky", samples=0)
    torch.testing.assert_close(posterior.mean(Xs), expected.mean.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(posterior.variance(Xs), expected.variance.detach(), rtol=0, atol=1e-5)
    assert isinstance(imported.gp.mean, means.Constant) == (mean is gpytorch.means.ConstantMean)

    back, likelihood = to_gpytorch(posterior)
    again = quiet(lambda: back(Xs))
    torch.testing.assert_close(again.mean.detach(), expected.mean.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(again.variance.detach(), expected.variance.detach(), rtol=0, atol=1e-5)
    assert not likelihood.training


@pytest.mark.parametrize("has_known_noise", [False, True])
@pytest.mark.parametrize("kernel", [None, gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5))])
def test_the_default_model_of_botorch_is_imported_in_the_units_of_y(kernel: Any, has_known_noise: bool) -> None:
    """BoTorch standardises y by default."""
    SingleTaskGP = pytest.importorskip("botorch.models").SingleTaskGP
    X = inputs(25)
    Y = 300.0 + 40.0 * torch.sin(3.0 * X[:, :1])
    noise = torch.linspace(1.0, 9.0, 25).double().unsqueeze(1) if has_known_noise else None
    model = SingleTaskGP(X, Y, noise, covar_module=kernel).eval()
    model.mean_module.initialize(constant=0.3)
    Xs = torch.rand(15, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = quiet(lambda: model.posterior(Xs))
    imported = from_gpytorch(model)
    posterior = imported.condition(solver="cholesky", samples=0)
    torch.testing.assert_close(imported.y, Y[:, 0])
    torch.testing.assert_close(posterior.mean(Xs), expected.mean[:, 0].detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(posterior.variance(Xs), expected.variance[:, 0].detach(), rtol=1e-5, atol=0)
    assert isinstance(imported.gp.kernel, kernels.Scale)
    assert not isinstance(imported.gp.kernel.kernel, kernels.Scale)
    if has_known_noise:
        torch.testing.assert_close(imported.noise, noise[:, 0].sqrt())


def test_models_that_cannot_pass_are_refused() -> None:
    X = inputs(10)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    with pytest.raises(ValueError, match="LinearMean cannot be imported"):
        from_gpytorch(Model(X, X[:, 0], likelihood, gpytorch.means.LinearMean(3)))
    model = Model(X, X[:, 0], likelihood, gpytorch.means.ZeroMean())
    model.outcome_transform = torch.nn.Identity()
    with pytest.raises(ValueError, match="outcome_transform"):
        from_gpytorch(model)
    model = Model(X, X[:, 0], likelihood, gpytorch.means.ZeroMean())
    model.likelihood = gpytorch.likelihoods.BernoulliLikelihood()
    with pytest.raises(ValueError, match="BernoulliLikelihood"):
        from_gpytorch(model)
    gp = pathgp.GP(kernels.Matern(1.5), standardise=True)
    with pytest.raises(ValueError, match="standardise"):
        to_gpytorch(gp.condition(X, X[:, 0], samples=0))
    gp = pathgp.GP(kernels.Matern(1.5), mean=lambda Z: Z[:, 0])
    with pytest.raises(ValueError, match="mean function"):
        to_gpytorch(gp.condition(X, X[:, 0], samples=0))


class ScaledInputs(Model):
    def forward(self, X: Tensor) -> Any:
        return super().forward(2.0 * X)


class ShiftedMean(Model):
    def forward(self, X: Tensor) -> Any:
        return super().forward(X) + 1.0


class Jitter(Model):
    def forward(self, X: Tensor) -> Any:
        covariance = self.covar_module(X).add_jitter(1e-5)
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), covariance)


def test_a_forward_that_does_more_than_its_modules_is_refused() -> None:
    X, mean = inputs(10), gpytorch.means.ZeroMean()
    for kind in (ScaledInputs, ShiftedMean):
        model = kind(X, X[:, 0], gpytorch.likelihoods.GaussianLikelihood(), mean).to(torch.float64)
        with pytest.raises(ValueError, match=f"the forward of {kind.__name__} computes something else"):
            from_gpytorch(model)
    from_gpytorch(Jitter(X, X[:, 0], gpytorch.likelihoods.GaussianLikelihood(), mean).to(torch.float64))
    # At rows of zeros a linear kernel is zero.
    model = Model(0.0 * X, X[:, 0], gpytorch.likelihoods.GaussianLikelihood(), mean).to(torch.float64)
    model.covar_module = gpytorch.kernels.LinearKernel().to(torch.float64)
    from_gpytorch(model)


@pytest.mark.parametrize("which", LIKELIHOODS)
def test_noise_is_learned_where_the_model_learns_it(which: str) -> None:
    X = inputs(60)
    model = Model(X, X[:, 0], LIKELIHOODS[which](), gpytorch.means.ZeroMean()).to(torch.float64)
    imported = from_gpytorch(model)
    before = float(imported.gp.noise.detach())
    imported.gp.fit(imported.X, imported.y, noise=imported.noise, initialise="model", steps=3, samples=4)
    assert (float(imported.gp.noise.detach()) == before) == (which == "known")
