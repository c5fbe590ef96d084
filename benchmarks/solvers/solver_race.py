"""Epochs and seconds of every solver to a residual of 0.01 on the thesis's UCI sets.

    python -m benchmarks.solvers.solver_race [SET ...] [--solvers AP CG ...] [--runs 5] [--max-epochs 200]

One system per set: y and 64 draws from the prior (plus noise), the authors' hyperparameters, float32. A run ends when
the residual of y and the average residual of the draws are at most 0.01, the stopping rule of the thesis. Every solver
has its default settings. Epochs include all residual checks. Seconds do not include the evaluation of a dense K, which
is the same for all.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, seconds, table, write
from benchmarks.common.uci import UCI, system, uci
from pathgp import solvers

ENTRANTS: dict[str, solvers.Solver] = {
    "AP shuffled": solvers.AP(),
    "AP greedy": solvers.AP(selection="greedy"),
    "CG": solvers.CG(),
    "CG greedy 100": solvers.CG(preconditioner=solvers.PivotedCholesky(100)),
    "SDD": solvers.SDD(),
    "SGD": solvers.SGD(),
    "Cholesky": solvers.Cholesky(),
    "Auto": solvers.Auto(),
}
# Epochs that shuffled AP may take, and runs of one solver beyond which a slow one is not repeated.
ALLOWED = {"pol": 18, "bike": 24, "elevators": 10, "protein": 48, "keggdirected": 16}
SLOW = 60.0


def race(name: str, options: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    """All chosen solvers on one data set."""
    data = uci(name, device=device, rows=options.rows)
    H, B = system(data)
    rows = []
    for label in options.solvers:
        times: list[float] = []
        while len(times) < options.runs and sum(times) < SLOW:
            found: list[solvers.Solution] = []

            def attempt(label: str = label, run: int = len(times), found: list[solvers.Solution] = found) -> None:
                source = torch.Generator().manual_seed(run)
                solve = ENTRANTS[label].solve
                found.append(solve(H, B, tol=0.01, max_epochs=options.max_epochs, generator=source, rule="average"))

            times.append(seconds(attempt))
        solution = found[0]
        rows.append(
            {
                "set": name,
                "n": len(data.X),
                "solver": label,
                "status": solution.status.name,
                "epochs": round(solution.epochs, 1),
                "seconds": statistics.median(times),
                "runs": len(times),
                "y": float(solution.residual[0]),
                "draws": float(solution.residual[1:].mean()),
                "worst": float(solution.residual.max()),
                "note": solution.note,
            }
        )
        print(table([{k: v for k, v in rows[-1].items() if k != "note"}]).splitlines()[-1], solution.note, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=None, help="data sets; all five on a GPU, the small ones on a CPU")
    parser.add_argument("--solvers", nargs="*", default=list(ENTRANTS), choices=list(ENTRANTS))
    parser.add_argument("--rows", type=int, help="training rows, at most")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--max-epochs", type=float, default=200.0)
    arguments = parse(parser, sets=["pol"], rows=200, runs=1)
    device = device_name()
    names = arguments.sets or list(UCI if device == "cuda" else UCI[:3])
    rows = [row for name in names for row in race(name, arguments, device)]
    print("\n" + table([{key: value for key, value in row.items() if key != "note"} for row in rows]))
    for name in names:
        mine = {row["solver"]: row for row in rows if row["set"] == name}
        done = [row["seconds"] for row in mine.values() if row["status"] == "CONVERGED" and row["solver"] != "Auto"]
        if "Auto" in mine and done:
            print(f"{name}: Auto took {mine['Auto']['seconds'] / min(done):.2f} times the best")
        if "AP shuffled" in mine:
            print(f"{name}: shuffled AP {mine['AP shuffled']['epochs']} epochs, allowed {ALLOWED[name]}")
    print("written to", write(f"solver_race_{device}", rows, tol=0.01, rule="average", max_epochs=arguments.max_epochs))


if __name__ == "__main__":
    main()
