"""Fits with the same time limit: `GP.fit(time_limit=)` and a sparse variational GP of GPyTorch on a large table.

    python -m benchmarks.peers.time_limit [--rows 300000] [--seconds 900] [--set flights3m] [--inducing 1024]
                                          [--methods pathgp gpytorch]

Random rows of the table, 10,000 further ones for the test. Inputs and targets are standardised with the training rows.
Both models have a Matern-5/2 kernel with a length scale per input. pathgp takes its defaults and the limit. GPyTorch
trains for as many seconds, by Adam at 0.01 on batches of 1,000. Scores are those of new observations: RMSE in the units
of the target, mean log likelihood in nats per row of the standardised target, and the share of the test rows in their
95 % intervals. Seconds are those of the fit; predictions come after them. The file keeps the rows of other methods.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pathgp
from benchmarks.common.datasets import load
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, read, require, table
from benchmarks.peers.baselines import Baseline, run_baseline
from pathgp import metrics
from pathgp.data.tabular import kernel_of_columns

TEST = 10_000


def split(name: str, rows: int, test: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """Standardised inputs and targets for training and test, in float32, and the standard deviation of the target."""
    data = load(name)
    assert data.y is not None
    chosen = np.random.default_rng(0).permutation(len(data.y))[: rows + test]
    X, y = data.X[chosen].astype(np.float64), data.y[chosen].astype(np.float64)
    spread = float(y[:rows].std())
    X, y = (X - X[:rows].mean(0)) / X[:rows].std(0), (y - y[:rows].mean()) / spread
    tensors = [torch.tensor(part, dtype=torch.float32, device=device) for part in (X, y)]
    return tensors[0][:rows], tensors[1][:rows], tensors[0][rows:], tensors[1][rows:], spread


def score(y: Tensor, mean: Tensor, variance: Tensor, spread: float) -> dict[str, float]:
    """Scores of predictions for new observations."""
    return {
        "rmse": spread * metrics.rmse(y, mean),
        "log_likelihood": -metrics.nll(y, mean, variance),
        "coverage_95": 100.0 * metrics.coverage(y, mean, variance),
    }


def ours(X: Tensor, y: Tensor, X_test: Tensor, limit: float) -> tuple[dict[str, Any], Tensor, Tensor]:
    """A row, and mean and variance of new observations."""
    gp = pathgp.GP(kernel_of_columns("matern-5/2", X.shape[1]))
    began = time.perf_counter()
    report = gp.fit(X, y, time_limit=limit, progress=True, generator=torch.Generator().manual_seed(0))
    if X.is_cuda:
        torch.cuda.synchronize()
    taken = time.perf_counter() - began
    print(report, flush=True)
    row = {"method": "pathgp", "seconds": taken, "rows": report.condition.rows, "stages": report.stages}
    row |= {"status": report.condition.status.name, "predict_seconds": 0.0}
    began = time.perf_counter()
    mean, variance = gp.posterior.mean(X_test), gp.posterior.variance(X_test, noise=True)
    row["predict_seconds"] = time.perf_counter() - began
    return row, mean, variance


def theirs(X: Tensor, y: Tensor, X_test: Tensor, limit: float, inducing: int) -> tuple[dict[str, Any], Any, Any]:
    """The same for GPyTorch's sparse variational GP."""
    gpytorch = require("gpytorch")

    def kernel() -> Any:
        return gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=X.shape[1]))

    baseline = Baseline("svgp", inducing)
    found, predictions = run_baseline(baseline, kernel, X, y, [X_test], seconds=limit)
    if not predictions:
        return {"method": baseline.name, "failed": found["failed"]}, None, None
    row = {"method": baseline.name, "seconds": found["fit_seconds"], "rows": len(X)}
    row |= {"stages": f"{found['sparse_steps']} steps on 1,000 rows", "predict_seconds": found["predict_seconds"]}
    return row, *predictions[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="flights3m", help="a table of benchmarks.common.datasets")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--test", type=int, default=TEST)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--inducing", type=int, default=1024, help="inducing points of GPyTorch")
    parser.add_argument("--methods", nargs="+", default=["pathgp", "gpytorch"], choices=("pathgp", "gpytorch"))
    parser.add_argument("--device", default=device_name())
    options = parse(parser, set="sarcos_test", rows=500, test=100, seconds=0.5, inducing=20, device="cpu")
    X, y, X_test, y_test, spread = split(options.set, options.rows, options.test, options.device)
    name = f"time_limit_{options.set}_{options.rows}_{torch.device(options.device).type}"
    facts = {"training_rows": options.rows, "test_rows": options.test, "limit": options.seconds}
    for method in options.methods:
        if method == "pathgp":
            row, mean, variance = ours(X, y, X_test, options.seconds)
        else:
            row, mean, variance = theirs(X, y, X_test, options.seconds, options.inducing)
        scores = {} if mean is None else score(y_test, mean, variance, spread)
        merge(name, ("method",), facts | row | scores)
    print(table([{key: value for key, value in row.items() if key not in ("stages", *facts)} for row in read(name)]))


if __name__ == "__main__":
    main()
