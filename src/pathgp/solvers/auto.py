"""The choice of a solver from a prediction of what each would cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from pathgp.compute.settings import full_rate_float64
from pathgp.operators import Operator
from pathgp.solvers.ap import AP, automatic_block_size
from pathgp.solvers.base import Run, Solution, Solver, Status
from pathgp.solvers.cg import CG, choose_preconditioner
from pathgp.solvers.cholesky import Cholesky
from pathgp.solvers.grid_blocks import GridBlocks
from pathgp.solvers.grid_inverse import GridInverse
from pathgp.solvers.preconditioners import (
    Preconditioner,
    RandomlyPivotedCholesky,
    automatic_rank,
    pivots_at_once,
)
from pathgp.solvers.sdd import SDD
from pathgp.solvers.sgd import SGD

# Epochs from a residual of 1 to one of 0.01, as measured on regression data with learned hyperparameters: AP
# took 4 to 9, CG with a randomly pivoted Cholesky preconditioner 6 to 80. A start near the solution saves all but the
# last few: AP took 3 to 7 in warm-started fits, CG 8 to 18.
EPOCHS_AP, EPOCHS_CG, EPOCHS_LEAST = 6.0, 35.0, 3.0
# Epochs to fill the holes of a grid: 13 to 225 where they are scattered, hundreds where they are wide. Without a start,
# with so many columns and so many seconds at stake the last column is solved first to find out.
EPOCHS_HOLES, _MANY, _LONG, _TRIAL = 20.0, 16, 0.1, 1000.0
# How much faster a low-rank factor has to be predicted on a grid: its epochs are known to a factor of this.
_SURELY = 2.5


@dataclass(frozen=True)
class Rates:
    """What a device does per second, good to a factor of two or so.

    multiply, multiply64: operations of a matrix product, in the dtype of the system and in float64.
    factorise: operations of a Cholesky factorisation in float64.  read: bytes.
    evaluate: entries of a kernel matrix, or of a Kronecker product that is put together entry by entry.
    fused: entries that are evaluated and multiplied with 65 columns in one go, or written to memory; twice as many for
    few columns; 0 where that cannot be had.
    latency: seconds that even a small factorisation takes.
    """

    multiply: float
    multiply64: float
    factorise: float
    read: float
    evaluate: float
    fused: float
    latency: float


# Measured on an NVIDIA H200 in float32.
H200 = Rates(40e12, 40e12, 20e12, 3e12, 0.04e12, 0.41e12, 2e-3)


def rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """The row for a device: a CPU by its threads, a GPU by whether float64 runs at full rate."""
    single = dtype == torch.float32
    if device.type == "cpu":
        t = torch.get_num_threads()
        return Rates((60e9 if single else 30e9) * t, 30e9 * t, 30e9 * t, 8e9 * t, 0.125e9 * t, 0.0, 1e-5)
    if full_rate_float64(device):
        return H200
    return Rates(20e12 if single else 0.5e12, 0.5e12, 0.4e12, 0.5e12, 0.004e12, 0.1e12, 2e-3)


class Predicted(NamedTuple):
    """What a solver is predicted to take."""

    epochs: float
    seconds: float


@dataclass(frozen=True)
class Auto(Solver):
    """The cheapest of Cholesky, AP with shuffled blocks and CG, by predicted seconds.

    The prediction uses the sizes, the dtype, the device, the backend and the initial residual relative to ``tol``. On a
    grid with holes it may also use a trial solve of one column. Nothing is timed, so that the choice is the same in
    every run. Options that exceed the operator's memory budget or ``max_epochs`` are left out. If the chosen solver
    stalls above the tolerance, or costs more than Cholesky and twice its prediction, Cholesky (in float64) replaces it.
    ``Solution.solver`` names the choice, ``Solution.note`` the reason.
    """

    def _solve(self, run: Run) -> Solution:
        needed, s = digits(run), run.b.shape[1]
        epochs_ap, epochs_cg = EPOCHS_LEAST + EPOCHS_AP * needed, EPOCHS_LEAST + EPOCHS_CG * needed
        preconditioner = choose_preconditioner(run.H, run.max_epochs - run.epochs)
        options: dict[Solver, Predicted] = {AP(): Predicted(epochs_ap, predict_ap(run.H, s, epochs_ap))}
        cost = options[CG(preconditioner)] = Predicted(
            epochs_cg, predict_cg(run.H, s, epochs_cg, choice=preconditioner)
        )
        if isinstance(preconditioner, GridInverse) and cost.seconds > _LONG and _unsure(run):
            options |= _tried(run, epochs_cg)
        excluded = cholesky_excluded(run)
        if not excluded:
            options[Cholesky()] = Predicted(0.0, predict_cholesky(run.H, s))
        choice, *others = sorted(options, key=lambda solver: options[solver].seconds)
        reasons = [f"{_name(choice)}: about {options[choice].seconds:.2g} s predicted"]
        reasons += [f"{_name(other)} {options[other].seconds:.2g} s" for other in others]
        reasons += [f"Cholesky {excluded}"] if excluded else []
        limit = math.inf
        if not excluded and choice != Cholesky():
            # An iterative solver that turns out slow may cost as much as Cholesky, or twice its prediction, at most.
            slower = options[Cholesky()].seconds / max(options[choice].seconds, 1e-9)
            limit = run.epochs + options[choice].epochs * max(2.0, slower)
        budget, run.max_epochs = run.max_epochs, min(run.max_epochs, limit)
        solution = choice._solve(run)
        run.max_epochs = budget
        failed = not solution.converged and choice != Cholesky() and run.tol > 0
        failed = failed and (run.epochs < budget or solution.status is not Status.BUDGET_EXHAUSTED)
        if failed and not (excluded or cholesky_excluded(run)):
            reached = float(solution.residual.max())
            reasons.append(f"it ended {solution.status.name} at {reached:.1e}: Cholesky instead")
            direct = Cholesky()._solve(run)
            solution = min(solution, direct, key=lambda found: run.measure(found.residual))
            if solution.status is Status.BUDGET_EXHAUSTED:
                # Neither of them got there, and it was not for want of epochs.
                solution = replace(solution, status=Status.STALLED)
        return replace(solution, note="; ".join([*reasons, solution.note] if solution.note else reasons))


def _unsure(run: Run) -> bool:
    """Whether a grid has holes, and many columns to solve for: one of them can tell how long they take."""
    holes = run.H.shape[0] < math.prod(getattr(run.H, "sizes", ()))
    many = run.b.shape[1] >= _MANY and run.starts_at_zero and not bool(run.zero[-1])
    return holes and many and run.tol > 0 and run.max_epochs - run.epochs >= _TRIAL / 4


def _tried(run: Run, epochs: float) -> dict[Solver, Predicted]:
    """Predict the cost of CG on a grid with holes from a trial on the last column, with and without `GridInverse`.

    Empty if neither trial meets the tolerance. A trial of a low-rank preconditioner would have to build it, so that is
    an option only if it is predicted to be much faster.
    """
    H, s = run.H, run.b.shape[1]
    taken, is_filled = _of_one_column(run, CG(GridInverse()), _TRIAL)
    filled = Predicted(taken, predict_cg(H, s, epochs, choice=GridInverse(), holes=taken))
    taken, is_plain = _of_one_column(run, CG(None), filled.seconds / product(H, s))
    plain = Predicted(taken, taken * product(H, s))
    if not (is_filled or is_plain):
        return {}
    factored = Predicted(epochs, predict_cg(H, s, epochs, choice=RandomlyPivotedCholesky()))
    options: dict[Solver, Predicted] = {CG(GridInverse()): filled}
    if is_plain:
        options[CG(None)] = plain
    if _SURELY * factored.seconds < min(cost.seconds for cost in options.values()):
        options[CG(RandomlyPivotedCholesky())] = factored
    return options


def _of_one_column(run: Run, solver: Solver, most: float) -> tuple[float, bool]:
    """Solve for the last column in at most ``most`` epochs: epochs used, added to ``run``, and whether it converged."""
    most = min(run.max_epochs - run.epochs, max(most, 4.0))
    alone = Run(run.H, run.b[:, -1:], None, None, float(run.goal[-1]), most, run.generator, None, run.rule)
    alone.begin()
    solution = solver._solve(alone)
    run.epochs += solution.epochs / run.b.shape[1]
    return solution.epochs, solution.converged


def digits(run: Run) -> float:
    """How far the start is from tol, in units of a factor of 100: a warm start has less to do."""
    target = run.goal.clamp_min(torch.finfo(run.H.dtype).eps)
    excess = float((run.initial_norms.cpu() / target).max())
    return max(0.1, math.log(max(excess, 1.0)) / math.log(100.0))


def cholesky_excluded(run: Run) -> str:
    """The reason why Cholesky is unavailable, or an empty string."""
    n, s = run.b.shape
    if 16.0 * n**2 > run.H.memory:
        return f"needs {16e-9 * n**2:.2g} GB"
    return "" if run.affords(1.0 + n / (6.0 * s)) else "exceeds max_epochs"


def predict_cholesky(H: Operator, s: int, r: Rates | None = None) -> float:
    """Evaluate H, n^3 / 3 operations, two substitutions; ``r``: those of the operator's device."""
    n, r = H.shape[0], r or rates(H.device, H.dtype)
    evaluate = 0.0 if H.backend == "dense" else n**2 / _evaluated(H, r)
    return evaluate + n**3 / 3 / r.factorise + 2 * n**2 * s / r.multiply64 + product(H, s, r)


