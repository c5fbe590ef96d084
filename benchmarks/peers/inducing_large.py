"""Inducing points on large data: `InducingGP` beside GPyTorch's SVGP with the same seconds, and beside the exact GP.

    python -m benchmarks.peers.inducing_large [PROBLEM ...] [--inducing 10000] [--rows N] [--choice pivots]
                                              [--svgp 2048] [--paths 64] [--name NAME]

Problems and hyperparameters are those of hardware/million.py: 2.7 million flights, and a known process with 1.84
million rows and 11 inputs. Rows:

- pathgp sgpr: points, one pass over the data, mean and paths; ``seconds`` includes the choice of the points.
- gpytorch sparse: SVGP with the same kernel and noise, its q(u) and points trained by Adam for the same seconds.
- pathgp exact: from the results of hardware/million.py, the most accurate stage for the same problem and rows.

Columns: seconds of the fit and of means and variances of the held-out rows, peak memory beside the data, root mean
square error, negative log-likelihood, share of held-out rows within two standard deviations, and the rate in
operations per second (9/4 n m^2 for K_ZX's triangular solve and the lower half of V V^T). The file keeps the rows of
earlier runs.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import torch
from torch import Tensor

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.peak import Peak
from benchmarks.common.recording import device_name, merge, read, seconds, table
from benchmarks.hardware.million import Problem, build
from benchmarks.peers.baselines import Baseline, run_baseline
from pathgp.metrics import coverage, nll, rmse

PROBLEMS = ("flights3m", "known-1844352")
KEY = ("problem", "n", "method", "inducing")
SHOWN = (*KEY, "seconds", "predict_seconds", "peak_gb", "teraflops", "rmse", "nll", "within two stds")


def score(problem: Problem, mean: Tensor, variance: Tensor) -> dict[str, float]:
    """Scores of the held-out observations, and the error of f where the truth is known."""
    y, mean, variance = problem.y_test.double(), mean.double(), variance.double()
    found = {"rmse": rmse(y, mean), "nll": nll(y, mean, variance)}
    found["within two stds"] = coverage(y, mean, variance, 0.9545)
    return found | ({} if problem.truth is None else {"rmse of f": rmse(problem.truth.double(), mean)})


def ours(problem: Problem, inducing: int, choice: str, paths: int) -> dict[str, Any]:
    """One row of `InducingGP`."""
    kernel, noise = problem.gp.kernel, float(problem.gp.noise.detach())
    gp = pathgp.InducingGP(kernel, noise, inducing, "sgpr", choice=choice)
    posteriors: list[Any] = []
    predicted: list[Tensor] = []

    def condition() -> None:
        generator = torch.Generator().manual_seed(0)
        posteriors.append(gp.condition(problem.X, problem.y, samples=paths, generator=generator))

    def predict() -> None:
        predicted.append(posteriors[0].mean(problem.X_test))
        predicted.append(posteriors[0].variance(problem.X_test, noise=True))

    with Peak() as peak:
        took = seconds(condition)
    report, m = posteriors[0].report, posteriors[0].model.num_inducing
    row: dict[str, Any] = {"method": "pathgp sgpr", "inducing": m, "seconds": took, "points": report.inducing}
    row |= {"peak_gb": 1e-9 * peak.bytes, "teraflops": 2.25e-12 * len(problem.y) * m**2 / took}
    row["predict_seconds"] = seconds(predict)
    row["path_seconds"] = seconds(lambda: posteriors[0].paths(problem.X_test))
    return row | score(problem, *predicted)


def theirs(problem: Problem, inducing: int, limit: float) -> dict[str, Any]:
    """One row of GPyTorch's SVGP at the given hyperparameters."""

    def kernel() -> Any:
        from gpytorch.kernels import MaternKernel, ScaleKernel

        values = problem.gp.hyperparameters()
        found = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=problem.X.shape[1])).to(problem.X)
        found.base_kernel.lengthscale = values["lengthscale"].to(problem.X)
        found.outputscale = values["signal"].to(problem.X) ** 2
        return found

    baseline = Baseline("svgp", min(inducing, len(problem.y)), noise=float(problem.gp.noise.detach()), learn=False)
    row, found = run_baseline(baseline, kernel, problem.X, problem.y, [problem.X_test], seconds=limit)
    return row | {"inducing": baseline.size} | (score(problem, *found[0]) if found else {})


def exact(problem: Problem, device: str) -> dict[str, Any] | None:
    """The exact posterior of the same rows from the results of hardware/million.py."""
    rows = [row for row in read(f"million_{device}") if row["problem"] == problem.name and row["n"] == len(problem.y)]
    if not rows:
        return None
    best = min(rows, key=lambda row: row["nll"])
    kept = {name: best.get(name) for name in ("seconds", "rmse", "nll", "rmse of f")}
    return {"method": "pathgp exact", "inducing": None, "peak_gb": best["gigabytes"], **kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--inducing", type=int, default=10_000)
    parser.add_argument("--rows", type=int, help="training rows, instead of all")
    parser.add_argument("--choice", default="pivots", choices=("pivots", "kmeans", "random"))
    parser.add_argument("--svgp", type=int, default=2048, help="inducing points of GPyTorch's SVGP; 0: none")
    parser.add_argument("--paths", type=int, default=64)
    options = parse(parser, problems=["known-1844352"], inducing=50, rows=500, svgp=20, paths=4)
    device = device_name()
    for name in options.problems:
        problem = build(name, options.rows, device)
        place = {"problem": problem.name, "n": len(problem.y), "columns": problem.X.shape[1]}
        rows = [ours(problem, options.inducing, options.choice, options.paths)]
        merge(f"inducing_large_{device}", KEY, place | rows[0])
        print(table([{key: (place | rows[0]).get(key) for key in SHOWN}]), flush=True)
        if options.svgp:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows.append(theirs(problem, options.svgp, rows[0]["seconds"]))
        rows += [row for row in [exact(problem, device)] if row]
        for row in rows[1:]:
            merge(f"inducing_large_{device}", KEY, place | row)
        print(table([{key: (place | row).get(key) for key in SHOWN} for row in rows]), flush=True)


if __name__ == "__main__":
    main()
