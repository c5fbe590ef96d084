"""Gradients of fused products and cross products against dense float64 values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fused_cases import DEVICE, KERNELS, KERNELS_AND_FORMS, SEVERAL, N, error, normal
from pathgp import Compute, kernels
from pathgp.operators import KernelOperator, cross_product
from pathgp.operators.fused import backend, engine, points

pytest.importorskip("triton", minversion="3.6")


@pytest.mark.parametrize(("name", "form"), KERNELS_AND_FORMS, indirect=["form"])
def test_bilinear_value_and_all_gradients(name: str, form: str) -> None:
    n = SEVERAL if name == "nested" else N
    kernel, X = KERNELS[name](), normal(n, 2, 0)
    deviation = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    L, R = normal(n, 3, 1), normal(n, 3, 2)
    value = KernelOperator(kernel, X, deviation, Compute("fused")).bilinear(L, R)
    dense = kernel(X.double())
    expected = (L.double() * (dense @ R.double() + deviation.square() * R)).sum()
    parameters = [*kernel.parameters(), deviation]
    # Beside what the sums would be without cancellation.
    size = (L.double().abs() * (dense.abs() @ R.double().abs())).sum().detach()
    assert abs(float((value - expected).detach())) < 1e-6 * float(size)
    for a, b in zip(*(torch.autograd.grad(v, parameters) for v in (value, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=3e-6 * float(size))


@pytest.mark.parametrize(("d", "s", "symmetric"), [(9, 65, False), (26, 1, False), (26, 65, True)])
def test_gradients_in_many_dimensions(d: int, s: int, symmetric: bool) -> None:
    kernel, X = kernels.Scale(kernels.Matern(1.5, torch.full((d,), d**0.5)), 1.2), normal(SEVERAL, d, 0) + 100.0
    R = normal(SEVERAL, s, 2)
    L = R * torch.linspace(-1.0, 2.0, s, device=DEVICE) if symmetric else normal(SEVERAL, s, 1)
    value = KernelOperator(kernel, X, 0.1, Compute("fused")).bilinear(L, R, symmetric)
    expected = (L.double() * (kernel(X.double()) @ R.double() + 0.01 * R)).sum()
    assert error(value, expected) < 1e-4
    for a, b in zip(*(torch.autograd.grad(v, list(kernel.parameters())) for v in (value, expected)), strict=True):
        assert error(a, b) < 1e-4


def check_cross(kernel: kernels.Kernel, X: Tensor, Z: Tensor, bound: float) -> None:
    V, outer = normal(len(Z), 3, 2), normal(len(X), 3, 3)
    results = []
    for dtype, way in ((torch.float32, "fused"), (torch.float64, "streamed")):
        A = X.to(dtype, copy=True).requires_grad_()
        found = cross_product(kernel, A, Z.to(dtype), V.to(dtype), backend=way)
        (gradient,) = torch.autograd.grad(found, A, outer.to(dtype))
        results.append((found, gradient))
    assert error(results[0][0], results[1][0]) < 2e-6
    assert error(results[0][1], results[1][1]) < bound


@pytest.mark.parametrize(("name", "form"), KERNELS_AND_FORMS, indirect=["form"])
def test_cross_products_and_their_gradient(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()

    def recorded(frame: points.Frame) -> engine.Engine:
        used.update(leaf.form for leaf in frame.structure.leaves if leaf.kind not in ("linear", "matern12"))
        return engine.Engine(frame)

    monkeypatch.setattr(backend, "Engine", recorded)
    check_cross(KERNELS[name](), normal(37, 2, 0), normal(N, 2, 1) + 0.5, 2e-5)
    assert used == (set() if name in ("Matern-1/2", "Linear") else {form})


@pytest.mark.parametrize("farthest", [5.0, 60.0, 500.0])
def test_cross_products_in_many_dimensions(farthest: float) -> None:
    """Rows of X far from all of Z among them, and close to one that lies there too."""
    X, Z = normal(37, 16, 0), normal(SEVERAL, 16, 1)
    X[:3] *= farthest / X[:3].norm(dim=1, keepdim=True)
    Z[0] = X[0] + 0.1 * X[5]
    check_cross(kernels.Matern(1.5, torch.linspace(0.8, 3.0, 16)), X, Z, 2e-4)


def test_second_derivatives_of_cross_products() -> None:
    kernel = KERNELS["Matern-5/2"]()
    X, Z, V = normal(5, 2, 0), normal(20, 2, 1), normal(20, 1, 2)
    results = []
    for dtype, way in ((torch.float32, "fused"), (torch.float64, "streamed")):
        A = X.to(dtype, copy=True).requires_grad_()
        value = cross_product(kernel, A, Z.to(dtype), V.to(dtype), backend=way)
        (gradient,) = torch.autograd.grad(value.sum(), A, create_graph=True)
        results.append(torch.autograd.grad(gradient.square().sum(), A)[0])
    assert error(*results) < 1e-4
