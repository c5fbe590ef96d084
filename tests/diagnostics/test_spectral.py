"""Spectral basis functions and regions, against dense linear algebra in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import kernels
from pathgp.diagnostics import REGIONS, SpectralBasis
from reference import matern, squared_exponential

N = 60


def inputs(n: int = N, seed: int = 0) -> Tensor:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def basis() -> SpectralBasis:
    return SpectralBasis.compute(kernels.Scale(kernels.Matern(1.5, 0.4), 1.5), inputs())


def reference_kernel(X: Tensor, Z: Tensor) -> Tensor:
    return 2.25 * matern(X, Z, 1.5, 0.4)


def test_functions_are_those_of_the_formula(basis: SpectralBasis) -> None:
    X, Xs = inputs(), inputs(20, 1)
    values, U = torch.linalg.eigh(reference_kernel(X, X))
    torch.testing.assert_close(basis.values, values.flip(0))
    expected = (U.flip(1) / values.flip(0).sqrt()).T @ reference_kernel(X, Xs)
    # The sign of an eigenvector is arbitrary.
    torch.testing.assert_close(basis(Xs).abs(), expected.abs(), rtol=1e-6, atol=1e-8)


def test_functions_are_orthonormal_and_carry_their_eigenvalue_at_the_data(basis: SpectralBasis) -> None:
    X = inputs()
    weights = basis.vectors / basis.values.sqrt()
    torch.testing.assert_close(weights.T @ reference_kernel(X, X) @ weights, torch.eye(N, dtype=torch.float64))
    torch.testing.assert_close(basis(X).square().sum(1), basis.values)


def test_each_function_is_the_largest_at_the_data_among_those_orthogonal_to_the_earlier(basis: SpectralBasis) -> None:
    """Courant-Fischer: random functions of norm one, orthogonal to the first three, have less energy at the data."""
    X, generator = inputs(), torch.Generator().manual_seed(2)
    c = torch.randn(N, 200, generator=generator, dtype=torch.float64)
    c[:3] = 0.0
    values = basis(X).T @ (c / c.norm(dim=0))
    assert float(values.square().sum(0).max()) < float(basis.values[3])
    assert float(basis.function(3)(X).square().sum()) == pytest.approx(float(basis.values[3]))


def test_a_function_is_the_sum_of_its_coefficients(basis: SpectralBasis) -> None:
    X, Xs = inputs(), inputs(20, 1)
    theta = torch.randn(N, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    c = basis.coefficients(theta)
    torch.testing.assert_close(basis(Xs).T @ c, reference_kernel(Xs, X) @ theta)
    norm = (theta * (reference_kernel(X, X) @ theta)).sum(0).sqrt()
    torch.testing.assert_close(basis.seminorm(theta), norm)
    torch.testing.assert_close(basis.seminorm(theta, [4]), c[4].abs())
    assert (basis.seminorm(theta, slice(5)) < norm).all()


def test_directions_lost_in_rounding_are_left_out() -> None:
    X = torch.linspace(0, 1, 100, dtype=torch.float64).unsqueeze(1)
    basis = SpectralBasis.compute(kernels.SquaredExponential(0.5), X)
    assert len(basis) < 25
    gram = basis.vectors.T @ squared_exponential(X, X, 0.5) @ basis.vectors
    assert float((gram - torch.diag(basis.values)).abs().max()) < 1e-12
    assert torch.isfinite(basis(X)).all()


def test_shares_add_up_to_what_the_data_explain(basis: SpectralBasis) -> None:
    X, Xs = inputs(), torch.cat([inputs(10, 1), inputs(10, 1) + 0.7, inputs(10, 1) + 9.0])
    regions = basis.regions(Xs)
    cross = reference_kernel(X, Xs)
    explained = (cross * torch.linalg.solve(reference_kernel(X, X), cross)).sum(0) / 2.25
    torch.testing.assert_close(regions.interpolation + regions.extrapolation, explained, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(regions.prior, 1.0 - explained, rtol=1e-6, atol=1e-9)
    leading = basis(Xs)[: regions.leading].square().sum(0) / 2.25
    torch.testing.assert_close(regions.interpolation, leading)


def test_regions_are_where_they_should_be() -> None:
    """Dense data in [0, 1], an empty strip beside it, and inputs far away."""
    X = torch.linspace(0, 1, 80, dtype=torch.float64).unsqueeze(1)
    basis = SpectralBasis.compute(kernels.SquaredExponential(0.1), X)
    regions = basis.regions(torch.tensor([[0.5], [0.2], [1.3], [1.25], [4.0], [-3.0]], dtype=torch.float64))
    assert [REGIONS[label] for label in regions.labels] == [
        "interpolation",
        "interpolation",
        "extrapolation",
        "extrapolation",
        "prior",
        "prior",
    ]
    assert repr(regions).startswith("Regions of 6 inputs: 2 interpolation, 2 extrapolation, 2 prior")
    # At the data the leading functions hold 99 % on average.
    assert 0.99 <= float(basis.regions(X).interpolation.mean()) < 0.9999
    assert basis.count_leading(1.0) == len(basis)


def test_a_posterior_with_standardised_data_takes_inputs_in_the_units_of_the_data() -> None:
    X = (100.0 + 7.0 * inputs(50)).numpy()
    y = np.sin(X[:, 0])
    for dtype in (np.float32, np.float64):
        gp = pathgp.GP(kernels.Matern(1.5, 0.7), standardise=True)
        posterior = gp.condition(X.astype(dtype), y, samples=0)
        basis = SpectralBasis.of(posterior)
        Z = torch.as_tensor((X - X.mean(0)) / X.std(0))
        plain = SpectralBasis.compute(kernels.Matern(1.5, 0.7), Z)
        values = basis(X[:5].astype(dtype), [0, 1])
        assert isinstance(values, np.ndarray)
        np.testing.assert_allclose(np.abs(values), np.abs(plain(Z[:5], [0, 1]).numpy()), rtol=1e-3, atol=1e-3)


def test_functions_are_differentiable(basis: SpectralBasis) -> None:
    Xs = inputs(4, 1).requires_grad_()
    assert torch.autograd.gradcheck(basis.function(2), Xs)


def test_errors(basis: SpectralBasis) -> None:
    with pytest.raises(ValueError, match=r"limited to 10,000 rows, got 10,001: use a random subset"):
        SpectralBasis.compute(kernels.Matern(1.5), torch.zeros(10_001, 1))
    with pytest.raises(ValueError, match="3 columns"):
        basis(torch.zeros(4, 3, dtype=torch.float64))
    with pytest.raises(IndexError, match="60 spectral basis functions"):
        basis.function(60)
    with pytest.raises(ValueError, match="share"):
        basis.count_leading(0.0)
