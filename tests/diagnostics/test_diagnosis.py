"""The exact solution, the distance to it, and what the report says; the reference is dense and in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import kernels
from pathgp.diagnostics import ExactSolution, SpectralBasis, diagnose, marginal_wasserstein
from reference import matern, posterior

N, NOISE = 150, 0.3
Xs = torch.linspace(-1.5, 4.0, 60, dtype=torch.float64).unsqueeze(1)


def data() -> tuple[Tensor, Tensor]:
    """Rows in [0, 1] and at the edge up to 1.5, fewer and fewer."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(N, 1, generator=generator, dtype=torch.float64).pow(1.5) * 1.5
    return X, torch.sin(6.0 * X[:, 0]) + NOISE * torch.randn(N, generator=generator, dtype=torch.float64)


def conditioned(samples: int = 16, **options: object) -> pathgp.Posterior:
    X, y = data()
    gp = pathgp.GP(kernels.Matern(2.5, 0.3), noise=NOISE, **options)  # type: ignore[arg-type]
    return gp.condition(X, y, solver="cholesky", samples=samples, generator=torch.Generator().manual_seed(1))


def disturbed(post: pathgp.Posterior, change: Tensor) -> pathgp.Posterior:
    """The posterior with other weights."""
    return replace(post, weights=post.weights + change)


def test_the_exact_solution_is_that_of_the_textbook() -> None:
    X, y = data()
    mean, covariance = posterior(lambda A, B: matern(A, B, 2.5, 0.3), X, y, NOISE, Xs)
    exact = ExactSolution.of(disturbed(conditioned(), torch.ones(N, 17, dtype=torch.float64)))
    torch.testing.assert_close(exact.mean(Xs), mean)
    torch.testing.assert_close(exact.std(Xs), covariance.diagonal().sqrt(), rtol=1e-6, atol=1e-7)


def test_an_exact_solver_has_distance_zero() -> None:
    post = conditioned()
    assert float(ExactSolution.of(post).wasserstein(Xs).max()) < 1e-9
    assert float(ExactSolution.of(post).errors(Xs).abs().max()) < 1e-9


def test_an_error_of_the_mean_is_the_distance() -> None:
    post = conditioned()
    change = torch.zeros_like(post.weights)
    change[:, 0] = torch.linspace(-1, 1, N, dtype=torch.float64)
    distance = ExactSolution.of(disturbed(post, change)).wasserstein(Xs)
    torch.testing.assert_close(distance, (matern(Xs, data()[0], 2.5, 0.3) @ change[:, 0]).abs(), rtol=1e-6, atol=1e-9)


@pytest.mark.statistical
def test_paths_without_an_update_have_the_distance_of_the_prior() -> None:
    """alpha = 0: the standard deviation is that of the prior. 800 paths; six standard errors: one in 10^8."""
    post = conditioned(samples=800)
    change = -post.weights.clone()
    change[:, 0] = 0.0
    exact = ExactSolution.of(disturbed(post, change))
    std = exact.std(Xs)
    expected = marginal_wasserstein(0.0, std, 0.0, torch.ones_like(std))
    # The ratio of two mean squares has a relative standard error of at most 2 / sqrt(s), its root half of that.
    assert ((exact.wasserstein(Xs) - expected).abs() <= 6.0 / 800**0.5).all()
    assert float(expected.max()) > 0.8


def test_distances_are_in_the_units_of_y() -> None:
    X, y = data()
    plain, scaled = (
        pathgp.GP(kernels.Matern(2.5, 0.3), noise=NOISE, standardise=True).condition(
            X, factor * y, solver="cholesky", generator=torch.Generator().manual_seed(1)
        )
        for factor in (1.0, 10.0)
    )
    change = torch.linspace(-1, 1, N, dtype=torch.float64).unsqueeze(1).expand_as(plain.weights)
    a, b = (ExactSolution.of(disturbed(post, change)).wasserstein(Xs) for post in (plain, scaled))
    assert float(a.max()) > 0.01
    torch.testing.assert_close(10.0 * a, b)


def directions(post: pathgp.Posterior, numbers: slice, size: float) -> Tensor:
    """Weights of one function for every column: random coefficients on the basis functions with these numbers."""
    basis = SpectralBasis.of(post)
    c = torch.randn(len(basis), post.weights.shape[1], generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    chosen = torch.zeros_like(c)
    chosen[numbers] = size * c[numbers]
    return basis.vectors @ (chosen / basis.values.sqrt().unsqueeze(1))


def test_what_the_report_says() -> None:
    post = conditioned()
    assert diagnose(post, Xs).summary.startswith("Converged: close")
    edge = diagnose(disturbed(post, directions(post, slice(30, None), 0.35)), Xs)
    assert edge.summary.startswith("Converged where there are data; differences at the edge")
    assert float(edge.mean_error[: edge.regions.leading].max()) < 1e-9
    inside = diagnose(disturbed(post, directions(post, slice(8), 2.0)), Xs)
    assert inside.summary.startswith("Not converged, not even where there are data")
    small = diagnose(disturbed(post, directions(post, slice(8), 0.02)), Xs)
    assert small.summary.startswith("Predictions of observations are accurate where there are data")


def test_errors_by_direction() -> None:
    post = conditioned()
    basis = SpectralBasis.of(post)
    change = torch.zeros_like(post.weights)
    change[:, 0] = 0.5 * basis.vectors[:, 3] / basis.values[3].sqrt()
    change[:, 1:] = 0.25 * (basis.vectors[:, 7] / basis.values[7].sqrt()).unsqueeze(1)
    diagnosis = diagnose(disturbed(post, change), Xs)
    assert int(diagnosis.mean_error.argmax()) == 3
    assert float(diagnosis.mean_error[3]) == pytest.approx(0.5)
    assert float(diagnosis.path_error[7]) == pytest.approx(0.25)
    y = data()[1]
    size = basis.values.sqrt() / (basis.values + NOISE**2) * (basis.vectors.T @ y).abs()
    torch.testing.assert_close(diagnosis.mean_size, size, rtol=1e-6, atol=1e-8)


def test_the_table() -> None:
    lines = repr(diagnose(conditioned(), Xs.numpy())).splitlines()
    assert lines[0].startswith("Cholesky, ")
    assert [line.split()[0] for line in lines[1:-1]] == [
        "inputs",
        "interpolation",
        "extrapolation",
        "prior",
        "directions",
        "leading",
        "other",
    ]
    counts = [int(line.split()[1].replace(",", "")) for line in lines[2:5]]
    assert sum(counts) == 60
    assert min(counts) > 0
    near = repr(diagnose(conditioned(samples=0), data()[0].numpy()))
    assert "prior               0\n" in near
    assert "nan" not in near


def test_only_the_posterior_of_a_table_is_accepted() -> None:
    grid = pathgp.LatentKroneckerGP([kernels.Matern(1.5), kernels.Matern(1.5)], noise=0.1)
    post = grid.condition([None, None], np.random.default_rng(0).normal(size=(4, 5)), samples=4)
    with pytest.raises(TypeError, match=r"GP\.condition"):
        diagnose(post, Xs)  # type: ignore[arg-type]


def test_inducing_points_are_refused_by_name() -> None:
    X, y = data()
    post = pathgp.InducingGP(kernels.Matern(2.5, 0.3), NOISE, inducing=10).condition(X, y, samples=4)
    for function in (ExactSolution.of, SpectralBasis.of, lambda post: diagnose(post, Xs)):
        with pytest.raises(TypeError, match="an InducingPosterior solves for its inducing points"):
            function(post)
