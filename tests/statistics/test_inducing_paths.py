"""4,096 paths of sparse methods have the covariance that the documentation states; false-alarm rate 1e-6 per test."""

from __future__ import annotations

import pytest
import torch

import sparse_reference
from pathgp import InducingGP
from posterior_cases import CASES
from sparse_reference import METHODS
from statistics_tools import assert_mean_and_covariance

pytestmark = pytest.mark.statistical

SAMPLES, FEATURES, NOISE = 4096, 128, 0.3
DIRECT = [method for method in METHODS if method != "sgd"]


@pytest.mark.parametrize("method", DIRECT)
def test_paths_of_a_direct_solution(method: str) -> None:
    """The covariance of the method itself, before and after an update."""
    case = CASES[2]
    X, y, Xs = case.data(60, 10)
    Z = X[::7]
    gp = InducingGP(case.kernel, NOISE, Z, method)
    options = {"samples": SAMPLES, "features": FEATURES, "generator": torch.Generator().manual_seed(1)}
    post = gp.condition(X[:40], y[:40], **options)
    blocks = [torch.arange(40), torch.arange(40, 60)]
    expected = sparse_reference.posterior(method, case.covariance, Z, X[:40], y[:40], NOISE, Xs, blocks[:1])
    assert_mean_and_covariance(post.paths(Xs), *expected, alpha=5e-7, gaussian=method == "sor")
    grown = post.update(X[40:], y[40:], generator=torch.Generator().manual_seed(2))
    expected = sparse_reference.posterior(method, case.covariance, Z, X, y, NOISE, Xs, blocks)
    assert_mean_and_covariance(grown.paths(Xs), *expected, alpha=5e-7, gaussian=method == "sor")


def test_paths_of_an_iterative_solution() -> None:
    """f(X) in place of its Nystrom part: the covariance of the thesis, which differs from that of the method."""
    case = CASES[2]
    X, y, Xs = case.data(60, 10)
    Z = X[::7]
    options = {"samples": SAMPLES, "features": FEATURES, "generator": torch.Generator().manual_seed(1)}
    post = InducingGP(case.kernel, NOISE, Z, "dtc").condition(X, y, solver="cg", tol=1e-4, **options)
    mean, of_method = sparse_reference.posterior("dtc", case.covariance, Z, X, y, NOISE, Xs)
    covariance = sparse_reference.path_covariance(case.covariance, Z, X, NOISE, Xs)
    assert float((covariance - of_method).abs().max()) > 0.01
    assert_mean_and_covariance(post.paths(Xs), mean, covariance, gaussian=False)
    variance = post.variance(Xs)
    assert torch.allclose(variance, covariance.diagonal(), rtol=0.15)
