"""Vecchia's preconditioner in few dimensions: iterations and seconds to a residual of 0.01.

    python -m benchmarks.solvers.vecchia [PROBLEM ...] [--rows 10000] [--columns 16] [--max-epochs 200]
        [--solvers NAME ...]

Problems are generated: pixels of an image of which a tenth is missing, points on the sphere, and uniform points in the
unit cube. The length scales belong to a number of rows (``density``); with fewer rows they are longer, so that
neighbours are as correlated. "dense, d 2" has the density of ten million points; it needs 100,000 rows to be a few
length scales wide. Right-hand sides are draws of the prior with noise. float32. CG with 15, 30 and 60 neighbours, with
the automatic number, with its default preconditioner, AP, and `Auto`.

Seconds are those of the processor on a CPU (all threads together, whatever else runs there), of the clock on a GPU.
They include the build of the preconditioner and the choice of the number of neighbours. The file keeps the rows of
other problems, and of the same problems with other numbers of rows.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, table
from pathgp import kernels, solvers
from pathgp.operators import KernelOperator
from pathgp.pathwise import PriorPaths


class Problem(NamedTuple):
    """Inputs, dimension of the set of inputs, order of the Matern kernel, length scale and noise for a density."""

    inputs: str
    d: int
    nu: float
    lengthscale: float
    noise: float
    density: int


PROBLEMS = {
    "pixels, Matern-1/2": Problem("pixels", 2, 0.5, 0.1, 0.14, 105_569),
    "pixels, Matern-3/2": Problem("pixels", 2, 1.5, 0.05, 0.41, 105_569),
    "sphere": Problem("sphere", 2, 1.5, 0.05, 0.1, 300_000),
    "uniform, d 2": Problem("uniform", 2, 1.5, 0.05, 0.1, 200_000),
    "dense, d 2": Problem("uniform", 2, 1.5, 0.05, 0.1, 10_000_000),
    "uniform, d 3": Problem("uniform", 3, 1.5, 0.1, 0.05, 200_000),
    "uniform, d 5": Problem("uniform", 5, 1.5, 0.5, 0.1, 100_000),
    "uniform, d 8": Problem("uniform", 8, 1.5, 1.0, 0.1, 100_000),
}
ENTRANTS: dict[str, solvers.Solver] = {
    "m = 15": solvers.CG(solvers.Vecchia(15)),
    "m = 30": solvers.CG(solvers.Vecchia(30)),
    "m = 60": solvers.CG(solvers.Vecchia(60)),
    "automatic m": solvers.CG(solvers.Vecchia()),
    "CG": solvers.CG(),
    "AP": solvers.AP(),
    "Auto": solvers.Auto(),
}


def make_inputs(problem: Problem, n: int, generator: torch.Generator) -> Tensor:
    """The inputs (n, columns), float32."""
    if problem.inputs == "pixels":
        side = math.ceil(math.sqrt(n / 0.9))
        cells = torch.randperm(side**2, generator=generator)[:n]
        return torch.stack([cells // side, cells % side], 1).float() / side
    if problem.inputs == "sphere":
        return torch.nn.functional.normalize(torch.randn(n, 3, generator=generator), dim=1)
    return torch.rand(n, problem.d, generator=generator)


def make_system(problem: Problem, n: int, columns: int, device: str) -> tuple[KernelOperator, Tensor]:
    """H and draws of the prior with noise."""
    generator = torch.Generator().manual_seed(0)
    X = make_inputs(problem, n, generator).to(device)
    kernel = kernels.Matern(problem.nu, problem.lengthscale * (problem.density / n) ** (1.0 / problem.d))
    with torch.no_grad():
        f = PriorPaths.draw(kernel, columns, 2048, X.shape[1], generator)(X).T
    noise = problem.noise * torch.randn(n, columns, generator=generator).to(device)
    return KernelOperator(kernel, X, problem.noise), (f + noise).contiguous()


def time_of(solve: Callable[[], solvers.Solution], device: str) -> tuple[float, solvers.Solution]:
    """Seconds of a solve, and its result."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    solution = solve()
    # The residual is on the CPU once the device has finished.
    solution.residual.cpu()
    return clock() - began, solution


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--columns", type=int, default=16)
    parser.add_argument("--max-epochs", type=float, default=200.0)
    parser.add_argument("--solvers", nargs="+", default=list(ENTRANTS), help=", ".join(ENTRANTS))
    options = parse(parser, rows=150, columns=2, problems=["uniform, d 2"])
    device = device_name()
    facts = {"columns": options.columns, "max_epochs": options.max_epochs}
    rows: list[dict[str, Any]] = []
    for name in options.problems:
        H, B = make_system(PROBLEMS[name], options.rows, options.columns, device)
        for label in options.solvers:
            solver, generator = ENTRANTS[label], torch.Generator().manual_seed(1)
            solve = partial(solver.solve, H, B, tol=0.01, max_epochs=options.max_epochs, generator=generator)
            taken, solution = time_of(solve, device)
            result = {"iterations": solution.iterations, "epochs": solution.epochs, "seconds": taken}
            row = {"problem": name, "rows": options.rows, "solver": label, "converged": solution.converged, **facts}
            rows.append({**row, **result, "note": solution.note})
            print({key: value for key, value in rows[-1].items() if key != "note"}, flush=True)
        # After every problem: an interrupted run keeps its results.
        path = merge(f"vecchia_{device}", ("problem", "rows", "solver"), rows)
    print(table([{key: value for key, value in row.items() if key != "note"} for row in rows]))
    print("written to", path)


if __name__ == "__main__":
    main()
