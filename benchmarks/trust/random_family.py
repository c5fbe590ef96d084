"""Check posteriors and warnings on random conditioning problems against the dense float64 posterior.

    python -m benchmarks.trust.random_family [--cases 2000] [--first 0] [--rows-max 3000] [--processes 2]
    python -m benchmarks.trust.random_family --case 123 [--rows-max 3000]      # one case again, in full

The problems are those of cases.py; all options except the solver have their defaults. check.py defines which posteriors
are correct. Others need a warning or an error (ValueError, TypeError, NotImplementedError); incorrect cases without
either are listed. *bound missed*: the error of the mean exceeds the stated bound, even if it is negligible.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.common.options import parse
from benchmarks.common.recording import table, write
from benchmarks.trust.check import VERDICTS, measure


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counts of verdicts: in all, by kind, by dtype, by solver, by noise, by layout."""

    def noise(row: dict[str, Any]) -> str:
        decade = min(0, 2 * math.floor(math.log10(row["noise/signal"]) / 2))
        return f"noise/signal {10.0**decade:.0e}" + (" to 10" if decade == 0 else f" to {10.0 ** (decade + 2):.0e}")

    groups = {
        "all": lambda row: "all",
        "kind": lambda row: row["kind"],
        "dtype": lambda row: row["dtype"],
        "solver": lambda row: f"solver {row['solver']}",
        "noise": noise,
        "layout": lambda row: f"layout {row['layout']}",
    }
    found = []
    for group in groups.values():
        for name in sorted({group(row) for row in rows}):
            counts = Counter(row["verdict"] for row in rows if group(row) == name)
            missed = sum(row.get("mean", 0.0) > 1.0 for row in rows if group(row) == name)
            told = {v: counts[v] for v in VERDICTS}
            found.append({"cases": name, "number": counts.total(), **told, "bound missed": missed})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--case", type=int, help="this one alone, in full")
    parser.add_argument("--rows-max", type=int, default=3000, help="sizes are drawn between 1 and this")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--name", default="trust", help="of the file of results")
    options = parse(parser, cases=3, rows_max=50, processes=1)
    if options.case is not None:
        torch.set_num_threads(1)
        for name, value in measure(options.case, options.rows_max).items():
            print(f"{name:<14}{value}")
        return
    numbers = range(options.first, options.first + options.cases)
    rows = []
    began = time.perf_counter()
    with (
        ProcessPoolExecutor(options.processes, initializer=torch.set_num_threads, initargs=(1,)) as pool,
        tqdm(total=len(numbers), file=sys.stderr, mininterval=5.0) as bar,
    ):
        for row in pool.map(partial(measure, rows_max=options.rows_max), numbers):
            rows.append(row)
            bar.update()
            if row["verdict"] == "WRONG":
                bar.write(f"case {row['case']}: wrong without a word: {', '.join(row['failures'])}")
    wrong = [row for row in rows if row["verdict"] == "WRONG"]
    shown = ("case", "kind", "dtype", "solver", "used", "n", "noise/signal", "kernel", "layout", "offset", "level")
    shown += ("failures", "mean", "in_stds", "std", "std_rms", "truth", "residual")
    print(table([{key: row.get(key) for key in shown} for row in wrong]))
    counts = summarise(rows)
    print("\n" + table(counts))
    print(f"\nwrong without a word: {len(wrong)} of {len(rows)}: {' '.join(str(row['case']) for row in wrong)}")
    print(f"each again: python -m benchmarks.trust.random_family --case NUMBER --rows-max {options.rows_max}")
    kept = [row for row in rows if row["verdict"] != "right"]
    facts = {"rows_max": options.rows_max, "first": options.first, "cases": len(rows), "counts": counts}
    facts["seconds"] = time.perf_counter() - began
    print("written to", write(options.name, kept, **facts))


if __name__ == "__main__":
    main()
