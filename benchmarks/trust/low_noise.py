"""Default fits on data with little noise through every interface, compared with the exact likelihood and 100 steps of
Adam.

    python -m benchmarks.trust.low_noise [--sets smooth friedman-1e-03 bike ...] [--rows-max 5000] [--generators 4]
                                         [--doors GP GPRegressor cli default fill] [--hard] [--all-rows]
                                         [--processes 1] [--list]

Interfaces: `GP.fit(initialise="data")` with ``standardise=True`` and the thesis's options, `GPRegressor` and
`pathgp fit` for tables, with a Matern-5/2 kernel with a length scale per column; `xarray.fill` for fields; all other
options are defaults. 500 rows are held out; of fields about a quarter of the cells. ``--sets`` selects the sets whose
names contain one of the words.

The sets ``free-*`` have no noise in 2, 6 and 20 columns. They and ``bike-2500-*`` are learned by `GP.fit` with default
options ("default"), once per generator; *scatter* is the range of the test log-likelihood between generators.

A fit is ok unless

    failed         it raised an error, or had an exit code other than 0
    below start    its exact log likelihood (dense, float64) is below that of its initial values by more than 0.0005
                   nats per row, the gain at which fits end: fields start at the optimum of sub-grids
    below Adam     it is below that of 100 steps of Adam from the same initial values (exact gradients up to 1,500 rows)
                   by more than 0.01 nats per row and 1 % of their gain
    not converged  the solve of its posterior ended above the tolerance
    coverage       its 95 % intervals contain fewer than 85 % of the held-out values, or are NaN

*said* is the number of warnings. The file keeps the rows of earlier runs.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import numpy as np
import torch

from benchmarks.common.options import parse
from benchmarks.common.recording import merge, results_file, table
from benchmarks.trust.low_noise_fits import FITS
from benchmarks.trust.low_noise_likelihoods import DENSE_ROWS
from benchmarks.trust.low_noise_sets import FieldSet, TableSet, sets
from pathgp.metrics import coverage, nll, rmse

DOORS = ("GP", "GPRegressor", "cli", "default", "fill")
HARD = ("smooth-0e+00-200", "smooth-0e+00-1200", "matern-1e-05-1200", "friedman-1e-05-1200", "rough-1e-05-1200")
HARD += ("field-smooth-0e+00", "field-matern-1e-04", "field-rough-1e-05")
MARGIN, START_MARGIN, LEAST_COVERAGE = 0.01, 5e-4, 0.85
PROBLEMS = ("failed", "below start", "below Adam", "not converged", "coverage")


def measure(data: TableSet | FieldSet, door: str, generator: int) -> dict[str, Any]:
    """One fit, its numbers and its verdict."""
    row: dict[str, Any] = {"set": data.name, "door": door, "generator": generator, "rows": data.rows}
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fitted = FITS[door](data, generator)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            return row | {"verdict": "failed", "error": told[-240:], "seconds": time.perf_counter() - began}
    said = sorted({" ".join(str(w.message).split())[:160] for w in caught if not issubclass(w.category, FutureWarning)})
    row["seconds"] = time.perf_counter() - began
    start, end, adam = fitted.likelihoods()
    spread = float(np.std(fitted.y.astype(np.float64)))
    valid = bool(np.isfinite(fitted.mean).all() and np.isfinite(fitted.variance).all() and (fitted.variance > 0).all())
    row |= {
        "rmse/std": rmse(fitted.y, fitted.mean) / spread if valid else math.nan,
        "nll": nll(fitted.y / spread, fitted.mean / spread, fitted.variance / spread**2) if valid else math.nan,
        "coverage": coverage(fitted.y, fitted.mean, fitted.variance) if valid else math.nan,
        "status": fitted.report.status.name,
        "residual": fitted.report.worst_residual,
        "steps": fitted.steps,
        "noise": fitted.noise,
        "start": start,
        "end": end,
        "adam": adam,
        "said": len(said),
        "warnings": said,
    }
    if fitted.adam is not None and isinstance(data, TableSet) and data.rows <= DENSE_ROWS:
        Xs, posterior = torch.from_numpy(data.X_test), fitted.adam().posterior
        mean, variance = posterior.mean(Xs).numpy(), posterior.variance(Xs, noise=True).numpy()
        row["adam nll"] = nll(fitted.y / spread, mean / spread, variance / spread**2)
    return row | {"verdict": verdict(row)}


def measure_all(name: str, doors: list[str], generators: int) -> list[dict[str, Any]]:
    """A set through its doors."""
    data = next(make for each, _, make in sets(True) if each == name)()
    return [measure(data, door, seed) for door in data.doors if door in doors for seed in range(generators)]


def scatter(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Test log-likelihoods of sets that ran with several generators, their range, and that of Adam."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if "nll" in row:
            found.setdefault((row["set"], row["door"]), []).append(row)
    summaries = []
    for (name, door), runs in found.items():
        values = [-run["nll"] for run in runs]
        adam = -runs[0]["adam nll"] if "adam nll" in runs[0] else None
        summary = {"least": min(values), "largest": max(values), "scatter": max(values) - min(values), "adam": adam}
        summaries += [{"set": name, "door": door, **summary}] if len(runs) > 1 else []
    return summaries


def verdict(row: dict[str, Any]) -> str:
    """The problems of a fit, or ok."""

    def below(other: str, margin: float) -> bool:
        return None not in (row["end"], row[other]) and not row["end"] >= row[other] - margin

    found = {
        "below start": below("start", START_MARGIN),
        "below Adam": below("adam", MARGIN * max(1.0, (row["adam"] or 0.0) - (row["start"] or 0.0))),
        "not converged": row["status"] != "CONVERGED",
        "coverage": not row["coverage"] >= LEAST_COVERAGE,
    }
    return ", ".join(name for name, is_so in found.items() if is_so) or "ok"


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many fits of every door are ok, how many have each problem, and how many of these said nothing."""
    found = []
    for door in (*DOORS, "all"):
        chosen = [row for row in rows if door in (row["door"], "all")]
        counts = {problem: sum(problem in row["verdict"] for row in chosen) for problem in PROBLEMS}
        silent = sum(row["verdict"] not in ("ok", "failed") and not row["said"] for row in chosen)
        fine = sum(row["verdict"] == "ok" for row in chosen)
        found.append({"door": door, "fits": len(chosen), "ok": fine, **counts, "without a word": silent})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", default=[""], help="words that the name of a set must contain one of")
    parser.add_argument("--doors", nargs="*", choices=DOORS, default=DOORS)
    parser.add_argument("--generators", type=int, default=1, help="fits of every set, each with its own seed")
    parser.add_argument("--rows-max", type=int, default=DENSE_ROWS, help="leave larger sets out")
    parser.add_argument("--hard", action="store_true", help="only sets that were hard for earlier versions: minutes")
    parser.add_argument("--all-rows", action="store_true", help="also bike with all its rows")
    parser.add_argument("--processes", type=int, default=1, help="sets at a time")
    parser.add_argument("--list", action="store_true", help="only list the sets")
    parser.add_argument("--name", default="low_noise", help="of the file of results")
    options = parse(parser, sets=["smooth-0e+00-200"], doors=["GPRegressor"])
    words = HARD if options.hard else options.sets
    chosen = [
        (rows, name)
        for name, rows, _ in sets(options.all_rows)
        if rows <= options.rows_max and any(word in name for word in words)
    ]
    if options.list:
        print("\n".join(name for _, name in chosen))
        return
    # The longest first.
    chosen.sort(key=lambda each: each[0] or math.inf, reverse=options.processes > 1)
    rows = []
    keys = (
        "set",
        "door",
        "generator",
        "seconds",
        "rmse/std",
        "nll",
        "coverage",
        "status",
        "residual",
        "steps",
        "noise",
    )
    keys += ("start", "end", "adam", "said", "verdict")
    threads = torch.get_num_threads() if options.processes == 1 else 1
    # A fork of a process that has used two threads may wait forever.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, context, torch.set_num_threads, (threads,)) as pool:
        running = [pool.submit(measure_all, name, options.doors, options.generators) for _, name in chosen]
        for i, done in enumerate(as_completed(running)):
            for row in done.result():
                found = f"{row['verdict']}, {row['seconds']:.0f} s"
                print(f"[{i + 1}/{len(chosen)}] {row['set']}, {row['door']}: {found}", file=sys.stderr, flush=True)
                rows.append(row)
            merge(
                options.name,
                ("set", "door", "generator"),
                rows,
                lambda rows: {"counts": summarise(rows), "scatter": scatter(rows)},
            )
    print(table([{key: row.get(key) for key in keys} for row in rows]))
    print("\n" + table(summarise(rows)))
    print("\n" + table(scatter(rows)))
    print("written to", results_file(options.name))


if __name__ == "__main__":
    main()
