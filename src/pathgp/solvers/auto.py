"""The choice of a solver from a prediction of what each would cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from pathgp.operators import Preconditioner
from pathgp.solvers.ap import AP
from pathgp.solvers.base import Solver
from pathgp.solvers.cg import CG, choose_preconditioner
from pathgp.solvers.cholesky import Cholesky
from pathgp.solvers.preconditioners import RandomlyPivotedCholesky
from pathgp.solvers.predict import (
    EPOCHS_AP,
    EPOCHS_CG,
    EPOCHS_LEAST,
    predict_ap,
    predict_cg,
    predict_cholesky,
    predict_product,
)
from pathgp.solvers.run import Run
from pathgp.solvers.sdd import SDD
from pathgp.solvers.sgd import SGD
from pathgp.solvers.solution import Solution, Status

# A trial on one column takes place for this number of columns, from this number of predicted seconds, and with at most
# this number of epochs.
_TRIAL_COLUMNS, _TRIAL_SECONDS, _TRIAL_EPOCHS = 16, 0.1, 1000.0
# Factor by which a low-rank preconditioner must be predicted to be faster after a trial: its epochs are this uncertain.
_UNCERTAINTY = 2.5


class Predicted(NamedTuple):
    """Predicted cost of a solver."""

    epochs: float
    seconds: float


@dataclass(frozen=True)
class Auto(Solver):
    """The fastest of Cholesky, AP with shuffled blocks and CG, by predicted seconds.

    The prediction uses the sizes, the dtype, the device, the backend and the initial residual relative to ``tol``. On a
    grid with holes it may also use a trial solve of one column. Nothing is timed, so that the choice is the same in
    every run. Options that exceed the operator's memory budget or ``max_epochs`` are left out. If the chosen solver
    stalls above the tolerance, or costs more than Cholesky and twice its prediction, Cholesky (in float64) replaces it.
    ``Solution.solver`` names the choice, ``Solution.note`` the reason.
    """

    def _solve(self, run: Run) -> Solution:
        options, excluded = self._predict(run)
        choice, *others = sorted(options, key=lambda solver: options[solver].seconds)
        reasons = [f"{_name(choice)}: about {options[choice].seconds:.2g} s predicted"]
        reasons += [f"{_name(other)} {options[other].seconds:.2g} s" for other in others]
        reasons += [f"Cholesky {excluded}"] if excluded else []
        budget = run.max_epochs
        if not excluded and choice != Cholesky():
            # An iterative solver may cost as much as Cholesky, or twice its prediction, at most.
            slower = options[Cholesky()].seconds / max(options[choice].seconds, 1e-9)
            run.max_epochs = min(budget, run.epochs + options[choice].epochs * max(2.0, slower))
        solution = choice._solve(run)
        run.max_epochs = budget
        failed = not solution.converged and choice != Cholesky() and run.tol > 0
        failed = failed and (run.epochs < budget or solution.status is not Status.BUDGET_EXHAUSTED)
        if failed and not (excluded or cholesky_exclusion(run)):
            reached = float(solution.residual.max())
            reasons.append(f"it ended {solution.status.name} at {reached:.1e}: Cholesky instead")
            direct = Cholesky()._solve(run)
            solution = min(solution, direct, key=lambda candidate: run.measure(candidate.residual))
            if solution.status is Status.BUDGET_EXHAUSTED:
                # Neither converged, although the budget is not spent.
                solution = replace(solution, status=Status.STALLED)
        return replace(solution, note="; ".join([*reasons, solution.note] if solution.note else reasons))

    def _predict(self, run: Run) -> tuple[dict[Solver, Predicted], str]:
        """The predicted cost of every option, and why Cholesky is none of them (or an empty string)."""
        work, s = work_left(run), run.b.shape[1]
        epochs_ap, epochs_cg = EPOCHS_LEAST + EPOCHS_AP * work, EPOCHS_LEAST + EPOCHS_CG * work
        preconditioner = choose_preconditioner(run.H, run.max_epochs - run.epochs)
        seconds = predict_cg(run.H, s, preconditioner.epochs or epochs_cg, preconditioner=preconditioner)
        options: dict[Solver, Predicted] = {
            AP(): Predicted(epochs_ap, predict_ap(run.H, s, epochs_ap)),
            CG(preconditioner): Predicted(epochs_cg, seconds),
        }
        if seconds > _TRIAL_SECONDS and preconditioner.needs_trial(run.H) and _can_try(run):
            options |= _try_one_column(run, preconditioner, epochs_cg)
        excluded = cholesky_exclusion(run)
        if not excluded:
            options[Cholesky()] = Predicted(0.0, predict_cholesky(run.H, s))
        return options, excluded


def _can_try(run: Run) -> bool:
    """Whether one of many columns can show how long the others take."""
    many = run.b.shape[1] >= _TRIAL_COLUMNS and run.starts_at_zero and not bool(run.is_zero[-1])
    return many and run.tol > 0 and run.max_epochs - run.epochs >= _TRIAL_EPOCHS / 4


def _try_one_column(run: Run, preconditioner: Preconditioner, epochs: float) -> dict[Solver, Predicted]:
    """Predict the cost of CG from trials on the last column, with the preconditioner and with none.

    Empty if neither trial meets the tolerance. A trial of a low-rank preconditioner would have to build it, so that is
    an option only if it is predicted to be much faster.
    """
    H, s = run.H, run.b.shape[1]
    own, plain, low_rank = CG(preconditioner), CG(None), CG(RandomlyPivotedCholesky())
    taken, own_converged = solve_last_column(run, own, _TRIAL_EPOCHS)
    options: dict[Solver, Predicted] = {own: Predicted(taken, predict_cg(H, s, taken, preconditioner=preconditioner))}
    taken, plain_converged = solve_last_column(run, plain, options[own].seconds / predict_product(H, s))
    if not (own_converged or plain_converged):
        return {}
    if plain_converged:
        options[plain] = Predicted(taken, taken * predict_product(H, s))
    seconds = predict_cg(H, s, epochs)
    if _UNCERTAINTY * seconds < min(cost.seconds for cost in options.values()):
        options[low_rank] = Predicted(epochs, seconds)
    return options


def solve_last_column(run: Run, solver: Solver, max_epochs: float) -> tuple[float, bool]:
    """Solve for the last column alone: the epochs used, whose share is added to ``run``, and whether it converged."""
    budget = min(run.max_epochs - run.epochs, max(max_epochs, 4.0))
    goal = float(run.goal[-1])
    trial = Run(run.H, run.b[:, -1:], tol=goal, max_epochs=budget, generator=run.generator, rule=run.rule)
    trial.begin()
    solution = solver._solve(trial)
    run.epochs += solution.epochs / run.b.shape[1]
    return solution.epochs, solution.converged


def work_left(run: Run) -> float:
    """How far the start is from tol, in units of a factor of 100; less for a warm start."""
    target = run.goal.clamp_min(torch.finfo(run.H.dtype).eps)
    excess = float((run.initial_norms.cpu() / target).max())
    return max(0.1, math.log(max(excess, 1.0)) / math.log(100.0))


def cholesky_exclusion(run: Run) -> str:
    """The reason why Cholesky is unavailable, or an empty string."""
    n, s = run.b.shape
    if 16.0 * n**2 > run.H.memory:
        return f"needs {16e-9 * n**2:.2g} GB"
    return "" if run.affords(1.0 + n / (6.0 * s)) else "exceeds max_epochs"


def as_solver(solver: str | Solver) -> Solver:
    """A solver by name, or the solver itself."""
    named: dict[str, type[Solver]] = {kind.__name__.lower(): kind for kind in (Auto, Cholesky, CG, AP, SDD, SGD)}
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, str) and solver.lower() in named:
        return named[solver.lower()]()
    raise ValueError(f"solver must be one of {', '.join(map(repr, named))}, or a solver such as AP(), got {solver!r}")


def _name(solver: Solver) -> str:
    """The name of a solver, with the label of its preconditioner if that has one."""
    label = ""
    if isinstance(solver, CG):
        preconditioner = solver.preconditioner
        label = preconditioner.label if isinstance(preconditioner, Preconditioner) else "without a preconditioner"
    return f"{type(solver).__name__} {label}".rstrip()
