"""Sums of sines in tiles against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pathgp.features import waves


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("entries", [1, 60, 700, 10**6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_in_tiles(entries: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single rows of one path, some rows of one path, all rows of some paths, and all at once."""
    monkeypatch.setattr(waves, "tile_entries", lambda device: entries)
    X, turns, weight = normal(17, 3), 5.0 * normal(5, 3, 20, seed=1), normal(5, 20, seed=2).to(dtype)
    expected = torch.einsum("sp,snp->sn", weight.double(), (2.0 * torch.pi * torch.matmul(X, turns)).sin())
    found = waves.sine_sum(X, turns, weight)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_at_sites_and_times(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the addition theorem, without rows of some sites; the gradient in X is that of the sum."""
    monkeypatch.setattr(waves, "_LEAST_SINES", 1)
    times = torch.linspace(0.0, 4.0, 12).double().repeat_interleave(12)
    X = torch.cat([normal(12, 2).repeat(12, 1), times[:, None]], 1)
    X, turns, weight = X[7:], 5.0 * normal(5, 3, 20, seed=1), normal(5, 20, seed=2).to(dtype)
    assert waves.find_combination(X) is not None
    points = X.clone().requires_grad_()
    expected = torch.einsum("sp,snp->sn", weight.double(), (2.0 * torch.pi * torch.matmul(points, turns)).sin())
    (gradient,) = torch.autograd.grad(expected.sum(), points)
    points = X.clone().requires_grad_()
    found = waves.sine_sum(points, turns, weight)
    close = {"rtol": 0.0, "atol": 1e-5 if dtype == torch.float32 else 1e-12}
    torch.testing.assert_close(found.double(), expected, **close)
    own = torch.autograd.grad(found.sum(), points)[0]
    torch.testing.assert_close(
        own, gradient, rtol=1e-4 if dtype == torch.float32 else 1e-9, atol=1e-2 if dtype == torch.float32 else 1e-9
    )
