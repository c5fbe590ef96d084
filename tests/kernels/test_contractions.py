"""sum_ij W_ij k(x_i, z_j) and its gradient in the hyperparameters, against the matrix and autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernel_cases import KERNELS
from pathgp import kernels
from pathgp.kernels import distance


def draw(n: int, seed: int, dtype: torch.dtype = torch.float64, columns: int = 2) -> Tensor:
    return torch.randn(n, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def both(kernel: kernels.Kernel, W: Tensor, X: Tensor, Z: Tensor | None) -> list[list[Tensor]]:
    """Value and gradients: contracted, and from the matrix in float64."""
    parameters = [p for p in kernel.parameters() if p.requires_grad]
    K = kernel(X.double(), None if Z is None else Z.double())
    values = [kernel.contract(W, X, Z), (W.double() * K).sum()]
    return [[value.detach(), *torch.autograd.grad(value, parameters)] for value in values]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_the_sum_over_the_matrix(name: str, square: bool, dtype: torch.dtype) -> None:
    X, Z = draw(40, 0, dtype), None if square else draw(30, 1, dtype)
    W = draw(40, 2, dtype, columns=40 if square else 30)
    found, expected = both(KERNELS[name](), W, X, Z)
    assert found[0].dtype == torch.float64
    size = float(W.abs().sum())
    tolerance = 1e-12 if dtype == torch.float64 else 3e-7
    for value, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-9, atol=tolerance * size)


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("name", ["Matern-1/2", "Matern-3/2", "RQ"])
def test_strips_of_rows(monkeypatch: pytest.MonkeyPatch, name: str, square: bool) -> None:
    """On a CPU rows come in strips: the diagonal, and rows that do not fill the last one."""
    monkeypatch.setattr(distance, "_IN_CACHE", 7 * 24)
    X = draw(24, 0)
    X[3] = X[17]
    W = draw(24, 2, columns=24)
    found, expected = both(KERNELS[name](), W, X, None if square else X.clone())
    for value, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-9)


def test_factors_that_are_not_learned() -> None:
    fixed, learned = kernels.Matern(1.5, 0.7).requires_grad_(False), KERNELS["SE"]()
    X, W = draw(20, 0), draw(20, 1, columns=20)
    for product in (fixed * learned, learned * fixed):
        found, expected = both(product, W, X, None)
        assert len(found) == 2
        for value, truth in zip(found, expected, strict=True):
            torch.testing.assert_close(value, truth)
    value = (fixed * fixed).contract(W, X)
    assert not value.requires_grad
    torch.testing.assert_close(value, (W * fixed(X).square()).sum())


def test_close_points_of_a_short_length_scale() -> None:
    """Both terms of the gradient are large and nearly cancel: float64 keeps their digits."""
    X = (torch.linspace(0, 1, 200, dtype=torch.float64).reshape(-1, 1) + 30.0).float()
    W = draw(200, 0, torch.float32, columns=200)
    found, expected = both(kernels.Matern(1.5, 0.01), W, X, None)
    for value, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-5, atol=1e-5 * float(W.abs().max()))
