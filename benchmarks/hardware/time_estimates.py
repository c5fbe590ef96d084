"""Predicted against measured seconds of default fits, and fits with a time limit against their limit.

    python -m benchmarks.hardware.time_estimates [CASE ...] [--limit 0.4] [--device cpu] [--processor-time]

A case is NAME:ROWS, a data set of `benchmarks.common.datasets` or made-up data "made-D-NOISE" with D columns. Every
case is a default fit (Matern-5/2, a length scale per column), and then one with a time limit of a part of its seconds.
The prediction is the one that the fit makes at its start. ``middle`` is the prediction of the whole fit after half of
its seconds. Earlier rows of other cases stay in the results. With ``--processor-time`` everything runs in one thread,
and seconds are those of the processor, also for the fit itself: other programs hardly change them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
import torch

import pathgp
from benchmarks.common.datasets import load
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, read, table
from pathgp.data.tabular import kernel_of_columns
from pathgp.learning.pace import Pace

CPU = ["made-2-0.5:2000", "made-8-0.01:2500", "made-3-0.001:3000", "bike:2500", "pol:3000", "elevators:3000"]
CPU += ["made-20-0.1:4000", "flights3m:4000", "protein:4000", "kin40k:4000", "elevators:10000", "protein:20000"]
GPU = ["made-2-0.5:10000", "made-8-0.01:20000", "made-3-0.001:20000", "made-20-0.1:50000", "made-5-0.3:100000"]
KEY = ("case", "device")


def data(case: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets."""
    name, rows = case.split(":")
    n, draw = int(rows), np.random.default_rng(0)
    if not name.startswith("made-"):
        found = load(name)
        chosen = draw.permutation(len(found.y))[:n]
        return found.X[chosen].astype(np.float64), found.y[chosen].astype(np.float64)
    columns, noise = int(name.split("-")[1]), float(name.split("-")[2])
    X = draw.uniform(size=(n, columns))
    waves = np.sin(3.0 * X @ draw.standard_normal((columns, 6)) + 6.0 * draw.uniform(size=6)).sum(1)
    return X, waves / waves.std() + noise * draw.standard_normal(n)


def fit(
    X: torch.Tensor, y: torch.Tensor, limit: float | None, **options: Any
) -> tuple[pathgp.FitReport, float, list[tuple[float, float]]]:
    """The report, the seconds, and (seconds passed, predicted in all) after every step."""
    curve: list[tuple[float, float]] = []
    gp = pathgp.GP(kernel_of_columns("matern-5/2", X.shape[1]), standardise=True)
    show = Pace.show

    def record(pace: Pace, running: Any) -> None:
        passed = time.perf_counter() - began
        curve.append((passed, passed + pace.predict_left(running)))

    Pace.show = record  # type: ignore[method-assign]
    began = time.perf_counter()
    try:
        report = gp.fit(X, y, time_limit=limit, dtype="auto", generator=torch.Generator().manual_seed(0), **options)
        if X.is_cuda:
            torch.cuda.synchronize()
    finally:
        Pace.show = show  # type: ignore[method-assign]
    return report, time.perf_counter() - began, curve


def measure(case: str, device: str, part: float) -> dict[str, Any]:
    """One row."""
    X, y = (torch.tensor(values, device=device) for values in data(case))
    report, seconds, curve = fit(X, y, None)
    middle = next((predicted for passed, predicted in curve if passed >= seconds / 2), report.predicted_seconds)
    row = {"case": case, "device": device, "columns": X.shape[1], "noise": report.values["noise"][0]}
    row |= {"steps": report.stages, "seconds": seconds, "predicted": report.predicted_seconds}
    row |= {"predicted/seconds": report.predicted_seconds / seconds, "middle/seconds": middle / seconds}
    if part:
        limited, taken, _ = fit(X, y, part * seconds)
        row |= {"limit": part * seconds, "taken/limit": taken / (part * seconds), "rows": limited.condition.rows}
        row |= {"limited_steps": limited.stages, "converged": limited.condition.solution.converged}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--limit", type=float, default=0.4, help="time limit as a part of the seconds; 0: none")
    parser.add_argument("--device", default=device_name())
    parser.add_argument("--processor-time", action="store_true", help="one thread, seconds of the processor")
    options = parse(parser, cases=["made-2-0.5:300"], device="cpu")
    warnings.simplefilter("ignore", pathgp.LongFitWarning)
    if options.processor_time:
        torch.set_num_threads(1)
        time.perf_counter = time.process_time
    # Imports and the first products of a process are slow.
    fit(*(torch.rand(1100, *shape, device=options.device) for shape in ((2,), ())), None, steps=2)
    name = f"time_estimates_{torch.device(options.device).type}"
    clock = "processor" if options.processor_time else "wall"
    for case in options.cases or (CPU if options.device == "cpu" else GPU):
        row = measure(case, options.device, options.limit)
        merge(name, KEY, row, limit=options.limit, clock=clock)
        print(table([{key: value for key, value in row.items() if "steps" not in key}]), flush=True)
    rows = read(name)
    ratios = sorted(row["predicted/seconds"] for row in rows)
    good = sum(0.5 <= ratio <= 2.0 for ratio in ratios)
    print(f"predictions within a factor of 2: {good} of {len(ratios)}")
    limits = [row["taken/limit"] for row in rows if "limit" in row]
    kept = sum(ratio <= 1.0 for ratio in limits)
    print(f"within the limit: {kept} of {len(limits)}, worst {max(limits, default=0.0):.2f}")


if __name__ == "__main__":
    main()
