"""The reference is checked against other ways of writing the same formula, and against SciPy."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import multivariate_normal

import reference

KERNELS = {
    "squared_exponential": lambda X, Z: reference.squared_exponential(X, Z, torch.tensor([0.5, 1.0])),
    "matern12": lambda X, Z: reference.matern(X, Z, 0.5, 0.7),
    "matern32": lambda X, Z: reference.matern(X, Z, 1.5, 0.7),
    "matern52": lambda X, Z: reference.matern(X, Z, 2.5, 0.7),
    "matern0.9": lambda X, Z: reference.matern(X, Z, 0.9, 0.7),
    "rational_quadratic": lambda X, Z: reference.rational_quadratic(X, Z, 1.3, 0.7),
    "periodic": lambda X, Z: reference.periodic(X, Z, torch.tensor([0.8, 1.1]), 0.9),
    "linear": lambda X, Z: reference.linear(X, Z, 2.0),
    "tanimoto": reference.tanimoto,
}


def inputs(n: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_covariances(name: str) -> None:
    k, X = KERNELS[name], inputs(40)
    K = k(X, X)
    assert K.dtype == torch.float64
    torch.testing.assert_close(K, K.T)
    torch.testing.assert_close(K[:7, 5:], k(X[:7], X[5:]))
    assert torch.linalg.eigvalsh(K).min() > -1e-12
    if name != "linear":
        torch.testing.assert_close(K.diagonal(), torch.ones(40, dtype=torch.float64))


def test_values_by_hand() -> None:
    x, z = torch.tensor([[0.0]]), torch.tensor([[2.0]])
    assert reference.squared_exponential(x, z, 2.0).item() == pytest.approx(math.exp(-0.5))
    assert reference.matern(x, z, 0.5, 2.0).item() == pytest.approx(math.exp(-1))
    assert reference.rational_quadratic(x, z, 1.0, 2.0).item() == pytest.approx(1 / 1.5)
    assert reference.periodic(x, z, 8.0, 1.0).item() == pytest.approx(math.exp(-1.0))
    assert reference.linear(z, z, 3.0).item() == pytest.approx(12.0)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_closed_forms_agree_with_the_bessel_formula(nu: float) -> None:
    r = torch.cat([torch.zeros(1), torch.logspace(-4, 1.5, 50)]).to(torch.float64)[:, None]
    closed = reference.matern(r, torch.zeros(1, 1), nu)
    bessel = reference.matern_by_bessel(math.sqrt(2 * nu) * r, nu)
    torch.testing.assert_close(closed, bessel, rtol=1e-10, atol=1e-14)


def test_matern_of_large_smoothness_tends_to_squared_exponential() -> None:
    X = inputs(10)
    torch.testing.assert_close(reference.matern(X, X, 100.0), reference.squared_exponential(X, X), rtol=0, atol=5e-3)


def test_tanimoto_counts_and_empty_rows() -> None:
    X = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 3.0], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[1.0, 2 / 5, 0.0], [2 / 5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(reference.tanimoto(X, X), expected.to(torch.float64))


def test_task_is_the_matrix_of_the_tasks() -> None:
    factor, diagonal = torch.tensor([[1.0, 0.5], [0.2, -1.0], [0.0, 2.0]]), torch.tensor([0.1, 0.2, 0.3])
    ids = torch.arange(3)[:, None]
    expected = (factor @ factor.T + torch.diag(diagonal)).to(torch.float64)
    torch.testing.assert_close(reference.task(ids, ids, factor, diagonal), expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(
        reference.task(ids[[2, 0]], ids[[1]], factor, diagonal),
        expected[[2, 0]][:, [1]],
        rtol=1e-6,
        atol=1e-7,
    )


@pytest.mark.parametrize("noise", [0.3, torch.linspace(0.1, 0.9, 12)], ids=["scalar", "per point"])
def test_posterior_is_conditioning_of_the_joint_gaussian(noise: float | torch.Tensor) -> None:
    X, Xs, y = inputs(12), inputs(5, seed=1), inputs(12, seed=2)[:, 0]
    k = KERNELS["matern32"]
    mean, covariance = reference.posterior(k, X, y, noise, Xs, mean=0.4)
    # The precision matrix of the joint Gaussian of (f at Xs, y) holds the conditional distribution.
    joint = k(torch.cat([Xs, X]), torch.cat([Xs, X]))
    joint[5:, 5:] += torch.diag(torch.as_tensor(noise, dtype=torch.float64).expand(12) ** 2)
    precision = torch.linalg.inv(joint)
    expected = torch.linalg.inv(precision[:5, :5])
    torch.testing.assert_close(covariance, expected)
    torch.testing.assert_close(mean, 0.4 - expected @ precision[:5, 5:] @ (y - 0.4))


def test_log_marginal_likelihood_is_the_density_of_the_data() -> None:
    X, y, noise = inputs(12), inputs(12, seed=2)[:, 0], torch.linspace(0.1, 0.9, 12)
    H = reference.system(KERNELS["matern52"], X, noise)
    expected = multivariate_normal(mean=[0.4] * 12, cov=H.numpy()).logpdf(y.numpy())
    value = reference.log_marginal_likelihood(KERNELS["matern52"], X, y, noise, mean=0.4)
    assert value.item() == pytest.approx(expected)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_log_marginal_likelihood_has_the_right_gradient(nu: float) -> None:
    X, y = inputs(8), inputs(8, seed=2)[:, 0]

    def value(signal: torch.Tensor, lengthscale: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return reference.log_marginal_likelihood(
            lambda A, B: signal**2 * reference.matern(A, B, nu, lengthscale), X, y, noise
        )

    parameters = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (1.2, [0.5, 0.8], 0.3)]
    assert torch.autograd.gradcheck(value, parameters)
