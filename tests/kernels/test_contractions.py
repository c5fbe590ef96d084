"""sum_ij W_ij k(x_i, z_j) and its gradient in the hyperparameters, against the matrix and autograd."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.kernels import distance

SCALES = torch.tensor([0.5, 1.5, 0.9], dtype=torch.float64)
SE, ROUGH = kernels.SquaredExponential(SCALES), kernels.Matern(1.5, SCALES)

KERNELS: dict[str, kernels.Kernel] = {
    "SE": SE,
    "Matern 0.5": kernels.Matern(0.5, SCALES),
    "Matern 1.5": ROUGH,
    "Matern 2.2": kernels.Matern(2.2, SCALES),
    "Matern 2.5": kernels.Matern(2.5, 0.7),
    "RQ": kernels.RationalQuadratic(0.6, SCALES),
    "Periodic": kernels.Periodic(torch.tensor([1.0, 2.0, 0.7]), SCALES),
    "Linear": kernels.Linear(SCALES, bias=0.3),
    "Scale": kernels.Scale(kernels.Scale(ROUGH, 1.3), 0.4, active_dims=[2, 0, 1]),
    "Sum": kernels.Scale(SE, 1.3) + kernels.Linear(active_dims=[1]) + kernels.Matern(2.5, active_dims=[0, 2]),
    "Product": kernels.Scale(ROUGH, 0.7) * kernels.Periodic(1.0, active_dims=[0]) * kernels.RationalQuadratic(2.0),
}


def draw(n: int, seed: int, dtype: torch.dtype = torch.float64, columns: int = 3) -> Tensor:
    return torch.randn(n, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def both(kernel: kernels.Kernel, W: Tensor, X: Tensor, Z: Tensor | None) -> list[list[Tensor]]:
    """Value and gradients: contracted, and from the matrix in float64."""
    kernel = copy.deepcopy(kernel)
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
    found, expected = both(KERNELS[name], W, X, Z)
    assert found[0].dtype == torch.float64
    size = float(W.abs().sum())
    tolerance = 1e-12 if dtype == torch.float64 else 3e-7
    for value, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-9, atol=tolerance * size)


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("name", ["Matern 0.5", "Matern 1.5", "RQ"])
def test_strips_of_rows(monkeypatch: pytest.MonkeyPatch, name: str, square: bool) -> None:
    """On a CPU rows come in strips: the diagonal, and rows that do not fill the last one."""
    monkeypatch.setattr(distance, "_STRIP", 7)
    X = draw(24, 0)
    X[3] = X[17]
    W = draw(24, 2, columns=24)
    found, expected = both(KERNELS[name], W, X, None if square else X.clone())
    for value, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-9)


def test_factors_that_are_not_learned() -> None:
    fixed, learned = kernels.Matern(1.5, SCALES).requires_grad_(False), kernels.SquaredExponential(SCALES)
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
