"""Fused sums of functions at their own points against tiles of float64 entries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pathgp
from fused_cases import DEVICE, KERNELS, N, counts, error, normal
from pathgp import kernels
from pathgp.compute import triton
from pathgp.operators import own_product
from pathgp.operators.fused import OwnPoints, own_points

pytest.importorskip("triton", minversion="3.6")


def points(s: int, q: int, d: int, seed: int = 0) -> Tensor:
    return normal(s * q, d, seed).view(s, q, d)


def evaluate(kernel: kernels.Kernel, X: Tensor, Z: Tensor, V: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """Values, and their gradient in X with the same weights for both backends."""
    A = X.detach().clone().requires_grad_()
    values = own_product(kernel, A, Z, V, backend=backend)
    outer = torch.linspace(0.5, 1.5, values.numel(), device=DEVICE).view(values.shape).to(values.dtype)
    return values.detach(), torch.autograd.grad(values, A, outer)[0]


def check(kernel: kernels.Kernel, X: Tensor, Z: Tensor, V: Tensor, bound: float = 2e-6) -> tuple[Tensor, Tensor]:
    """Fused values and gradients, and values without gradients, against float64; returns the fused ones."""
    found = evaluate(kernel, X, Z, V, "fused")
    expected = evaluate(kernel, X.double(), Z.double(), V.double(), "streamed")
    assert found[0].dtype == found[1].dtype == torch.float32
    assert error(found[0], expected[0]) < bound
    assert error(found[1], expected[1]) < bound
    torch.testing.assert_close(own_product(kernel, X, Z, V, backend="fused"), found[0], rtol=1e-6, atol=1e-6)
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel(name: str) -> None:
    check(KERNELS[name](), points(3, 2, 2), normal(N, 2, 1) + 0.5, normal(N, 3, 2))


@pytest.mark.parametrize(("s", "q"), [(1, 1), (4, 1), (1, 7), (2, 3), (2, 13)])
def test_any_number_of_functions_and_points(s: int, q: int) -> None:
    """Points that fill no tile; 13 points are several programs."""
    check(kernels.Matern(1.5, 0.8), points(s, q, 2), normal(N, 2, 1), normal(N, s, 2))


@pytest.mark.parametrize("d", [1, 8, 16, 40])
@pytest.mark.parametrize("nu", [0.5, 2.5])
def test_any_number_of_columns(d: int, nu: float) -> None:
    kernel = kernels.Scale(kernels.Matern(nu, torch.linspace(0.5, 1.5, d) * d**0.5), 1.3)
    check(kernel, points(2, 3, d), normal(N, d, 1), normal(N, 2, 2))


@pytest.mark.parametrize("n", [1, 128, 300])
def test_any_number_of_rows(n: int) -> None:
    check(KERNELS["sum"](), points(2, 2, 2), normal(n, 2, 1), normal(n, 2, 2))


@pytest.mark.parametrize("nu", [0.5, 1.5])
def test_points_equal_to_rows(nu: float) -> None:
    """The gradient of Matern-1/2 is defined as zero at a row, as in tiles."""
    X, Z = points(2, 2, 3), normal(N, 3, 1)
    Z[5], Z[60] = X[0, 1], X[1, 0]
    kernel = kernels.Scale(kernels.Matern(nu, 0.7), 1.1)
    check(kernel, X, Z, normal(N, 2, 2))
    found = evaluate(kernel, X[:1, 1:], Z[5:6], normal(1, 1, 3), "fused")[1]
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize(("d", "scale", "form"), [(3, 3.0, "differences"), (3, 0.02, "double"), (12, 0.05, "double")])
def test_close_points_of_distant_data(d: int, scale: float, form: str) -> None:
    """Rows close to points that lie many length scales away from the others, far from the origin."""
    X = points(2, 3, d)
    Z = (X.view(-1, d).repeat(20, 1) + scale * normal(120, d, 1) / d**0.5) + 100.0
    kernel = kernels.Matern(1.5, scale)
    prepared = OwnPoints.prepare(kernel, X + 100.0, Z, False)
    assert {leaf.form for leaf in prepared.frame.structure.leaves} == {form}
    check(kernel, X + 100.0, Z, normal(120, 2, 2))


def test_the_rows_are_split_and_results_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_points, "_SHORTEST", 128)
    assert own_points.split_rows(2, 700) == (3, 256)
    X, Z, V = points(2, 1, 2), normal(700, 2, 1), normal(700, 2, 2)
    first = check(kernels.Matern(2.5, 0.8), X, Z, V)
    assert all(map(torch.equal, first, evaluate(kernels.Matern(2.5, 0.8), X, Z, V, "fused")))


def test_weights_are_copied_for_a_group_of_functions_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_points, "_COPIED", 5 * N)
    check(kernels.Matern(2.5, 0.8), points(9, 3, 2), normal(N, 2, 1), normal(N, 9, 2))


def test_second_derivatives() -> None:
    results = []
    for dtype, backend in ((torch.float32, "fused"), (torch.float64, "streamed")):
        A = points(2, 2, 2).to(dtype).requires_grad_()
        values = own_product(KERNELS["Matern-5/2"](), A, *(normal(20, 2, k).to(dtype) for k in (1, 2)), backend=backend)
        (gradient,) = torch.autograd.grad(values.sum(), A, create_graph=True)
        results.append(torch.autograd.grad(gradient.square().sum(), A)[0])
    assert error(*results) < 1e-4


def test_the_automatic_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused on a GPU where possible, otherwise in tiles without a message."""
    used = []
    prepare = own_points.OwnPoints.prepare

    def recorded(*arguments: object) -> OwnPoints:
        found = prepare(*arguments)
        used.append(True)
        return found

    monkeypatch.setattr(own_points.OwnPoints, "prepare", recorded)
    X, Z, V = points(2, 2, 3), normal(20, 3, 1), normal(20, 2, 2)
    matern, tanimoto = kernels.Matern(1.5, 0.7), kernels.Tanimoto()
    own_product(matern, X.cpu(), Z.cpu(), V.cpu())
    monkeypatch.setattr(triton, "preferred", lambda device: True)
    own_product(matern, X, Z, V, backend="streamed")
    own_product(matern, X.double(), Z.double(), V.double())
    own_product(tanimoto, counts(4, 3, 1.0, 0).view(2, 2, 3), counts(20, 3, 1.0, 1), V)
    wide, many = points(2, 2, 70), normal(20, 70, 1)
    expected = own_product(kernels.Matern(1.5, 10.0), wide.double(), many.double(), V.double(), backend="streamed")
    assert error(own_product(kernels.Matern(1.5, 10.0), wide, many, V), expected) < 1e-5
    own_product(kernels.Matern(1.5, 0.01), wide[..., :20], many[:, :20], V)
    assert own_product(matern, X[:, :0], Z, V).shape == (2, 0)
    assert own_product(matern, X, Z[:0], V[:0]).shape == (2, 2)
    assert not used
    own_product(matern, X, Z, V)
    assert len(used) == 1


