"""Kernels and features on an accelerator agree with the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernel_cases import KERNELS, MIXED, mixed_inputs
from pathgp import kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator"),
]

CASES = {**KERNELS, **MIXED}


def inputs(name: str, dtype: torch.dtype) -> Tensor:
    X = mixed_inputs(50, dtype)
    return X[:, :2] if name in KERNELS else X


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("moved", [False, True])
def test_kernels(name: str, dtype: torch.dtype, moved: bool) -> None:
    """Also when the kernel itself stays on the CPU: hyperparameters follow the inputs."""
    X = inputs(name, dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    kernel = CASES[name]()
    expected, diagonal = kernel(X, X[:9]).detach(), kernel.diag(X).detach()
    parameters = list(kernel.parameters())
    gradients = torch.autograd.grad(kernel(X).square().sum(), parameters) if parameters else ()
    if moved:
        kernel.cuda()
    found = kernel(X.cuda(), X[:9].cuda())
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.detach().cpu(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(kernel.diag(X.cuda()).detach().cpu(), diagonal, rtol=tolerance, atol=tolerance)
    parameters = list(kernel.parameters())
    on_device = torch.autograd.grad(kernel(X.cuda()).square().sum(), parameters) if parameters else ()
    for left, right in zip(on_device, gradients, strict=True):
        torch.testing.assert_close(left.cpu(), right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"Gneiting"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("moved", [False, True])
def test_features(name: str, dtype: torch.dtype, moved: bool) -> None:
    """The same draws on every device, from a CPU generator."""
    X = inputs(name, dtype)
    kernel = CASES[name]().requires_grad_(False)
    phi = kernel.features(300, torch.Generator().manual_seed(0), paths=3, dim=X.shape[1])
    W = torch.randn(3, phi.num, dtype=dtype)
    features, values = phi(X), phi.weighted(X, W)
    if moved:
        kernel.cuda()
    tolerance = 1e-8 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(phi(X.cuda()).cpu(), features, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(phi.weighted(X.cuda(), W.cuda()).cpu(), values, rtol=tolerance, atol=10 * tolerance)
    points = X.cuda().requires_grad_()
    phi.weighted(points, W.cuda()).sum()


def test_a_generator_of_the_device() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    phi = kernels.Matern().features(16, generator)
    assert phi(torch.randn(3, 2, device="cuda")).device.type == "cuda"
