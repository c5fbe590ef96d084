"""Table 5.1 of the thesis: 100 Adam steps on five UCI sets by solver, estimator and start of the solves.

    python -m benchmarks.thesis.table_5_1 [SET ...] [--splits 0 1 2] [--rows NAME ...] [--table]

Matern-3/2 with a length scale per input, all hyperparameters 1 at the start, rate 0.1, 64 probes, solves to 0.01 by the
thesis's rule in at most ``--max-epochs``, float32. There are two kinds of rows:

- full: one `GP.fit`. Epochs and seconds are sums over its steps; the solve for the posterior is recorded separately.
- sampled: the mean of single steps times the number of steps. The steps are in the middle of every ten, at the
  hyperparameters of a reference trajectory (the row CG-pathwise-warm). Cold rows have new draws and start from zero.
  Warm rows have fixed draws and start from the Cholesky solution at the hyperparameters of the previous step. This
  start is slightly better than in a fit, which solves to 0.01 only. There is no log-likelihood.

Test log-likelihoods are means over the test points, with standardised targets. The file keeps the rows of earlier runs.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import pathgp
from benchmarks.common.fits import THESIS_FIT
from benchmarks.common.options import parse
from benchmarks.common.recording import BENCHMARKS, device_name, merge, row_key, seconds, stored
from benchmarks.common.uci import UCI, Split, uci_split
from benchmarks.thesis.table_5_1_show import CONCLUSION as CONCLUSION
from benchmarks.thesis.table_5_1_show import PROTOCOL as PROTOCOL
from benchmarks.thesis.table_5_1_show import ROWS, show
from benchmarks.thesis.table_5_1_show import explain as explain
from benchmarks.thesis.table_5_1_show import notes as notes
from benchmarks.thesis.table_5_1_show import supplement as supplement
from benchmarks.thesis.table_5_1_show import table_cells as table_cells
from pathgp import kernels, solvers
from pathgp.learning.estimators import GradientEstimate, Iterative, State, StepRequest
from pathgp.learning.hyperparameters import hyperparameters
from pathgp.metrics import nll
from pathgp.posterior.conditioning import Settings

TITLE = "Learning: solvers, estimators and warm starts"
RESULTS = ("uci_learning_cuda",)
SAMPLES, FEATURES, TOL, RATE = 64, 512, 0.01, 0.1
SMALL = UCI[:3]
SOLVERS: dict[str, solvers.Solver] = {
    "CG": solvers.CG(block=1),
    "AP": solvers.AP(selection="greedy", block_size=1000),
    "SDD": solvers.SDD(batch_size=512),
    "SDD-auto": solvers.SDD(),
    "AP-shuffled": solvers.AP(),
}
REFERENCE = "CG-pathwise-warm"
SAMPLED = tuple(row for row in ROWS if row.startswith(("AP-", "SDD-")) and not row.endswith("-pathwise-warm"))
# Not under version control.
SCRATCH = BENCHMARKS / "scratch"
KEY = ("set", "split", "row", "rows_of_data", "steps")

Trajectory = list[dict[str, list[float]]]


@dataclass(frozen=True)
class Plan:
    """How to measure: steps of a fit, sampled steps one in ``every``, budget of a solve, training rows (None: all)."""

    steps: int
    every: int
    max_epochs: float
    rows_of_data: int | None


def parts(row: str) -> tuple[solvers.Solver, bool, bool]:
    """Solver, whether pathwise, whether warm."""
    solver, estimator, start = row.rsplit("-", 2)
    return SOLVERS[solver], estimator == "pathwise", start == "warm"


def initial(data: Split) -> pathgp.GP:
    """The model that all fits start from."""
    matern = kernels.Matern(1.5, torch.ones(data.X.shape[1], dtype=torch.float64))
    return pathgp.GP(kernels.Scale(matern, 1.0), noise=1.0)


def full(data: Split, row: str, plan: Plan, seed: int) -> tuple[dict[str, Any], Trajectory]:
    """One fit and its score; the hyperparameters of every step."""
    solver, pathwise, warm = parts(row)
    gp = initial(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        report = gp.fit(
            data.X,
            data.y,
            steps=plan.steps,
            learning_rate=RATE,
            warm_start=warm,
            samples=SAMPLES,
            features=FEATURES,
            solver=solver,
            tol=TOL,
            max_epochs=plan.max_epochs,
            generator=torch.Generator().manual_seed(seed),
            min_gain=0.0,
            **THESIS_FIT | {"estimator": "pathwise" if pathwise else "standard"},
        )
    posterior, history = gp.posterior, report.history
    score = -nll(data.y_test, posterior.mean(data.X_test), posterior.variance(data.X_test, noise=True))
    took = sum(step.seconds for step in history)
    found = {
        "sampled": False,
        "log_likelihood": score,
        "epochs": sum(step.epochs for step in history),
        "seconds": took,
        "solver_share": sum(step.solver_seconds for step in history) / took,
        "measured_steps": len(history),
        "above_tol": sum(step.status != "CONVERGED" for step in history),
        "last_epochs": report.condition.epochs,
        "last_seconds": report.condition.seconds,
        "last_residual": report.condition.worst_residual,
        "noise": float(gp.hyperparameters()["noise"]),
    }
    return found, [step.values for step in history]


def sampled(data: Split, row: str, plan: Plan, seed: int, trajectory: Trajectory) -> dict[str, Any]:
    """Some steps along a trajectory, for all of them."""
    solver, pathwise, warm = parts(row)
    model = initial(data).working_copy(data.X.device)
    observed, state, generator = model.prepare_data(data.X, data.y), State(), torch.Generator().manual_seed(seed)
    estimator = Iterative(pathwise, SAMPLES, FEATURES, warm)
    settings = Settings.read(solver, TOL, plan.max_epochs)
    exact = replace(settings, solver=solvers.Cholesky(), tol=0.0, max_epochs=None)
    estimator.draw(model, observed, state, generator)
    estimates: list[GradientEstimate] = []
    took = []

    def evaluate() -> None:
        estimates.append(estimator.evaluate(model, observed, state, StepRequest(settings, generator)))

    every = min(plan.every, plan.steps)
    for step in range(every // 2, plan.steps, every):
        if warm and step:
            move(model, trajectory[step - 1])
            H = model.operator(observed, exact)
            state.solutions = exact.solve(H, estimator.system(model, observed, state), generator).x
            del H
        move(model, trajectory[step])
        took.append(seconds(evaluate))
    solutions = [estimate.solution for estimate in estimates if estimate.solution is not None]
    return {
        "sampled": True,
        "log_likelihood": None,
        "epochs": plan.steps * fmean(solution.epochs for solution in solutions),
        "seconds": plan.steps * fmean(took),
        "solver_share": sum(estimate.solver_seconds for estimate in estimates) / sum(took),
        "measured_steps": len(took),
        "above_tol": sum(not solution.converged for solution in solutions),
    }


def move(model: pathgp.GP, values: dict[str, list[float]]) -> None:
    """Put a model, and the prior draws that follow it, at recorded hyperparameters."""
    for name, parameter in hyperparameters(model).items():
        parameter.assign(torch.tensor(values[name], dtype=torch.float64).view_as(parameter.raw))


def record(row: dict[str, Any], file: str) -> None:
    """Print a row and write it."""
    shown = {k: v for k, v in row.items() if k not in ("rows_of_data", "max_epochs", "processes")}
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()), flush=True)
    merge(file, KEY, row, tol=TOL, samples=SAMPLES, features=FEATURES, learning_rate=RATE)


def is_known(row: dict[str, Any], file: str) -> bool:
    """Whether the results hold this row, and it did not fail."""
    found = stored(file, KEY).get(row_key(row, KEY))
    return found is not None and "failed" not in found


def trajectory_file(name: str, split: int, plan: Plan) -> Path:
    return SCRATCH / f"trajectory_{name}_{split}_{plan.rows_of_data or 'all'}_{plan.steps}.json"


def describe(name: str, split: int, row: str, plan: Plan) -> dict[str, Any]:
    """What a row is about."""
    how = {"rows_of_data": plan.rows_of_data, "steps": plan.steps, "max_epochs": plan.max_epochs}
    return {"set": name, "split": split, "row": row, **how}


def measure(data: Split, split: int, row: str, plan: Plan, as_sampled: bool) -> dict[str, Any]:
    """One row; one that fails says so."""
    about = describe(data.name, split, row, plan) | {"n": len(data.X)}
    file = trajectory_file(data.name, split, plan)
    try:
        if as_sampled:
            found = sampled(data, row, plan, split, json.loads(file.read_text()))
        else:
            found, trajectory = full(data, row, plan, split)
            if row == REFERENCE:
                SCRATCH.mkdir(exist_ok=True)
                unfinished = file.with_suffix(f".{os.getpid()}")
                unfinished.write_text(json.dumps(trajectory))
                os.replace(unfinished, file)
    except (ValueError, RuntimeError, OSError) as error:
        found = {"sampled": as_sampled, "failed": str(error)}
    return about | found


def warm_up(data: Split) -> None:
    """Load the device's libraries before anything is timed."""
    few = replace(data, X=data.X[:512], y=data.y[:512], X_test=data.X_test[:8], y_test=data.y_test[:8])
    for row in ("CG-pathwise-warm", "AP-standard-warm", "SDD-standard-cold", "AP-shuffled-pathwise-warm"):
        full(few, row, Plan(steps=2, every=1, max_epochs=4.0, rows_of_data=None), seed=0)


