"""Fixtures that go through the table of solvers and operators, `solver_table`."""

from __future__ import annotations

import pytest
import torch

from solver_table import PAIRS, SOLVERS, Problem, Solved, SolverCase, make_problem, solve_once


@pytest.fixture(params=[1, 65], ids=lambda s: f"s={s}")
def columns(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=PAIRS, ids=" on ".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Names of a solver and of an operator that it suits."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def operator(pair: tuple[str, str]) -> str:
    return pair[1]


@pytest.fixture
def problem(operator: str, dtype: torch.dtype, columns: int) -> Problem:
    return make_problem(operator, dtype, columns)


@pytest.fixture
def case(pair: tuple[str, str]) -> SolverCase:
    return SOLVERS[pair[0]]


@pytest.fixture
def solved(case: SolverCase, operator: str, dtype: torch.dtype, columns: int) -> Solved:
    """One solution per line of the table, shared by the tests that only look at it."""
    return solve_once(case, (operator, dtype, columns))
