"""The default fit against our other modes and GPyTorch, on public and generated tables.

    python -m benchmarks.peers.default_fit [SET ...] [--ways default ...] [--modes cg cholesky] [--generators 2]

Matern-3/2 with a length scale per input, float32, standardised tables. Seconds include the fit and mean and variance at
the test inputs; log-likelihoods are means over the test points. GPyTorch takes 100 steps of Adam at rate 0.1 from
hyperparameters of 1, see `learning_peers`; it runs once, our ways run with several generators (median of the seconds,
mean of the log-likelihoods). Rows of earlier runs stay in the file.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import torch

import pathgp
from benchmarks.common.fits import THESIS_FIT
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, read, results_file, seconds, table
from benchmarks.common.tables import GENERATED, PUBLIC
from benchmarks.common.tables import table as load_table
from benchmarks.common.uci import Split
from benchmarks.peers.learning_peers import gpytorch_row
from pathgp import kernels
from pathgp.learning.report import FitReport
from pathgp.metrics import nll
from pathgp.solvers import Status

STEPS = 100
# Our ways: options of `fit`. Adam takes all steps, from hyperparameters of 1 as GPyTorch does.
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "lbfgs, all rows": {"stages": "full"},
    "adam": {**THESIS_FIT, "min_gain": 0.0},
    "adam, coarse": {**THESIS_FIT, "min_gain": 0.0, "stages": "coarse"},
}


def model(data: Split) -> pathgp.GP:
    """A model with all hyperparameters 1."""
    matern = kernels.Matern(1.5, torch.ones(data.X.shape[1], dtype=torch.float64))
    return pathgp.GP(kernels.Scale(matern, 1.0), noise=1.0)


def ours(data: Split, way: str, generators: int) -> dict[str, Any]:
    """Fit and predict with one of our ways."""
    fits, predictions, scores = [], [], []
    reports: list[FitReport] = []
    for seed in range(generators):
        gp = model(data)
        predicted: list[Any] = []

        def fit(gp: pathgp.GP = gp, seed: int = seed) -> None:
            reports.append(gp.fit(data.X, data.y, generator=torch.Generator().manual_seed(seed), **WAYS[way]))

        def predict(gp: pathgp.GP = gp, predicted: list[Any] = predicted) -> None:
            predicted.append(gp.posterior.mean(data.X_test))
            predicted.append(gp.posterior.variance(data.X_test, noise=True))

        fits.append(seconds(fit))
        predictions.append(seconds(predict))
        scores.append(-nll(data.y_test, *predicted))
    last = reports[-1]
    return {
        "method": way,
        "seconds": median(a + b for a, b in zip(fits, predictions, strict=True)),
        "fit_seconds": median(fits),
        "predict_seconds": median(predictions),
        "log_likelihood": fmean(scores),
        "scores": scores,
        "noise": last.values["noise"][0],
        "unconverged": sum(report.condition.status is not Status.CONVERGED for report in reports),
        "stages": _stages(last),
        "last_solve": {
            "solver": last.condition.solution.method,
            "epochs": last.condition.epochs,
            "seconds": last.condition.seconds,
            "precision": last.condition.precision,
        },
    }


def _stages(report: FitReport) -> list[dict[str, Any]]:
    """Steps, seconds and epochs for every number of rows of a fit."""
    found: dict[int, dict[str, Any]] = {}
    for step in report.history:
        row = found.setdefault(step.rows, {"rows": step.rows, "steps": 0, "seconds": 0.0, "epochs": 0.0, "solvers": []})
        row["steps"] += 1
        row["seconds"] += step.seconds
        row["epochs"] += step.epochs
        row["solvers"] = sorted({*row["solvers"], step.method or "exact"})
    return list(found.values())


def compare(name: str, options: argparse.Namespace, device: str) -> None:
    """All methods on one set, written as they end."""
    data = load_table(name, options.rows or None, device=device)
    about = {"set": name, "n": len(data.X), "d": data.X.shape[1]}
    few = replace(data, X=data.X[:1500], y=data.y[:1500], X_test=data.X_test[:8], y_test=data.y_test[:8])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        for way in options.ways:
            ours(few, way, 1)
            try:
                row = ours(data, way, options.generators)
            except (RuntimeError, ValueError) as error:
                row = {"method": way, "failed": f"{type(error).__name__}: {error}"}
            record(about | row, device)
    for mode in options.modes:
        gpytorch_row(few, mode, 1, 1)
        if device == "cuda":
            torch.cuda.empty_cache()  # each method starts with the whole device
        measured = options.gpytorch_steps or STEPS
        record(about | gpytorch_row(data, mode, STEPS, measured), device)


def record(row: dict[str, Any], device: str) -> None:
    """Print a row and write it; rows about other sets, sizes and methods stay."""
    shown = {k: v for k, v in row.items() if k != "scores"}
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()), flush=True)
    name = f"default_fit_{device}"
    merge(name, ("set", "n", "method"), row)


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every set: the default, how many times faster it is than GPyTorch, and its distance to the best score."""
    found = []
    for name, n in sorted({(r["set"], r["n"]) for r in rows}):
        by_method = {r["method"]: r for r in rows if (r["set"], r["n"]) == (name, n) and "failed" not in r}
        default = by_method.get("default")
        if default is None:
            continue
        peers = [r for method, r in by_method.items() if method.startswith("gpytorch")]
        fastest = min((r["seconds"] for r in peers), default=None)
        peer_scores = [r["log_likelihood"] for r in peers if r["log_likelihood"] is not None]
        own = max(r["log_likelihood"] for method, r in by_method.items() if not method.startswith("gpytorch"))
        found.append(
            {
                "set": name,
                "n": n,
                "seconds": default["seconds"],
                "gpytorch": fastest,
                "times": None if fastest is None else fastest / default["seconds"],
                "log-likelihood": default["log_likelihood"],
                "best of ours": own,
                "best of gpytorch": max(peer_scores, default=None),
            }
        )
    return found


def main() -> None:
    device = device_name()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", help="sets of benchmarks.common.tables; all by default")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--modes", nargs="*", choices=("cholesky", "cg"), default=["cg"])
    parser.add_argument("--gpytorch-steps", type=int, default=0, help="steps to measure, extrapolated; 0 for all")
    parser.add_argument("--generators", type=int, default=2)
    parser.add_argument("--rows", type=int, default=0, help="training rows; 0 for all")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no set after this time")
    options = parse(parser, sets=["noise_0.1"], ways=["default"], modes=[], generators=1, rows=200)
    began = time.perf_counter()
    for name in options.sets or [*PUBLIC, *GENERATED]:
        if time.perf_counter() - began < options.seconds:
            compare(name, options, device)
    print("\n" + table(summarise(read(f"default_fit_{device}"))))
    print("written to", results_file(f"default_fit_{device}"))


if __name__ == "__main__":
    main()
