"""A kernel without random features: no paths, and it says why; everything else works."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pathgp
import reference
from pathgp.kernels import Kernel, Matern


class Brownian(Kernel):
    """k(x, z) = min(x, z): a kernel of a user, who knows no features of it."""

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        return torch.minimum(X, Z.T).clone()

    def _diagonal(self, X: Tensor) -> Tensor:
        return X[:, 0].clone()


class Reasoned(Brownian):
    def features(self, *args: object, **options: object) -> pathgp.features.FeatureMap:
        raise NotImplementedError("the sky is too blue")


def data() -> tuple[Tensor, Tensor, Tensor]:
    X = torch.linspace(0.1, 2.0, 30, dtype=torch.float64).unsqueeze(1)
    return X, torch.sin(3 * X[:, 0]), X[:5] + 0.03


@pytest.mark.parametrize("samples", [0, 64])
@pytest.mark.parametrize("solver", ["auto", "cholesky", "cg", "ap", "sdd"])
def test_everything_but_paths_works(solver: str, samples: int) -> None:
    X, y, Xs = data()
    mean, covariance = reference.posterior(lambda A, B: torch.minimum(A, B.T), X, y, 0.2, Xs)
    post = pathgp.GP(Brownian(), 0.2).condition(X, y, samples=samples, solver=solver, tol=1e-6)
    assert float((post.mean(Xs) - mean).abs().max()) <= 1e-5
    assert float((post.variance(Xs) - covariance.diagonal()).abs().max()) <= 1e-8
    assert float((post.covariance(Xs) - covariance).abs().max()) <= 1e-8
    assert post.sample(Xs, 3).shape == (3, 5)
    grown = post.update(Xs, y[:5])
    assert grown.mean(Xs).shape == (5,)
    assert grown.report.no_paths == post.report.no_paths


def test_paths_say_why_there_are_none() -> None:
    X, y, Xs = data()
    post = pathgp.GP(Brownian() + Matern(), 0.2).condition(X, y)
    assert post.num_samples == post.report.samples == 0
    assert "no paths: Brownian has no random features" in repr(post.report)
    for posterior in (post, post.update(Xs, y[:5])):
        with pytest.raises(NotImplementedError, match=r"Brownian has no random features.*sample"):
            posterior.paths(Xs)
        with pytest.raises(NotImplementedError, match="Brownian"):
            posterior.variance(Xs, method="samples")


def test_a_kernel_may_give_its_own_reason() -> None:
    X, y, Xs = data()
    post = pathgp.GP(Reasoned(), 0.2).condition(X, y)
    with pytest.raises(NotImplementedError, match="the sky is too blue"):
        post.paths(Xs)
    with pytest.raises(NotImplementedError, match="the sky is too blue"):
        pathgp.GP(Reasoned(), 0.2).prior(3)(Xs)
