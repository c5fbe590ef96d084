"""Averages over cells against the dense covariance of their sub-points."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pathgp
from pathgp import kernels
from pathgp.posterior.block_average import block_average
from reference import matern, posterior


def cells(m: int, q: int, size: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    centres = torch.rand(m, 1, 2, generator=generator, dtype=torch.float64)
    offsets = size * torch.rand(1, q, 2, generator=generator, dtype=torch.float64)
    weights = torch.rand(m, q, generator=generator, dtype=torch.float64)
    return centres + offsets, weights / weights.sum(1, keepdim=True)


# Relative errors of the variances from 256 paths: at most sqrt(2 / 256) = 0.09, far less in a small cell.
@pytest.mark.parametrize(
    ("method", "size", "error"), [("solve", 0.2, 1e-6), ("neighbours", 0.2, 0.09), ("neighbours", 0.01, 0.02)]
)
def test_mean_and_variance(method: str, size: float, error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(200, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(6 * X[:, 0]) + 3.0
    gp = pathgp.GP(kernels.Scale(kernels.Matern(1.5, 0.3), 1.2), noise=0.2, mean=3.0)
    post = gp.condition(X, y, samples=256, generator=generator, tol=1e-6)
    monkeypatch.setattr(type(post), "variance_method", method)
    inside, weights = cells(20, 9, size)
    found = block_average(post, inside, weights, with_paths=True)
    ratios = []
    for i, w in enumerate(weights):
        mean, C = posterior(lambda A, B: 1.2**2 * matern(A, B, 1.5, 0.3), X, y - 3.0, 0.2, inside[i])
        assert float(found.mean[i]) == pytest.approx(float(w @ mean + 3.0), abs=1e-4)
        ratios.append(float(found.variance[i]) / float(w @ C @ w))
    assert np.sqrt(np.mean((np.array(ratios) - 1) ** 2)) < error
    assert found.paths is not None
    np.testing.assert_allclose(found.paths[:, 3], (post.paths(inside[3]) * weights[3]).sum(1))


def test_one_sub_point_is_a_prediction() -> None:
    X = torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    post = pathgp.GP(kernels.Matern(0.5, 0.3), noise=0.1).condition(X, X[:, 0], samples=0)
    points = X[:7] + 0.05
    found = block_average(post, points.unsqueeze(1), torch.ones(7, 1, dtype=torch.float64))
    np.testing.assert_allclose(found.mean, post.mean(points))
    np.testing.assert_allclose(found.variance, post.variance(points))
    assert found.paths is None
