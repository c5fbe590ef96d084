"""Variances from paths with neighbours as the control; their accuracy is tested in tests/statistics."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pathgp
import reference
from pathgp import Compute
from pathgp.kernels import Kernel, Matern, Tanimoto
from pathgp.pathwise import PriorPaths
from pathgp.posterior.path_variance import NEIGHBOURS, SampledVariance, nearest
from pathgp.posterior.system import System
from posterior_cases import CASES, Case, counts


@pytest.mark.parametrize("case", CASES, ids=str)
def test_exact_when_all_observations_are_neighbours(case: Case) -> None:
    X, y, Xs = case.data(NEIGHBOURS, 8)
    known = torch.linspace(0.0, 0.4, len(X), dtype=torch.float64)
    total = (0.09 + known.square()).sqrt()
    exact = reference.posterior(case.covariance, X, y, total, Xs)[1].diagonal()
    post = pathgp.GP(case.kernel, 0.3).condition(X, y, known, samples=2, features=256, solver="cholesky")
    assert torch.allclose(post.variance(Xs, method="neighbours"), exact, atol=1e-9)


def test_the_automatic_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact for few rows, by neighbours for more; smooth methods never use neighbours."""
    X, y, Xs = CASES[2].data(50, 6)
    gp, kept = pathgp.GP(CASES[2].kernel, 0.2), {"samples": 4, "features": 32, "solver": "cholesky"}
    post = gp.condition(X, y, **kept)
    by_method = {method: post.variance(Xs, method=method) for method in ("solve", "neighbours", "samples")}
    assert torch.equal(post.variance(Xs), by_method["solve"])
    assert torch.equal(post.variance(Xs, method="smooth"), by_method["solve"])
    monkeypatch.setattr("pathgp.posterior.base.EXACT_ROWS", 49)
    assert torch.equal(post.variance(Xs), by_method["neighbours"])
    # 16 n^2 bytes for a factor are not there.
    tight = gp.condition(X, y, **kept | {"solver": "cg", "compute": pathgp.Compute(memory=30_000)})
    assert torch.equal(tight.variance(Xs, method="smooth"), tight.variance(Xs, method="samples"))


def test_far_more_accurate_than_the_mean_square_of_the_paths() -> None:
    case = CASES[2]
    X, y, Xs = case.data(500, 40)
    post = pathgp.GP(case.kernel, 0.05).condition(X, y, generator=torch.Generator().manual_seed(0), solver="cholesky")
    exact = reference.posterior(case.covariance, X, y, 0.05, Xs)[1].diagonal()
    plain = (post.paths(Xs) - post.mean(Xs)).square().mean(0)
    error, plain_error = ((each / exact).sqrt() - 1.0 for each in (post.variance(Xs, method="neighbours"), plain))
    assert float(error.square().mean().sqrt()) <= 0.3 * float(plain_error.square().mean().sqrt())


@pytest.mark.parametrize("kernel", [Matern(1.5, 0.3), Tanimoto()], ids=["repeated inputs", "equal similarities"])
def test_ties_do_not_depend_on_how_the_inputs_are_split(kernel: Kernel) -> None:
    X = counts(200, torch.Generator().manual_seed(0))
    X[100:] = X[:100]
    post = pathgp.GP(kernel, 0.2).condition(
        X, torch.sin(X.sum(1)), samples=4, features=64, compute=pathgp.Compute(memory=100_000)
    )
    Xs = X[40:60]
    parts = torch.cat([post.variance(rows, method="neighbours") for rows in Xs.split(7)])
    assert torch.allclose(parts, post.variance(Xs, method="neighbours"), rtol=1e-9)


@pytest.mark.parametrize("memory", [None, 2_000])
def test_nearest_are_those_of_the_largest_covariance(memory: int | None) -> None:
    """Also when a tile holds less than one row of the matrix."""
    generator = torch.Generator().manual_seed(0)
    X, Xs = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (300, 7))
    variances = 1.0 + torch.rand(300, generator=generator, dtype=torch.float64)
    found = nearest(Matern(), Xs, X, variances, 20, memory)
    expected = (reference.matern(Xs, X, 1.5).square() / variances).argsort(1, descending=True)[:, :20]
    assert torch.equal(found.sort(1).values, expected.sort(1).values)


def test_neighbours_that_cannot_be_told_apart_are_left_out() -> None:
    """Repeated inputs almost without noise have no Cholesky factor; the prior variance is then what is known."""
    X, kernel, generator = torch.zeros(40, 1, dtype=torch.float64), Matern(), torch.Generator().manual_seed(0)
    prior = PriorPaths.draw(kernel, 8, 64, 1, generator)
    nothing = torch.zeros(40, 8, dtype=torch.float64)
    system = System(X, torch.zeros(40, 9, dtype=torch.float64), nothing, torch.tensor(1e-12, dtype=torch.float64))
    variance = SampledVariance(kernel, system, prior, nothing, Compute())(X[:3] + 0.1)
    assert torch.allclose(variance, torch.ones(3, dtype=torch.float64))


def test_gradients() -> None:
    X, y, Xs = CASES[3].data(60, 3)
    post = pathgp.GP(CASES[3].kernel, 0.2).condition(X, y, samples=4, features=32, solver="cholesky")

    def variance(inputs: Tensor) -> Tensor:
        return post.variance(inputs, method="neighbours")

    assert torch.autograd.gradcheck(variance, (Xs.requires_grad_(),), atol=1e-5)
