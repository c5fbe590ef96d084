"""More rows must not hurt: the default fit on nested subsets, with sizes on both sides of every automatic switch.

    python -m benchmarks.trust.more_rows [SET ...] [--sizes N ...] [--further N]

The model is that of `benchmarks.peers.default_fit`, with dtype="auto". All fits have the same test rows; ``--further``
adds rows of the table that follow the largest subset, and are scored apart. A fit counts as a loss if its
log-likelihood is below that of a smaller subset of the same run by more than ``--margin`` nats per row and by more than
two standard errors of the difference: a single row that contradicts its duplicate can cost a tenth of a nat per row.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, read, results_file, seconds, table
from benchmarks.common.tables import table as load_table
from benchmarks.common.uci import Split
from benchmarks.peers.default_fit import model
from pathgp.metrics import rmse
from pathgp.posterior.table import Posterior

SETS = ("flights_30000", "protein", "kin40k", "elevators", "noise_0.1")
# Exact gradients up to 1,000 rows, coarse stages from 7,500 and from 20,000, float32 above 10,000.
SIZES = (500, 990, 1010, 2000, 4900, 5100, 7400, 7600, 9990, 10_010, 19_900, 20_100, 30_000)


@dataclass(frozen=True)
class Scored:
    """A fit: the row of the table of results, and the log densities of the test rows, followed by further rows."""

    row: dict[str, Any]
    densities: Tensor


def measure(name: str, rows: int, further: Tensor, device: str) -> Scored:
    """Fit a subset with the defaults, and score it on the test rows. ``further``: numbers of more rows to score."""
    data = load_table(name, dtype=torch.float64, device=device)
    X, y = data.X[:rows], data.y[:rows]
    gp = model(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        took = seconds(lambda: gp.fit(X, y, dtype="auto", generator=torch.Generator().manual_seed(0)))
    row = {"set": name, "n": len(X), "seconds": took, "noise": float(gp.noise.detach())}
    return score(gp.posterior, data, further, row)


def score(post: Posterior, data: Split, further: Tensor, row: dict[str, Any]) -> Scored:
    """Score a posterior on the test rows and on further rows, and add the scores to the row."""
    Xs, ys = torch.cat([data.X_test, data.X[further]]), torch.cat([data.y_test, data.y[further]])
    mean, variance = post.mean(Xs), post.variance(Xs, noise=True)
    densities = -0.5 * ((ys - mean).square() / variance + variance.log() + math.log(2.0 * math.pi))
    tests = len(data.y_test)
    scores = {
        "log_likelihood": float(densities[:tests].mean()),
        "standard_error": _standard_error(densities[:tests]),
        "without_worst_row": float(densities[:tests].sort().values[1:].mean()),
        "rmse": rmse(data.y_test, mean[:tests]),
    }
    if len(further):
        scores["further"] = float(densities[tests:].mean())
        scores["further_standard_error"] = _standard_error(densities[tests:])
    return Scored(row | scores, densities.cpu())


def losses(scored: list[Scored], margin: float) -> list[dict[str, Any]]:
    """The fits whose log-likelihood is below that of a smaller subset of the same set by more than chance."""
    found = []
    for fit in scored:
        smaller = [other for other in scored if other.row["set"] == fit.row["set"] and other.row["n"] < fit.row["n"]]
        if not smaller:
            continue
        best = max(smaller, key=lambda other: float(other.densities.mean()))
        below = best.densities - fit.densities
        error = _standard_error(below)
        if float(below.mean()) > max(margin, 2.0 * error):
            compared = {"set": fit.row["set"], "n": fit.row["n"], "best_n": best.row["n"]}
            found.append(compared | {"below": float(below.mean()), "standard_error": error})
    return found


def _standard_error(values: Tensor) -> float:
    """The standard error of the average."""
    return float(values.std()) / math.sqrt(len(values))


def main() -> None:
    device = device_name()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", help=f"by default {', '.join(SETS)}")
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--margin", type=float, default=0.01, help="nats per row")
    parser.add_argument("--further", type=int, default=0, help="rows after the largest subset that are scored, too")
    options = parse(parser, sets=["noise_0.1"], sizes=[60, 120], further=30)
    name = f"more_rows_{device}"
    scored: list[Scored] = []
    for chosen in options.sets or SETS:
        largest = len(load_table(chosen).X)
        first = max((size for size in options.sizes if size <= largest), default=largest)
        further = torch.arange(first, min(largest, first + options.further))
        for size in options.sizes:
            if size <= largest:
                scored.append(measure(chosen, size, further, device))
                row = scored[-1].row
                merge(name, ("set", "n"), row)
                print(
                    "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()),
                    flush=True,
                )
    print("\n" + table(read(name)))
    print("\nlosses:\n" + table(losses(scored, options.margin)))
    print("written to", results_file(name))


if __name__ == "__main__":
    main()
