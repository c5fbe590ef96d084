"""Solves with rough products: the same solutions."""

from __future__ import annotations

import math
import re
from functools import cached_property

import pytest
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.operators import KernelOperator
from pathgp.operators.dense import Dense
from pathgp.solvers import AP, CG, SDD, Auto, Cholesky, Solver, Status

SOLVERS = [CG(), AP(block_size=64), SDD(batch_size=64), Cholesky(), Auto()]


class Rough(KernelOperator):
    """Inner products with K + E for a fixed symmetric E: entries of K change by a relative ``error``. Blocks do not."""

    error = 0.0
    exact: KernelOperator

    @cached_property
    def inner(self) -> KernelOperator:
        twin = Rough(self.kernel, self.X, self.noise.sqrt(), "dense")
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
    H = Rough(kernels.Matern(1.5, 0.5), X, noise, "dense")
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
    assert "full precision" not in solution.note
    torch.testing.assert_close(solution.x, exact, rtol=0, atol=2e-5 * float(exact.abs().max()))
    residual = ((B - H @ solution.x).norm(dim=0) / B.norm(dim=0)).double()
    torch.testing.assert_close(solution.residual, residual, rtol=1e-6, atol=1e-12)


def test_the_error_of_the_products_is_measured() -> None:
    """The report's number for the first correction, which Cholesky finds exactly: (H + E)^-1 b."""
    for error in (1e-3, 1e-5):
        H, B, _ = system(error)
        d = torch.linalg.solve(H.inner.block(torch.arange(300)), B[:, :1])
        expected = float((H.inner @ d - H @ d).norm() / (H @ d).norm())
        found = re.search(r"off by (\S+);", Cholesky().solve(H, B, tol=1e-4, generator=seeded()).note)
        assert found is not None
        assert float(found[1]) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("solver", [CG(), AP(block_size=64)], ids=repr)
def test_too_rough_products_are_given_up(solver: Solver) -> None:
    """An error above the noise: the rounds do not contract."""
    H, B, exact = system(error=0.3, noise=0.03)
    solution = solver.solve(H, B, tol=1e-6, generator=seeded(), max_epochs=3000)
    assert solution.converged
    assert "full precision" in solution.note
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
