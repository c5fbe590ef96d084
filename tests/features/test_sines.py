"""Sums of sines by one kernel against float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.features import waves

pytest.importorskip("triton", minversion="3.6")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.float64, 1e-9)])
@pytest.mark.parametrize(("n", "d", "paths", "pairs"), [(70, 4, 2, 150), (5, 1, 3, 1), (32, 19, 2, 256), (0, 2, 1, 4)])
def test_sums(n: int, d: int, paths: int, pairs: int, dtype: torch.dtype, error: float) -> None:
    """Of few and of many thousand turns."""
    from pathgp.features.sines import fused_sine_sum

    X, turns, weight = normal(n, d), normal(paths, d, pairs, seed=1), normal(paths, pairs, seed=2).to(dtype)
    turns[:, :, ::3] *= 1e5
    found = fused_sine_sum(X, turns, weight)
    sines = torch.sin(2.0 * math.pi * torch.matmul(X, turns).frac())
    expected = torch.einsum("sp,snp->sn", weight.double(), sines)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=error * float(weight.norm()))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_paths_of_a_kernel(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, error: float) -> None:
    """In one piece without a graph, in tiles with one, and both as in torch."""
    X = normal(40, 3).to(dtype)
    phi = kernels.Matern(0.5, 0.3).features(50, torch.Generator().manual_seed(0), paths=3)
    W = normal(3, phi.num, seed=1).to(dtype)

    def values() -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            plain = phi.weighted(X, W)
        inputs = X.clone().requires_grad_()
        traced = phi.weighted(inputs, W)
        return plain, traced.detach(), torch.autograd.grad(traced.sum(), inputs)[0]

    monkeypatch.setattr(waves, "runs_fused", lambda weight: False)
    expected = values()
    monkeypatch.setattr(waves, "runs_fused", lambda weight: True)
    for a, b in zip(values(), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=error, atol=error)
