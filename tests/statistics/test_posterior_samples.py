"""4,096 paths and 4,096 draws have the exact posterior's mean and covariance; false-alarm rate 1e-6 per test.

The test inputs hold training inputs and others. Paths are made of random features, each with frequencies of
its own: exact in mean and covariance, Gaussian only in the limit (``gaussian=False``).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pathgp
import reference
from pathgp import pathwise
from pathgp.kernels import Kernel, Matern
from pathgp.pathwise import PriorPaths
from pathgp.posterior.path_variance import NEIGHBOURS
from pathgp.posterior.table import Posterior
from posterior_cases import CASES, Case
from statistics_tools import assert_mean_and_covariance

pytestmark = pytest.mark.statistical

SAMPLES, FEATURES, NOISE = 4096, 64, 0.3

every_kernel = pytest.mark.parametrize("case", CASES, ids=str)


def conditioned(case: Case, X: Tensor, y: Tensor, **options: object) -> Posterior:
    generator = torch.Generator().manual_seed(1)
    settings = {"samples": SAMPLES, "features": FEATURES, "solver": "cholesky", "generator": generator} | options
    return pathgp.GP(case.kernel, NOISE).condition(X, y, **settings)


@every_kernel
def test_paths_before_and_after_an_update(case: Case) -> None:
    X, y, Xs = case.data(40, 16)
    # Hashing is by far the slowest of the features.
    features = 16 if case.name == "tanimoto" else FEATURES
    post = conditioned(case, X[:25], y[:25], features=features)
    mean, covariance = reference.posterior(case.covariance, X[:25], y[:25], NOISE, Xs)
    assert_mean_and_covariance(post.paths(Xs), mean, covariance, alpha=5e-7, gaussian=False)
    # Conditioned on the rest as well: the distribution given all data at once.
    post = post.update(X[25:], y[25:], generator=torch.Generator().manual_seed(3))
    mean, covariance = reference.posterior(case.covariance, X, y, NOISE, Xs)
    assert_mean_and_covariance(post.paths(Xs), mean, covariance, alpha=5e-7, gaussian=False)


@every_kernel
def test_samples(case: Case) -> None:
    X, y, Xs = case.data(40, 16)
    mean, covariance = reference.posterior(case.covariance, X, y, NOISE, Xs)
    post = conditioned(case, X, y, samples=0)
    assert_mean_and_covariance(post.sample(Xs, SAMPLES, torch.Generator().manual_seed(2)), mean, covariance)


@pytest.mark.parametrize("solver", ["cg", "ap"])
def test_paths_by_iterative_solvers_with_noise_of_every_point(solver: str) -> None:
    case = CASES[2]
    X, y, Xs = case.data(40, 16)
    known = torch.linspace(0.0, 1.0, 40, dtype=torch.float64)
    mean, covariance = reference.posterior(case.covariance, X, y, (NOISE**2 + known.square()).sqrt(), Xs)
    post = conditioned(case, X, y, noise=known, solver=solver, tol=1e-3)
    assert_mean_and_covariance(post.paths(Xs), mean, covariance, gaussian=False)


def test_updates_with_noise_of_every_point() -> None:
    case = CASES[3]
    X, y, Xs = case.data(40, 16)
    known = torch.linspace(0.0, 1.0, 15, dtype=torch.float64)
    total = torch.cat([torch.full((25,), NOISE, dtype=torch.float64), (NOISE**2 + known.square()).sqrt()])
    mean, covariance = reference.posterior(case.covariance, X, y, total, Xs)
    post = conditioned(case, X[:25], y[:25])
    generator = torch.Generator().manual_seed(3)
    for rows in (slice(25, 30), slice(30, 40)):
        post = post.update(X[rows], y[rows], noise=known[rows.start - 25 : rows.stop - 25], generator=generator)
    assert_mean_and_covariance(post.paths(Xs), mean, covariance, gaussian=False)


def test_paths_in_float32_and_streamed() -> None:
    case = CASES[1]
    X, y, Xs = case.data(40, 16)
    mean, covariance = reference.posterior(case.covariance, X, y, NOISE, Xs)
    post = conditioned(case, X.float(), y.float(), compute=pathgp.Compute("streamed"), solver="ap", tol=1e-3)
    assert_mean_and_covariance(post.paths(Xs.float()), mean, covariance, gaussian=False)


def test_prior_paths() -> None:
    case = CASES[6]
    _, _, Xs = case.data(1, 16)
    paths = pathgp.GP(case.kernel, NOISE, mean=2.0).prior(SAMPLES, FEATURES, torch.Generator().manual_seed(4))
    mean = torch.full((16,), 2.0, dtype=torch.float64)
    assert_mean_and_covariance(paths(Xs), mean, case.covariance(Xs, Xs), gaussian=False)


def test_sharing_frequencies_between_paths_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The power of the test above: the common shortcut, one set of frequencies for all paths, is refused."""

    def shared(kernel: Kernel, samples: int, features: int, columns: int, generator: torch.Generator) -> PriorPaths:
        phi = kernel.features(features, generator=generator, dim=columns)
        return PriorPaths(phi, torch.randn(samples, phi.num, generator=generator, dtype=torch.float64))

    case = CASES[2]
    X, y, Xs = case.data(40, 16)
    mean, covariance = reference.posterior(case.covariance, X, y, NOISE, Xs)
    monkeypatch.setattr(pathwise.PriorPaths, "draw", shared)
    paths = conditioned(case, X, y, features=512).paths(Xs)
    with pytest.raises(AssertionError, match="do not have the stated mean and covariance"):
        assert_mean_and_covariance(paths, mean, covariance, gaussian=False)


