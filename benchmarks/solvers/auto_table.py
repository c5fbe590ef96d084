"""Seconds of `Auto` against every solver it can choose from, cold and warm.

    python -m benchmarks.solvers.auto_table [--device cuda] [--max-rows 20000] [--minutes 5] [--only NAME ...]

Systems: y (or one more draw) and 64 draws from the prior plus noise, noise 1, 0.1 and 0.01 of the signal, float32, to
the goal of a posterior: a residual of 0.01, or a tenth of the noise if that is less. Warm starts are the solution of
the same draws for length scales that are 5 % longer. A solver is stopped at four times the best time so far. Times
below half a second are medians of three runs. Problems that the results file already holds are skipped, so that a run
stopped by ``--minutes`` continues where it ended. ``predicted``: the epochs that `Auto` expects of its choice.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.datasets import find, load
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, read, seconds, table, write
from benchmarks.common.uci import hyperparameters
from pathgp import kernels, solvers
from pathgp.compute.random import normal
from pathgp.operators import KernelOperator
from pathgp.pathwise import PriorPaths
from pathgp.solvers.auto import predict_options
from pathgp.solvers.run import Run
from pathgp.solvers.solution import Record

NOISES = (1.0, 0.1, 0.01)
ENTRANTS: dict[str, solvers.Solver] = {
    "Auto": solvers.Auto(),
    "AP": solvers.AP(),
    "CG": solvers.CG(),
    "CG 128": solvers.CG(solvers.RandomlyPivotedCholesky(128)),
    "Cholesky": solvers.Cholesky(),
}
# A solver is stopped at this factor times the best time so far.
CUT = 4.0
SAMPLES, FEATURES, CHANGE = 64, 512, 1.05


@dataclass(frozen=True)
class Problem:
    """Inputs and a kernel: uniform or normal inputs in d dimensions, or (d = 0) a data set by its name."""

    name: str
    d: int
    profile: str
    lengthscale: float
    rows_cpu: int
    rows_cuda: int

    def inputs(self, n: int) -> tuple[Tensor, Tensor | None]:
        """X (n, d), standardised if it is data, and y (n,) if there is one; float32."""
        generator = torch.Generator().manual_seed(0)
        if self.d:
            draw = torch.rand if self.name.startswith("uniform") else torch.randn
            return draw(n, self.d, generator=generator), None
        X, y = _arrays(self.name)
        chosen = np.random.default_rng(0).permutation(len(X))[:n]
        X, y = X[chosen].astype(np.float64), y[chosen].astype(np.float64)
        X = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1.0)
        return torch.tensor(X, dtype=torch.float32), torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)

    def kernel(self, factor: float = 1.0) -> kernels.Kernel:
        """The kernel with length scales times a factor; those of the thesis's authors if ``lengthscale`` is 0."""
        found = self.lengthscale or torch.tensor(hyperparameters(self.name)["lengthscale"], dtype=torch.float64)
        if self.profile == "se":
            return kernels.SquaredExponential(factor * found)
        return kernels.Matern({"1/2": 0.5, "3/2": 1.5, "5/2": 2.5}[self.profile], factor * found)


# Rows on a CPU and on a GPU; 0 leaves a problem out.
PROBLEMS = (
    Problem("uniform 2", 2, "1/2", 0.3, 2000, 0),
    Problem("normal 16", 16, "5/2", 4.0, 2000, 10_000),
    Problem("elevators", 0, "3/2", 0.0, 3000, 14_000),
    Problem("sarcos_test", 0, "5/2", 5.0, 4000, 4449),
    Problem("uniform 5", 5, "3/2", 0.5, 5000, 100_000),
    Problem("bike", 0, "3/2", 0.0, 5000, 0),
    Problem("pol", 0, "3/2", 0.0, 5000, 0),
    Problem("flights3m", 0, "3/2", 1.0, 5000, 300_000),
    Problem("normal 30", 30, "se", 5.0, 5000, 30_000),
    Problem("kin40k", 0, "3/2", 2.0, 7000, 36_000),
    Problem("water_vapour", 0, "1/2", 0.5, 7000, 90_000),
    Problem("uniform 2 smooth", 2, "se", 0.2, 7000, 30_000),
    Problem("protein", 0, "3/2", 0.0, 10_000, 41_000),
    Problem("kaust2a_1", 0, "3/2", 0.3, 10_000, 90_000),
    Problem("houseelectric_first40k", 0, "5/2", 2.0, 20_000, 0),
)
# Above this number of rows, only the noise 0.1.
LARGE = {"cpu": 15_000, "cuda": 150_000}


