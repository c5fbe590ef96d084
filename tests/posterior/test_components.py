"""The components of a sum against the dense reference: exact means and variances, and paths that add up."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
import reference
from pathgp import kernels as K
from pathgp.posterior.components import summands
from posterior_cases import uniform
from reference import Covariance, linear, matern, periodic, squared_exponential
from statistics_tools import assert_mean_and_covariance

NOISE = 0.3
# Random, deterministic and finite features in an order that the feature map changes; a scale around a sum; a product
# that contains a sum; columns of columns.
KERNEL = K.Sum(
    K.Scale(K.Matern(1.5, 0.4) + K.Scale(K.Periodic(0.5, 0.9, active_dims=[0]), 0.5), 1.3),
    K.Linear(0.8, bias=0.4),
    K.SquaredExponential(0.3, active_dims=[1]) * (K.Matern(0.5, 0.7) + K.Linear(0.5)),
    K.Sum(K.Matern(1.5, 0.2), K.Linear(0.6, active_dims=[0]), active_dims=[1]),
)
PARTS: dict[str, Covariance] = {
    "Matern(nu=1.5)": lambda X, Z: 1.69 * matern(X, Z, 1.5, 0.4),
    "Periodic[0]": lambda X, Z: 1.69 * 0.25 * periodic(X[:, :1], Z[:, :1], 0.5, 0.9),
    "Linear": lambda X, Z: linear(X, Z, 0.64) + 0.16,
    "SquaredExponential[1] * (Matern(nu=0.5) + Linear)": lambda X, Z: (
        squared_exponential(X[:, 1:], Z[:, 1:], 0.3) * (matern(X, Z, 0.5, 0.7) + linear(X, Z, 0.25))
    ),
    "Matern(nu=1.5)[1]": lambda X, Z: matern(X[:, 1:], Z[:, 1:], 1.5, 0.2),
    "Linear[0][1]": lambda X, Z: linear(X[:, 1:], Z[:, 1:], 0.36),
}


def whole(X: Tensor, Z: Tensor) -> Tensor:
    return sum((k(X, Z) for k in PARTS.values()), start=torch.zeros((), dtype=torch.float64))


def data(n: int = 40, m: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X, Xs = uniform(n, generator), uniform(m, generator)
    Xs[: m // 4] = X[: m // 4]
    return X, torch.sin(6.0 * X.sum(1)) + X[:, 0], Xs


def posterior_of(k: Covariance, X: Tensor, y: Tensor, Xs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the part with covariance k, observed through the whole."""
    H = reference.system(whole, X, NOISE)
    return k(Xs, X) @ torch.linalg.solve(H, y), k(Xs, Xs) - k(Xs, X) @ torch.linalg.solve(H, k(X, Xs))


def conditioned(samples: int = 8, **options: object) -> pathgp.Posterior:
    X, y, _ = data()
    settings = {"features": 256, "solver": "cholesky", "generator": torch.Generator().manual_seed(1)} | options
    return pathgp.GP(KERNEL, NOISE).condition(X, y, samples=samples, **settings)


def test_names_and_kernels() -> None:
    parts = conditioned().components()
    assert list(parts) == [part.name for part in parts.values()] == list(PARTS)
    X, _, Xs = data()
    for name, part in parts.items():
        assert torch.allclose(part.kernel(Xs, X), PARTS[name](Xs, X), atol=1e-12)
        assert torch.allclose(part.kernel.diag(Xs), PARTS[name](Xs, Xs).diagonal(), atol=1e-12)
    assert repr(parts["Linear"]) == "Component('Linear', Linear(scale=0.8, bias=0.4))"


def test_names_that_would_be_the_same_are_numbered() -> None:
    kernel = K.SquaredExponential(0.1) + K.Scale(K.SquaredExponential(1.0), 2.0) + K.Scale(K.Matern(), 0.5)
    X, y, _ = data()
    parts = pathgp.GP(kernel).condition(X, y, samples=0).components()
    assert list(parts) == ["SquaredExponential 1", "SquaredExponential 2", "Matern(nu=1.5)"]


