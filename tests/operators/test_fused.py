"""Fused products against dense float64 values."""

from __future__ import annotations

import pytest
import torch

from fused_cases import DEVICE, KERNELS, KERNELS_AND_FORMS, SEVERAL, N, check_product, check_products, error, normal
from pathgp import Compute, kernels
from pathgp.operators import KernelOperator
from pathgp.operators.dense import Dense
from pathgp.operators.fused import backend, engine

pytest.importorskip("triton", minversion="3.6")


@pytest.mark.parametrize(("name", "form"), KERNELS_AND_FORMS, indirect=["form"])
def test_every_kernel(name: str, form: str) -> None:
    check_product(KERNELS[name](), normal(N, 2, 0), s=3)


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("nu", [0.5, 1.5])
@pytest.mark.parametrize("d", [3, 26])
def test_entries(nu: float, d: int, precision: str) -> None:
    """Of blocks, with repeated rows, and of a dense K: of float32 whatever the precision of products."""
    kernel, X = kernels.Scale(kernels.Matern(nu, 0.3 * d**0.5), 1.3), normal(N, d, 0)
    index = torch.tensor([3, 1, N - 1, 3, 70], device=DEVICE)
    expected = kernel(X.double()).detach()
    H = KernelOperator(kernel, X, 0.3, Compute(backend="fused", precision=precision)).low_precision
    block = H.block(index)
    torch.testing.assert_close(block, (expected[index][:, index] + 0.09 * torch.eye(5, device=DEVICE)).float())
    assert block[0, 3] == H.diagonal()[3] - 0.09
    tiles = backend.Fused(kernel, X, 10**9, precision)
    dense = Dense(tiles)
    torch.testing.assert_close(dense.K, expected.float())
    assert torch.equal(dense.K.diagonal(), tiles.variances)
    learned = list(kernel.parameters())
    L, R = normal(N, 2, 1), normal(N, 2, 2)
    for a, b in zip(dense.bilinear(L, R, learned)[1], tiles.bilinear(L, R, learned)[1], strict=True):
        assert torch.equal(a, b)


def test_blocks_in_one_launch_and_rows_of_a_sparse_vector() -> None:
    """Blocks of more than one tile; a support that is empty, or that ends within a tile."""
    X = normal(300, 6, 0)
    H = KernelOperator(kernels.Scale(kernels.Matern(1.5, 2.0), 1.3), X, 0.3, Compute(backend="fused"))
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    index = order[:260].reshape(2, 130)
    dense = H.block(torch.arange(300, device=DEVICE)).double()
    for part, block in zip(index, H._blocks(index), strict=True):
        torch.testing.assert_close(block.double(), dense[part][:, part])
    V = torch.zeros(300, 3, device=DEVICE)
    assert not bool(H.sparse_rows(index[1], V, order[:0]).any())
    V[index[0]] = normal(130, 3, 1)
    assert error(H.sparse_rows(index[1], V, index[0]), dense[index[1]] @ V.double()) < 2e-6


@pytest.mark.parametrize("s", [1, 65, 130])
def test_any_number_of_columns(s: int) -> None:
    check_products(KERNELS["Matern-3/2"](), normal(N, 2, 0), s)


@pytest.mark.parametrize("d", [1, 9, 17, 90])
@pytest.mark.parametrize("nu", [0.5, 1.5])
def test_any_number_of_dimensions(d: int, nu: float) -> None:
    check_products(kernels.Matern(nu, torch.linspace(0.5, 1.5, d) * d**0.5), normal(N, d, 0), s=2)


@pytest.mark.parametrize("n", [1, 127, 128, 300])
def test_any_number_of_points(n: int) -> None:
    check_products(KERNELS["sum"](), normal(n, 2, 0), s=2)


def test_several_blocks_of_points(form: str) -> None:
    """Four leaves of three kinds, each with its own offsets."""
    check_products(KERNELS["nested"](), normal(SEVERAL, 2, 0), s=3)


@pytest.mark.parametrize("kernel", ["SE", "Matern-3/2", "RQ"])
@pytest.mark.parametrize("distance", [60.0, 500.0])
def test_a_few_inputs_far_out(kernel: str, distance: float) -> None:
    """A few of them do not cost the others their accuracy, nor the tensor cores; two are close to each other."""
    X = normal(N, 16, 0)
    X[:3] *= distance / X[:3].norm(dim=1, keepdim=True)
    X[1] = X[0] + 0.1 * X[5]
    chosen = {
        "SE": kernels.SquaredExponential(2.0),
        "Matern-3/2": kernels.Matern(1.5, torch.linspace(0.8, 3.0, 16)),
        "RQ": kernels.RationalQuadratic(1.3, 2.0),
    }[kernel]
    check_products(chosen, X, s=3)
    tiles = backend.Fused(chosen, X, 10**9)
    assert {leaf.form for leaf in tiles.engine.frame.structure.leaves} <= {"triple", "split"}
    L, R = normal(N, 2, 1), normal(N, 2, 2)
    wanted = torch.autograd.grad((L.double() * (chosen(X.double()) @ R.double())).sum(), list(chosen.parameters()))
    found = KernelOperator(chosen, X, 0.3, Compute("fused")).bilinear(L, R)
    pairs = (torch.autograd.grad(found, list(chosen.parameters())), wanted)
    assert error(*(torch.cat([g.flatten() for g in gs]) for gs in pairs)) < 2e-4


