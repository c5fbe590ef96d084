"""Targets from 1e-30 to 1e30 in either precision: no square leaves its range."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import pathgp
import reference
from pathgp.kernels import Matern
from pathgp.posterior.convergence import ConvergenceWarning

SOLVERS = ["cg", "ap", "sdd", "sgd", "cholesky", "auto"]
# Powers of two, whose products are exact: 8e-31 to 1e30.
EXPONENTS = [-100, -83, -50, 50, 100]


def data(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(80, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(5.0 * X[:, 0]) + 0.3 * torch.randn(80, generator=generator, dtype=torch.float64)
    return X.to(dtype), y.to(dtype), torch.rand(10, 2, generator=generator, dtype=torch.float64).to(dtype)


def condition(X: Tensor, y: Tensor, solver: str, standardise: bool = False) -> pathgp.Posterior:
    """A loose solve, whose error is to be told."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        gp = pathgp.GP(Matern(1.5, 0.5), 0.3, standardise=standardise)
        return gp.condition(X, y, solver=solver, samples=0, max_epochs=20, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_certificate_holds_and_is_in_units_of_y(solver: str, dtype: torch.dtype) -> None:
    """How far a solve goes depends on the size of y beside the noise; what it says about itself is true."""
    X, y, Xs = data(dtype)
    exact = reference.posterior(
        lambda A, B: reference.matern(A, B, 1.5, 0.5), X.double(), y.double(), 0.3, Xs.double()
    )[0]
    for exponent in [0, *EXPONENTS]:
        scale = 2.0**exponent
        post = condition(X, scale * y, solver)
        bound = post.report.error_bound / scale
        assert 0 < bound < 20.0
        error = float((post.mean(Xs).double() / scale - exact).abs().max())
        assert error <= 1.01 * bound + 1e-5
        # Zero would be off by more.
        assert post.report.mean_residual < 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_standardised_models_are_in_units_of_y(dtype: torch.dtype) -> None:
    """Where the variance of y has no place in float32 it is refused by name."""
    X, y, Xs = data(dtype)
    usual = condition(X, y, "cg", standardise=True)
    for exponent in EXPONENTS:
        if dtype == torch.float32 and abs(exponent) > 60:
            with pytest.raises(ValueError, match="its variance leaves the range"):
                condition(X, 2.0**exponent * y, "cg", standardise=True)
            continue
        post = condition(X, 2.0**exponent * y, "cg", standardise=True)
        found = post.mean(Xs).double() / 2.0**exponent
        torch.testing.assert_close(found, usual.mean(Xs).double(), rtol=1e-5, atol=1e-6)
        assert post.report.error_bound == pytest.approx(2.0**exponent * usual.report.error_bound, rel=1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_right_hand_sides_of_all_sizes_at_once(solver: str) -> None:
    """Columns from the smallest to the largest numbers of float64, and zero."""
    X, y, _ = data(torch.float64)
    H = pathgp.operators.KernelOperator(Matern(1.5, 0.5), X, 0.3)
    sizes = torch.tensor([0.0, 1.0, 2.0**-960, 2.0**960], dtype=torch.float64)
    found = pathgp.solvers.as_solver(solver).solve(
        H, y.unsqueeze(1) * sizes, tol=1e-6, max_epochs=300, generator=torch.Generator().manual_seed(1)
    )
    assert bool((found.x[:, 0] == 0).all())
    expected = torch.linalg.solve(H.block(torch.arange(80)), y)
    if solver != "sgd":  # which is slow
        torch.testing.assert_close(found.x[:, 1], expected, rtol=1e-4, atol=1e-4)
    for column in (2, 3):
        torch.testing.assert_close(found.x[:, column] / sizes[column], found.x[:, 1], rtol=1e-4, atol=1e-4)
