"""Properties of every solver on every operator: `solver_table` lists the pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pathgp import solvers
from pathgp.solvers import Status
from pathgp.solvers import run as run_module

TOL = 1e-2
Solved = tuple[solvers.Solution, list[solvers.Record]]


def _solve(case: Any, problem: Any, seed: int = 2, **options: Any) -> solvers.Solution:
    options = {"tol": TOL, "max_epochs": case.max_epochs, "delta": problem.delta, **options}
    return case.solver.solve(  # type: ignore[no-any-return]
        problem.H, problem.B, generator=torch.Generator().manual_seed(seed), **options
    )


def test_the_reported_residual_is_the_true_one(problem: Any, solved: Solved) -> None:
    solution, _ = solved
    assert solution.residual_is_exact
    error = (solution.residual.double() - problem.residual(solution.x)).abs()
    assert (error <= problem.rounding(solution.x)).all()


def test_converged_means_every_column_is_below_tol(case: Any, problem: Any, solved: Solved) -> None:
    solution, _ = solved
    assert solution.converged == bool((solution.residual <= TOL).all())
    assert solution.converged or not case.converges
    if solution.converged:
        assert (problem.residual(solution.x) <= TOL + problem.rounding(solution.x)).all()
    else:
        assert solution.status is Status.BUDGET_EXHAUSTED
        assert (solution.residual[problem.target.norm(dim=0) > 0] < 1.0).all()


def test_close_to_the_truth_as_far_as_the_residual_implies(problem: Any, solved: Solved) -> None:
    """H e = r, so |e| <= |r| / lambda_min, and lambda_min is at least the smallest noise."""
    solution, _ = solved
    error = (solution.x.double() - problem.truth()).norm(dim=0)
    bound = problem.residual(solution.x) * problem.target.norm(dim=0) / float(problem.H.noise.min())
    assert (error <= bound + 1e-9).all()


def test_zero_columns_have_the_solution_zero(problem: Any, solved: Solved) -> None:
    solution, _ = solved
    zero = problem.target.norm(dim=0) == 0
    assert (solution.x[:, zero] == 0).all()
    assert (solution.residual[zero] == 0).all()


def test_history_and_callback_tell_the_same_story(solved: Solved) -> None:
    solution, seen = solved
    assert len(seen) == len(solution.history) >= 2
    assert all(a is b for a, b in zip(seen, solution.history, strict=True))
    epochs = [record.epochs for record in seen]
    assert epochs == sorted(epochs)
    assert epochs[0] == 0
    assert epochs[-1] == solution.epochs
    assert all(record.residual.shape == solution.residual.shape for record in seen)
    assert seen[-1].is_exact
    assert torch.equal(seen[-1].residual, solution.residual.cpu())
    assert solution.iterations > 0
    assert solution.seconds > 0


def test_out_of_budget_is_said_and_kept(case: Any, problem: Any) -> None:
    for budget in (1.0, 2.0, 5.5):
        solution = _solve(case, problem, tol=1e-14, max_epochs=budget)
        assert solution.epochs <= budget + 1e-6
        # A direct method may get there within the budget, and on a complete grid preconditioned CG is one.
        if "Cholesky()" not in solution.solver and "inverse on the whole grid" not in solution.note:
            assert solution.status is Status.BUDGET_EXHAUSTED
        assert solution.converged == bool((solution.residual <= 1e-14).all())
        error = (solution.residual.double() - problem.residual(solution.x)).abs()
        assert (error <= problem.rounding(solution.x)).all()


def test_a_budget_is_kept_from_a_given_start_as_well(case: Any, problem: Any) -> None:
    start = 0.5 * problem.truth().to(problem.B.dtype)
    solution = _solve(case, problem, x0=start, tol=1e-14, max_epochs=3.0)
    assert solution.epochs <= 3.0 + 1e-6
    assert (solution.residual <= 2.0).all()


def test_a_start_at_the_solution_costs_at_most_two_epochs(case: Any, problem: Any) -> None:
    solution = _solve(case, problem, x0=problem.truth().to(problem.B.dtype))
    assert solution.converged
    assert solution.epochs <= 2


def test_a_better_start_is_not_lost(case: Any, problem: Any) -> None:
    truth = problem.truth()
    start = truth + 0.05 * truth.norm(dim=0) / truth.shape[0] ** 0.5
    solution = _solve(case, problem, x0=start.to(problem.B.dtype))
    assert solution.converged or not case.converges
    assert (solution.residual <= 4 * problem.residual(start) + TOL).all()


@pytest.mark.parametrize("budget", [4.0, 7.5, None])
def test_some_rows_tell_where_a_start_stands(
    case: Any, problem: Any, budget: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is with many rows: the promises are the same."""
    monkeypatch.setattr(run_module, "_MIN_SAMPLE", problem.H.shape[0] // 8)
    start = 0.9 * problem.truth().to(problem.B.dtype)
    solution = _solve(case, problem, x0=start, max_epochs=budget or case.max_epochs)
    dear = problem.H.cost(problem.H.shape[0] // 8) > problem.H.cost() / 8
    assert solution.history[0].is_exact == dear
    assert solution.epochs <= (budget or case.max_epochs) + 1e-6
    error = (solution.residual.double() - problem.residual(solution.x)).abs()
    assert (error <= problem.rounding(solution.x)).all()
    assert (solution.residual <= problem.residual(start) + problem.rounding(start)).all()
    assert solution.history[-1].is_exact
    assert solution.history[-1].epochs == solution.epochs
    assert solution.converged or budget or not case.converges


def test_delta_adds_the_noise_times_delta(case: Any, problem: Any) -> None:
    """Without delta the same right-hand side has the same solution, by another route for SGD."""
    if not case.converges:
        return
    full, generator = problem.target.to(problem.B.dtype), torch.Generator().manual_seed(2)
    solution = case.solver.solve(problem.H, full, tol=TOL, max_epochs=case.max_epochs, generator=generator)
    assert solution.converged
    assert (problem.residual(solution.x) <= TOL + problem.rounding(solution.x)).all()


def test_the_average_rule(case: Any, problem: Any) -> None:
    solution = _solve(case, problem, rule="average")
    assert solution.converged or not case.converges
    if solution.converged:
        exact = problem.residual(solution.x)
        slack = problem.rounding(solution.x).max()
        assert exact[0] <= TOL + slack
        assert len(exact) == 1 or exact[1:].mean() <= TOL + slack


def test_same_generator_same_numbers(case: Any, problem: Any, solved: Solved) -> None:
    solution, _ = solved
    again = _solve(case, problem)
    assert torch.equal(again.x, solution.x)
    assert again.epochs == solution.epochs


def test_inputs_are_left_alone(case: Any, problem: Any) -> None:
    start = 0.9 * problem.truth().to(problem.B.dtype)
    B, delta, x0 = problem.B.clone(), problem.delta.clone(), start.clone()
    solution = _solve(case, problem, x0=start, max_epochs=6.0)
    assert torch.equal(problem.B, B)
    assert torch.equal(problem.delta, delta)
    assert torch.equal(start, x0)
    assert solution.x.data_ptr() != start.data_ptr()
