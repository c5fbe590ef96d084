"""Fused products and gradients against dense float64 values."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import compiled, kernels
from pathgp.operators import KernelOperator, ShardedOperator, cross_product
from pathgp.operators import kernel as kernel_module
from pathgp.operators.dense import Dense
from pathgp.operators.fused import backend, cross, engine, leaves, obstacle, points

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N = 150
KERNELS: dict[str, Callable[[], kernels.Kernel]] = {
    "SE": lambda: kernels.SquaredExponential(torch.tensor([0.4, 0.9])),
    "Matern-1/2": lambda: kernels.Matern(0.5, 0.7),
    "Matern-3/2": lambda: kernels.Scale(kernels.Matern(1.5, torch.tensor([0.5, 0.3])), 1.3),
    "Matern-5/2": lambda: kernels.Scale(kernels.Matern(2.5, 0.8), 0.2),
    "RQ": lambda: kernels.RationalQuadratic(0.9, 0.6),
    "RQ, almost SE": lambda: kernels.RationalQuadratic(200.0, 0.6),
    "Periodic": lambda: kernels.Periodic(torch.tensor([0.7, 1.9]), 1.1),
    "Linear": lambda: kernels.Linear(torch.tensor([0.5, 1.5]), bias=0.3),
    "sum": lambda: kernels.Scale(kernels.SquaredExponential(0.4), 0.8) + kernels.Linear(0.5),
    "product": lambda: kernels.Periodic(0.7, 1.1) * kernels.RationalQuadratic(0.9, 0.6),
    "disjoint": lambda: kernels.Matern(2.5, 0.4, active_dims=[1]) * kernels.Matern(0.5, 0.9, active_dims=[0]),
    "nested": lambda: kernels.Scale(
        kernels.Scale(kernels.Scale(kernels.Matern(1.5, 0.5), 1.2) * kernels.Linear(0.7, active_dims=[1]), 0.8)
        + kernels.Scale(kernels.Scale(kernels.SquaredExponential(1.5), 0.6), 0.9) * kernels.Matern(0.5, 2.0),
        1.1,
    ),
}


def normal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def error(found: Tensor, expected: Tensor) -> float:
    return float(((found.double() - expected).norm() / expected.norm()).detach())


def check_products(kernel: kernels.Kernel, X: Tensor, s: int, bound: float = 2e-6, precision: str = "high") -> None:
    H = KernelOperator(kernel, X, 0.3, "fused", precision=precision).inner
    with torch.no_grad():
        dense = kernel(X.double())
        dense.diagonal().add_(0.09)
    V = normal(len(X), s, 1)
    index = torch.randint(len(X), (37,), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    D = normal(len(index), s, 3)
    assert H.backend == "fused"
    assert error(H @ V, dense @ V.double()) < bound
    assert error(H.rows(index, V), dense[index] @ V.double()) < bound
    assert error(H.columns(index, D), dense[:, index] @ D.double()) < bound
    dense.diagonal().sub_(0.09)
    assert error(H.between(index[:20], index), dense[index[:20]][:, index]) < 2e-6


@pytest.fixture(params=["differences", "split", "triple"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All that can be done with few dimensions, done by differences or by tensor cores."""
    monkeypatch.setattr(points, "_FEW", 16 if request.param == "differences" else 0)
    if request.param == "triple":
        monkeypatch.setattr(points, "_SPLIT_RADIUS", 0.0)
    return str(request.param)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel(name: str, form: str) -> None:
    check_products(KERNELS[name](), normal(N, 2, 0), s=3)


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("nu", [0.5, 1.5])
@pytest.mark.parametrize("d", [3, 26])
def test_entries(nu: float, d: int, precision: str) -> None:
    """Of blocks, with repeated rows, and of a dense K: of float32 whatever the precision of products."""
    kernel, X = kernels.Scale(kernels.Matern(nu, 0.3 * d**0.5), 1.3), normal(N, d, 0)
    index = torch.tensor([3, 1, 149, 3, 70], device=DEVICE)
    expected = kernel(X.double()).detach()
    H = KernelOperator(kernel, X, 0.3, "fused", precision=precision).inner
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
    found = KernelOperator(chosen, X, 0.3, "fused").bilinear(L, R)
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
@pytest.mark.parametrize("d", [3, 26])
def test_equal_points_have_their_exact_variance(nu: float, d: int) -> None:
    X = normal(40, d, 0).repeat(3, 1)
    H = KernelOperator(kernels.Matern(nu, 1e-3 * d**0.5), X, 0.0, "fused")
    found = H @ torch.eye(120, device=DEVICE)
    assert torch.equal(found, torch.eye(40, device=DEVICE).repeat(3, 3))
    far = KernelOperator(kernels.Matern(nu, 0.15 * d**0.5), X, 0.0, "fused")
    found = far @ torch.eye(120, device=DEVICE)
    assert torch.equal(found[found > 1 - 1e-4], torch.ones(360, device=DEVICE))


