"""The choice of a solver from a prediction of what each would cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from pathgp.compute.hardware import rates
from pathgp.operators import Preconditioner
from pathgp.solvers import vecchia
from pathgp.solvers.ap import AP
from pathgp.solvers.base import Solver
from pathgp.solvers.cg import CG, choose_preconditioner
from pathgp.solvers.cholesky import Cholesky
from pathgp.solvers.preconditioners import RandomlyPivotedCholesky
from pathgp.solvers.predict import (
    EPOCHS_CG,
    EPOCHS_LEAST,
    block_factor,
    predict_ap,
    predict_cg,
    predict_cholesky,
    predict_product,
    signal_to_noise,
    typical_epochs,
)
from pathgp.solvers.rehearsal import Rehearsal, cost_of_rehearsal, predict_rehearsal, ranks_to_try
from pathgp.solvers.run import Run
from pathgp.solvers.sdd import SDD
from pathgp.solvers.sgd import SGD
from pathgp.solvers.solution import Solution, Status
from pathgp.solvers.vecchia import Vecchia

# Smallest number of columns for which one column is solved as a trial.
_TRIAL_COLUMNS = 16
# Smallest predicted seconds of a solve that begins with a trial.
_TRIAL_SECONDS = 0.1
# Largest number of epochs of a trial.
_TRIAL_EPOCHS = 1000.0
# After a trial a low-rank preconditioner must be predicted to be faster by this factor: its epochs are this uncertain.
_UNCERTAINTY = 2.5
# The largest part of the predicted seconds that a rehearsal may take.
_REHEARSAL_PART = 0.1
# Vecchia's preconditioner is an option for inputs of up to this number of columns.
_VECCHIA_COLUMNS = 4
# It is rehearsed only if it would be the fastest option with this number of epochs.
_BEST_CASE_EPOCHS = 3.0
# Its predicted seconds are multiplied by this factor. In up to three columns CG took 0.6 to 1.5 times the predicted
# iterations (benchmarks/results/vecchia_cpu.json).
_VECCHIA_UNCERTAINTY = 1.5
# Another solver replaces one that exceeds its predicted epochs by this factor.
_PATIENCE = 2.0
# Products beside the work of Cholesky when it replaces another solver: two residuals before it, two after it.
_CHECKS = 4.0


class Predicted(NamedTuple):
    """Predicted cost of a solver."""

    epochs: float
    seconds: float


@dataclass(frozen=True)
class Auto(Solver):
    """The fastest of Cholesky, AP with shuffled blocks and CG, by predicted seconds.

    The epochs of AP and CG, and the rank of CG's preconditioner, come from a `Rehearsal` on a few hundred rows if that
    takes less than a tenth of the solve; otherwise they are typical values. On a grid with holes they come from a trial
    solve of one column. Seconds follow from the sizes, the dtype, the device and the backend. Nothing is timed, so that
    the choice is the same in every run. Options that exceed the operator's memory budget or ``max_epochs`` are left
    out.

    CG with `Vecchia` is one more option for stationary kernels of up to four columns, on a CPU and with field or
    Toeplitz products. Samples of groups decide how many rows are averaged. A rehearsal in the neighbourhoods of two
    random rows gives the number of neighbours and the iterations.

    A solver that takes twice its predicted epochs, and longer than the next best is predicted to take, is replaced by
    the next best, which starts from the iterate reached. If rounding errors stall a solver above the tolerance,
    Cholesky (in float64) replaces it. ``Solution.solver`` is the solver that ended the solve, ``Solution.note`` gives
    the reasons.
    """

    def _solve(self, run: Run) -> Solution:
        options, excluded = predict_options(run)
        ranked = sorted(options, key=lambda solver: options[solver].seconds)
        reasons = [f"{_name(ranked[0])}: about {_describe(options[ranked[0]])} predicted"]
        reasons += [f"{_name(other)} {_describe(options[other])}" for other in ranked[1:]]
        reasons += [f"Cholesky {excluded}"] if excluded else []
        ranked = ranked[:1] + [other for other in ranked[1:] if math.isfinite(options[other].seconds)]
        budget = run.max_epochs
        while True:
            choice = ranked.pop(0)
            run.max_epochs = min(budget, run.epochs + _epoch_limit(run, options, choice, ranked))
            is_limited = run.max_epochs < budget
            solution = choice._solve(run)
            run.max_epochs = budget
            is_out_of_epochs = solution.status is Status.BUDGET_EXHAUSTED
            # After a stall only Cholesky can help: its factorisation, in float64, has smaller rounding errors.
            ranked = [other for other in ranked if other == Cholesky() or is_out_of_epochs]
            ranked = [other for other in ranked if other != Cholesky() or not _cholesky_exclusion(run)]
            if Cholesky() in ranked:
                # The rest of the budget may have been kept for it.
                ranked = [other for other in ranked if options[other].epochs <= budget - run.epochs]
            if is_limited and is_out_of_epochs:
                # Continue with the same solver if no other one is left.
                ranked = ranked or [choice]
            if solution.converged or run.tol == 0 or not ranked or not run.affords(2.0 * run.H.cost()):
                break
            if ranked[0] != choice:
                reached = float(solution.residual.max())
                reasons.append(f"it ended {solution.status.name} at {reached:.1e}: {_name(ranked[0])} instead")
            run.restart(solution.x / run.scale, solution.residual)
        if solution.status is Status.BUDGET_EXHAUSTED and choice == Cholesky() and run.epochs < budget:
            solution = replace(solution, status=Status.STALLED)
        return replace(solution, note="; ".join([*reasons, solution.note] if solution.note else reasons))


def predict_options(run: Run) -> tuple[dict[Solver, Predicted], str]:
    """The predicted cost of every solver, and why Cholesky is not one of them (an empty string if it is)."""
    work, s, H = _work_left(run), run.b.shape[1], run.H
    ratio = signal_to_noise(H)
    epochs_ap, epochs_cg = typical_epochs(ratio, work)
    epochs_cg *= block_factor(H, s)
    preconditioner = choose_preconditioner(H, run.max_epochs - run.epochs)
    has_structured_preconditioner = preconditioner != RandomlyPivotedCholesky()
    if not has_structured_preconditioner and ratio <= 1.0:
        # The automatic choice would be this rank.
        preconditioner = RandomlyPivotedCholesky(ranks_to_try(H)[0])
    epochs = (EPOCHS_LEAST + EPOCHS_CG * work) * block_factor(H, s) if has_structured_preconditioner else epochs_cg
    seconds = predict_cg(H, s, preconditioner.epochs or epochs, preconditioner=preconditioner)
    options: dict[Solver, Predicted] = {
        AP(): Predicted(epochs_ap, predict_ap(H, s, epochs_ap)),
        CG(preconditioner): Predicted(preconditioner.epochs or epochs, seconds),
    }
    excluded = _cholesky_exclusion(run)
    if not excluded:
        options[Cholesky()] = Predicted(1.0 + H.shape[0] / (6.0 * s), predict_cholesky(H, s))
    if has_structured_preconditioner:
        if seconds > _TRIAL_SECONDS and preconditioner.needs_trial(H) and _can_try(run):
            options |= _try_one_column(run, preconditioner, epochs)
        return options, excluded
    least, cost = min(option.seconds for option in options.values()), cost_of_rehearsal(H, s)
    is_short = predict_rehearsal(H, rates(H.device, H.dtype)) <= _REHEARSAL_PART * least
    if run.tol > 0 and is_short and run.affords(cost + 2.0 * H.cost()):
        run.epochs += cost
        del options[CG(preconditioner)]
        options |= _rehearse(run)
    return options | _try_vecchia(run, min(option.seconds for option in options.values()), work), excluded


def _rehearse(run: Run) -> dict[Solver, Predicted]:
    """The predicted cost of AP and of CG with the best rank, from a rehearsal."""
    H, s, rehearsal = run.H, run.b.shape[1], Rehearsal(run)
    epochs = rehearsal.epochs_ap()
    by_rank: dict[Solver, Predicted] = {}
    for rank in ranks_to_try(H):
        preconditioner = RandomlyPivotedCholesky(rank)
        iterations = rehearsal.epochs_cg(rank)
        seconds = predict_cg(H, s, iterations, preconditioner=preconditioner)
        by_rank[CG(preconditioner)] = Predicted(iterations + preconditioner.cost(H), seconds)
    best = min(by_rank, key=lambda solver: by_rank[solver].seconds)
    return {AP(): Predicted(epochs, predict_ap(H, s, epochs)), best: by_rank[best]}


def _try_vecchia(run: Run, least: float, work: float) -> dict[Solver, Predicted]:
    """The predicted cost of CG with Vecchia's preconditioner; empty if it cannot take less than ``least`` seconds."""
    H, s = run.H, run.b.shape[1]
    # With exact products on a GPU, or in a group of processes, other solvers are faster.
    is_candidate = (H.device.type == "cpu" or H.backend in ("field", "toeplitz")) and H.world_size == 1
    if not is_candidate or H.stationary_dim is None or H.stationary_dim > _VECCHIA_COLUMNS or run.tol == 0:
        return {}

    r = rates(H.device, H.dtype)
    is_short = vecchia.predict_choice(H, r) <= _REHEARSAL_PART * least
    averaged = vecchia.choose_averages(H, run.generator) if is_short else 1

    def predict(m: int, epochs: float) -> float:
        return _VECCHIA_UNCERTAINTY * predict_cg(H, s, epochs, preconditioner=Vecchia(m, averaged))

    best_case = {m: predict(m, _BEST_CASE_EPOCHS) for m in vecchia.neighbours_to_try(H, averaged) if m}
    candidates = [m for m, seconds in best_case.items() if seconds < least]
    is_short = vecchia.predict_rehearsal(H, candidates, r) <= _REHEARSAL_PART * least
    cost = Vecchia(None, averaged).cost(H)
    if not (candidates and is_short and run.affords(cost + _BEST_CASE_EPOCHS * H.cost())):
        return {}
    run.epochs += vecchia.cost_of_rehearsal(H)
    by_neighbours: dict[Solver, Predicted] = {}
    for m, iterations in vecchia.rehearse_neighbours(H, run.b, run.generator, candidates, averaged).items():
        preconditioner, epochs = Vecchia(m, averaged), 1.0 + iterations * work
        by_neighbours[CG(preconditioner)] = Predicted(epochs + preconditioner.cost(H), predict(m, epochs))
    best = min(by_neighbours, key=lambda solver: by_neighbours[solver].seconds)
    return {best: by_neighbours[best]}


