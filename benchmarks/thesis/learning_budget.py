"""Learning on a budget of 10 products with H per step: effect of warm starts and of the pathwise estimator.

    python -m benchmarks.thesis.learning_budget [SET] [--budget 10] [--rows AP-pathwise-warm ...] [--steps 100]

The fits of table 5.1 (Adam at 0.1 from 1.0, 64 probes, tolerance 0.01) with every solve, including the last one,
stopped at the budget (thesis, section 5.4). Recorded are the test log-likelihood, the final residual of the probes, and
the steps that ended above the tolerance. Stochastic dual descent uses batches of 512 rows, as in the thesis, and
automatic batches.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, table
from benchmarks.common.uci import uci
from benchmarks.thesis.table_5_1 import Plan, full

ROWS = (
    "AP-shuffled-pathwise-warm",
    "SDD-auto-pathwise-warm",
    "SDD-pathwise-warm",
    "AP-shuffled-standard-cold",
    "SDD-auto-standard-cold",
    "SDD-standard-cold",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", nargs="?", default="pol")
    parser.add_argument("--budget", type=float, default=10.0, help="epochs per solve")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), help="SOLVER-ESTIMATOR-START, as in table_5_1.py")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows-of-data", type=int, default=0, help="training rows; 0 takes all")
    options = parse(parser, rows=["AP-pathwise-warm"], steps=2, rows_of_data=200)
    device = device_name()
    data = uci(options.set, device=device, rows=options.rows_of_data or None)
    plan = Plan(options.steps, 1, options.budget, options.rows_of_data or None)
    rows: list[dict[str, Any]] = []
    for row in options.rows:
        found, _ = full(data, row, plan, seed=0)
        rows.append({"set": options.set, "n": len(data.X), "row": row, "budget": options.budget, **found})
        shown = ("row", "log_likelihood", "epochs", "seconds", "above_tol", "last_residual")
        print(table([{key: rows[-1][key] for key in shown}]), flush=True)
        written = merge(f"learning_budget_{device}", ("set", "n", "row", "budget"), rows[-1], steps=options.steps)
    print("written to", written)


if __name__ == "__main__":
    main()
