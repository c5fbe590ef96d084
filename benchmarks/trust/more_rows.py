"""More rows must not hurt: the default fit on nested subsets, with sizes on both sides of every automatic switch.

    python -m benchmarks.trust.more_rows [SET ...] [--sizes N ...]

The model is that of `benchmarks.peers.default_fit`, with dtype="auto". All fits have the same test rows. A row
counts as a loss if its log-likelihood is below that of a smaller subset by more than ``--margin`` nats per row.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import torch

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, read, results_file, seconds, table, write
from benchmarks.common.tables import table as load_table
from benchmarks.peers.default_fit import model
from pathgp.metrics import nll, rmse

SETS = ("flights_30000", "protein", "kin40k", "elevators", "noise_0.1")
# Exact gradients up to 1,000 rows, coarse stages from 7,500 and from 20,000, float32 above 10,000.
SIZES = (500, 990, 1010, 2000, 4900, 5100, 7400, 7600, 9990, 10_010, 19_900, 20_100, 30_000)


def measure(name: str, rows: int, device: str) -> dict[str, Any]:
    """Fit a subset with the defaults, and score it."""
    data = load_table(name, dtype=torch.float64, device=device)
    X, y = data.X[:rows], data.y[:rows]
    gp = model(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        took = seconds(lambda: gp.fit(X, y, dtype="auto", generator=torch.Generator().manual_seed(0)))
    mean, variance = gp.posterior.mean(data.X_test), gp.posterior.variance(data.X_test, noise=True)
    scores = {"log_likelihood": -nll(data.y_test, mean, variance), "rmse": rmse(data.y_test, mean)}
    return {"set": name, "n": len(X), "seconds": took, **scores, "noise": float(gp.noise.detach())}


def losses(rows: list[dict[str, Any]], margin: float) -> list[dict[str, Any]]:
    """The rows whose log-likelihood is below that of a smaller subset of the same set."""
    found = []
    for row in rows:
        smaller = [r["log_likelihood"] for r in rows if r["set"] == row["set"] and r["n"] < row["n"]]
        if smaller and row["log_likelihood"] < max(smaller) - margin:
            found.append(row | {"below": max(smaller) - row["log_likelihood"]})
    return found


def main() -> None:
    device = device_name()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", help=f"by default {', '.join(SETS)}")
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--margin", type=float, default=0.01, help="nats per row")
    options = parse(parser, sets=["noise_0.1"], sizes=[60, 120])
    name = f"more_rows_{device}"
    rows = {(row["set"], row["n"]): row for row in read(name)}
    for chosen in options.sets or SETS:
        largest = len(load_table(chosen).X)
        for size in options.sizes:
            if size <= largest:
                row = measure(chosen, size, device)
                rows[(chosen, size)] = row
                print(
                    "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()),
                    flush=True,
                )
                write(name, list(rows.values()))
    print("\n" + table(list(rows.values())))
    print("\nlosses:\n" + table(losses(list(rows.values()), options.margin)))
    print("written to", results_file(name))


if __name__ == "__main__":
    main()
