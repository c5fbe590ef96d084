"""Rectangular products K(X, Z) V for prediction: values, gradients in X, second derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.operators import cross_product


def draw(rows: int, columns: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, columns, generator=generator, dtype=torch.float64).to(dtype)


# Budgets for tiles of a few rows and for a single tile.
MEMORY = [8_000, 10**9]


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value(memory: int, dtype: torch.dtype) -> None:
    kernel = kernels.Scale(kernels.Matern(1.5, torch.tensor([0.2, 0.6])), 1.4)
    X, Z, V = draw(23, 2, 0, dtype), draw(31, 2, 1, dtype), draw(31, 3, 2, dtype)
    expected = kernel(X.double(), Z.double()) @ V.double()
    found = cross_product(kernel, X, Z, V, memory=memory)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=100 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("memory", MEMORY)
def test_gradient_and_second_derivative(memory: int) -> None:
    kernel = kernels.Scale(kernels.SquaredExponential(0.5), 1.4)
    Z, V = draw(13, 2, 1), draw(13, 2, 2)
    X = draw(7, 2, 0).requires_grad_()
    assert torch.autograd.gradcheck(lambda A: cross_product(kernel, A, Z, V, memory=memory), (X,))
    assert torch.autograd.gradgradcheck(lambda A: cross_product(kernel, A, Z, V, memory=memory), (X,))


def test_rows_do_not_depend_on_each_other() -> None:
    """The same value however the inputs are split, up to rounding."""
    kernel = kernels.Matern(2.5, 0.4)
    X, Z, V = draw(20, 2, 0), draw(30, 2, 1), draw(30, 1, 2)
    whole = cross_product(kernel, X, Z, V)
    parts = torch.cat([cross_product(kernel, part, Z, V) for part in X.split(3)])
    torch.testing.assert_close(whole, parts, rtol=1e-13, atol=1e-13)


def test_no_rows() -> None:
    kernel = kernels.Matern(1.5, 0.4)
    X = draw(0, 2, 0).requires_grad_()
    found = cross_product(kernel, X, draw(5, 2, 1), draw(5, 3, 2))
    assert found.shape == (0, 3)
    found.sum().backward()
    assert X.grad is not None
    assert X.grad.shape == (0, 2)
