"""Toeplitz products: which inputs and kernels have them, and what "auto" makes of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import Compute, kernels, solvers
from pathgp.operators import KernelOperator, ToeplitzOperator
from pathgp.operators.cross import cross_product
from pathgp.operators.spacing import find_spacing
from pathgp.operators.toeplitz import cross

STREAMED = Compute("streamed")


def stations(p: int, times: int, missing: float = 0.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows (x, y, t) of p places at regular times, some of them missing, in random order."""
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(p, 2, generator=generator, dtype=torch.float64)
    t = 3.0 + 0.25 * torch.arange(times, dtype=torch.float64)
    X = torch.cat([places.repeat(times, 1), t.repeat_interleave(p).unsqueeze(1)], 1)
    return X[torch.randperm(len(X), generator=generator)[round(missing * len(X)) :]].to(dtype)


def check(kernel: kernels.Kernel, X: Tensor, noise: float | Tensor = 0.1) -> KernelOperator:
    """The product with two columns is that of the streamed backend."""
    V = torch.randn(len(X), 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(X)
    H, exact = ToeplitzOperator(kernel, X, noise), KernelOperator(kernel, X, noise, STREAMED)
    assert H.backend == "toeplitz"
    torch.testing.assert_close(H @ V, exact @ V, rtol=0.0, atol=1e-9)
    return H


def test_sums_and_products_in_which_only_differences_of_times_matter() -> None:
    X = stations(6, 9, missing=0.3)
    space = kernels.Linear(0.5, active_dims=[0, 1])
    times = kernels.Matern(0.5, 0.8, active_dims=[2])
    year = kernels.Periodic(1.0, 0.9, active_dims=[2])
    check(kernels.Scale(space * times, 1.3) + kernels.Gneiting(kernels.Matern(1.5, 0.4)) * year, X)


def test_several_rows_of_one_cell() -> None:
    X = stations(5, 7, missing=0.2)
    check(kernels.Matern(1.5, 0.5), torch.cat([X, X[:4], X[:2]]))


def test_gaps_in_time_and_columns_that_the_kernel_does_not_see() -> None:
    X = stations(5, 12)
    X = X[(X[:, 2] - 3.0).div(0.25).round() % 12 != 5]
    drift = torch.arange(len(X), dtype=torch.float64).sin().unsqueeze(1)
    check(kernels.Matern(0.5, torch.tensor([0.4, 0.4, 1.0]), active_dims=[0, 1, 2]), torch.cat([X, drift], 1))


def test_stations_on_the_sphere() -> None:
    X = stations(5, 8)
    X[:, :2] = 120.0 * X[:, :2] - 60.0
    kernel = kernels.Sphere(kernels.Matern(1.5, 0.5), active_dims=[0, 1]) * kernels.Matern(0.5, 2.0, active_dims=[2])
    check(kernel, X)


@pytest.mark.parametrize("kernel", [kernels.Linear(1.0), kernels.Matern(1.5, 0.5) + kernels.Linear(1.0)])
def test_a_kernel_that_is_not_one_of_differences_is_refused(kernel: kernels.Kernel) -> None:
    with pytest.raises(ValueError, match=r"Toeplitz products need a column of equally spaced values.*backend='auto'"):
        ToeplitzOperator(kernel, stations(4, 5))


def test_irregular_times_and_small_budgets_are_refused() -> None:
    X = stations(4, 5)
    irregular = X.clone()
    irregular[:, 2] = irregular[:, 2].square()
    irregular[:, 2] += 0.1 * irregular[:, 2].sin()
    with pytest.raises(ValueError, match="Toeplitz products need a column"):
        ToeplitzOperator(kernels.Matern(1.5, 0.5), irregular)
    with pytest.raises(ValueError, match=r"Toeplitz products need .* GB, the budget is"):
        ToeplitzOperator(kernels.Matern(1.5, 0.5), X, compute=Compute(memory=1500))


def test_spacing() -> None:
    spacing = find_spacing(torch.tensor([0.4, 1.0, 0.1, 0.7], dtype=torch.float64), most=10)
    assert spacing is not None
    assert (spacing.count, spacing.step) == (4, pytest.approx(0.3))
    assert spacing.index(torch.tensor([1.0, 0.4])).tolist() == [3, 1]
    assert find_spacing(torch.tensor([0.0, 1.0, 2.7]), most=10) is None
    assert find_spacing(torch.tensor([0.0, 1.0, 100.0]), most=10) is None


def test_auto_chooses_them_for_stations_and_the_report_says_so() -> None:
    X = stations(90, 50, missing=0.05, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    y = torch.sin(3.0 * X[:, 0]) + 0.1 * torch.randn(len(X), generator=generator)
    gp = pathgp.GP(kernels.Matern(0.5, torch.tensor([0.5, 0.5, 2.0])), noise=0.3)
    posterior = gp.condition(X, y, samples=4, generator=generator)
    assert posterior.report.backend == "toeplitz"
    assert posterior.report.solution.converged
    exact = gp.condition(X, y, samples=4, solver="cholesky", compute=Compute("dense"))
    assert float((posterior.mean(X[:200]) - exact.mean(X[:200])).abs().max()) < 0.02
    scattered = torch.rand(5000, 3, generator=generator)
    assert KernelOperator(gp.kernel, scattered, 0.3).backend == "dense"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cross_products_at_other_sites_and_later_times(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross, "_LEAST_ENTRIES", 1)
    monkeypatch.setattr(cross, "MUCH_LESS", 1e9)
    X, Z = stations(9, 8, missing=0.2, dtype=dtype), stations(6, 11, missing=0.3, dtype=dtype)
    X[X[:, 0] > 0.5, 1] += 0.125
    V = torch.randn(len(Z), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    kernel = kernels.Scale(kernels.Matern(0.5, torch.tensor([0.4, 0.3, 0.9])), 1.2)
    found = cross.toeplitz_cross(kernel, X, Z, V, 10**6, "streamed")
    assert found is not None
    expected = kernel(X.double(), Z.double()) @ V.double()
    torch.testing.assert_close(found.double(), expected.detach(), rtol=0.0, atol=1e3 * torch.finfo(dtype).eps)
    again = cross.toeplitz_cross(kernel, X, Z, V, 60_000, "streamed")
    torch.testing.assert_close(again, found, rtol=0.0, atol=1e2 * torch.finfo(dtype).eps)
    assert cross.toeplitz_cross(kernel, X.sin(), Z, V, 10**6, "streamed") is None


def test_the_memory_of_an_operator_is_used_again() -> None:
    X, kernel = stations(6, 9), kernels.Matern(1.5, 0.5)
    first = KernelOperator(kernel, X, 0.1, Compute("toeplitz"))
    before = first._tiles.fast.blocks.data_ptr()  # type: ignore[union-attr]
    kernel.lengthscale = 0.9
    H = KernelOperator(kernel, X, 0.1, Compute("toeplitz"), reuse=first)
    assert H._tiles.fast.blocks.data_ptr() == before  # type: ignore[union-attr]
    V = torch.ones(len(X), 1, dtype=torch.float64)
    torch.testing.assert_close(H @ V, KernelOperator(kernel, X, 0.1, STREAMED) @ V)


def globe(parallels: int, longitudes: int, extent: float = 360.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows (latitude, longitude) of a regular grid, poles included, in random order."""
    lat = torch.linspace(-90.0, 90.0, parallels, dtype=torch.float64)
    lon = extent / longitudes * torch.arange(longitudes, dtype=torch.float64) - 120.0
    X = torch.cartesian_prod(lat, lon)
    return X[torch.randperm(len(X), generator=torch.Generator().manual_seed(0))].to(dtype)


SPHERE = kernels.Scale(kernels.Sphere(kernels.Matern(1.5, 0.5)), 1.2)


@pytest.mark.parametrize(
    ("longitudes", "extent", "size"),
    [(12, 360.0, 12), (9, 360.0, None), (12, 300.0, None), (10, 300.0, 12), (24, 720.0, 12)],
    ids=["circle", "odd", "open", "most of a circle", "twice around"],
)
def test_longitudes_go_around_a_circle(longitudes: int, extent: float, size: int | None) -> None:
    """Twice around: two rows in every cell."""
    H = check(SPHERE, globe(7, longitudes, extent))
    layout = H._tiles.layout  # type: ignore[union-attr]
    assert layout.is_closed == (size is not None)
    assert layout.is_complete == ((longitudes == 12 and extent == 360.0) or size is None)
    assert size is None or layout.size == size


def test_longitudes_and_times() -> None:
    """Both are regular: the one with fewer entries is used."""
    X = torch.cat([globe(4, 6).repeat_interleave(3, 0), torch.arange(3.0).repeat(24).unsqueeze(1)], 1).double()
    kernel = kernels.Sphere(kernels.Matern(1.5, 0.5), active_dims=[0, 1]) * kernels.Matern(0.5, 2.0, active_dims=[2])
    H = check(kernel, X)
    layout = H._tiles.layout  # type: ignore[union-attr]
    assert (layout.column, layout.size, len(layout.sites)) == (1, 6, 12)
    # A kernel that sees longitudes as numbers is not periodic in them.
    H = check(kernel * kernels.Matern(0.5, 50.0, active_dims=[1]), X[X[:, 2] < 1.0])
    assert not H._tiles.layout.is_closed  # type: ignore[union-attr]


def test_gradients_around_a_circle() -> None:
    X = globe(5, 8)[:-3]
    generator = torch.Generator().manual_seed(1)
    L, R = (torch.randn(len(X), 2, generator=generator, dtype=torch.float64) for _ in range(2))
    gradients = []
    for compute in (Compute("toeplitz"), STREAMED):
        value = KernelOperator(SPHERE, X, 0.1, compute).bilinear(L, R)
        gradients.append([value, *torch.autograd.grad(value, list(SPHERE.parameters()))])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complete_circles_are_solved_by_frequencies(dtype: torch.dtype) -> None:
    X = globe(25, 36, dtype=dtype)
    B = torch.randn(len(X), 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    H = ToeplitzOperator(SPHERE, X, 0.1)
    solution = solvers.CG().solve(H, B, tol=1e-4)
    assert solution.converged
    assert solution.iterations <= 2
    assert "inverse by frequencies: 36 longitudes, 25 parallels" in solution.note
    dense = SPHERE(X.double(), X.double()).detach() + 0.01 * torch.eye(len(X), dtype=torch.float64)
    expected = torch.linalg.solve(dense, B.double())
    assert float((solution.x - expected).norm() / expected.norm()) < 1e-2
    # Noise that differs between rows: its mean is close, and iterations correct the rest.
    noise = torch.linspace(0.08, 0.12, len(X), dtype=torch.float64)
    assert solvers.CG().solve(ToeplitzOperator(SPHERE, X, noise), B, tol=1e-4).iterations < 15
    # A row is missing: no inverse.
    assert ToeplitzOperator(SPHERE, X[1:], 0.1).choose_preconditioner(1000.0) is None


def test_predictions_around_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross, "_LEAST_ENTRIES", 1)
    monkeypatch.setattr(cross, "MUCH_LESS", 1e9)
    X, Z = globe(5, 24), globe(4, 12)
    V = torch.randn(len(Z), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    used, original = [], cross._multiply
    monkeypatch.setattr(cross, "_multiply", lambda *args: used.append(args) or original(*args))
    found = cross_product(SPHERE, X, Z, V)
    assert used
    torch.testing.assert_close(found, SPHERE(X, Z).detach() @ V, rtol=0.0, atol=1e-10)
