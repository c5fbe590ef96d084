"""Every kernel against the textbook formula, by explicit differences in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from pathgp import kernels

D = 3
SCALES = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
PERIODS = torch.tensor([1.0, 2.0, 0.7], dtype=torch.float64)
FACTOR = torch.tensor([[1.0, 0.5], [-0.3, 0.2], [0.0, 2.0]], dtype=torch.float64)


def double(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


Reference = Callable[[Tensor, Tensor], Tensor]

REAL: dict[str, tuple[kernels.Kernel, Reference]] = {
    "SE": (kernels.SquaredExponential(0.7), lambda X, Z: reference.squared_exponential(X, Z, double(0.7))),
    "SE per dimension": (
        kernels.SquaredExponential(SCALES),
        lambda X, Z: reference.squared_exponential(X, Z, SCALES),
    ),
    **{
        f"Matern {nu}": (
            kernels.Matern(nu, SCALES),
            lambda X, Z, nu=nu: reference.matern(X, Z, nu, SCALES),
        )
        for nu in (0.3, 0.5, 1.0, 1.5, 2.2, 2.5, 3.5)
    },
    "learned Matern": (
        kernels.LearnedMatern(1.2, SCALES),
        lambda X, Z: reference.matern(X, Z, 1.2, SCALES),
    ),
    "Gneiting": (
        kernels.Gneiting(kernels.Matern(1.5, SCALES[:2]), 0.7, alpha=0.8, beta=0.6, decay=0.4),
        lambda X, Z: reference.gneiting(X, Z, 1.5, SCALES[:2], 0.7, 0.8, 0.6, 0.4),
    ),
    "RQ": (
        kernels.RationalQuadratic(0.6, SCALES),
        lambda X, Z: reference.rational_quadratic(X, Z, double(0.6), SCALES),
    ),
    "Periodic": (kernels.Periodic(1.3, 0.8), lambda X, Z: reference.periodic(X, Z, double(1.3), double(0.8))),
    "Periodic per dimension": (
        kernels.Periodic(PERIODS, SCALES),
        lambda X, Z: reference.periodic(X, Z, PERIODS, SCALES),
    ),
    "Linear": (kernels.Linear(0.5), lambda X, Z: reference.linear(X, Z, 0.25)),
    "Linear with a bias": (
        kernels.Linear(SCALES, bias=2.0),
        lambda X, Z: 4.0 + reference.linear(X * SCALES, Z * SCALES),
    ),
    "Scale": (
        kernels.Scale(kernels.Matern(1.5), 1.3),
        lambda X, Z: 1.69 * reference.matern(X, Z, 1.5),
    ),
    "Sum and product": (
        kernels.Scale(kernels.SquaredExponential(active_dims=[2, 0]), 2.0)
        + kernels.Matern(0.5, active_dims=[1]) * kernels.Linear(active_dims=[0, 1]),
        lambda X, Z: (
            4.0 * reference.squared_exponential(X[:, [0, 2]], Z[:, [0, 2]])
            + reference.matern(X[:, 1:2], Z[:, 1:2], 0.5) * reference.linear(X[:, :2], Z[:, :2])
        ),
    ),
}
# Degrees: too far from the origin is refused.
DEGREES: dict[str, tuple[kernels.Kernel, Reference]] = {
    "Sphere": (
        kernels.Sphere(kernels.RationalQuadratic(0.6, 0.03), active_dims=[2, 0]),
        lambda X, Z: reference.rational_quadratic(
            reference.on_sphere(X[:, [2, 0]]), reference.on_sphere(Z[:, [2, 0]]), double(0.6), double(0.03)
        ),
    ),
}
COUNTS: dict[str, tuple[kernels.Kernel, Reference]] = {"Tanimoto": (kernels.Tanimoto(), reference.tanimoto)}
TASKS: dict[str, tuple[kernels.Kernel, Reference]] = {
    "Task": (
        kernels.Task(3, 2, factor=FACTOR, scale=SCALES),
        lambda X, Z: reference.task(X, Z, FACTOR, SCALES.square()),
    )
}
ALL = {**REAL, **DEGREES, **COUNTS, **TASKS}


def inputs(name: str, n: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if name in COUNTS:
        X = torch.randint(0, 4, (n, 6), generator=generator)
        X[n // 2] = 0
        return X.to(dtype)
    if name in TASKS:
        return torch.randint(0, 3, (n, 1), generator=generator).to(dtype)
    return torch.randn(n, D, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrix_is_the_formula(name: str, dtype: torch.dtype) -> None:
    kernel, formula = ALL[name]
    X, Z = inputs(name, 9, 0, dtype), inputs(name, 7, 1, dtype)
    Z[:2] = X[:2]
    tolerance = 1e-12 if dtype == torch.float64 else 3e-6
    K = kernel(X, Z)
    assert K.shape == (9, 7)
    assert K.dtype == dtype
    torch.testing.assert_close(K.double(), formula(X.double(), Z.double()), rtol=tolerance, atol=tolerance)
    gram = kernel(X)
    torch.testing.assert_close(gram.double(), formula(X.double(), X.double()), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gram.diagonal(), kernel.diag(X))


@pytest.mark.parametrize("name", ALL)
def test_without_gradients_the_values_are_the_same(name: str) -> None:
    kernel, _ = ALL[name]
    X, Z = inputs(name, 9, 0), inputs(name, 7, 1)
    original = X.clone()
    with torch.no_grad():
        K, gram, diagonal = kernel(X, Z), kernel(X), kernel.diag(X)
    torch.testing.assert_close(K, kernel(X, Z).detach(), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(gram, kernel(X).detach(), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(diagonal, kernel.diag(X).detach(), rtol=1e-14, atol=1e-14)
    assert torch.equal(X, original)
    assert not K.requires_grad


@pytest.mark.parametrize("name", ALL)
def test_integers_become_float64(name: str) -> None:
    kernel, _ = ALL[name]
    X = torch.randint(0, 3, (5, 1 if name in TASKS else D))
    assert kernel(X).dtype == torch.float64
    torch.testing.assert_close(kernel(X, X[:2]), kernel(X.double(), X[:2].double()))


@pytest.mark.parametrize("name", ALL)
def test_empty_inputs(name: str) -> None:
    kernel, _ = ALL[name]
    X = inputs(name, 4, 0)
    with torch.no_grad():
        assert kernel(X[:0], X).shape == (0, 4)
        assert kernel(X, X[:0]).shape == (4, 0)
        assert kernel.diag(X[:0]).shape == (0,)


@pytest.mark.parametrize("name", [name for name in REAL if "Linear" not in name and name != "Sum and product"])
@pytest.mark.parametrize(("offset", "spread"), [(1e4, 1.0), (0.0, 20.0)])
def test_float32_far_from_the_origin(name: str, offset: float, spread: float) -> None:
    """At an offset of 1e4, and for close pairs at norm 35: as accurate as explicit differences allow."""
    kernel, formula = REAL[name]
    generator = torch.Generator().manual_seed(0)
    X = (offset + spread * torch.randn(40, D, generator=generator)).float()
    Z = (X + 1e-3 * torch.randn(40, D, generator=generator)).float()
    with torch.no_grad():
        error = (kernel(X, Z).double() - formula(X.double(), Z.double())).abs().max()
    assert error < 2e-6


@pytest.mark.parametrize("nu", [0.5, 1.5])
@pytest.mark.parametrize("d", [1, 3, 30, 300])
def test_duplicates_have_distance_zero(nu: float, d: int) -> None:
    """An error of 1e-16 in r^2 would be 1e-8 in exp(-r)."""
    X = 10.0 * torch.randn(60, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    K = kernels.Matern(nu, 0.5)(X, X[order])
    assert torch.equal(K[order, torch.arange(60)], torch.ones(60, dtype=torch.float64))


@pytest.mark.parametrize("nu", [0.1, 0.5, 0.9, 1.0, 1.5, 2.0, 7.3, 30.0, 50.0])
def test_matern_has_the_right_limits(nu: float) -> None:
    r = torch.tensor([0.0, 1e-300, 1e-150, 1e-30, 1e-10, 1e-3, 1.0, 1e3, 1e8, 1e150], dtype=torch.float64)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    K = kernels.Matern(nu)(r[:-1, None], zero)[:, 0].detach()
    assert torch.isfinite(K).all()
    assert (K.diff() <= 1e-14).all()  # what the logarithms of a Bessel function are off
    assert K[0] == 1.0
    assert K[2] == 1.0
    assert K[-1] < 1e-295


def test_matern_of_high_order_is_nearly_squared_exponential() -> None:
    X = torch.linspace(0, 3, 20, dtype=torch.float64)[:, None]
    error = (kernels.Matern(50.0)(X) - kernels.SquaredExponential()(X)).abs().max()
    assert 1e-4 < error < 1e-2


def test_matern_agrees_on_both_ways() -> None:
    """The Bessel function at 3/2 +- a little, against the closed form."""
    X = torch.randn(10, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    low, high = (kernels.Matern(1.5 + h)(X) for h in (-1e-7, 1e-7))
    torch.testing.assert_close((low + high) / 2, kernels.Matern(1.5)(X), rtol=1e-12, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(ALL)), st.integers(0, 2**31), st.integers(1, 12))
def test_positive_semi_definite(name: str, seed: int, n: int) -> None:
    kernel, _ = ALL[name]
    with torch.no_grad():
        K = kernel(inputs(name, n, seed))
    assert torch.equal(K, K.T) or torch.allclose(K, K.T, rtol=1e-13, atol=1e-13)
    eigenvalues = torch.linalg.eigvalsh((K + K.T) / 2)
    assert eigenvalues[0] > -1e-10 * eigenvalues[-1]


def test_periodic_is_periodic() -> None:
    kernel = kernels.Periodic(torch.tensor([1.0, 2.5]), 0.6)
    X = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shifted = X + torch.tensor([3.0, -5.0], dtype=torch.float64)
    torch.testing.assert_close(kernel(X, shifted), kernel(X), rtol=1e-12, atol=1e-12)


def test_tanimoto_is_exact_for_counts_in_float32() -> None:
    X = torch.randint(0, 50, (30, 200), generator=torch.Generator().manual_seed(0)).float()
    torch.testing.assert_close(kernels.Tanimoto()(X).double(), reference.tanimoto(X, X), rtol=2**-23, atol=0.0)


@pytest.mark.parametrize("largest", [1, 64, 65, 1000])
@pytest.mark.parametrize("unit", [1.0, 0.3])
def test_tanimoto_of_any_non_negative_numbers(largest: int, unit: float) -> None:
    """Counts up to 64 take another way than large ones and fractions."""
    X = unit * torch.randint(0, largest + 1, (12, 9), generator=torch.Generator().manual_seed(0)).double()
    X[3] = 0.0
    torch.testing.assert_close(kernels.Tanimoto()(X, X[2:5]), reference.tanimoto(X, X[2:5]))
    torch.testing.assert_close(kernels.Tanimoto()(X.clone().requires_grad_()), reference.tanimoto(X, X))


def test_task_starts_with_unit_variances_and_no_two_columns_alike() -> None:
    kernel = kernels.Task(5, 3)
    torch.testing.assert_close(kernel.covariance.diagonal(), torch.ones(5, dtype=torch.float64))
    singular = torch.linalg.svdvals(kernel.factor.detach())
    assert singular[-1] > 0.05 * singular[0]
    assert torch.equal(kernels.Task(5, 3).factor, kernel.factor)