def main() -> None:
    began = time.perf_counter()
    device = device_name()
    large = device == "cuda"
    others = [row for row in ROWS if row != REFERENCE]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=None, help="data sets; all five on a GPU, pol on a CPU")
    parser.add_argument("--splits", nargs="*", type=int, help="0 1 2 for the three small sets on a GPU, 0 otherwise")
    parser.add_argument("--rows", nargs="*", choices=ROWS, help="all; on protein and keggdirected *-pathwise-warm")
    parser.add_argument("--full", nargs="*", choices=ROWS, default=[], help="rows to measure by whole fits")
    parser.add_argument("--sampled", nargs="*", choices=others, default=[], help="rows to measure at some steps only")
    parser.add_argument("--max-epochs", type=float, default=500.0, help="budget of every solve")
    parser.add_argument("--steps", type=int, default=100 if large else 10)
    parser.add_argument("--every", type=int, default=10, help="sampled rows measure one step in so many")
    parser.add_argument("--rows-of-data", type=int, default=0 if large else 2000, help="training rows; 0 takes all")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds after which no row is begun")
    parser.add_argument("--missing", action="store_true", help="leave out rows that the results hold already")
    parser.add_argument("--processes", type=int, default=1, help="how many share the device meanwhile, for the record")
    parser.add_argument("--table", nargs="?", const=device, help="only print the table, of 'cuda' or 'cpu' results")
    options = parse(parser, sets=["pol"], rows=list(ROWS), steps=2, every=1, rows_of_data=200)
    if options.table:
        show(options.table)
        return
    plan = Plan(options.steps, options.every, options.max_epochs, options.rows_of_data or None)
    file = f"uci_learning_{device}"
    as_sampled = (set(SAMPLED) - set(options.full)) | set(options.sampled)
    sets = options.sets or (list(UCI) if large else ["pol"])
    splits = {name: options.splits or ([0, 1, 2] if large and name in SMALL else [0]) for name in sets}
    warm = False
    for split in sorted({split for chosen in splits.values() for split in chosen}):
        for name in (name for name in sets if split in splits[name]):
            wanted = list(options.rows or (r for r in ROWS if name in SMALL or r.endswith("-pathwise-warm")))
            if options.missing:
                wanted = [row for row in wanted if not is_known(describe(name, split, row, plan), file)]
            # The reference first; also unasked, where others need its trajectory and no earlier run has left it.
            needed = any(row in as_sampled for row in wanted) and not trajectory_file(name, split, plan).exists()
            if REFERENCE in wanted or needed:
                wanted = [REFERENCE, *(row for row in wanted if row != REFERENCE)]
            data = uci_split(name, split, device=device, rows=plan.rows_of_data)
            if not warm:
                warm_up(data)
                warm = True
            for row in wanted:
                if time.perf_counter() - began > options.time_limit:
                    print(f"time limit: {name} split {split} {row} and what comes after are left out")
                    return
                found = measure(data, split, row, plan, row in as_sampled)
                record(found | {"processes": options.processes}, file)
    show(device)


if __name__ == "__main__":
    main()