def test_reasons() -> None:
    X, Z, V = points(2, 2, 70), normal(20, 70, 1), normal(20, 2, 2)
    for kernel, dtype, message in (
        (kernels.Matern(1.5, 10.0), torch.float32, "70 prepared columns are too many"),
        (kernels.Matern(0.7, 10.0), torch.float32, "no fused tile for Matern"),
        (kernels.Matern(1.5, 10.0), torch.float64, "for float32 inputs"),
        (kernels.Tanimoto(), torch.float32, "no fused sums at own points for Tanimoto"),
    ):
        with pytest.raises(ValueError, match=message):
            own_product(kernel, X.to(dtype), Z.to(dtype), V.to(dtype), backend="fused")
    with pytest.raises(ValueError, match="'streamed' or 'fused'"):
        own_product(kernels.Matern(1.5, 10.0), X, Z, V, backend="dense")


def test_paths_at_their_own_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """`paths_at` with fused sums is the diagonal of `paths`, with a trend and active columns."""
    Z = normal(60, 2, 1)
    kernel = kernels.Matern(1.5, 0.9, active_dims=[1]) + kernels.SquaredExponential(1.2, active_dims=[0])
    gp = pathgp.GP(kernel, 0.3, mean=pathgp.means.Trend("linear"))
    generator = torch.Generator().manual_seed(0)
    post = gp.condition(Z, Z.sum(1).sin(), samples=3, features=64, generator=generator, tol=1e-5)
    Xs = points(3, 2, 2)
    expected = post.paths(Xs.flatten(0, 1)).unflatten(1, (3, 2)).diagonal(dim1=0, dim2=1).T
    monkeypatch.setattr(triton, "preferred", lambda device: True)
    torch.testing.assert_close(post.paths_at(Xs), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(post.paths_at(Xs[[2, 0]], [2, 0]), expected[[2, 0]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("q", "points"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 4), (32, 8)])
def test_points_of_a_program(q: int, points: int) -> None:
    prepared = OwnPoints.prepare(kernels.Matern(1.5, 0.7), normal(q, 8, 0).unsqueeze(0), normal(N, 8, 1), False)
    assert own_points.points_at_once(prepared.frame.structure, q) == points
    many = OwnPoints.prepare(kernels.Matern(1.5, 7.0), normal(q, 40, 0).unsqueeze(0), normal(N, 40, 1), False)
    assert own_points.points_at_once(many.frame.structure, q) == 1
