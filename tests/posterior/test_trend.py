"""Trends with unknown coefficients against dense universal kriging in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pathgp
import reference
from pathgp import kernels, means
from pathgp.data.trend import TrendScaling
from pathgp.learning.estimators import Exact, Iterative, State
from pathgp.posterior import exact_covariance
from pathgp.posterior.conditioning import Settings
from statistics_tools import assert_mean_and_covariance

SIGNAL, LENGTHSCALE, NOISE = 1.2, 1.3, 0.15
BASES: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "constant": lambda X: [],
    "linear": lambda X: [*X.T],
    "quadratic": lambda X: [*X.T, X[:, 0] ** 2, X[:, 0] * X[:, 1], X[:, 1] ** 2],
}
every_basis = pytest.mark.parametrize("basis", BASES)


def basis_values(basis: str, X: Tensor) -> Tensor:
    return torch.stack([torch.ones_like(X[:, 0]), *BASES[basis](X)], 1)


def covariance(X: Tensor, Z: Tensor) -> Tensor:
    return SIGNAL**2 * reference.matern(X, Z, 1.5, LENGTHSCALE)


def data(n: int = 60, m: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    X, Xs = (torch.rand(rows, 2, generator=g, dtype=torch.float64) * 4 + 1 for rows in (n, m))
    y = 30 + 3 * X[:, 0] - 0.5 * X[:, 1] + torch.sin(2 * X[:, 0]) + NOISE * torch.randn(n, generator=g).double()
    return X, y, Xs


def model(basis: str = "linear", **options: object) -> pathgp.GP:
    kernel = kernels.Scale(kernels.Matern(1.5, LENGTHSCALE), SIGNAL)
    return pathgp.GP(kernel, NOISE, mean=means.Trend(basis), **options)


def dense(basis: str, X: Tensor, y: Tensor, Xs: Tensor, noise: object = NOISE) -> tuple[Tensor, ...]:
    return reference.universal_kriging(covariance, X, y, noise, Xs, basis_values(basis, X), basis_values(basis, Xs))


def largest(error: Tensor) -> float:
    return float(error.abs().max())


@every_basis
def test_mean_covariance_and_coefficients(basis: str) -> None:
    X, y, Xs = data()
    mean, cov, coefficients, errors = dense(basis, X, y, Xs)
    post = model(basis).condition(X, y, solver="cg", tol=1e-11, samples=0)
    assert largest(post.mean(Xs) - mean) <= 1e-7
    assert largest(post.covariance(Xs) - cov) <= 1e-7
    assert largest(post.variance(Xs) - cov.diagonal()) <= 1e-7
    assert largest(post.trend.coefficients - coefficients) <= 1e-5
    assert largest(post.trend.covariance / errors - 1) <= 1e-5
    assert len(post.trend.names) == len(coefficients)


def test_known_noise_of_rows_and_standardised_units() -> None:
    X, y, Xs = data()
    noise = torch.linspace(0.01, 0.5, len(y), dtype=torch.float64)
    total = (noise.square() + NOISE**2).sqrt()
    mean, cov, _, _ = dense("linear", X, y, Xs, total)
    post = model().condition(X, y, noise, solver="cholesky", samples=0)
    assert largest(post.mean(Xs) - mean) <= 1e-8
    assert largest(post.covariance(Xs) - cov) <= 1e-8
    scaled = model(standardise=True).condition(X, y, solver="cholesky", samples=0)
    unit, scale = float(scaled.scaling.target_scale), scaled.scaling.scale

    def in_units(A: Tensor, B: Tensor) -> Tensor:
        return unit**2 * covariance(A / scale, B / scale)

    B, Bs = basis_values("linear", X), basis_values("linear", Xs)
    mean, cov, coefficients, _ = reference.universal_kriging(in_units, X, y, unit * NOISE, Xs, B, Bs)
    assert largest(scaled.mean(Xs) - mean) <= 1e-8
    assert largest(scaled.covariance(Xs) - cov) <= 1e-8
    assert largest(scaled.trend.coefficients - coefficients) <= 1e-7


def test_paths_and_draws_have_the_exact_moments() -> None:
    X, y, Xs = data(n=40, m=6)
    mean, cov, _, _ = dense("quadratic", X, y, Xs)
    g = torch.Generator().manual_seed(1)
    post = model("quadratic").condition(X, y, solver="cholesky", samples=800, features=256, generator=g)
    paths = post.paths(Xs)
    assert_mean_and_covariance(paths, mean, cov, gaussian=False)
    assert_mean_and_covariance(post.sample(Xs, 800, generator=g), mean, cov)
    which = [3, 0, 3]
    own = torch.stack([Xs, Xs + 1.0, Xs - 1.0])
    expected = torch.stack([post.paths(own[i])[j] for i, j in enumerate(which)])
    assert largest(post.paths_at(own, which) - expected) <= 1e-9


@pytest.mark.parametrize("method", ["neighbours", "samples"])
def test_variances_from_paths(method: str) -> None:
    X, y, Xs = data()
    _, cov, _, _ = dense("linear", X, y, Xs + 6.0)
    post = model().condition(X, y, tol=1e-6, samples=200, features=64, generator=torch.Generator().manual_seed(0))
    # Beyond the data most of the variance is that of the trend, which is computed and not estimated.
    assert largest(post.variance(Xs + 6.0, method=method) / cov.diagonal() - 1) <= 0.1


def test_gradients_of_mean_and_variance() -> None:
    X, y, Xs = data(n=30, m=4)
    post = model().condition(X, y, solver="cholesky", samples=8)
    for function in (post.mean, post.variance, post.paths):
        point = Xs.clone().requires_grad_()
        function(point).sum().backward()
        step = 1e-6 * torch.ones_like(Xs)
        change = (function(Xs + step) - function(Xs - step)).sum() / 2e-6
        assert abs(float(point.grad.sum() - change)) <= 1e-4 * (1.0 + abs(float(change)))


def test_leave_one_out() -> None:
    X, y, _ = data(n=40)
    found = model().condition(X, y, samples=0).leave_one_out()
    for i in (0, 17, 39):
        rest = torch.arange(40) != i
        mean, cov, _, _ = dense("linear", X[rest], y[rest], X[i : i + 1])
        assert abs(float(found.means[i] - mean)) <= 1e-7
        assert abs(float(found.variances[i] - cov - NOISE**2)) <= 1e-7


def test_leave_one_out_from_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, _ = data(n=60)
    exact = model().condition(X, y, samples=0).leave_one_out()
    monkeypatch.setattr(exact_covariance, "_FACTOR_ROWS", 10)
    g = torch.Generator().manual_seed(0)
    found = model().condition(X, y, tol=1e-8, samples=500, features=64, generator=g).leave_one_out()
    assert "samples" in found.method
    # Six standard errors; without the trend variances would be lower by up to 60 %.
    assert largest(found.variances / exact.variances - 1) <= 6 * (2 / 500) ** 0.5
    assert largest((found.variances / exact.variances - 1).mean()) <= 0.05


@every_basis
def test_evidence_is_that_of_contrasts(basis: str) -> None:
    X, y, _ = data()
    expected = reference.restricted_likelihood(covariance, X, y, NOISE, basis_values(basis, X))
    evidence = model(basis).condition(X, y, samples=0).log_marginal_likelihood()
    assert abs(evidence.value - float(expected)) <= 1e-6


def test_gradients_of_the_restricted_likelihood() -> None:
    X, y, _ = data()
    gp = model()
    observed = gp.prepare_data(X, y)
    parameters = [gp.kernel.kernel._lengthscale.raw, gp.kernel._signal.raw, gp._noise.raw]
    lengthscale, signal, noise = (p.detach().clone().requires_grad_() for p in parameters)
    softplus = torch.nn.functional.softplus

    def k(A: Tensor, B: Tensor) -> Tensor:
        return softplus(signal).square() * reference.matern(A, B, 1.5, softplus(lengthscale))

    value = reference.restricted_likelihood(k, X, y, softplus(noise), basis_values("linear", X))
    expected = torch.stack(torch.autograd.grad(value, (lengthscale, signal, noise)))
    settings, g = Settings.read("cholesky", 1e-2, None), torch.Generator().manual_seed(0)
    found = Exact().evaluate(gp, observed, State(), settings, g)
    assert found.value == pytest.approx(float(value.detach()), abs=1e-6)
    gradient = torch.stack(torch.autograd.grad(found.objective, parameters))
    assert largest(gradient - expected) <= 1e-6 * largest(expected)
    for pathwise in (True, False):
        estimator, state = Iterative(pathwise, 4000, 64, True), State()
        estimator.draw(gp, observed, state, g)
        estimate = estimator.evaluate(gp, observed, state, settings, g).objective
        gradient = torch.stack(torch.autograd.grad(estimate, parameters))
        # Traces of at most n - p with 4000 probes: five standard errors are 5 sqrt(2 n / 4000).
        assert largest(gradient - expected) <= 5 * (2 * len(y) / 4000) ** 0.5


def test_fit_removes_the_trend_from_the_kernel() -> None:
    X, y, Xs = data(n=150)
    gp = model(standardise=True)
    gp.fit(X, y, steps=15, initialise="model", generator=torch.Generator())
    iterative = model(standardise=True)
    options = {"estimator": "pathwise", "initialise": "model", "stages": "full", "generator": torch.Generator()}
    iterative.fit(X, y, steps=15, samples=128, features=64, **options)
    both = [fitted.posterior.log_marginal_likelihood().value for fitted in (gp, iterative)]
    assert both[1] == pytest.approx(both[0], abs=0.5)
    assert iterative.posterior.report.solution.converged
    truth = 30 + 3 * Xs[:, 0] - 0.5 * Xs[:, 1] + torch.sin(2 * Xs[:, 0])
    assert float((gp.posterior.mean(Xs) - truth).square().mean().sqrt()) <= NOISE


def test_update_and_saving(tmp_path: Path) -> None:
    X, y, Xs = data()
    mean, cov, _, _ = dense("linear", X, y, Xs)
    part = model().condition(X[:45], y[:45], solver="cg", tol=1e-10, samples=4)
    post = part.update(X[45:], y[45:])
    assert largest(post.mean(Xs) - mean) <= 1e-6
    assert largest(post.variance(Xs) - cov.diagonal()) <= 1e-6
    assert largest(post.training_targets() - y) <= 1e-12
    for with_data in (True, False):
        post.save(tmp_path / "file", data=with_data)
        loaded = pathgp.load(tmp_path / "file")
        assert torch.equal(loaded.paths(Xs), post.paths(Xs))
        assert torch.equal(loaded.variance(Xs, method="samples"), post.variance(Xs, method="samples"))
        assert repr(loaded.trend) == repr(post.trend)


def test_components_add_up_to_the_mean_without_the_trend() -> None:
    X, y, Xs = data()
    kernel = kernels.Scale(kernels.Matern(1.5, LENGTHSCALE), SIGNAL) + kernels.Scale(kernels.Matern(0.5, 0.3), 0.4)
    post = pathgp.GP(kernel, NOISE, mean=means.Trend("linear")).condition(X, y, solver="cholesky", samples=4)
    trend = basis_values("linear", Xs) @ post.trend.coefficients
    total = sum(part.mean(Xs) for part in post.components().values())
    assert largest(total + trend - post.mean(Xs)) <= 1e-7


def test_error_bound_holds() -> None:
    X, y, _ = data()
    mean, _, _, _ = dense("linear", X, y, X)
    post = model().condition(X, y, solver=pathgp.solvers.CG(preconditioner=None), tol=0.05, samples=0)
    error = largest(post.mean(X) - mean)
    assert 0 < error <= post.report.error_bound
    assert "trend" in repr(post.report)


def test_external_drift_and_own_functions() -> None:
    X, y, Xs = data()
    drift = [torch.cos(A).sum(1, keepdim=True) for A in (X, Xs)]
    full, full_new = torch.cat([X, drift[0]], 1), torch.cat([Xs, drift[1]], 1)
    kernel = kernels.Scale(kernels.Matern(1.5, LENGTHSCALE, active_dims=[0, 1]), SIGNAL)
    post = pathgp.GP(kernel, NOISE, mean=means.Trend("linear", columns=[2])).condition(full, y, samples=0)
    ones = [torch.ones_like(d) for d in drift]
    B, Bs = (torch.cat([one, d], 1) for one, d in zip(ones, drift, strict=True))
    mean, cov, _, _ = reference.universal_kriging(covariance, X, y, NOISE, Xs, B, Bs)
    assert largest(post.variance(full_new) - cov.diagonal()) <= 1e-7
    assert post.trend.names == ("1", "x2")
    plain = kernels.Scale(kernels.Matern(1.5, LENGTHSCALE), SIGNAL)

    def basis(A: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(A[:, 0]), torch.cos(A).sum(1)], 1)

    own = pathgp.GP(plain, NOISE, mean=means.Trend(basis)).condition(X, y, solver="cholesky", samples=0)
    assert largest(own.mean(Xs) - mean) <= 1e-7


def test_numbers_with_an_offset_in_float32() -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(200, 1, generator=g, dtype=torch.float64) * 50
    y = 1e6 + 40 * X[:, 0] + torch.sin(X[:, 0]) + 0.1 * torch.randn(200, generator=g).double()
    gp = pathgp.GP(kernels.Matern(1.5, 2.0), 0.1, mean=means.Trend())
    exact = gp.condition(X, y, solver="cholesky", samples=0)
    single = gp.condition(X, y, solver="cholesky", samples=0, dtype=torch.float32)
    assert largest(single.mean(X) - exact.mean(X)) <= 2e-3
    assert "float32" in repr(single.report)


def test_trends_that_the_data_do_not_determine() -> None:
    X, y, _ = data()
    line = torch.stack([X[:, 0], 2 * X[:, 0] + 1], 1)
    with pytest.raises(ValueError, match="'x1' is a combination"):
        model().condition(line, y)
    with pytest.raises(ValueError, match="more than 3 observations"):
        model().condition(X[:3], y[:3])
    alone = torch.zeros(60, 1, dtype=torch.float64)
    alone[7] = 1.0
    post = pathgp.GP(kernels.Matern(1.5), NOISE, mean=means.Trend()).condition(alone, y, samples=0)
    with pytest.raises(ValueError, match="row 7 alone"):
        post.leave_one_out()


def test_what_has_no_trend() -> None:
    X, y, _ = data()
    with pytest.raises(ValueError, match="flat"):
        model().prior(3)
    with pytest.raises(NotImplementedError, match="LatentKroneckerGP"):
        pathgp.LatentKroneckerGP([kernels.Matern(), kernels.Matern()], mean=means.Trend())
    with pytest.raises(NotImplementedError, match="InducingGP"):
        pathgp.InducingGP(kernels.Matern(), inducing=5, mean=means.Trend())
    with pytest.raises(NotImplementedError, match="until"):
        model().condition(X, y, until="predictions", at=X[:5], tol=0.1)
    with pytest.raises(ValueError, match="cubic"):
        means.Trend("cubic")
    with pytest.raises(ValueError, match="column 5"):
        model().mean.__class__("linear", columns=[5])(X)
    assert pathgp.GP(kernels.Matern()).condition(X, y, samples=0).trend is None


def test_scaling_of_the_basis() -> None:
    X, y, _ = data()
    B = basis_values("quadratic", X)
    scaling = TrendScaling.of(B, y, list("abcdef"))
    Q = scaling.basis(B)
    assert largest(Q.T @ Q / len(y) - torch.eye(6)) <= 1e-10
    expected = torch.linalg.lstsq(B, y.unsqueeze(1)).solution[:, 0]
    assert largest(scaling.restore_coefficients(scaling.shift.unsqueeze(1))[:, 0] - expected) <= 1e-7
