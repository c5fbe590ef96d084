"""The Matern kernel with a learned smoothness: tables against Bessel functions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pathgp
import reference
from pathgp import kernels

ORDERS = [0.2, 0.5, 0.8, 1.0, 1.5, 2.7, 10.0]


def distances() -> Tensor:
    return torch.cat([torch.zeros(1), torch.logspace(-8, 1.7, 200)]).double()


@pytest.mark.parametrize("nu", ORDERS)
def test_profile_and_derivatives(nu: float) -> None:
    r, kernel = distances(), kernels.LearnedMatern(nu)
    sq, step = r.square(), 1e-3 * nu

    def exact(order: float) -> Tensor:
        return reference.matern_by_bessel((2 * order) ** 0.5 * r, order)

    with torch.no_grad():
        assert float((kernel.profile(sq.clone()) - exact(nu)).abs().max()) <= 1e-11
        # dk/d log r^2, which is bounded for every nu; by the slope in closed form of a fixed kernel.
        assert float(((kernel.slope(sq) - kernels.Matern(nu).slope(sq.clone())) * sq).abs().max()) <= 1e-10
        near, far = (exact(nu + j * step) - exact(nu - j * step) for j in (1.0, 2.0))
        (slope,) = kernel.shape_slopes(sq)
        assert float((slope - (8 * near - far) / (12 * step)).abs().max()) <= 1e-8


def test_values_move_smoothly_with_nu() -> None:
    """Differences of neighbouring values are those of a smooth function, although each nu has tables of its own."""
    sq = distances().square()
    with torch.no_grad():
        values = [kernels.LearnedMatern(1.3 + 1e-3 * j).profile(sq.clone()) for j in range(-1, 2)]
    assert float((values[0] - 2 * values[1] + values[2]).abs().max()) <= 1e-6


def test_assigned_smoothness_is_used() -> None:
    kernel, X = kernels.LearnedMatern(0.7, 0.3), torch.linspace(0, 2, 9, dtype=torch.float64).unsqueeze(1)
    kernel(X)
    kernel.nu = 2.5
    assert torch.allclose(kernel(X), kernels.Matern(2.5, 0.3)(X), atol=1e-11)
    with pytest.raises(ValueError, match="between"):
        kernels.LearnedMatern(30.0)


def test_features_follow_nu() -> None:
    """One draw at nu = 1.5, evaluated at another nu: unbiased for it, and differentiable in it."""
    kernel = kernels.LearnedMatern(1.5, 0.7)
    phi = kernel.features(64, paths=4000, generator=torch.Generator().manual_seed(0))
    X = torch.tensor([[0.0], [0.2], [1.0]], dtype=torch.float64)
    phi(X)
    kernel.nu = 0.6
    with torch.no_grad():
        values = phi(X)
        products = torch.einsum("sif,sjf->sij", values, values)
        # 4000 draws of averages over 32 pairs, each of variance at most 2: five standard errors.
        assert float((products.mean(0) - kernel(X)).abs().max()) <= 5 * (2 / (32 * 4000)) ** 0.5
    phi = kernel.features(8, paths=2, generator=torch.Generator().manual_seed(0))
    raw = kernel._nu.raw
    (gradient,) = torch.autograd.grad(phi(X).sum(), raw)
    sums = []
    for step in (-1e-6, 1e-6):
        with torch.no_grad():
            raw.add_(step)
            sums.append(float(phi(X).sum()))
            raw.sub_(step)
    assert float(gradient) == pytest.approx((sums[1] - sums[0]) / 2e-6, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(("nu", "low", "high"), [(0.5, 0.35, 0.8), (2.5, 1.5, 10.0)])
def test_fit_finds_the_smoothness(nu: float, low: float, high: float) -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(200, 1, generator=g, dtype=torch.float64) * 7
    root = torch.linalg.cholesky(kernels.Matern(nu, 1.0)(X).detach() + 1e-4 * torch.eye(200))
    y = root @ torch.randn(200, generator=g, dtype=torch.float64)
    gp = pathgp.GP(kernels.Scale(kernels.LearnedMatern(1.2)), 0.02)
    gp.fit(X, y, steps=20, generator=g)
    assert low <= float(gp.hyperparameters()["nu"]) <= high