@pytest.mark.parametrize("precision", ["medium", "low"])
def test_the_posterior_does_not_depend_on_the_precision(precision: str) -> None:
    X, Xs = normal(N, 3, 0), normal(20, 3, 1)
    y = X.sum(1).sin()
    gp = pathgp.GP(kernels.Matern(1.5, 2.0), noise=0.3)
    options = {"solver": "cg", "samples": 2, "features": 16, "tol": 1e-4, "backend": "fused"}
    high, cheap = (
        gp.condition(X, y, **options, precision=p, generator=torch.Generator().manual_seed(0))
        for p in ("high", precision)
    )
    assert "refinement" in cheap.report.solution.note
    assert "refinement" not in high.report.solution.note
    assert high.report.products == "high precision"
    off = float(cheap.report.products.removeprefix(f"{precision} precision, off by "))
    assert 1e-5 < off < 1e-2  # beside H d, which is smaller than |H| |d|
    assert cheap.report.worst_residual <= 1e-4
    torch.testing.assert_close(cheap.mean(Xs), high.mean(Xs), rtol=0, atol=1e-3)
    torch.testing.assert_close(cheap.paths(Xs), high.paths(Xs), rtol=0, atol=1e-3)


ROUGH: dict[str, Callable[[float], kernels.Kernel]] = {
    "SE": kernels.SquaredExponential,
    "Matern-1/2": lambda l: kernels.Matern(0.5, l),
    "Matern-3/2": lambda l: kernels.Scale(kernels.Matern(1.5, l), 1.3),
    "Matern-5/2": lambda l: kernels.Matern(2.5, l),
    "RQ": lambda l: kernels.RationalQuadratic(50.0, l),
    "sum": lambda l: kernels.Scale(kernels.SquaredExponential(l), 0.8) + kernels.Matern(1.5, 2.0 * l),
    "product": lambda l: kernels.SquaredExponential(1.5 * l) * kernels.Matern(2.5, 1.5 * l),
}


@pytest.mark.parametrize(("precision", "bound"), [("medium", 1e-3), ("low", 4e-3)])
@pytest.mark.parametrize(("d", "farthest"), [(3, 3.0), (16, 3.0), (16, 36.0)])
@pytest.mark.parametrize("name", ROUGH)
def test_cheaper_products(name: str, d: int, farthest: float, precision: str, bound: float) -> None:
    """Within the error that is stated, also where three inputs lie so many length scales from the others."""
    l = 0.5 * d**0.5
    X = normal(N, d, 0)
    X[:3] *= farthest * l / X[:3].norm(dim=1, keepdim=True)
    check_products(ROUGH[name](l), X, 3, bound, precision)


def test_inputs_are_rounded_where_the_error_allows_it() -> None:
    """Low precision: a Matern kernel falls less steeply than a squared exponential, a product more than its factors."""
    X = normal(N, 16, 0)
    farthest = X.norm(dim=1).max()

    def forms(kernel: kernels.Kernel) -> list[str]:
        frame = backend.Fused(kernel, X, 10**9, "low").engine.frame
        return [leaf.form for leaf in frame.structure.leaves]

    gauss, matern = (lambda l: kernels.SquaredExponential(float(l))), (lambda l: kernels.Matern(1.5, float(l)))
    assert forms(gauss(farthest / 4.0)) == forms(matern(farthest / 12.0)) == ["coarse"]
    assert forms(gauss(farthest / 6.0)) == ["split"]
    assert forms(matern(farthest / 12.0) * matern(farthest / 4.0)) == ["split", "coarse"]
    assert forms(matern(farthest / 16.0)) == ["triple"]


