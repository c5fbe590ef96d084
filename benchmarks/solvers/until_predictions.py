"""Epochs until predictions are accurate to a twentieth of the noise, beside those to a relative residual of 0.01.

    python -m benchmarks.solvers.until_predictions [SET ...] [--rows 2000] [--samples 16] [--solvers AP CG]

The UCI sets with the authors' hyperparameters, float64, 200 test inputs. "residual" solves every system to 0.01 and
nothing else; "default" is the rule of `condition`, 0.01 and a tenth of the posterior standard deviation at the data;
"predictions" is ``until="predictions"`` with the tolerance that is a twentieth of the noise at the median of the
posterior standard deviations. True errors are against a Cholesky factorisation: of the mean, the largest over the
inputs in units of the noise; and of mean and paths in posterior standard deviations, which the promise must exceed.
"""

from __future__ import annotations

import argparse
import math
import warnings
from typing import Any

import torch

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, table, write
from benchmarks.common.uci import UCI, Regression, uci
from pathgp import solvers
from pathgp.diagnostics import ExactSolution
from pathgp.posterior import conditioning

ENTRANTS: dict[str, solvers.Solver] = {"AP": solvers.AP(), "CG": solvers.CG(), "SDD": solvers.SDD()}
INPUTS, FRACTION = 200, 0.05


def condition(data: Regression, samples: int, accuracy: float = conditioning.ACCURACY, **options: Any) -> Any:
    """A posterior; ``accuracy``: of the default rule at the data, in posterior standard deviations."""
    gp = pathgp.GP(data.kernel(), noise=data.noise)
    before, conditioning.ACCURACY = conditioning.ACCURACY, accuracy
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
            generator = torch.Generator().manual_seed(0)
            return gp.condition(data.X, data.y, samples=samples, max_epochs=200, generator=generator, **options)
    finally:
        conditioning.ACCURACY = before


def measure(name: str, label: str, rows: int, samples: int) -> dict[str, Any]:
    """One set and one solver under the three rules."""
    data, solver = uci(name, dtype=torch.float64, device=device_name(), rows=rows), ENTRANTS[label]
    Xs = data.X_test[:INPUTS]
    by_residual = condition(data, samples, accuracy=math.inf, solver=solver)
    exact = ExactSolution.of(by_residual)
    std = exact.std(Xs)
    tol = FRACTION * data.noise / float(std.median())
    posteriors = {"residual": by_residual, "default": condition(data, samples, solver=solver)}
    posteriors["predictions"] = condition(data, samples, solver=solver, until="predictions", at=Xs, tol=tol)
    row: dict[str, Any] = {"set": name, "n": len(data.y), "solver": label, "noise": data.noise, "tol": tol}
    for rule, post in posteriors.items():
        errors = ExactSolution(post, exact.weights).errors(Xs)
        largest = torch.maximum(errors[0].abs(), errors[1:].square().mean(0).sqrt())
        row |= {
            f"epochs, {rule}": round(post.report.epochs, 1),
            f"status, {rule}": post.report.status.name,
            f"mean/noise, {rule}": float(errors[0].abs().max()) / data.noise,
            f"in std, {rule}": float((largest / std).max()),
        }
    row["promise"] = posteriors["predictions"].report.prediction_error
    row["saving"] = row["epochs, residual"] / row["epochs, predictions"]
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=list(UCI))
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--solvers", nargs="*", default=["AP", "CG"], choices=list(ENTRANTS))
    options = parse(parser, sets=["pol"], rows=150, solvers=["AP"])
    rows = [
        measure(name, label, options.rows, options.samples)
        for name in (options.sets or UCI)
        for label in options.solvers
    ]
    print(table([{key: value for key, value in row.items() if not key.startswith("status")} for row in rows]))
    print("written to", write("until_predictions", rows, inputs=INPUTS, fraction=FRACTION, samples=options.samples))


if __name__ == "__main__":
    main()
