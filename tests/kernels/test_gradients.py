"""Derivatives of every kernel in its inputs and hyperparameters, first and second, at equal points too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from kernel_cases import KERNELS, ROUGH
from pathgp import kernels

SMOOTH = [name for name in KERNELS if name not in ROUGH]


def points(n: int, seed: int) -> Tensor:
    return torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def in_parameters_and_inputs(kernel: kernels.Kernel, X: Tensor, Z: Tensor) -> tuple:
    leaves = (X.clone().requires_grad_(), Z.clone().requires_grad_(), *kernel.parameters())
    return (lambda X, Z, *_: kernel(X, Z)), leaves


@pytest.mark.parametrize("name", KERNELS)
def test_gradients(name: str) -> None:
    function, leaves = in_parameters_and_inputs(KERNELS[name](), points(4, 0), points(3, 1))
    assert gradcheck(function, leaves)
    assert gradgradcheck(function, leaves)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_at_equal_points(name: str) -> None:
    X = points(3, 0)
    X[1] = X[0]
    function, leaves = in_parameters_and_inputs(KERNELS[name](), X, X[1:])
    assert gradcheck(function, leaves, atol=1e-4)


@pytest.mark.parametrize("name", KERNELS)
def test_derivatives_stay_finite_at_equal_points(name: str) -> None:
    """Also for Matern-1/2, which has no derivative there: by convention zero."""
    kernel = KERNELS[name]()
    X = points(4, 0)
    X[1] = X[0]
    X.requires_grad_()
    leaves = [X, *kernel.parameters()]
    first = torch.autograd.grad(kernel(X).square().sum(), leaves, create_graph=True)
    assert all(torch.isfinite(g).all() for g in first)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
    assert all(torch.isfinite(g).all() for g in second)


@pytest.mark.parametrize("name", KERNELS)
def test_the_gradient_of_the_square_matrix(name: str) -> None:
    """kernel(X) has the derivative of kernel(X, X), both arguments counted."""
    kernel = KERNELS[name]()
    X, A = points(5, 0).requires_grad_(), torch.randn(5, 5, dtype=torch.float64)
    leaves = [X, *kernel.parameters()]
    expected = torch.autograd.grad((A * kernel(X, X)).sum(), leaves)
    found = torch.autograd.grad((A * kernel(X)).sum(), leaves)
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_several_strips(dtype: torch.dtype) -> None:
    """Of a matrix that is converted to float64 strip by strip, in X and Z and in each of them alone."""
    kernel, scale = kernels.SquaredExponential(0.8).requires_grad_(False), 1.0 / 0.8**2
    X, Z, W = points(230, 0), points(1000, 1), torch.linspace(-1.0, 2.0, 1000, dtype=torch.float64)
    inputs = [A.to(dtype, copy=True).requires_grad_() for A in (X, Z)]
    A = kernel(X, Z) * W * scale
    expected = A @ Z - A.sum(1, keepdim=True) * X, A.T @ X - A.sum(0).unsqueeze(1) * Z
    both = torch.autograd.grad((kernel(*inputs) * W).sum(), inputs)
    alone = (
        torch.autograd.grad((kernel(inputs[0], Z.to(dtype)) * W).sum(), inputs[0])[0],
        torch.autograd.grad((kernel(X.to(dtype), inputs[1]) * W).sum(), inputs[1])[0],
    )
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for found in (both, alone):
        for a, b in zip(found, expected, strict=True):
            assert float((a - b).norm() / b.norm()) < tolerance


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivative_in_the_inputs_at_a_point(name: str) -> None:
    """d^2 k / dx dz at x = z, the variance of the slope of a path, is the limit of differences."""
    kernel = KERNELS[name]()
    if name == "combined":
        kernel = kernels.Scale(kernels.Matern(2.5), 1.3)
    at = points(1, 0)
    X, Z = at.clone().requires_grad_(), at.clone().requires_grad_()
    (slope,) = torch.autograd.grad(kernel(X, Z).sum(), X, create_graph=True)
    (mixed,) = torch.autograd.grad(slope[0, 0], Z)
    h = 1e-3 if name != "Matern 1.5" else 1e-6
    step = torch.tensor([[h, 0.0]], dtype=torch.float64)
    with torch.no_grad():
        k = {(i, j): kernel(at + i * step, at + j * step) for i in (-1, 1) for j in (-1, 1)}
    difference = (k[1, 1] - k[1, -1] - k[-1, 1] + k[-1, -1]) / (4 * h**2)
    assert mixed[0, 0].item() == pytest.approx(difference.item(), rel=2e-2)


def test_tanimoto_and_task() -> None:
    X = torch.tensor([[1.3, 0.0, 2.1], [0.4, 1.7, 0.2]], dtype=torch.float64) + 0.01
    Z = torch.tensor([[0.9, 0.6, 1.1]], dtype=torch.float64)
    assert gradcheck(kernels.Tanimoto(), (X.requires_grad_(), Z.requires_grad_()))
    zeros = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(kernels.Tanimoto()(zeros, Z).sum(), zeros)
    assert torch.isfinite(gradient).all()
    task = kernels.Task(3, 2)
    ids = torch.tensor([[0.0], [2.0], [1.0], [2.0]], dtype=torch.float64)
    assert gradcheck(lambda *_: task(ids, ids[:2]), tuple(task.parameters()))
    assert gradgradcheck(lambda *_: task(ids, ids[:2]), tuple(task.parameters()))


def test_float32_gradients_of_small_length_scales() -> None:
    """At an offset of 100 and a length scale of 0.01 the expanded form would lose all digits in float32."""
    generator = torch.Generator().manual_seed(0)
    X = (100.0 + torch.rand(50, 2, generator=generator) * 0.1).float()
    A = torch.randn(50, 50, generator=generator).double()
    kernel = kernels.Matern(1.5, torch.full((2,), 0.01))
    found = torch.autograd.grad((A.float() * kernel(X)).sum(), kernel.parameters())[0]
    expected = torch.autograd.grad((A * kernel(X.double())).sum(), kernel.parameters())[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0.0)
