"""The report tells what happened, and what it tells is true."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch

import pathgp
from pathgp.kernels import Matern
from pathgp.operators import KernelOperator
from pathgp.solvers import CG, SDD, Record, Solver, Status
from posterior_cases import CASES

NOISE = 0.1


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("solver", ["cholesky", "cg", "ap", SDD(batch_size=25)])
@pytest.mark.parametrize("backend", ["dense", "streamed"])
def test_residuals_are_those_of_the_weights(solver: str | Solver, backend: str) -> None:
    X, y, _ = CASES[2].data(100, 1)
    kernel = Matern(1.5, 0.4)
    post = pathgp.GP(kernel, NOISE).condition(
        X, y, samples=3, solver=solver, tol=0.05, generator=seeded(), compute=pathgp.Compute(backend)
    )
    H = KernelOperator(kernel, X, NOISE, pathgp.Compute("dense"))
    b = post.system.targets.clone()
    b[:, 1:] += NOISE * post.system.noise_draws
    relative = (b - H @ post.weights).norm(dim=0) / b.norm(dim=0)
    report = post.report
    assert torch.allclose(report.solution.residual, relative, rtol=1e-6, atol=1e-12)
    assert report.mean_residual == pytest.approx(float(relative[0]), abs=1e-12)
    assert report.worst_residual == pytest.approx(float(relative.max()), abs=1e-12)
    assert report.worst_residual <= 0.05
    assert report.status is Status.CONVERGED
    assert report.solution.residual_is_exact
    assert report.backend == backend


def test_fields() -> None:
    X, y, _ = CASES[2].data(100, 1)
    post = pathgp.GP(Matern(1.5, 0.4), NOISE).condition(X, y, samples=32, features=100, solver="cg", tol=0.05)
    report = post.report
    assert (report.rows, report.columns, report.samples, report.features) == (100, 2, 32, 100)
    assert (report.precision, report.device, report.tol) == ("float64", "cpu", 0.05)
    assert report.epochs == report.solution.epochs > 0
    assert report.std_error == pytest.approx(0.125)
    assert report.seconds > 0
    earlier = replace(report, solution=replace(report.solution, precision=""))  # as in older files
    assert (report.products, earlier.products) == ("high precision", "not recorded")
    assert len(report.solution.x) == 0  # the weights are not held twice
    assert pathgp.GP(Matern(), NOISE).condition(X, y, samples=0).report.std_error == math.inf


def test_it_prints_as_a_small_table() -> None:
    X, y, _ = CASES[2].data(100, 1)
    post = pathgp.GP(Matern(1.5, 0.4), NOISE).condition(X.float(), y, samples=32, features=100, solver="cg")
    lines = repr(post.report).splitlines()
    names = [
        "data",
        "kernel matrix",
        "products",
        "solver",
        "why",
        "status",
        "epochs",
        "residual",
        "error bound",
        "error at data",
        "samples",
        "seconds",
    ]
    assert [line[:15].strip() for line in lines] == [*names, "seed"]
    assert lines[0].endswith("100 rows, 2 columns, float32, cpu")
    assert lines[2].endswith("  high precision")
    assert "CG(" in lines[3]
    assert "CONVERGED" in lines[5]
    assert lines[10].endswith("32 paths, 100 features each; standard error of a std 12 % at most")
    assert repr(post) == "Posterior\n" + repr(post.report)


@pytest.mark.parametrize("solver", ["cg", "ap", "sdd"])
def test_a_solve_that_ends_early_warns_with_a_remedy(solver: str) -> None:
    X, y, Xs = CASES[0].data(300, 3)
    gp = pathgp.GP(Matern(2.5, 1.0), 0.01)
    with pytest.warns(pathgp.ConvergenceWarning, match=r"BUDGET_EXHAUSTED.*raise max_epochs") as caught:
        post = gp.condition(X, y, solver=solver, max_epochs=4, tol=1e-8, generator=seeded())
    assert caught[0].filename == __file__  # it points at the caller's line
    assert post.report.status is Status.BUDGET_EXHAUSTED
    assert post.report.worst_residual > 1e-8
    assert "BUDGET_EXHAUSTED" in repr(post)
    assert bool(torch.isfinite(post.mean(Xs)).all())


def test_exact_variances_that_end_early_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, Xs = CASES[0].data(200, 3)
    monkeypatch.setattr(pathgp.posterior.exact_covariance, "FACTOR_ROWS", 0)
    monkeypatch.setattr(pathgp.posterior.exact_covariance, "_SOLVE_TOL", {torch.float64: 1e-30})
    post = pathgp.GP(Matern(1.5, 0.4), NOISE).condition(X, y, samples=0, solver=CG())
    for ask in (lambda: post.variance(Xs), lambda: post.covariance(Xs), lambda: post.sample(Xs)):
        with pytest.warns(pathgp.ConvergenceWarning, match=r"exact variances: CG.*worst residual"):
            ask()


def test_the_callback_sees_the_solve() -> None:
    X, y, Xs = CASES[2].data(100, 4)
    seen: list[Record] = []
    post = pathgp.GP(Matern(1.5, 0.4), NOISE).condition(X, y, samples=2, solver="cg", callback=seen.append)
    assert len(seen) == len(post.report.solution.history) > 1
    assert seen[-1].residual.shape == (3,)
    count = len(seen)
    post.update(Xs, y[:4], callback=seen.append)
    assert len(seen) > count


def test_a_good_solve_does_not_warn() -> None:
    X, y, _ = CASES[2].data(100, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pathgp.GP(Matern(1.5, 0.4), NOISE).condition(X, y, samples=2)
