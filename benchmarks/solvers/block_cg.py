"""Iterations and seconds of conjugate gradients, for columns one by one and for blocks of columns.

    python -m benchmarks.solvers.block_cg [PROBLEM ...] [--rows 2000] [--noises 0.1 0.01] [--columns 4 16 65]
        [--device cpu]

The systems are those of benchmarks/solvers/auto_table.py, with its tolerances: a residual of 0.01, or a tenth of the
noise if that is less. CG has a randomly pivoted Cholesky preconditioner of automatic rank, and none. Seconds are those
of the processor on a CPU, of the clock on a GPU. A solve ends after 300 iterations. The file keeps the rows of
earlier runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, read, table
from benchmarks.solvers.auto_table import PROBLEMS, make_system
from pathgp import solvers
from pathgp.solvers import RandomlyPivotedCholesky

PRECONDITIONERS = {"low rank": RandomlyPivotedCholesky(), "none": None}
_LIMIT = 300.0
KEY = ("problem", "n", "noise", "preconditioner", "columns")


def compare(name: str, n: int, noise: float, columns: list[int], device: str) -> list[dict[str, Any]]:
    """One system: every preconditioner and number of columns, one by one and as a block."""
    problem = next(problem for problem in PROBLEMS if problem.name == name)
    H, B = make_system(problem, n, noise, device)
    clock = time.process_time if device == "cpu" else time.perf_counter
    rows = []
    for label, preconditioner in PRECONDITIONERS.items():
        for s in columns:
            row: dict[str, Any] = {"problem": name, "n": n, "noise": noise, "preconditioner": label, "columns": s}
            for way, block in (("single", 1), ("block", s)):
                generator, solver = torch.Generator().manual_seed(0), solvers.CG(preconditioner, block)
                began = clock()
                solution = solver.solve(H, B[:, :s], tol=min(0.01, 0.1 * noise), max_epochs=_LIMIT, generator=generator)
                row[f"{way}_converged"] = bool(solution.converged)
                row |= {f"{way}_iterations": solution.iterations, f"{way}_seconds": clock() - began}
            rows.append(row)
    return rows


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians of the ratios, block over single, of the systems that both solve."""
    lines = []
    for key in dict.fromkeys((row["n"], row["preconditioner"], row["columns"]) for row in rows):
        mine = [
            row
            for row in rows
            if (row["n"], row["preconditioner"], row["columns"]) == key
            and row["single_converged"]
            and row["block_converged"]
        ]
        line: dict[str, Any] = {**dict(zip(("n", "preconditioner", "columns"), key, strict=True)), "systems": len(mine)}
        for quantity in ("iterations", "seconds"):
            ratios = sorted(row[f"block_{quantity}"] / row[f"single_{quantity}"] for row in mine)
            if ratios:
                line[quantity] = statistics.median(ratios)
                line[f"{quantity}_range"] = [ratios[0], ratios[-1]]
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", default=[problem.name for problem in PROBLEMS])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--noises", nargs="+", type=float, default=[0.1, 0.01])
    parser.add_argument("--columns", nargs="+", type=int, default=[4, 16, 65])
    parser.add_argument("--device", default=device_name())
    options = parse(parser, problems=["uniform 2"], rows=100, noises=[0.1], columns=[4])
    name = f"block_cg_{options.device}"
    for problem in options.problems:
        for noise in options.noises:
            new = compare(problem, options.rows, noise, options.columns, options.device)
            print(table(new), flush=True)
            written = merge(name, KEY, new, lambda rows: {"summary": summarise(rows)}, limit=_LIMIT)
    print("\n" + table(summarise(read(name))))
    print("written to", written)


if __name__ == "__main__":
    main()
