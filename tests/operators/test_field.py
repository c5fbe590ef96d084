"""Field products against dense matrices in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fused_cases import InTurn
from pathgp import GP, Compute, kernels, solvers
from pathgp.compute.boxes import bounding_boxes, close_pairs
from pathgp.kernels import Kernel
from pathgp.operators import FieldOperator, KernelOperator, cross_product
from pathgp.operators import kernel as kernel_operator
from pathgp.operators.field import backend as field_backend
from pathgp.operators.field import cross as field_cross
from pathgp.operators.field.split import Split

N = 600


def scattered(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def image(height: int, width: int, missing: float = 0.3) -> Tensor:
    """Nodes of a grid with different steps, in random order, some of them missing."""
    generator = torch.Generator().manual_seed(1)
    sides = [torch.arange(size, dtype=torch.float64) for size in (height, width)]
    nodes = torch.cartesian_prod(0.1 * sides[0] + 3.0, 0.25 * sides[1] - 1.0)
    return nodes[torch.randperm(len(nodes), generator=generator)[: round((1.0 - missing) * len(nodes))]]


def normal(n: int, s: int, dtype: torch.dtype = torch.float64, seed: int = 2) -> Tensor:
    return torch.randn(n, s, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def error(H: KernelOperator, V: Tensor) -> float:
    """Relative error of K V."""
    with torch.no_grad():
        exact = H.kernel(H.X.double()) @ V.double()
    return float((H @ V - H.noise.to(V) * V - exact).norm() / exact.norm())


CASES = {
    "1 column, rough": (1, lambda: kernels.Matern(0.5, 0.3)),
    "1 column, short": (1, lambda: kernels.Matern(1.5, 0.01)),
    "1 column, SE of many length scales": (1, lambda: kernels.SquaredExponential(0.002)),  # p_smooth is zero
    "2 columns, rough": (2, lambda: kernels.Scale(kernels.Matern(0.5, 0.3), 2.0)),
    "2 columns, long": (2, lambda: kernels.Matern(1.5, 3.0)),
    "2 columns, of any order": (2, lambda: kernels.Matern(0.8, 0.3)),
    "2 columns, length scales": (2, lambda: kernels.Matern(1.5, torch.tensor([0.05, 0.8]))),
    "2 columns, sum": (
        2,
        lambda: kernels.Scale(kernels.Matern(0.5, 0.5), 0.3) + kernels.Matern(2.5, torch.tensor([0.1, 0.4])),
    ),
    "2 columns, SE": (2, lambda: kernels.SquaredExponential(0.1)),
    "2 columns, product of smooth kernels": (
        2,
        lambda: kernels.SquaredExponential(0.3, active_dims=[0]) * kernels.RationalQuadratic(1.0, 0.5, active_dims=[1]),
    ),
    "2 columns, product": (2, lambda: kernels.Matern(1.5, 0.4) * kernels.SquaredExponential(0.7)),
    "3 columns, RQ": (3, lambda: kernels.RationalQuadratic(2.0, 1.0)),
    "3 columns, rough": (3, lambda: kernels.Matern(0.5, 2.0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_products_have_the_accuracy_asked_for(case: str, dtype: torch.dtype) -> None:
    d, make = CASES[case]
    accuracy = 1e-4 if d == 3 else 1e-5
    H = FieldOperator(make(), scattered(N, d).to(dtype), 0.1, accuracy)
    assert H.backend == "field"
    assert error(H, normal(N, 16, dtype)) <= accuracy
    assert H.product_error is not None
    assert 0.0 < H.product_error <= accuracy


@pytest.mark.parametrize("kind", ["clusters", "duplicates", "a line", "two points", "far from the origin"])
def test_unusual_points(kind: str) -> None:
    X = scattered(N, 2)
    if kind == "clusters":
        X[::2] = 0.3 + 0.002 * X[::2]
    elif kind == "duplicates":
        X = X[:50].repeat(N // 50, 1)
    elif kind == "a line":
        X[:, 1] = 0.3
    elif kind == "two points":
        X = X[:2]
    else:
        X += 1e6
    H = FieldOperator(kernels.Matern(0.5, 0.3), X, 0.1)
    assert error(H, normal(len(X), 3)) <= 1.5e-5


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Matern(0.5, 0.2),
        kernels.Periodic(0.7, 1.1),
        kernels.Matern(0.5, 0.4, active_dims=[0]) * kernels.Matern(0.5, 0.9, active_dims=[1]),
        kernels.Matern(0.5, 0.4, active_dims=[1]) + kernels.Matern(0.3, 5.0),
    ],
    ids=repr,
)
def test_points_on_a_grid_are_exact_for_every_stationary_kernel(kernel: Kernel) -> None:
    X = image(20, 30)
    H = FieldOperator(kernel, X, 0.1)
    assert H._tiles.fast.near is None  # type: ignore[union-attr]
    V, L = normal(len(X), 3), normal(len(X), 3, seed=3)
    assert error(H, V) < 1e-12
    parameters = list(kernel.parameters())
    found = torch.autograd.grad(H.bilinear(L, V), parameters)
    wanted = torch.autograd.grad((L * (kernel(X) @ V)).sum(), parameters)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", ["2 columns, rough", "2 columns, long", "2 columns, sum", "1 column, short"])
def test_gradients_of_all_hyperparameters(case: str) -> None:
    """Relative to the largest that any signs of the vectors could give; the diagonal is in every quadratic form."""
    d, make = CASES[case]
    kernel, X, R = make(), scattered(N, d), normal(N, 4)
    H = FieldOperator(kernel, X, 0.1)
    parameters = list(kernel.parameters())
    for L in (R, normal(N, 4, seed=3)):
        found = torch.autograd.grad(H.bilinear(L, R), parameters)
        wanted = torch.autograd.grad((L * (kernel(X) @ R)).sum(), parameters)
        for a, b, p in zip(found, wanted, parameters, strict=True):
            one = torch.autograd.grad(kernel(X).square().sum().sqrt(), p)[0]
            assert float((a - b).norm()) <= 1e-4 * max(float(b.norm()), 2.0 * float(one.norm()))


def test_what_has_no_field_products_says_so() -> None:
    X, k = scattered(50, 2), kernels.Matern(1.5, 0.3)
    for kernel, points, reason in (
        (kernels.Linear(1.0) + k, X, "Linear is not: use backend='auto'"),
        (k, scattered(50, 4), "at most 3 columns, X has 4"),
        (k, X[:1], "at least two different points"),
        (k, X[:1].repeat(5, 1), "at least two different points"),
        (kernels.Periodic(1.0, 1.0), X, "a periodic kernel need points on a regular grid"),
    ):
        with pytest.raises(ValueError, match=reason):
            FieldOperator(kernel, points)
    with pytest.raises(ValueError, match="fits into"):
        FieldOperator(k, X, compute=Compute(memory=10_000))
    with pytest.raises(ValueError, match="reach an error of"):
        FieldOperator(k, X.float(), accuracy=1e-9)
    with pytest.raises(ValueError, match="by one process"):
        FieldOperator(k, X, compute=Compute(group=InTurn(["cpu"] * 2)))
    for accuracy in (0.0, -1.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="accuracy"):
            FieldOperator(k, X, accuracy=accuracy)


def test_the_automatic_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_backend, "LEAST_ROWS", 100)
    X, scattered_X = scattered(10_000, 2).float(), scattered(N, 3)
    k = kernels.Matern(0.5, 0.3)
    small = Compute(memory=100_000_000)
    H = KernelOperator(k, X, compute=small)
    assert H.backend == "field"
    assert H.entry_backend == "streamed"
    # An exact row takes longer than its share of a product.
    assert H.cost(1) > 1.0 / len(X)
    assert H.cost(2) == pytest.approx(2.0 * H.cost(1))
    assert KernelOperator(k, X, compute=small, accuracy=0.0).backend == "streamed"
    assert KernelOperator(k, X, compute=Compute("streamed")).backend == "streamed"
    assert KernelOperator(k, X[:50]).backend == "dense"
    # Few points in three dimensions: the grid would have more nodes than K has entries.
    assert KernelOperator(k, scattered_X).backend == "dense"
    assert KernelOperator(kernels.Linear(1.0), X).backend == "dense"


def test_a_solve_reports_the_error_of_its_products() -> None:
    X = scattered(N, 2)
    H = FieldOperator(kernels.Matern(1.5, 0.2), X, 0.1)
    B = normal(N, 2)
    solution = solvers.CG(solvers.Vecchia(20)).solve(H, B, tol=1e-2)
    exact = KernelOperator(H.kernel, X, 0.1, Compute("dense"))
    residual = (B - exact @ solution.x).norm(dim=0) / B.norm(dim=0)
    assert solution.converged
    assert (residual <= 1.2 * solution.residual).all()
    assert solution.product_error is not None
    assert 0.0 < solution.product_error < 1e-2
    assert "exact rows" in solution.precision_note


def test_a_posterior_is_that_of_exact_products() -> None:
    """Mean, variances and paths with the same draws; differences are those of solves to the same tolerance."""
    X, Xs = scattered(900, 2), scattered(60, 2, seed=5)
    y = torch.sin(7.0 * X[:, 0]) + X[:, 1] + 0.1 * normal(900, 1)[:, 0]
    results = []
    for backend in ("dense", "field"):
        gp = GP(kernels.Scale(kernels.Matern(1.5, 0.3)), noise=0.1)
        generator = torch.Generator().manual_seed(0)
        post = gp.condition(X, y, samples=16, tol=1e-4, generator=generator, compute=Compute(backend))
        results.append((post.mean(Xs), post.variance(Xs, method="samples"), post.paths(Xs)))
        assert post.report.backend == backend
    # Their first error was above this tolerance.
    assert "higher accuracy" in post.report.solution.note
    assert post.report.worst_residual < 2e-4
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)


def test_products_in_float64_follow_if_those_in_float32_are_not_accurate_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many points per length scale: the error of products is common to neighbours, and hides the solution."""
    X, B = scattered(2000, 2).float(), normal(2000, 2, torch.float32)
    H = FieldOperator(kernels.Matern(1.5, 2.0), X, 0.1, accuracy=1e-4)
    solution = solvers.CG(solvers.Vecchia(20)).solve(H, B, tol=1e-3)
    assert solution.converged
    assert "replaced by field products of higher accuracy" in solution.note
    exact = KernelOperator(H.kernel, X.double(), 0.1, Compute("dense"))
    residual = (B.double() - exact @ solution.x.double()).norm(dim=0) / B.double().norm(dim=0)
    assert float(residual.max()) <= 1e-3
    # Without more accurate products that take about the same time the solve ends, and says so.
    monkeypatch.setattr(field_backend, "_MARGIN", 0.0)
    monkeypatch.setattr(kernel_operator, "_MAX_SLOWDOWN", 0.0)
    solution = solvers.CG(solvers.Vecchia(20)).solve(H, B, tol=1e-3)
    assert solution.status is solvers.Status.STALLED
    assert "would take far longer" in solution.note