def _epoch_limit(run: Run, options: dict[Solver, Predicted], choice: Solver, others: list[Solver]) -> float:
    """Epochs after which the next solver replaces the chosen one.

    At least twice the prediction, and as many as the chosen solver takes in the predicted time of the next one. What
    Cholesky needs is kept of the budget, if the rest is twice the prediction: a preconditioner that is nearly an
    inverse gains nothing until it converges, and the budget would end the solve where it began.
    """
    if not others or run.tol == 0 or choice == Cholesky() or not math.isfinite(options[choice].epochs):
        return math.inf
    epochs = options[choice].epochs
    limit = epochs * max(_PATIENCE, options[others[0]].seconds / max(options[choice].seconds, 1e-9))
    if Cholesky() not in others:
        return limit
    rest = run.max_epochs - run.epochs - options[Cholesky()].epochs - _CHECKS * run.H.cost()
    return min(limit, rest) if rest >= _PATIENCE * epochs else limit


def _can_try(run: Run) -> bool:
    """Whether a trial on the last column is possible: many columns, a solve from zero, and enough epochs."""
    has_columns = run.b.shape[1] >= _TRIAL_COLUMNS and run.starts_at_zero and not bool(run.is_zero[-1])
    return has_columns and run.tol > 0 and run.max_epochs - run.epochs >= _TRIAL_EPOCHS / 4


