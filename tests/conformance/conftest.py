"""Fixtures that go through the table of solvers and operators, `solver_table`."""

from __future__ import annotations

import pytest
import torch

from solver_table import PAIRS, SOLVERS, Problem, Solved, SolverCase, make_problem, solve_once


@pytest.fixture(params=[(torch.float32, 65), (torch.float64, 1)], ids=["float32, s=65", "float64, s=1"])
def dtype_and_columns(request: pytest.FixtureRequest) -> tuple[torch.dtype, int]:
    """Both dtypes and both numbers of columns; all four combinations would take twice as long."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def columns(dtype_and_columns: tuple[torch.dtype, int]) -> int:
    return dtype_and_columns[1]


@pytest.fixture
def dtype(dtype_and_columns: tuple[torch.dtype, int]) -> torch.dtype:
    return dtype_and_columns[0]


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