@pytest.mark.parametrize("kind", ["scattered", "grid"])
def test_products_of_predictions(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_cross, "_LEAST_ENTRIES", 1)
    monkeypatch.setattr(field_cross, "_MUCH_LESS", math.inf)
    calls = []
    product = field_cross.FieldProduct.product
    monkeypatch.setattr(field_cross.FieldProduct, "product", lambda *args: calls.append(1) or product(*args))
    Z = image(20, 30) if kind == "grid" else scattered(N, 2)
    X = image(20, 30, 0.5) if kind == "grid" else 1.2 * scattered(300, 2, seed=4) - 0.1
    X.requires_grad_()
    kernel, V = kernels.Matern(0.5, 0.4), normal(len(Z), 3)
    found = cross_product(kernel, X, Z, V)
    assert calls
    wanted = kernel(X.detach(), Z).detach() @ V
    assert float((found.detach() - wanted).norm() / wanted.norm()) <= 1e-5
    exact = cross_product(kernel, X, Z, V, backend="exact")
    assert len(calls) == 1
    slopes = [torch.autograd.grad(values.sum(), X)[0] for values in (found, exact)]
    assert torch.equal(*slopes)


def test_a_split_adds_up_and_ends_at_its_radius() -> None:
    kernel = kernels.Scale(kernels.Matern(0.5, torch.tensor([0.5, 2.0])), 1.5)
    leaf = kernel.kernel
    assert isinstance(leaf, kernels.Matern)
    split = Split(1e-5, 1e-7, 2, {leaf: 0.4})
    lags = [torch.linspace(0.0, 1.0, 101, dtype=torch.float64), torch.zeros(101, dtype=torch.float64)]
    with torch.no_grad():
        near = split.near(kernel, [side.clone() for side in lags])
    assert near[0] > 0.05
    assert (near[21:] == 0.0).all()
    # A larger radius, or less accuracy, needs fewer frequencies.
    widths = [Split(1e-5, 1e-7, 2, {leaf: radius}).bandwidth(leaf, 10.0) for radius in (0.1, 0.4, 1.6)]
    assert widths == sorted(widths, reverse=True)
    assert Split(1e-3, 1e-4, 2, {leaf: 0.4}).bandwidth(leaf, 10.0) < widths[1]


@pytest.mark.parametrize("symmetric", [True, False])
def test_close_pairs_of_blocks(symmetric: bool) -> None:
    rows = bounding_boxes(scattered(1200, 2).view(300, 4, 2) / 20 + scattered(300, 2, seed=1).unsqueeze(1))
    columns = rows if symmetric else bounding_boxes(scattered(800, 2).view(200, 4, 2) / 30)
    found = close_pairs(rows, columns, lambda gap: gap.norm(dim=1) < 0.05, symmetric)
    gap = torch.maximum(rows.lower.unsqueeze(1) - columns.upper, columns.lower - rows.upper.unsqueeze(1)).clamp_min(0.0)
    wanted = (gap.norm(dim=2) < 0.05).nonzero()
    wanted = wanted[wanted[:, 0] <= wanted[:, 1]] if symmetric else wanted
    assert torch.equal(found, wanted)