@pytest.mark.parametrize("d", [3, 16])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_inputs_far_from_the_origin(nu: float, d: int) -> None:
    """Inputs of float32 far from zero, and their exact differences."""
    check_products(kernels.Matern(nu, 2.0), normal(N, d, 0) + 3000.0, s=2)


@pytest.mark.parametrize("d", [3, 26])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_close_points_of_norm_35(nu: float, d: int) -> None:
    """Pairs at distances from 1e-3 to 1, where |x|^2 + |z|^2 - 2 x.z is wrong in every digit."""
    X = normal(N, d, 0)
    X = 35.0 * X / X.norm(dim=1, keepdim=True)
    X[N // 2 :] = (
        X[: N // 2] + normal(N // 2, d, 1) * torch.logspace(-3, 0, N // 2, device=DEVICE).unsqueeze(1) / d**0.5
    )
    check_products(kernels.Matern(nu, 1.0), X, s=2)


@pytest.mark.parametrize("d", [2, 16])
def test_short_length_scales(d: int) -> None:
    X = torch.rand(N, d, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    X[N // 2 :] = X[: N // 2] + 0.01 * normal(N // 2, d, 1) / d**0.5
    check_products(kernels.Matern(1.5, 0.01), X, s=2)


@pytest.mark.parametrize("nu", [0.5, 1.5])
@pytest.mark.parametrize("d", [3, 16])
def test_equal_points_have_their_exact_variance(nu: float, d: int) -> None:
    X = normal(40, d, 0).repeat(3, 1)
    H = KernelOperator(kernels.Matern(nu, 1e-3 * d**0.5), X, 0.0, Compute("fused"))
    found = H @ torch.eye(120, device=DEVICE)
    assert torch.equal(found, torch.eye(40, device=DEVICE).repeat(3, 3))
    far = KernelOperator(kernels.Matern(nu, 0.15 * d**0.5), X, 0.0, Compute("fused"))
    found = far @ torch.eye(120, device=DEVICE)
    assert torch.equal(found[found > 1 - 1e-4], torch.ones(360, device=DEVICE))


def test_columns_of_any_size() -> None:
    """Columns from 1e-30 to 1e30 in one product, one of them zero, and entries of very different size in one column."""
    X, V = normal(N, 2, 0), normal(N, 6, 1)
    V = V * torch.tensor([1e-30, 1.0, 1e30, 0.0, 1e-3, 1e4], device=DEVICE)
    V[:, 4] *= torch.logspace(-6, 0, N, device=DEVICE)
    kernel = KERNELS["Matern-3/2"]()
    found = KernelOperator(kernel, X, 0.0, Compute("fused")) @ V
    expected = kernel(X.double()).detach() @ V.double()
    assert torch.equal(found[:, 3], torch.zeros_like(found[:, 3]))
    for c in (0, 1, 2, 4, 5):
        assert error(found[:, c], expected[:, c]) < 2e-6


@pytest.mark.parametrize(("n", "parts"), [(520, 5), (2250, 18)])
def test_the_contraction_is_split_and_repeats_itself(n: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_SHORTEST", 128)
    X, index = normal(n, 3, 0), torch.arange(0, 520, 7, device=DEVICE)
    kernel, V = kernels.Matern(1.5, 0.8), normal(n, 2, 1)
    H = KernelOperator(kernel, X, 0.0, Compute("fused"))
    assert engine.split(1, 128 * parts, 64) == (parts, 128)
    first = H.rows(index, V)
    assert torch.equal(first, H.rows(index, V))
    assert error(first, kernel(X.double()).detach()[index] @ V.double()) < 2e-6


def test_a_snapshot_without_a_graph() -> None:
    kernel, X, V = KERNELS["nested"](), normal(N, 2, 0), normal(N, 2, 1)
    H = KernelOperator(kernel, X, 0.1, Compute("fused"))
    before = H @ V
    for parameter in kernel.parameters():
        parameter.requires_grad_(False).add_(1.0)
    assert torch.equal(H @ V, before)
    assert not before.requires_grad
    assert not H.bilinear(V, V).requires_grad


def test_widths() -> None:
    widths = {
        1: (16, 0),
        16: (16, 0),
        17: (32, 0),
        33: (32, 16),
        64: (64, 0),
        65: (64, 16),
        97: (128, 0),
        128: (128, 0),
    }
    assert {s: engine.column_widths(s) for s in widths} == widths
    assert engine.chunk_widths(2) == (16,)
    assert engine.chunk_widths(130) == (64, 64, 16)
    assert engine.chunk_widths(190) == (64, 64, 64)
    assert engine.split(10_000, 10**6, 64) == (1, 10**6)