def predict_ap(H: Operator, s: int, epochs: float, r: Rates | None = None) -> float:
    """Each epoch: all rows of H, and n / b factorisations of size b, of which each member does whole ones."""
    n, r = H.shape[0], r or rates(H.device, H.dtype)
    b = min(n, automatic_block_size(H, s))
    blocks = math.ceil(n / b)
    turns = math.ceil(blocks / H.members)
    # Rows make no use of the symmetry that a streamed product has, nor of the structure of a grid.
    again = {"fused": 0.0, "streamed": n**2 / 2}.get(H.backend, float(n**2)) / H.members
    evaluate = 0.0 if H.backend == "dense" else (again + n * b * turns / blocks) / _evaluated(H, r)
    factorise = b**3 / 3 / r.factorise + 2 * b**2 * s / r.multiply64 + r.latency
    return epochs * (H.cost(b) * blocks * product(H, s, r) + evaluate + turns * factorise)


def predict_cg(
    H: Operator,
    s: int,
    epochs: float,
    r: Rates | None = None,
    choice: Preconditioner | None = None,
    holes: float = EPOCHS_HOLES,
) -> float:
    """A factor of rank k, once, a block of columns at a time; each epoch a product with H and two with the factor.

    ``choice``: the preconditioner; by default what `choose_preconditioner` takes.  ``holes``: epochs of `GridInverse`.
    """
    n, r, choice = H.shape[0], r or rates(H.device, H.dtype), choice or choose_preconditioner(H)
    if isinstance(choice, GridInverse):
        # Ten cubes of every side for its eigenvectors, and iterations in float64 that fill the holes.
        cubes = sum(p**3 for p in getattr(H, "ranks", ()))
        return 10.0 * cubes / r.factorise + holes * 2 * H.entries * s / r.multiply64
    k = automatic_rank(H)
    if isinstance(choice, GridBlocks):
        # A factor over the places of the other sides; an application reads some six grids in float64.
        cells, blocks = math.prod(getattr(H, "sizes", ())), n / min(getattr(H, "ranks", (1,)))
        build = 2 * min(blocks, cells) * k**2 / r.multiply64 + k**3 / r.factorise
        return build + epochs * (product(H, s) + 6 * 8 * cells * s / r.read + r.latency / 4)
    evaluate = 0.0 if H.backend == "dense" else n * k / _evaluated(H, r)
    build = evaluate + 4 * n * k**2 / r.multiply64 + math.ceil(k / pivots_at_once(H.device)) * r.latency
    return build + epochs * (product(H, s, r) + 4 * n * k * s / r.multiply64 + r.latency / 4)