def _try_one_column(run: Run, preconditioner: Preconditioner, epochs: float) -> dict[Solver, Predicted]:
    """Predict the cost of CG from trials on the last column, with the preconditioner and without one.

    Empty if neither trial meets the tolerance. A low-rank preconditioner has no trial, because it would have to be
    built; it is an option only if it is predicted to be much faster.
    """
    H, s = run.H, run.b.shape[1]
    own, plain, low_rank = CG(preconditioner), CG(None), CG(RandomlyPivotedCholesky())
    taken, own_converged = _solve_last_column(run, own, _TRIAL_EPOCHS)
    options: dict[Solver, Predicted] = {own: Predicted(taken, predict_cg(H, s, taken, preconditioner=preconditioner))}
    taken, plain_converged = _solve_last_column(run, plain, options[own].seconds / predict_product(H, s))
    if not (own_converged or plain_converged):
        return {}
    if plain_converged:
        options[plain] = Predicted(taken, taken * predict_product(H, s))
    seconds = predict_cg(H, s, epochs)
    if _UNCERTAINTY * seconds < min(cost.seconds for cost in options.values()):
        options[low_rank] = Predicted(epochs, seconds)
    return options


def _solve_last_column(run: Run, solver: Solver, max_epochs: float) -> tuple[float, bool]:
    """Solve for the last column alone, and add its share of the epochs to ``run``.

    Return the epochs that all columns together would take, and whether it converged.
    """
    budget = min(run.max_epochs - run.epochs, max(max_epochs, 4.0))
    goal = float(run.goal[-1])
    solution = solver._solve(run.start_inner(run.H, run.b[:, -1:], goal, budget))
    s = run.b.shape[1]
    run.epochs += solution.epochs / s
    return solution.epochs * block_factor(run.H, s), solution.converged


def _work_left(run: Run) -> float:
    """log_100 of the largest ratio of an initial residual to its goal, at least 0.1; small for a warm start."""
    target = run.goal.clamp_min(torch.finfo(run.H.dtype).eps)
    excess = float((run.initial_norms.cpu() / target).max())
    return max(0.1, math.log(max(excess, 1.0)) / math.log(100.0))


def _cholesky_exclusion(run: Run) -> str:
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


def _describe(cost: Predicted) -> str:
    if not math.isfinite(cost.seconds):
        return "too many epochs"
    epochs = "1 epoch" if round(cost.epochs) == 1 else f"{cost.epochs:.0f} epochs"
    return f"{cost.seconds:.2g} s for {epochs}"
