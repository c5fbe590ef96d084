"""Solves with rough products: the same solutions."""

from __future__ import annotations

import math
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import kernels
from pathgp.operators import KernelOperator
from pathgp.operators.dense import Dense
from pathgp.posterior import conditioning
from pathgp.solvers import AP, CG, SDD, Auto, Cholesky, Solver, Status, refinement
from pathgp.solvers.base import Run

SOLVERS = [CG(), AP(block_size=64), SDD(batch_size=64), Cholesky(), Auto()]


class Rough(KernelOperator):
    """Inner products with K + E for a fixed symmetric E: entries of K change by a relative ``error``. Blocks do not."""

    error = 0.0
    exact: KernelOperator

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.precision = "low"

    @cached_property
    def inner(self) -> KernelOperator:
        twin = Rough(self.kernel, self.X, self.noise.sqrt(), pathgp.Compute("dense"))
        noise = torch.randn(self.shape, generator=torch.Generator().manual_seed(3), dtype=self.dtype)
        tiles = twin._tiles
        assert isinstance(tiles, Dense)
        tiles.K *= 1.0 + self.error * (noise + noise.T) / math.sqrt(2.0)
        twin.exact = self
        return twin

    def block(self, index: Tensor) -> Tensor:
        return self.exact.block(index) if hasattr(self, "exact") else super().block(index)