def product(H: Operator, s: int, r: Rates | None = None) -> float:
    """H V: bound by reading K or by multiplying; the streamed one evaluates half of K and uses it twice."""
    n, r = H.shape[0], r or rates(H.device, H.dtype)
    if H.backend == "fused":
        return n**2 * max(0.5, s / 65) / r.fused / H.members
    multiply = 2 * H.entries * s / r.multiply / H.members
    if H.backend == "dense":
        return max(multiply, n**2 * (4 if H.dtype == torch.float32 else 8) / r.read / H.members)
    return multiply + (n**2 / 2 / r.evaluate / H.members if H.backend == "streamed" else 0.0)


def _evaluated(H: Operator, r: Rates) -> float:
    """Entries per second of blocks and columns of H."""
    return r.fused if H.backend == "fused" else r.evaluate


def as_solver(solver: str | Solver) -> Solver:
    """A solver by name, or the solver itself."""
    named: dict[str, type[Solver]] = {
        "auto": Auto,
        "cholesky": Cholesky,
        "cg": CG,
        "ap": AP,
        "sdd": SDD,
        "sgd": SGD,
    }
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, str) and solver.lower() in named:
        return named[solver.lower()]()
    raise ValueError(f"solver must be one of {', '.join(map(repr, named))}, or a solver such as AP(), got {solver!r}")


def _name(solver: Solver) -> str:
    named: dict[Solver, str] = {CG(GridInverse()): "CG on the whole grid", CG(None): "CG without a preconditioner"}
    return named.get(solver, type(solver).__name__)
