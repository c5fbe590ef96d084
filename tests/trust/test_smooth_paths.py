"""Standard deviations from paths where dense data leave almost nothing of a smooth function.

What is left lives at frequencies of which a plain draw from the spectral measure of a squared exponential holds none:
64 paths had 0.3 to 1.9 of the true standard deviation, and a stated standard error of 9 %.
"""

from __future__ import annotations

import pytest
import torch

import pathgp
import reference
from pathgp.kernels import Kernel, RationalQuadratic, SquaredExponential

NOISE, SAMPLES = 5e-4, 64
KERNELS: dict[str, tuple[Kernel, reference.Covariance]] = {
    "squared exponential": (
        SquaredExponential(0.12),
        lambda X, Z: reference.squared_exponential(X, Z, 0.12),
    ),
    "rational quadratic": (
        RationalQuadratic(8.0, 0.12),
        lambda X, Z: reference.rational_quadratic(X, Z, 8.0, 0.12),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_standard_deviations_are_as_accurate_as_stated(name: str) -> None:
    """Within six standard errors in 8 draws at 12 points: a false alarm in one of five million runs."""
    kernel, k = KERNELS[name]
    # So often repeated that the neighbours of a point tell little.
    X = torch.rand(14, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).repeat(6, 1)
    Xs = torch.linspace(0.1, 0.9, 12, dtype=torch.float64).unsqueeze(1)
    _, covariance = reference.posterior(k, X, torch.zeros(len(X), dtype=torch.float64), NOISE, Xs)
    truth = covariance.diagonal().sqrt()
    assert float(truth.max()) < 0.2
    for seed in range(8):
        post = pathgp.GP(kernel, NOISE).condition(
            X, torch.sin(6.0 * X[:, 0]), solver="cg", samples=SAMPLES, generator=torch.Generator().manual_seed(seed)
        )
        ratio = post.variance(Xs, method="neighbours").sqrt() / truth
        assert float(ratio.log().abs().max()) < 6.0 / (2.0 * SAMPLES) ** 0.5