def system(error: float, noise: float = 0.3, n: int = 300) -> tuple[Rough, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    H = Rough(kernels.Matern(1.5, 0.5), X, noise, pathgp.Compute("dense"))
    H.error = error
    B = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    exact = torch.linalg.solve(H.block(torch.arange(n)), B)
    return H, B, exact


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("rule", ["every", "average"])
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_the_solution_does_not_depend_on_the_products(solver: Solver, rule: str) -> None:
    H, B, exact = system(error=1e-3)
    solution = solver.solve(H, B, tol=1e-6, generator=seeded(), rule=rule, max_epochs=3000)
    assert solution.converged
    assert "refinement" in solution.note
    assert (solution.solver == repr(solver)) == (solver != Auto())
    assert solution.products.startswith("low precision, off by ")
    assert "high" not in solution.products
    torch.testing.assert_close(solution.x, exact, rtol=0, atol=2e-5 * float(exact.abs().max()))
    residual = ((B - H @ solution.x).norm(dim=0) / B.norm(dim=0)).double()
    torch.testing.assert_close(solution.residual, residual, rtol=1e-6, atol=1e-12)


def test_the_error_of_the_products_is_measured() -> None:
    """The report's number for the first correction, which Cholesky finds exactly: (H + E)^-1 b."""
    for error in (1e-3, 1e-5):
        H, B, _ = system(error)
        d = torch.linalg.solve(H.inner.block(torch.arange(300)), B[:, :1])
        expected = float((H.inner @ d - H @ d).norm() / (H @ d).norm())
        found = re.search(r"off by (\S+)$", Cholesky().solve(H, B, tol=1e-4, generator=seeded()).products)
        assert found is not None
        assert float(found[1]) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("noticed", ["at once", "after a round"])
@pytest.mark.parametrize("solver", [CG(), AP(block_size=64)], ids=repr)
def test_too_rough_products_are_given_up(solver: Solver, noticed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error above the noise: the rounds do not contract."""
    if noticed == "after a round":
        monkeypatch.setattr(refinement, "_roughness", lambda run: 0.0)
    H, B, exact = system(error=0.3, noise=0.03)
    solution = solver.solve(H, B, tol=1e-6, generator=seeded(), max_epochs=3000)
    assert solution.converged
    said = {
        "at once": r"high precision: low would be off by \S+ times the noise$",
        "after a round": r"low precision, off by \S+, then high: the rounds did not contract$",
    }
    assert re.match(said[noticed], solution.products)
    assert ("rounds" in solution.note) == (noticed == "after a round")
    torch.testing.assert_close(solution.x, exact, rtol=0, atol=1e-3 * float(exact.abs().max()))


@pytest.mark.parametrize("budget", [1.0, 3.0, 6.5, 9.0])
def test_budgets_hold(budget: float) -> None:
    H, B, _ = system(error=1e-3)
    solution = AP(block_size=32).solve(H, B, tol=1e-10, generator=seeded(), max_epochs=budget)
    assert solution.status is Status.BUDGET_EXHAUSTED
    assert solution.epochs <= budget + 1e-9
    assert (solution.residual <= 1.0 + 1e-9).all()


def test_a_zero_column_and_a_warm_start() -> None:
    H, B, exact = system(error=1e-3)
    B[:, 1] = 0.0
    solution = CG().solve(H, B, x0=exact * 1.01, tol=1e-8, generator=seeded())
    assert solution.converged
    assert not solution.x[:, 1].any()
    torch.testing.assert_close(solution.x[:, ::2], exact[:, ::2], rtol=0, atol=1e-6 * float(exact.abs().max()))


def test_the_roughness_is_the_error_beside_the_noise() -> None:
    """Entries of E have a size of a thousandth of K's: |E v| for a normal v, from a few rows."""
    H, B, _ = system(error=1e-3, noise=0.1, n=2000)
    everything = torch.arange(2000)
    E = H.inner._tiles.K - H.block(everything) + 0.01 * torch.eye(2000, dtype=torch.float64)
    expected = float(E.square().sum(1).mean().sqrt()) / 0.01
    run = Run(H, B, None, None, 1e-2, None, seeded(), None, "every")
    assert refinement._roughness(run) == pytest.approx(expected, rel=0.15)


def test_reports_name_the_products(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a posterior, also from its file, and of a fit: rough while the noise is large, then in high precision."""
    monkeypatch.setattr(conditioning, "KernelOperator", Rough)
    monkeypatch.setattr(Rough, "error", 1e-2)
    X = torch.rand(200, 2, generator=seeded(), dtype=torch.float64)
    y = (4.0 * X).sin().sum(1)
    compute = pathgp.Compute(precision="low")
    options: dict[str, Any] = {"samples": 2, "features": 16, "generator": seeded(), "compute": compute}
    gp = pathgp.GP(kernels.Matern(1.5, 0.5), noise=0.5)
    post = gp.condition(X, y, **options)
    assert re.search(r"\nproducts +low precision, off by \d\.\de-0[23]\n", repr(post.report))
    post.save(tmp_path / "post")
    assert pathgp.load(tmp_path / "post").report.products == post.report.products
    fit = gp.fit(X, y, steps=30, **options)
    told = [*(step.products for step in fit.history), fit.condition.products]
    low = [words for words in told if words.startswith("low precision, off by ")]
    assert 0 < len(low) < len(told)
    reasons = r"low would be off by \S+ times the noise|the start was good enough"
    assert all(re.match(rf"low|high precision: ({reasons})$", words) for words in told)
    assert f"products        {low[-1]} ({len(low)} of 31 solves); high precision" in repr(fit)


@pytest.mark.parametrize("backend", ["dense", "streamed"])
def test_a_precision_that_there_is_not(backend: str) -> None:
    """Other backends have only one: the report says so, and every step of a fit."""
    X = torch.rand(50, 2, generator=seeded(), dtype=torch.float64)
    options: dict[str, Any] = {"samples": 2, "features": 16, "generator": seeded()}
    gp = pathgp.GP(kernels.Matern(1.5, 0.5), noise=0.3)
    assert gp.condition(X, X[:, 0], compute=pathgp.Compute(backend), **options).report.products == "high precision"
    words = "high precision: low was asked for, which only fused products have"
    low = pathgp.Compute(backend, precision="low")
    assert KernelOperator(gp.kernel, X, 0.3, low).precision == "high"
    assert f"products       {words}\n" in repr(gp.condition(X, X[:, 0], compute=low, **options).report)
    fit = gp.fit(X, X[:, 0], steps=2, compute=low, **options)
    assert {step.products for step in fit.history} == {words}
    assert f"products        {words}\n" in repr(fit)