def test_forgetting_the_noise_of_the_draws_is_found_out() -> None:
    case = CASES[2]
    X, y, Xs = case.data(40, 16)
    mean, covariance = reference.posterior(case.covariance, X, y, NOISE, Xs)
    post = conditioned(case, X, y)
    quiet = torch.cholesky_solve(
        post.system.targets, torch.linalg.cholesky(reference.system(case.covariance, X, NOISE))
    )
    post.weights = quiet
    with pytest.raises(AssertionError, match="do not have the stated mean and covariance"):
        assert_mean_and_covariance(post.paths(Xs), mean, covariance, gaussian=False)


def test_variance_from_samples_is_as_accurate_as_derived() -> None:
    """Relative variance 2/s / (1 + v^2 / (w - v)^2), w the variance given the nearest observations; to 5 std errors."""
    samples, repeats = 64, 150
    case = CASES[3]
    X, y, Xs = case.data(200, 4)
    near = (X - Xs[-1]).square().sum(1).argsort()[:NEIGHBOURS]
    v, w = (
        float(reference.posterior(case.covariance, X[rows], y[rows], NOISE, Xs[-1:])[1]) for rows in (slice(None), near)
    )
    expected = (2 / samples / (1 + v**2 / (w - v) ** 2)) ** 0.5
    gp = pathgp.GP(case.kernel, NOISE)
    ratios = []
    for seed in range(repeats):
        generator = torch.Generator().manual_seed(seed)
        post = gp.condition(X, y, samples=samples, features=128, solver="cholesky", generator=generator)
        ratios.append(post.variance(Xs[-1:], method="neighbours") / v)
    ratio = torch.cat(ratios)
    assert float(ratio.std()) == pytest.approx(expected, rel=5 / (2 * repeats) ** 0.5)
    assert abs(float(ratio.mean()) - 1.0) <= 1.5 / samples + 5 * expected / repeats**0.5
    # In the words of the report: a standard deviation has half the relative error of a variance, or less.
    assert post.report.std_error == pytest.approx(1 / (2 * samples) ** 0.5)
    assert expected / 2 <= 0.8 * post.report.std_error


def test_paths_barely_change_far_from_new_data() -> None:
    """An update keeps the prior draws: away from the new observations the same functions come back."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(60, 1, generator=generator, dtype=torch.float64)
    y = torch.sin(6 * X[:, 0])
    post = pathgp.GP(Matern(1.5, 0.1), 0.1).condition(X, y, samples=16, generator=generator)
    new = torch.tensor([[4.0], [4.1]], dtype=torch.float64)
    updated = post.update(new, torch.tensor([3.0, 3.0], dtype=torch.float64), generator=generator)
    near, far = new, torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(1)
    assert float((updated.paths(far) - post.paths(far)).abs().max()) < 1e-6
    assert float((updated.paths(near) - post.paths(near)).abs().mean()) > 0.5