def test_columns_of_any_size() -> None:
    """Columns from 1e-30 to 1e30 in one product, one of them zero, and entries of very different size in one column."""
    X, V = normal(N, 2, 0), normal(N, 6, 1)
    V = V * torch.tensor([1e-30, 1.0, 1e30, 0.0, 1e-3, 1e4], device=DEVICE)
    V[:, 4] *= torch.logspace(-6, 0, N, device=DEVICE)
    kernel = KERNELS["Matern-3/2"]()
    found = KernelOperator(kernel, X, 0.0, "fused") @ V
    expected = kernel(X.double()).detach() @ V.double()
    assert torch.equal(found[:, 3], torch.zeros_like(found[:, 3]))
    for c in (0, 1, 2, 4, 5):
        assert error(found[:, c], expected[:, c]) < 2e-6


@pytest.mark.parametrize(("n", "parts"), [(520, 5), (2250, 18)])
def test_the_contraction_is_split_and_repeats_itself(n: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_SHORTEST", 128)
    X, index = normal(n, 3, 0), torch.arange(0, 520, 7, device=DEVICE)
    kernel, V = kernels.Matern(1.5, 0.8), normal(n, 2, 1)
    H = KernelOperator(kernel, X, 0.0, "fused")
    assert engine.split(1, 128 * parts, 64) == (parts, 128)
    first = H.rows(index, V)
    assert torch.equal(first, H.rows(index, V))
    assert error(first, kernel(X.double()).detach()[index] @ V.double()) < 2e-6


@pytest.mark.parametrize("name", KERNELS)
def test_bilinear_value_and_all_gradients(name: str, form: str) -> None:
    kernel, X = KERNELS[name](), normal(N, 2, 0)
    deviation = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    L, R = normal(N, 3, 1), normal(N, 3, 2)
    value = KernelOperator(kernel, X, deviation, "fused").bilinear(L, R)
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
    kernel, X = kernels.Scale(kernels.Matern(1.5, torch.full((d,), d**0.5)), 1.2), normal(N, d, 0) + 100.0
    R = normal(N, s, 2)
    L = R * torch.linspace(-1.0, 2.0, s, device=DEVICE) if symmetric else normal(N, s, 1)
    value = KernelOperator(kernel, X, 0.1, "fused").bilinear(L, R, symmetric)
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


@pytest.mark.parametrize("name", KERNELS)
def test_cross_products_and_their_gradient(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()

    def recorded(frame: points.Frame) -> engine.Engine:
        used.update(leaf.form for leaf in frame.structure.leaves if leaf.kind not in ("linear", "matern12"))
        return engine.Engine.of(frame)

    monkeypatch.setattr(cross, "Engine", SimpleNamespace(of=recorded))
    check_cross(KERNELS[name](), normal(37, 2, 0), normal(N, 2, 1) + 0.5, 2e-5)
    assert used == (set() if name in ("Matern-1/2", "Linear") else {form})


@pytest.mark.parametrize("farthest", [5.0, 60.0, 500.0])
def test_cross_products_in_many_dimensions(farthest: float) -> None:
    """Rows of X far from all of Z among them, and close to one that lies there too."""
    X, Z = normal(37, 16, 0), normal(N, 16, 1)
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


def counts(n: int, d: int, rate: float, seed: int) -> Tensor:
    """Fingerprints, the first two empty."""
    X = torch.poisson(torch.full((n, d), rate), generator=torch.Generator().manual_seed(seed))
    X[:2] = 0.0
    return X.to(DEVICE)


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
    value = KernelOperator(kernel, X, 0.1, "fused").bilinear(L, R)
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
    H = KernelOperator(kernel, X, 0.0, "fused")
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


def test_a_snapshot_without_a_graph() -> None:
    kernel, X, V = KERNELS["nested"](), normal(N, 2, 0), normal(N, 2, 1)
    H = KernelOperator(kernel, X, 0.1, "fused")
    before = H @ V
    for parameter in kernel.parameters():
        parameter.requires_grad_(False).add_(1.0)
    assert torch.equal(H @ V, before)
    assert not before.requires_grad
    assert not H.bilinear(V, V).requires_grad


def test_nothing_to_do() -> None:
    H = KernelOperator(KERNELS["SE"](), normal(5, 2, 0), 0.1, "fused")
    none = torch.empty(0, dtype=torch.int64, device=DEVICE)
    V = normal(5, 2, 1)
    assert H.rows(none, V).shape == (0, 2)
    assert torch.equal(H.columns(none, V[:0]), torch.zeros_like(V))
    assert (H @ V[:, :0]).shape == (5, 0)


def test_what_is_not_fused_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    X = normal(5, 2, 0)
    with pytest.raises(ValueError, match="no fused tile for Task"):
        KernelOperator(kernels.SquaredExponential(1.0) + kernels.Task(3, active_dims=[0]), X, backend="fused")
    with pytest.raises(ValueError, match="for counts"):
        KernelOperator(kernels.Tanimoto(), X.abs(), backend="fused")
    with pytest.raises(ValueError, match="add up to 9000"):
        KernelOperator(kernels.Tanimoto(), torch.ones(5, 9000, device=DEVICE), backend="fused")
    with pytest.raises(ValueError, match="for counts"):
        cross_product(kernels.Tanimoto(), X.abs(), X.abs().round(), X, backend="fused")
    with pytest.raises(ValueError, match="no fused tile for Matern"):
        cross_product(kernels.Matern(0.7, 1.0), X, X, X, backend="fused")
    with pytest.raises(ValueError, match="float32"):
        KernelOperator(kernels.SquaredExponential(1.0), X.double(), backend="fused")
    with pytest.raises(ValueError, match="'high', 'medium', 'low'"):
        KernelOperator(kernels.SquaredExponential(1.0), X, precision="half")
    with pytest.raises(ValueError, match="'streamed' or 'fused'"):
        cross_product(kernels.SquaredExponential(1.0), X, X, X, backend="dense")
    monkeypatch.setattr(compiled, "interpreting", lambda: False)
    with pytest.raises(ValueError, match="CUDA"):
        KernelOperator(kernels.SquaredExponential(1.0), X.cpu(), backend="fused")


def test_the_automatic_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: fused above a number of rows or where K does not fit, else dense or streamed with the reason."""
    monkeypatch.setattr(kernel_module, "_on_gpu", lambda device: True)
    monkeypatch.setattr(kernel_module, "SMALL", 100)
    matern, tanimoto, X = KERNELS["SE"](), kernels.Tanimoto(), normal(N, 2, 0).abs()
    assert KernelOperator(matern, X).backend == "fused"
    assert ShardedOperator(matern, X, group=pathgp.Devices([DEVICE])).backend == "fused"
    assert KernelOperator(matern, X[:100]).backend == "dense"
    assert KernelOperator(matern, X[:100], memory=10_000).backend == "fused"
    assert KernelOperator(matern, X, backend="streamed").backend == "streamed"
    kept = KernelOperator(matern, X, backend="dense")
    assert kept.backend == "dense"
    assert isinstance(kept._tiles, Dense)
    assert isinstance(kept._tiles.tiles, backend.Fused)
    assert not kept.obstacle
    assert "dense: fused Tanimoto kernels are for counts" in repr(KernelOperator(tanimoto, X))
    assert "streamed: fused Tanimoto" in repr(KernelOperator(tanimoto, X, memory=50_000))
    assert "float64" in KernelOperator(matern, X.double()).obstacle


def test_what_does_not_fit_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many columns: in two parts they may fit, in three not; differences and bits need no room for points."""
    monkeypatch.setattr(kernel_module, "_on_gpu", lambda device: True)
    monkeypatch.setattr(kernel_module, "SMALL", 0)
    matern, crowd = kernels.Matern(1.5, 20.0), kernels.Sum(*(kernels.Matern(1.5, 20.0) for _ in range(5)))
    for kernel, d in ((matern, 600), (crowd, 100)):
        X = normal(20, d, 0)
        H = KernelOperator(kernel, X, memory=1000)
        assert "streamed: " in repr(H)
        assert "too many" in H.obstacle
        V = normal(20, 3, 1)
        expected = kernel(X.double()).detach() @ V.double()
        assert error(cross_product(kernel, X, X, V), expected) < 2e-6
        with pytest.raises(ValueError, match="too many for the tiles of fused products: use backend='auto'"):
            cross_product(kernel, X, X, V, backend="fused")
    X = normal(20, 300, 0)
    assert KernelOperator(matern, X).backend == "fused"
    assert not obstacle(matern, X, X)
    far = torch.cat([X[:19], 20.0 * X[19:]])
    assert "512 prepared columns" in KernelOperator(matern, far).obstacle
    assert "512 prepared columns" in obstacle(matern, far, X)
    assert not obstacle(kernels.Matern(0.5, 20.0), normal(20, 600, 0))
    mixed, X = kernels.Tanimoto(range(80)) * kernels.Matern(1.5, 100.0, range(80, 220)), counts(20, 220, 0.3, 0)
    assert not obstacle(mixed, X)
    assert "256 prepared columns" in obstacle(mixed, 12.0 * X)
    assert not obstacle(mixed, 30.0 * X)


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
