"""H = K + Sigma against its dense float64 twin, whatever the backend and the tiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pathgp import Compute, kernels
from pathgp.operators import KernelOperator

N, S = 90, 3

KERNELS: dict[str, Callable[[], kernels.Kernel]] = {
    "matern": lambda: kernels.Scale(kernels.Matern(1.5, torch.tensor([0.3, 0.5])), 1.3),
    # Its square root at zero distance is where a rounded diagonal would show.
    "matern-1/2": lambda: kernels.Matern(0.5, 0.7),
    "sum": lambda: kernels.Scale(kernels.SquaredExponential(0.4), 0.8) + kernels.Linear(0.5),
    "product": lambda: kernels.Periodic(0.7, 1.1) * kernels.RationalQuadratic(0.9, 0.6),
}
NOISE: dict[str, Callable[[], float | Tensor]] = {
    "scalar": lambda: 0.3,
    "per-point": lambda: torch.linspace(0.1, 0.5, N, dtype=torch.float64),
}
BACKENDS = ["dense", "streamed"]


def inputs(dtype: torch.dtype, n: int = N) -> Tensor:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def vectors(dtype: torch.dtype, rows: int = N, seed: int = 1) -> Tensor:
    return torch.randn(rows, S, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def twin(kernel: kernels.Kernel, X: Tensor, noise: float | Tensor) -> Tensor:
    variance = torch.as_tensor(noise, dtype=torch.float64).square().expand(X.shape[0])
    return kernel(X.double()) + torch.diag(variance)


def small_tiles(backend: str, dtype: torch.dtype) -> int:
    """A budget that holds K where it must be held, and otherwise makes tiles of about 25 rows."""
    return N**2 * 8 if backend == "dense" else 25**2 * (96 if dtype == torch.float32 else 160)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("name", KERNELS)
def test_products_and_entries(name: str, noise: str, backend: str, dtype: torch.dtype) -> None:
    kernel, X = KERNELS[name](), inputs(dtype)
    H = KernelOperator(kernel, X, NOISE[noise](), Compute(backend=backend, memory=small_tiles(backend, dtype)))
    with torch.no_grad():
        dense = twin(kernel, X, NOISE[noise]())
    index = torch.tensor([5, 88, 0, 41, 42, 43, 17])
    V, D = vectors(dtype), vectors(dtype, len(index), seed=2)
    close = {"rtol": 0.0, "atol": 1e3 * torch.finfo(dtype).eps}

    torch.testing.assert_close((H @ V).double(), dense @ V.double(), **close)
    torch.testing.assert_close(H.rows(index, V).double(), dense[index] @ V.double(), **close)
    torch.testing.assert_close(H.columns(index, D).double(), dense[:, index] @ D.double(), **close)
    torch.testing.assert_close(H.block(index).double(), dense[index][:, index], **close)
    torch.testing.assert_close(H.diagonal().double(), dense.diagonal(), **close)
    assert (H.shape, H.dtype, H.backend) == ((N, N), dtype, backend)
    assert H.cost() == 1.0
    assert H.cost(45) == 0.5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("name", KERNELS)
def test_bilinear_value_and_all_gradients(name: str, noise: str, backend: str) -> None:
    kernel, X = KERNELS[name](), inputs(torch.float64)
    deviation = torch.as_tensor(NOISE[noise](), dtype=torch.float64).requires_grad_()
    L, R = vectors(torch.float64), vectors(torch.float64, seed=2)
    H = KernelOperator(kernel, X, deviation, Compute(backend=backend, memory=small_tiles(backend, torch.float64)))
    value = H.bilinear(L, R)
    expected = (L * (twin(kernel, X, deviation.detach()) @ R)).sum()
    torch.testing.assert_close(value, expected)

    parameters = [*kernel.parameters(), deviation]
    dense = kernel(X) + torch.diag(deviation.square().expand(N))
    found = torch.autograd.grad(3 * value, parameters)
    wanted = torch.autograd.grad(3 * (L * (dense @ R)).sum(), parameters)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bilinear_with_symmetric_weights(backend: str) -> None:
    kernel, R = KERNELS[next(iter(KERNELS))](), vectors(torch.float64)
    L = R * torch.linspace(-1.0, 2.0, R.shape[1], dtype=torch.float64)
    H = KernelOperator(
        kernel, inputs(torch.float64), 0.1, Compute(backend=backend, memory=small_tiles(backend, torch.float64))
    )
    values = [H.bilinear(L, R, symmetric=symmetric) for symmetric in (True, False)]
    torch.testing.assert_close(*values)
    for a, b in zip(*(torch.autograd.grad(value, list(kernel.parameters())) for value in values), strict=True):
        torch.testing.assert_close(a, b)


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_is_a_snapshot(backend: str) -> None:
    kernel = kernels.Scale(kernels.Matern(1.5, 0.3), 1.0)
    noise = torch.full((N,), 0.2, dtype=torch.float64)
    V, index = vectors(torch.float64), torch.arange(0, N, 7)
    H = KernelOperator(kernel, inputs(torch.float64), noise, Compute(backend))
    before = (H @ V, H.rows(index, V), H.block(index), H.bilinear(V, V).detach())
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(1.0)
        noise.mul_(3.0)
    after = (H @ V, H.rows(index, V), H.block(index))
    for a, b in zip(after, before, strict=False):
        assert torch.equal(a, b)


def test_one_operator_instead_of_another() -> None:
    """The memory of K and the budget are taken over, the numbers are not."""
    X, V = inputs(torch.float32), vectors(torch.float32)
    old = KernelOperator(KERNELS["matern"](), X, 0.3, Compute(backend="dense", memory=10**6))
    address = old._tiles.K.data_ptr()
    new = KernelOperator(KERNELS["product"](), X, 0.2, reuse=old, compute=Compute("dense"))
    assert new._tiles.K.data_ptr() == address
    assert new.memory == 10**6
    assert torch.equal(new @ V, KernelOperator(KERNELS["product"](), X, 0.2, Compute("dense")) @ V)


@pytest.mark.parametrize(("n", "dtype", "backend"), [(N + 1, torch.float32, "dense"), (N, torch.float64, "streamed")])
def test_instead_of_an_operator_of_another_kind(n: int, dtype: torch.dtype, backend: str) -> None:
    X = inputs(dtype, n)
    old = KernelOperator(KERNELS["matern"](), inputs(torch.float32), 0.3, Compute(backend="dense", memory=10**6))
    new = KernelOperator(KERNELS["matern"](), X, 0.3, reuse=old, compute=Compute(backend))
    V = vectors(dtype, n)
    assert new.memory > 10**6
    assert torch.equal(new @ V, KernelOperator(KERNELS["matern"](), X, 0.3, Compute(backend)) @ V)


def test_products_carry_no_graph() -> None:
    noise = torch.tensor(0.2, requires_grad=True)
    for backend in BACKENDS:
        H = KernelOperator(kernels.Matern(1.5, 0.3), inputs(torch.float32), noise, Compute(backend))
        V = vectors(torch.float32)
        assert not (H @ V).requires_grad
        assert not H.block(torch.arange(5)).requires_grad
        assert not H.diagonal().requires_grad


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
    kernel, X = KERNELS["matern"](), inputs(torch.float32)
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
    H = KernelOperator(kernel, X)
    with pytest.raises(ValueError, match=r"\(90, s\)"):
        H @ torch.ones(90)
    with pytest.raises(ValueError, match=r"\(2, s\)"):
        H.columns(torch.tensor([0, 1]), torch.ones(3, 1))
    with pytest.raises(TypeError, match="convert V"):
        H @ torch.ones(90, 1, dtype=torch.float64)
    with pytest.raises(TypeError, match="convert R"):
        H.bilinear(torch.ones(90, 1), torch.ones(90, 1, dtype=torch.float64))
