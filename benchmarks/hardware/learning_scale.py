"""Learning at scale: 30 steps of Adam at 0.03 with 10 products with H per step, as in section 5.4 of the thesis.

    python -m benchmarks.hardware.learning_scale [PROBLEM] [--rows 391386] [--steps 30] [--budget 10] [--tol 0.01]
                                                [--solver ap] [--cold] [--precision high]

The problems are those of million.py. Pathwise estimator, warm starts, 64 probes. The initial values are the average of
exact fits of small neighbourhoods (real data), or twice the true values (known data). Recorded are the residuals per
step, as in figure 5.10, and the test log-likelihood with the initial and the final hyperparameters. With a small
``--tol`` solves use their whole budgets. The file is written after every step.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import torch

import pathgp
from benchmarks.common.fits import THESIS_FIT
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, seconds, table, write
from benchmarks.hardware.million import PROBLEMS, Problem, build, matern
from pathgp.learning.report import Step
from pathgp.metrics import nll, rmse


def displaced(problem: Problem) -> pathgp.GP:
    """A model to start from: near the true one, where that is known."""
    found = problem.gp.hyperparameters()
    if problem.truth is None:
        return matern(found["lengthscale"].double(), float(found["signal"]), float(found["noise"]))
    return matern(2.0 * found["lengthscale"].double(), 2.0 * float(found["signal"]), 2.0 * float(found["noise"]))


def score(posterior: pathgp.Posterior, problem: Problem) -> dict[str, float]:
    mean, variance = posterior.mean(problem.X_test), posterior.variance(problem.X_test, noise=True)
    return {"rmse": rmse(problem.y_test, mean), "log_likelihood": -nll(problem.y_test, mean, variance)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem", nargs="?", choices=PROBLEMS, default="etopo5")
    parser.add_argument("--rows", type=int, default=391_386, help="training rows; those of 3droad by default")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--budget", type=float, default=10.0, help="epochs per step")
    parser.add_argument("--tol", type=float, default=0.01, help="residual at which a solve ends before its budget")
    parser.add_argument("--solver", default="ap")
    parser.add_argument("--cold", action="store_true", help="start every solve at zero")
    parser.add_argument("--precision", choices=("high", "medium", "low"), default="high")
    options = parse(parser, problem="known-1000000", rows=500, steps=2, budget=2.0)
    device = device_name()
    problem = build(options.problem, options.rows, device)
    gp = displaced(problem)
    kind = ("" if options.solver == "ap" else f"{options.solver}_") + ("cold_" if options.cold else "")
    file = f"learning_scale_{problem.name}_{len(problem.X)}_tol{options.tol:g}_{kind}{device}"
    facts: dict[str, Any] = {"problem": problem.name, "n": len(problem.X), "steps": options.steps}
    facts |= {"budget": options.budget, "tol": options.tol, "precision": options.precision}
    facts |= {"solver": options.solver, "warm_start": not options.cold}
    told: list[dict[str, Any]] = []

    def tell(step: Step) -> None:
        values = {name: [round(v, 4) for v in value] for name, value in step.values.items()}
        told.append({"epochs": step.epochs, "seconds": step.seconds, "residual": step.probe_residual, **values})
        print(len(told), told[-1], flush=True)
        write(file, told, **facts)

    common = {"solver": options.solver, "samples": 64, "features": 512, "max_epochs": options.budget}
    common |= {"tol": options.tol, "compute": pathgp.Compute(precision=options.precision)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        before = score(gp.condition(problem.X, problem.y, **common, generator=_seeded()), problem)
        print("start", before, flush=True)
        facts |= {f"{key} before": value for key, value in before.items()}
        took = seconds(
            lambda: gp.fit(
                problem.X,
                problem.y,
                steps=options.steps,
                learning_rate=0.03,
                min_gain=0.0,
                callback=tell,
                generator=_seeded(),
                warm_start=not options.cold,
                **common,
                **THESIS_FIT,
            )
        )
    after = score(gp.posterior, problem)
    facts |= {"seconds": took, **{f"{key} after": value for key, value in after.items()}}
    print(table([facts]))
    print("written to", write(file, told, **facts))


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


if __name__ == "__main__":
    main()