def test_summands_share_the_parameters() -> None:
    kernel = K.Scale(K.Matern() + K.Linear(), signal=0.7).requires_grad_(False)
    parts = summands(kernel)
    kernel.signal = 1.1
    X, _, Xs = data()
    assert torch.allclose(parts[0](X, Xs) + parts[1](X, Xs), kernel(X, Xs), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_exact_mean_and_variance(solver: str) -> None:
    X, y, Xs = data()
    total = torch.zeros(len(Xs), dtype=torch.float64)
    post = conditioned(solver=solver, tol=1e-10)
    for name, part in post.components().items():
        mean, covariance = posterior_of(PARTS[name], X, y, Xs)
        assert torch.allclose(part.mean(Xs), mean, atol=1e-8)
        assert torch.allclose(part.variance(Xs, method="solve"), covariance.diagonal(), atol=1e-9)
        total += part.mean(Xs)
    assert torch.allclose(total, post.mean(Xs), atol=1e-10)
    assert torch.allclose(total, reference.posterior(whole, X, y, NOISE, Xs)[0], atol=1e-8)


def test_exact_variance_by_iterative_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathgp.posterior.exact_covariance.FACTOR_ROWS", 10)
    X, y, Xs = data()
    for name, part in conditioned(solver="cg").components().items():
        covariance = posterior_of(PARTS[name], X, y, Xs)[1]
        assert torch.allclose(part.variance(Xs, method="solve"), covariance.diagonal(), atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_paths_add_up(dtype: torch.dtype) -> None:
    X, y, Xs = (values.to(dtype) for values in data())
    generator = torch.Generator().manual_seed(1)
    post = pathgp.GP(KERNEL, NOISE).condition(X[:30], y[:30], samples=8, features=256, generator=generator)
    for posterior in (post, post.update(X[30:], y[30:], generator=generator), pickle.loads(pickle.dumps(post))):
        parts = posterior.components().values()
        paths = sum((part.paths(Xs) for part in parts), start=torch.zeros((), dtype=dtype))
        assert paths.dtype == dtype
        assert torch.allclose(paths, posterior.paths(Xs), atol=1e-12 if dtype == torch.float64 else 1e-4)


@pytest.mark.statistical
def test_paths_have_the_posterior_of_the_component() -> None:
    """False-alarm rate 1e-6 for all components together."""
    X, y, Xs = data()
    post = conditioned(samples=4096)
    for name, part in post.components().items():
        mean, covariance = posterior_of(PARTS[name], X, y, Xs)
        # Functions of few features are exact in their covariance and heavy in their tails.
        assert_mean_and_covariance(part.paths(Xs), mean, covariance, alpha=1e-6 / len(PARTS), gaussian=False)
        # From 4,096 paths a variance is known to 2.2 %.
        for method in ("samples", "neighbours"):
            assert torch.allclose(part.variance(Xs, method), covariance.diagonal(), rtol=0.15)


def test_units_of_y() -> None:
    """Standardised inputs and targets, a mean function, NumPy arrays."""
    X, y, Xs = (values.numpy() for values in data())
    gp = pathgp.GP(KERNEL, NOISE, mean=lambda X: 3.0 * X[:, 1], standardise=True)
    generator = torch.Generator().manual_seed(0)
    post = gp.condition(5.0 + 2.0 * X, 100.0 + 40.0 * y, features=256, generator=generator)
    Xs = 5.0 + 2.0 * Xs
    parts = post.components().values()
    constant = post.mean(Xs) - 3.0 * Xs[:, 1] - sum(part.mean(Xs) for part in parts)
    assert isinstance(constant, np.ndarray)
    shift = (100.0 + 40.0 * y - 3.0 * (5.0 + 2.0 * X[:, 1])).mean()
    assert np.allclose(constant, shift, atol=1e-9)
    assert np.allclose(sum(part.paths(Xs) for part in parts) + 3.0 * Xs[:, 1] + shift, post.paths(Xs))
    first = next(iter(parts))
    spread = (first.paths(Xs) - first.mean(Xs)).std(0)
    # A standard deviation of 64 values is known to 9 %.
    assert np.all(np.abs(np.log(spread / np.sqrt(first.variance(Xs, method="solve")))) < 0.5)


def test_a_kernel_that_is_no_sum_is_one_component() -> None:
    X, y, Xs = data()
    kernel = K.Scale(K.Matern(2.5) * (K.Periodic(0.5, active_dims=[0]) + K.Linear()), 1.5)
    post = pathgp.GP(kernel, NOISE).condition(X, y, samples=8, features=256)
    (part,) = post.components().values()
    assert part.name == "Matern(nu=2.5) * (Periodic[0] + Linear)"
    assert torch.equal(part.mean(Xs), post.mean(Xs))
    assert torch.allclose(part.paths(Xs), post.paths(Xs), atol=1e-12)
    assert torch.allclose(part.variance(Xs, "neighbours"), post.variance(Xs, method="neighbours"), atol=1e-12)
    assert torch.allclose(part.variance(Xs, "solve"), post.variance(Xs, method="solve"), atol=1e-12)


@pytest.mark.parametrize("method", ["solve", "neighbours", "samples"])
def test_variance_with_a_trend(method: str) -> None:
    """Without knowledge of the trend the data say little about a smooth component: P takes the place of H^-1."""
    X, y, Xs = data(60)
    kernel = K.Scale(K.SquaredExponential(1.0), 1.5) + K.Scale(K.Matern(1.5, 0.2), 0.7)
    generator = torch.Generator().manual_seed(2)
    options = {"tol": 1e-8, "samples": 500, "features": 64, "generator": generator}
    post = pathgp.GP(kernel, 0.1, mean=pathgp.means.Trend("linear")).condition(X, y, **options)
    with torch.no_grad():
        H = kernel(X) + 0.1**2 * torch.eye(len(X), dtype=torch.float64)
        B = torch.cat([torch.ones_like(X[:, :1]), X], 1)
        W = torch.linalg.solve(H, B)
        P = torch.linalg.inv(H) - W @ torch.linalg.solve(B.T @ W, W.T)
        for part in post.components().values():
            cross = part.kernel(Xs, X)
            expected = part.kernel.diag(Xs) - ((cross @ P) * cross).sum(1)
            # The part that samples estimate is known to about 10 %.
            error = 1e-7 if method == "solve" else 0.25
            assert torch.allclose(part.variance(Xs, method), expected, rtol=error)


def test_gradients_in_the_inputs() -> None:
    Xs = data()[2][:3].requires_grad_()
    part = conditioned(samples=2).components()["Periodic[0]"]
    for function in (part.mean, part.paths, part.variance):
        assert torch.autograd.gradcheck(function, Xs, atol=1e-5)


def test_inducing_points_saved_without_data(tmp_path: Path) -> None:
    X, y, Xs = data()
    post = pathgp.InducingGP(KERNEL, NOISE, inducing=10).condition(X, y, samples=4, features=256)
    post.save(tmp_path / "post", data=False)
    parts = pathgp.load(tmp_path / "post").components()
    for name, part in post.components().items():
        assert torch.equal(parts[name].paths(Xs), part.paths(Xs))


def test_without_paths() -> None:
    X, y, Xs = data()
    for name, part in conditioned(samples=0).components().items():
        covariance = posterior_of(PARTS[name], X, y, Xs)[1]
        assert torch.allclose(part.variance(Xs), covariance.diagonal(), atol=1e-9)
        with pytest.raises(ValueError, match="samples=0"):
            part.paths(Xs)
        with pytest.raises(ValueError, match="samples=0"):
            part.variance(Xs, method="samples")
        with pytest.raises(ValueError, match="'neighbours', 'samples', 'solve' or 'smooth'"):
            part.variance(Xs, method="guess")
