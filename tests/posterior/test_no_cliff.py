"""No cliff: where an internal threshold is crossed between n and n + 1 rows, predictions stay where they were.

The (n + 1)-th point lies far from all others, so that the exact posterior is the same at the test inputs, and what
remains is the error of the computation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import pathgp
from pathgp.compute.hardware import Rates
from pathgp.kernels import Matern
from pathgp.posterior import exact_covariance as exact_module
from pathgp.posterior.table import Posterior
from pathgp.solvers import predict

TOL, SAMPLES, FAR = 1e-2, 16, 1e3
GENERATOR = torch.Generator().manual_seed(0)
ALL = torch.rand(1200, 2, generator=GENERATOR, dtype=torch.float64)
TARGETS = torch.sin(8 * ALL[:, 0]) + 0.2 * torch.randn(1200, generator=GENERATOR, dtype=torch.float64)
XS = torch.rand(100, 2, generator=GENERATOR, dtype=torch.float64)


def rows(n: int, extra: bool) -> tuple[Tensor, Tensor]:
    """n rows, or the same and one more far away."""
    X, y = ALL[:n], TARGETS[:n]
    if extra:
        X = torch.cat([X, torch.full((1, 2), FAR, dtype=torch.float64)])
        y = torch.cat([y, torch.ones(1, dtype=torch.float64)])
    return X, y


def conditioned(n: int, extra: bool = False, kind: torch.dtype = torch.float32, **options: object) -> Posterior:
    X, y = rows(n, extra)
    settings = {"samples": SAMPLES, "features": 64, "tol": TOL, "generator": torch.Generator().manual_seed(1)}
    return pathgp.GP(Matern(1.5, 0.3), 0.2).condition(X.to(kind), y, **(settings | options))


def solver_of(post: Posterior) -> str:
    return post.report.solution.method


def changes(what: Callable[[int], str], places: list[int]) -> list[int]:
    """Every n between neighbouring places at which what(n + 1) differs from what(n), by bisection."""
    names = {n: what(n) for n in places}
    found = []
    for low, high in pairwise(places):
        if names[low] == names[high]:
            continue
        first = names[low]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if what(middle) == first else (low, middle)
        found.append(low)
    return found


def assert_no_cliff(before: Posterior, after: Posterior) -> None:
    scale = float(TARGETS.std())
    Xs = XS.to(before.system.X.dtype)
    error = (before.mean(Xs) - after.mean(Xs)).to(torch.float64)
    assert float(error.square().mean().sqrt()) <= 2 * TOL * scale
    assert float(error.abs().max()) <= 2 * TOL * float(TARGETS.max() - TARGETS.min())
    first, second = (post.variance(Xs, method="neighbours").sqrt() for post in (before, after))
    assert float((first / second - 1).abs().max()) <= before.report.std_error
    # The paths are the same functions: the same prior draws, and the same noise for the rows they share.
    error = (before.paths(Xs) - after.paths(Xs)).to(torch.float64)
    assert float(error.square().mean().sqrt()) <= 2 * TOL * float(before.paths(Xs).std())


@pytest.mark.parametrize("backend", ["dense", "streamed"])
def test_where_auto_changes_its_choice(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an imagined machine that factorises slowly, the choice changes at small n."""
    original = predict.rates

    def imagined(*args: object) -> Rates:
        rates = original(*args)
        return replace(rates, factorise=0.01 * rates.factorise)

    monkeypatch.setattr(predict, "rates", imagined)
    places = changes(lambda n: solver_of(conditioned(n, compute=pathgp.Compute(backend))), [8, 20, 60, 150, 400, 1000])
    assert places, "no change of solver up to n = 1000: imagine another machine"
    for n in places:
        before, after = (conditioned(n, extra, compute=pathgp.Compute(backend)) for extra in (False, True))
        assert solver_of(before) != solver_of(after)
        assert_no_cliff(before, after)


@pytest.mark.parametrize("solvers", [("cholesky", "ap"), ("cholesky", "cg"), ("ap", "cg")], ids="-".join)
@pytest.mark.parametrize("n", [50, 500])
def test_every_pair_auto_may_change_between(solvers: tuple[str, str], n: int) -> None:
    assert_no_cliff(conditioned(n, solver=solvers[0]), conditioned(n, extra=True, solver=solvers[1]))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_where_the_matrix_no_longer_fits(kind: torch.dtype) -> None:
    n = 400
    memory = n**2 * (4 if kind == torch.float32 else 8)
    before = conditioned(n, kind=kind, compute=pathgp.Compute(memory=memory))
    after = conditioned(n, extra=True, kind=kind, compute=pathgp.Compute(memory=memory))
    assert (before.report.backend, after.report.backend) == ("dense", "streamed")
    assert_no_cliff(before, after)


def test_where_the_factor_no_longer_fits() -> None:
    n = 400
    before = conditioned(n, compute=pathgp.Compute(memory=16 * n**2))
    after = conditioned(n, extra=True, compute=pathgp.Compute(memory=16 * n**2))
    assert solver_of(before) == "Cholesky"
    assert solver_of(after) != "Cholesky"
    assert_no_cliff(before, after)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", ["rows", "memory"])
def test_exact_variances(kind: torch.dtype, threshold: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 300
    memory = 16 * n**2 if threshold == "memory" else None
    if threshold == "rows":
        monkeypatch.setattr(exact_module, "FACTOR_ROWS", n)
    options = {"samples": 0, "solver": "cg", "compute": pathgp.Compute(memory=memory)}
    before, after = (conditioned(n, extra, kind, **options) for extra in (False, True))
    assert before.has_factor
    assert not after.has_factor
    Xs = XS.to(kind)
    # Errors are second order in the tolerance of the solves; what is left in float32 is the rounding of K.
    allowed = 1e-5 if kind == torch.float32 else 1e-9
    assert float((before.variance(Xs) - after.variance(Xs)).abs().max()) <= allowed
    # First order for covariances that are computed in parts.
    allowed = 2e-4 if kind == torch.float32 else 1e-6
    assert float((before.covariance(Xs) - after.covariance(Xs)).abs().max()) <= allowed
