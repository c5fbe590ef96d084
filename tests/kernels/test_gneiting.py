"""Gneiting's kernels of space and time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pathgp
import reference
from pathgp import kernels
from pathgp.operators import KernelOperator


def kernel(beta: float = 0.8, nu: float = 0.5, alpha: float = 0.6) -> kernels.Gneiting:
    return kernels.Gneiting(kernels.Matern(nu, 0.4), 0.5, alpha=alpha, beta=beta, decay=0.3)


def points(n: int) -> Tensor:
    return torch.rand(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_without_interaction_it_is_a_product() -> None:
    X = points(30)
    time = 1 / (1 + ((X[:, -1:] - X[:, -1:].T).abs() / 0.5) ** 1.2) ** 0.3
    expected = reference.matern(X[:, :2], X[:, :2], 0.5, 0.4) * time
    assert torch.allclose(kernel(0.0)(X).detach(), expected, atol=1e-12)
    assert torch.allclose(kernel(1e-9)(X).detach(), expected, atol=1e-7)
    assert not torch.allclose(kernel(0.5)(X).detach(), expected, atol=1e-2)
    assert "beta" not in pathgp.GP(kernel(0.0)).hyperparameters()


@pytest.mark.parametrize("alpha", [0.2, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("space", [kernels.Matern(0.5, 0.7), kernels.SquaredExponential(0.5)])
def test_positive_semi_definite(space: kernels.Kernel, beta: float, alpha: float) -> None:
    """On a grid of three columns of space and one of time; without beta d / 2 the least eigenvalue is -8 to -40."""
    axes = [torch.linspace(0, 2, 4, dtype=torch.float64)] * 3 + [torch.linspace(0, 1, 4, dtype=torch.float64)]
    X = torch.cartesian_prod(*axes)
    K = kernels.Gneiting(space, 0.3, alpha=alpha, beta=beta, decay=0.02)(X).detach()
    assert float(torch.linalg.eigvalsh(K).min()) >= -1e-9


def test_refused_values() -> None:
    with pytest.raises(ValueError, match="beta of Gneiting must be at most 1"):
        kernel(beta=1.2)
    with pytest.raises(ValueError, match="alpha of Gneiting"):
        kernel(alpha=1.5)
    k = kernel()
    k.beta = 2.0
    with pytest.raises(ValueError, match="at most 1"):
        k(points(3))
    with pytest.raises(ValueError, match="separable"):
        kernel(0.0).beta = 0.5
    with pytest.raises(ValueError, match="one of time"):
        kernel()(points(3)[:, :1])
    with pytest.raises(TypeError, match="go around"):
        kernels.Gneiting(kernels.Linear())
    with pytest.raises(NotImplementedError, match="frequencies in time"):
        kernel().features(64)


def test_posterior_without_paths() -> None:
    X, Xs = points(80), points(90)[80:]
    y = torch.sin(5 * X[:, 0] + 3 * X[:, 2])
    gp = pathgp.GP(kernels.Scale(kernel(), 1.3), 0.1, mean=pathgp.means.Trend("constant"))
    post = gp.condition(X, y, solver="cg", tol=1e-10)

    def k(A: Tensor, B: Tensor) -> Tensor:
        return 1.69 * reference.gneiting(A, B, 0.5, 0.4, 0.5, 0.6, 0.8, 0.3)

    ones = [torch.ones(len(A), 1, dtype=torch.float64) for A in (X, Xs)]
    mean, covariance, _, _ = reference.universal_kriging(k, X, y, 0.1, Xs, *ones)
    assert torch.allclose(post.mean(Xs), mean, atol=1e-7)
    assert torch.allclose(post.covariance(Xs), covariance, atol=1e-7)
    assert not post.has_paths
    assert "frequencies in time" in post.report.no_paths


def test_fit_learns_the_interaction() -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(250, 3, generator=g, dtype=torch.float64)
    truth = kernels.Gneiting(kernels.Matern(0.5, 0.3), 0.1, alpha=0.9, beta=1.0, decay=0.1)
    root = torch.linalg.cholesky(truth(X).detach() + 1e-3 * torch.eye(250))
    y = root @ torch.randn(250, generator=g, dtype=torch.float64)
    gains = []
    for beta in (0.5, 0.0):
        gp = pathgp.GP(kernels.Scale(kernels.Gneiting(kernels.Matern(0.5), beta=beta)), 0.05)
        gp.fit(X, y, steps=15, generator=g)
        gains.append(gp.posterior.log_marginal_likelihood().value)
    assert gains[0] > gains[1]
    assert 0.3 <= float(gp.hyperparameters()["lengthscale"]) / 0.3 <= 3.0


def test_vecchia_and_small_blocks() -> None:
    X = points(150)
    H = KernelOperator(kernels.Scale(kernel(), 1.1), X, 0.1)
    assert H.stationary_dim == 3
    index = torch.arange(12).view(2, 6)
    expected = torch.stack([H.block(rows) for rows in index])
    assert torch.allclose(H.small_blocks(index), expected, atol=1e-12)
    solution = pathgp.solvers.CG(preconditioner=pathgp.solvers.Vecchia(20)).solve(H, X[:, :1], tol=1e-8)
    assert solution.converged
    assert solution.iterations <= 20
