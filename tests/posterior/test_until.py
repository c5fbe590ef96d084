"""Stop when predictions are accurate: at the stop the true error, against a dense reference, is below the promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import kernels, solvers
from reference import matern, posterior, system

N = 1000
# Length scale and number of columns by noise.
CASES = {0.5: (0.3, 2), 0.1: (0.3, 2), 0.02: (0.8, 3)}


def data(noise: float, columns: int, n: int = N) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, columns, generator=generator, dtype=torch.float64)
    y = torch.sin(5.0 * X.sum(1)) + noise * torch.randn(n, generator=generator, dtype=torch.float64)
    # Some of the inputs lie outside of the data.
    return X, y, 1.2 * torch.rand(40, columns, generator=generator, dtype=torch.float64)


def true_error(post: pathgp.Posterior, lengthscale: float, noise: float, Xs: Tensor) -> float:
    """The largest error of mean and paths at Xs in exact posterior standard deviations, by dense linear algebra."""
    X, targets = post.system.X, post.system.targets

    def k(A: Tensor, B: Tensor) -> Tensor:
        return matern(A, B, 1.5, lengthscale)

    mean, covariance = posterior(k, X, targets[:, 0], noise, Xs)
    std = covariance.diagonal().sqrt()
    alpha = torch.linalg.solve(system(k, X, noise), targets[:, 1:] + noise * post.system.noise_draws)
    wrong = k(Xs, X) @ (post.weights[:, 1:] - alpha)
    of_mean = (post.mean(Xs) - mean).abs() / std
    return max(float(of_mean.max()), float((wrong.square().mean(1).sqrt() / std).max()))


@pytest.mark.parametrize(
    ("solver", "noise"),
    [
        *((solvers.AP(block_size=100), noise) for noise in CASES),
        *((solvers.CG(), noise) for noise in CASES),
        (solvers.SDD(), 0.5),
        (solvers.Cholesky(), 0.1),
    ],
)
def test_the_promise_is_kept(solver: solvers.Solver, noise: float) -> None:
    lengthscale, columns = CASES[noise]
    X, y, Xs = data(noise, columns)
    gp = pathgp.GP(kernels.Matern(1.5, lengthscale), noise=noise)
    options = {"solver": solver, "samples": 16, "generator": torch.Generator().manual_seed(1)}
    post = gp.condition(X, y, until="predictions", at=Xs, tol=0.2, **options)  # type: ignore[arg-type]
    report = post.report
    assert report.solution.converged
    assert report.prediction_error <= report.prediction_tol == 0.2
    error = true_error(post, lengthscale, noise, Xs)
    assert error <= report.prediction_error
    if not isinstance(solver, solvers.Cholesky):
        # Stopped early: nobody computed more digits than asked for by far.
        assert error > 1e-4


def test_a_smaller_tolerance_takes_more_epochs_and_gives_smaller_errors() -> None:
    X, y, Xs = data(0.1, 2, 300)
    gp = pathgp.GP(kernels.Matern(1.5, 0.3), noise=0.1)
    found = []
    for tol in (0.5, 0.05, 0.002):
        generator = torch.Generator().manual_seed(1)
        post = gp.condition(
            X, y, until="predictions", at=Xs, tol=tol, solver=solvers.AP(60), samples=16, generator=generator
        )
        error = true_error(post, 0.3, 0.1, Xs)
        assert error <= post.report.prediction_error <= tol
        found.append((post.report.epochs, error))
    assert found[0][0] < found[1][0] < found[2][0]
    assert found[0][1] > found[2][1]


def test_units_of_the_data_do_not_matter() -> None:
    """Standardised data in other units, as NumPy arrays: the same number of epochs, the same promise."""
    X, y, Xs = (a.numpy() for a in data(0.1, 2, 300))
    reports = []
    # A power of two changes no digit of the data.
    for scale in (1.0, 1024.0):
        gp = pathgp.GP(kernels.Matern(1.5, 1.0), noise=0.1, standardise=True)
        generator = torch.Generator().manual_seed(1)
        post = gp.condition(
            scale * X,
            scale * y,
            until="predictions",
            at=scale * Xs,
            tol=0.1,
            solver="cg",
            samples=8,
            generator=generator,
        )
        reports.append(post.report)
    assert reports[0].epochs == reports[1].epochs
    assert reports[0].prediction_error == pytest.approx(reports[1].prediction_error, rel=1e-3)


def test_the_report_says_what_was_promised_and_an_update_uses_residuals() -> None:
    X, y, Xs = data(0.1, 2, 200)
    gp = pathgp.GP(kernels.Matern(1.5, 0.3), noise=0.1)
    post = gp.condition(X, y, until="predictions", at=Xs, tol=0.1, samples=8, solver="ap")
    (line,) = [line for line in repr(post.report).splitlines() if line.startswith("predictions")]
    assert "posterior std at 40 inputs, asked for 0.1: " in line
    assert "tol" not in next(line for line in repr(post.report).splitlines() if line.startswith("residual"))
    assert post.settings.tol == 0.01
    updated = post.update(X[:5] + 0.01, y[:5])
    assert updated.report.prediction_inputs == 0
    assert updated.report.worst_residual <= 0.01


def test_a_budget_that_ends_early_is_no_promise() -> None:
    X, y, Xs = data(0.1, 2, 300)
    gp = pathgp.GP(kernels.Matern(1.5, 0.3), noise=0.1)
    with pytest.warns(pathgp.ConvergenceWarning):
        post = gp.condition(X, y, until="predictions", at=Xs, tol=1e-3, samples=8, solver="sdd", max_epochs=5)
    assert not post.report.prediction_error <= 1e-3


def test_errors() -> None:
    X, y, Xs = data(0.1, 2, 30)
    gp = pathgp.GP(kernels.Matern(1.5, 0.3), noise=0.1)
    with pytest.raises(ValueError, match="belong together"):
        gp.condition(X, y, until="predictions")
    with pytest.raises(ValueError, match="belong together"):
        gp.condition(X, y, at=Xs)
    with pytest.raises(ValueError, match="'residual' or 'predictions'"):
        gp.condition(X, y, until="done", at=Xs)
    with pytest.raises(ValueError, match="positive tol"):
        gp.condition(X, y, until="predictions", at=Xs, tol=0.0)
    with pytest.raises(ValueError, match="samples=8 or more"):
        gp.condition(X, y, until="predictions", at=Xs, samples=4)
    with pytest.raises(ValueError, match="at has 3 columns"):
        gp.condition(X, y, until="predictions", at=torch.zeros(4, 3, dtype=torch.float64))
    grid = pathgp.LatentKroneckerGP([kernels.Matern(1.5), kernels.Matern(1.5)], noise=0.1)
    with pytest.raises(ValueError, match="for tables"):
        grid.condition([None, None], np.zeros((4, 5)), until="predictions", at=np.zeros((2, 2)))
    assert math.isnan(gp.condition(X, y, samples=8).report.prediction_error)
