"""Default and short fits of rows whose errors have heavy tails, compared with the average of y.

    python -m benchmarks.trust.heavy_tails [--seeds 4] [--degrees 1.6]

y = sin(6 x_1) + x_2^2 plus errors from a t distribution with 1.6 degrees of freedom, whose variance is infinite. Every
seed draws other rows, of which 2,000 are held out. *relative error* is their RMSE divided by that of the average of the
rows that were learned from.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
import torch

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import results_file, table, write
from pathgp.data.tabular import kernel_of_columns

# Rows, columns and steps (None: the default).
CASES = ((300, 6, None), (1000, 2, None), (1500, 2, None), (1000, 6, None), (1000, 2, 10), (3000, 2, 10), (3000, 6, 10))
HELD_OUT = 2000


def measure(rows: int, columns: int, steps: int | None, seed: int, degrees: float) -> dict[str, Any]:
    """One fit."""
    rng = np.random.default_rng(seed)
    X = rng.random((rows + HELD_OUT, columns))
    y = np.sin(6.0 * X[:, 0]) + X[:, 1] ** 2 + rng.standard_t(degrees, size=len(X))
    gp = pathgp.GP(kernel_of_columns("matern-5/2", columns), noise=0.1, standardise=True)
    began = time.perf_counter()
    report = gp.fit(X[:rows], y[:rows], steps=steps, generator=torch.Generator().manual_seed(0))
    seconds = time.perf_counter() - began
    error, error_of_average = gp.posterior.mean(X[rows:]) - y[rows:], y[:rows].mean() - y[rows:]
    return {
        "rows": rows,
        "columns": columns,
        "steps": "default" if steps is None else steps,
        "seed": seed,
        "relative error": float(np.sqrt(np.mean(error**2) / np.mean(error_of_average**2))),
        "noise": float(gp.noise),
        "restarted": "started again" in report.note,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4, help="sets of rows in every case")
    parser.add_argument("--degrees", type=float, default=1.6, help="degrees of freedom of the errors")
    parser.add_argument("--rows-max", type=int, default=3000)
    options = parse(parser, seeds=1, rows_max=300)
    results, summary = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        for rows, columns, steps in (case for case in CASES if case[0] <= options.rows_max):
            found = [measure(rows, columns, steps, seed, options.degrees) for seed in range(options.seeds)]
            results += found
            case = {key: found[0][key] for key in ("rows", "columns", "steps")}
            worst, restarted = max(row["relative error"] for row in found), sum(row["restarted"] for row in found)
            summary.append({**case, "largest relative error": worst, "restarted": restarted})
    write("heavy_tails", results, summary=summary)
    print(table(summary))
    print("written to", results_file("heavy_tails"))


if __name__ == "__main__":
    main()