def _arrays(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name in ("water_vapour", "kaust2a_1"):
        with np.load(find(f"{name}.npz")) as file:
            return file["X"], file["y"]
    data = load(name)
    return np.asarray(data.X), np.asarray(data.y)


def make_system(problem: Problem, n: int, noise: float, device: str, factor: float = 1.0) -> tuple[Any, Tensor]:
    """H and the right-hand sides; ``factor``: of the length scales."""
    X, y = problem.inputs(n)
    X = X.to(device)
    kernel = problem.kernel(factor).requires_grad_(False).to(device)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        draws = PriorPaths.draw(kernel, SAMPLES + 1, FEATURES, X.shape[1], generator)(X).T
    B = draws + noise * normal(tuple(draws.shape), generator, X.dtype, X.device)
    if y is not None:
        B[:, 0] = y.to(device) * math.sqrt(1.0 + noise**2)
    return KernelOperator(kernel, X, noise), B


class TooSlow(Exception):
    """A solver took longer than the cut."""


def timed(solve: Callable[..., solvers.Solution], limit: float) -> tuple[float, solvers.Solution | None]:
    """Seconds of a solve, the median of three if they are few, and its solution; None if it was stopped."""
    found: list[solvers.Solution] = []
    times: list[float] = []
    while len(times) < 3 and sum(times) < 1.5:
        began = time.perf_counter()

        def stop(record: Record, began: float = began) -> None:
            if time.perf_counter() - began > limit:
                raise TooSlow

        try:
            times.append(seconds(lambda stop=stop: found.append(solve(callback=stop))))
        except TooSlow:
            return limit, None
    return statistics.median(times), found[0]


def warm_up(H: Any, B: Tensor) -> None:
    """Let GPU kernels compile before anything is timed."""
    H @ B
    if H.device.type == "cuda":
        for solver in (solvers.AP(), solvers.CG()):
            solver.solve(H, B, tol=1e-4, max_epochs=6, generator=torch.Generator().manual_seed(0))


def compare(problem: Problem, n: int, noise: float, device: str, warm: bool) -> list[dict[str, Any]]:
    """All solvers on one problem."""
    x0 = None
    tol = min(0.01, 0.1 * noise / math.sqrt(1.0 + noise**2))
    if warm:
        H, B = make_system(problem, n, noise, device, CHANGE)
        x0 = solvers.Auto().solve(H, B, tol=tol, generator=torch.Generator().manual_seed(1)).x
    H, B = make_system(problem, n, noise, device)
    warm_up(H, B)
    run = Run(H, B, x0, tol=tol, generator=torch.Generator().manual_seed(0))
    run.begin()
    options, _ = predict_options(run)
    best, rows = math.inf, []
    for label, solver in ENTRANTS.items():

        def solve(solver: solvers.Solver = solver, **more: Any) -> solvers.Solution:
            return solver.solve(H, B, x0, tol=tol, generator=torch.Generator().manual_seed(0), **more)

        # A factorisation cannot be stopped: leave it out if it is predicted to be much slower than the best.
        if label == "Cholesky" and not any(
            cost.seconds < CUT * best for option, cost in options.items() if option == solvers.Cholesky()
        ):
            continue
        took, solution = timed(solve, CUT * best)
        has_converged = solution is not None and solution.converged
        if has_converged:
            best = min(best, took)
        rows.append(
            {
                "problem": problem.name,
                "n": n,
                "d": H.X.shape[1],
                "noise": noise,
                "start": "warm" if warm else "cold",
                "solver": label,
                "seconds": took,
                "status": "STOPPED" if solution is None else solution.status.name,
                "epochs": None if solution is None else round(solution.epochs, 1),
                "predicted": round(min(options.values(), key=lambda cost: cost.seconds).epochs, 1),
                "note": "" if solution is None else solution.note,
            }
        )
    return rows


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per problem: Auto's time over the best time."""
    lines = []
    keys = list(dict.fromkeys((r["problem"], r["n"], r["d"], r["noise"], r["start"]) for r in rows))
    for key in keys:
        mine = {r["solver"]: r for r in rows if (r["problem"], r["n"], r["d"], r["noise"], r["start"]) == key}
        done = {label: r["seconds"] for label, r in mine.items() if r["status"] == "CONVERGED"}
        best = min(done, key=lambda label: done[label], default="none")
        auto = mine["Auto"]
        lines.append(
            {
                **dict(zip(("problem", "n", "d", "noise", "start"), key, strict=True)),
                **{label: mine[label]["seconds"] if label in done else None for label in ENTRANTS},
                "best": best,
                "ratio": auto["seconds"] / done[best] if done else None,
                "predicted": auto["predicted"],
                "epochs": auto["epochs"],
                "chosen": auto["note"].split(":")[0] if auto["status"] == "CONVERGED" else auto["status"],
            }
        )
    return lines


def count_ratios(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How often Auto is close to the best solver, of the problems that a solver solved."""
    lines = [line for line in summarise(rows) if line["ratio"] is not None]
    if not lines:
        return {"problems": 0}
    worst = max(lines, key=lambda line: line["ratio"])
    return {
        "problems": len(lines),
        "unsolved": len(summarise(rows)) - len(lines),
        "median": statistics.median(line["ratio"] for line in lines),
        "within 1.5 times": sum(line["ratio"] <= 1.5 for line in lines),
        "largest": worst["ratio"],
        "its seconds": [worst["Auto"], worst[worst["best"]]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=device_name())
    parser.add_argument("--max-rows", type=int, default=10**6)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no problem after this time")
    parser.add_argument("--only", nargs="*", help="names of problems")
    parser.add_argument("--noises", nargs="*", type=float, default=NOISES)
    parser.add_argument("--fresh", action="store_true", help="repeat the problems that the results file holds")
    options = parse(parser, max_rows=300, only=["uniform 2"], noises=[0.1], fresh=True)
    name, began = f"auto_table_{options.device}", time.perf_counter()
    rows = [] if options.fresh else read(name)
    done = {(r["problem"], r["noise"], r["start"]) for r in rows}
    is_cuda = options.device == "cuda"
    sizes = {p: p.rows_cuda if is_cuda else p.rows_cpu for p in PROBLEMS}
    chosen = [p for p in PROBLEMS if sizes[p] and (not options.only or p.name in options.only)]
    for problem in sorted(chosen, key=lambda p: sizes[p], reverse=is_cuda):
        n = min(sizes[problem], options.max_rows)
        for noise in options.noises if n <= LARGE[options.device] else [0.1]:
            for warm in (False, True):
                if (problem.name, noise, "warm" if warm else "cold") in done:
                    continue
                if time.perf_counter() - began > 60.0 * options.minutes:
                    continue
                new = compare(problem, n, noise, options.device, warm)
                rows += new
                print(table(summarise(new)), flush=True)
                write(name, rows, cut=CUT, samples=SAMPLES, change=CHANGE, ratios=count_ratios(rows))
    print("\n" + table(summarise(rows)))
    print("Auto over the best:", count_ratios(rows))
    print("written to", write(name, rows, cut=CUT, samples=SAMPLES, change=CHANGE, ratios=count_ratios(rows)))


if __name__ == "__main__":
    main()
