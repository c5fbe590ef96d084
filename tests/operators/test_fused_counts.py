"""Fused Tanimoto kernels on counts against dense float64 values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fused_cases import DEVICE, N, check_products, counts, error, normal
from pathgp import Compute, kernels
from pathgp.operators import KernelOperator, cross_product
from pathgp.operators.fused import leaves

pytest.importorskip("triton", minversion="3.6")

FINGERPRINTS: dict[str, Callable[[], kernels.Kernel]] = {
    "alone": kernels.Tanimoto,
    "scaled": lambda: kernels.Scale(kernels.Tanimoto(), 1.3),
    "sum": lambda: (
        kernels.Scale(kernels.Tanimoto(range(40)), 0.7) * kernels.Matern(1.5, 1.0, [40])
        + kernels.Scale(kernels.Tanimoto(range(30, 90)), 0.4)
    ),
}


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_fingerprints(name: str) -> None:
    kernel, X = FINGERPRINTS[name](), counts(N, 90, 0.3, 0)
    check_products(kernel, X, s=3)
    L, R = normal(N, 3, 1), normal(N, 3, 2)
    value = KernelOperator(kernel, X, 0.1, Compute("fused")).bilinear(L, R)
    expected = (L.double() * (kernel(X.double()) @ R.double() + 0.01 * R)).sum()
    assert error(value, expected) < 1e-5
    if learned := list(kernel.parameters()):
        for a, b in zip(*(torch.autograd.grad(v, learned) for v in (value, expected)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("d", "rate"), [(300, 0.02), (200, 0.6), (40, 25.0)], ids=["binary", "counts", "many levels"])
def test_fingerprints_of_any_length(d: int, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of the rows held in shared memory, or read again for every tile; equal ones have their exact variance."""
    monkeypatch.setattr(leaves, "HELD_LEVELS", 1000)
    kernel, X = kernels.Tanimoto(), counts(60, d, rate, 0).repeat(2, 1)
    H = KernelOperator(kernel, X, 0.0, Compute("fused"))
    assert torch.equal((H @ torch.eye(120, device=DEVICE)).diagonal(60), torch.ones(60, device=DEVICE))
    check_products(kernel, X, s=2)


def test_cross_products_of_fingerprints() -> None:
    """Counts beyond those of the data among them; the gradient is streamed."""
    X, Z, V = counts(37, 90, 1.0, 0), counts(N, 90, 0.3, 1), normal(N, 3, 2)
    results = []
    for dtype, way in ((torch.float32, "fused"), (torch.float64, "streamed")):
        A = X.to(dtype, copy=True).requires_grad_()
        found = cross_product(kernels.Scale(kernels.Tanimoto(), 0.8), A, Z.to(dtype), V.to(dtype), backend=way)
        results.append((found, torch.autograd.grad(found.sum(), A)[0]))
    assert error(results[0][0], results[1][0]) < 2e-6
    assert error(results[0][1], results[1][1]) < 2e-5
