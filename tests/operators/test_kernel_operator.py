"""H = K + Sigma of a table: rounding, memory that is used again, features, errors. Products: tests/conformance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernel_cases import KERNELS
from pathgp import Compute, kernels
from pathgp.operators import KernelOperator

N, S = 90, 3

BACKENDS = ["dense", "streamed"]


def inputs(dtype: torch.dtype, n: int = N) -> Tensor:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def vectors(dtype: torch.dtype, rows: int = N, seed: int = 1) -> Tensor:
    return torch.randn(rows, S, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def small_tiles(backend: str, dtype: torch.dtype) -> int:
    """A budget that holds K where it must be held, and otherwise makes tiles of about 25 rows."""
    return N**2 * 8 if backend == "dense" else 25**2 * (96 if dtype == torch.float32 else 160)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shift", [0.0, 100.0])
@pytest.mark.parametrize("lengthscale", [0.01, 0.5])
def test_float32_is_float64_rounded(lengthscale: float, shift: float, backend: str) -> None:
    """Short length scales and inputs far from zero, where |x|^2 + |z|^2 - 2 x.z would cancel."""
    X = (inputs(torch.float64) * (20 * lengthscale) + shift).float()
    V, L, R = vectors(torch.float32), vectors(torch.float32, seed=2), vectors(torch.float32, seed=3)
    results = []
    for dtype in (torch.float32, torch.float64):
        kernel = kernels.Scale(kernels.Matern(1.5, torch.full((2,), lengthscale)), 1.1)
        H = KernelOperator(kernel, X.to(dtype), 0.1, Compute(backend=backend, memory=small_tiles(backend, dtype)))
        value = H.bilinear(L.to(dtype), R.to(dtype))
        gradients = torch.autograd.grad(value, list(kernel.parameters()))
        results.append((H @ V.to(dtype), value.detach(), *gradients))
    for low, high in zip(*results, strict=True):
        error = (low.double() - high).abs().max() / high.abs().max().clamp_min(1.0)
        assert float(error) < 1e-4


def test_one_operator_instead_of_another() -> None:
    """The memory of K and the budget are taken over, the numbers are not."""
    X, V = inputs(torch.float32), vectors(torch.float32)
    old = KernelOperator(KERNELS["Matern-3/2"](), X, 0.3, Compute(backend="dense", memory=10**6))
    address = old._tiles.K.data_ptr()
    new = KernelOperator(KERNELS["product"](), X, 0.2, reuse=old, compute=Compute("dense"))
    assert new._tiles.K.data_ptr() == address
    assert new.memory == 10**6
    assert torch.equal(new @ V, KernelOperator(KERNELS["product"](), X, 0.2, Compute("dense")) @ V)


@pytest.mark.parametrize(("n", "dtype", "backend"), [(N + 1, torch.float32, "dense"), (N, torch.float64, "streamed")])
def test_instead_of_an_operator_of_another_kind(n: int, dtype: torch.dtype, backend: str) -> None:
    X = inputs(dtype, n)
    old = KernelOperator(KERNELS["Matern-3/2"](), inputs(torch.float32), 0.3, Compute(backend="dense", memory=10**6))
    new = KernelOperator(KERNELS["Matern-3/2"](), X, 0.3, reuse=old, compute=Compute(backend))
    V = vectors(dtype, n)
    assert new.memory > 10**6
    assert torch.equal(new @ V, KernelOperator(KERNELS["Matern-3/2"](), X, 0.3, Compute(backend)) @ V)


def test_a_frozen_parameter_gets_no_gradient() -> None:
    kernel = kernels.Scale(kernels.Matern(1.5, 0.3), 1.0)
    frozen, learned = list(kernel.parameters())
    frozen.requires_grad_(False)
    V = vectors(torch.float64)
    KernelOperator(kernel, inputs(torch.float64), 0.1).bilinear(V, V).backward()
    assert frozen.grad is None
    assert learned.grad is not None


def test_integer_inputs_become_float64() -> None:
    H = KernelOperator(kernels.SquaredExponential(2.0), torch.arange(6).reshape(-1, 1))
    assert H.dtype == torch.float64


def test_features_are_those_of_the_kernel_at_the_inputs() -> None:
    kernel, X = KERNELS["Matern-3/2"](), inputs(torch.float32)
    H = KernelOperator(kernel, X)
    phi = kernel.features(20, generator=torch.Generator().manual_seed(3))
    assert torch.equal(H.features(20, torch.Generator().manual_seed(3)), phi(X))


def test_errors_say_what_to_do() -> None:
    kernel, X = kernels.Matern(1.5, 0.3), inputs(torch.float32)
    with pytest.raises(TypeError, match="pathgp kernel"):
        KernelOperator("matern", X)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(n, d\)"):
        KernelOperator(kernel, X[:, 0])
    with pytest.raises(ValueError, match="at least one row"):
        KernelOperator(kernel, X[:0])
    with pytest.raises(ValueError, match=r"one per row \(90,\)"):
        KernelOperator(kernel, X, torch.ones(4))
    for bad in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="standard deviation"):
            KernelOperator(kernel, X, bad)
    with pytest.raises(ValueError, match="'auto', 'dense'"):
        KernelOperator(kernel, X, compute=Compute("keops"))
    with pytest.raises(ValueError, match="positive"):
        KernelOperator(kernel, X, compute=Compute(memory=0))
