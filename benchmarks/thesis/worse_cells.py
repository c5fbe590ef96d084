"""Why cells of tables 4.1, 5.1 and 6.1 are worse than the thesis's: one setting changed at a time, on a CPU.

    python -m benchmarks.thesis.worse_cells [samples | posterior | curves ...] [--sets segment kr-vs-kp ...]
                                            [--rows 4000] [--solve-rows N] [--epochs 10 30 100 1000] [--samples 1]

- samples: the exact posterior on ``--rows`` training rows of protein, and its NLL with variances that are averages over
  64 and more samples, as in tables 3.1 and 4.1.
- posterior: a fit of pol on ``--rows`` rows as in table 5.1, row CG-standard-cold. Then, at its hyperparameters and
  given ``--solve-rows`` rows, the test log-likelihood of the exact posterior and of CG to several tolerances
  and with several budgets of epochs.
- curves: the learning curves of table 6.1 at the hyperparameters that our fit had after 95 of 100 steps, and the scores
  of solves that end after a number of epochs.

The pages print these results beside the cells. Rows of earlier runs stay, and solves that the file holds are not
measured again.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import torch

import pathgp
from benchmarks.common.fits import THESIS_FIT
from benchmarks.common.options import parse
from benchmarks.common.recording import merge, read, table
from benchmarks.common.uci import Regression, uci
from benchmarks.thesis.lcbench_curves import curves, model
from benchmarks.thesis.table_5_1 import FEATURES, RATE, TOL, initial, move
from benchmarks.thesis.table_6_1 import scores
from benchmarks.thesis.uci_inference import exact
from pathgp import solvers
from pathgp.metrics import nll, rmse

NAME = "worse_cells_cpu"
KEY = ("part", "set", "seed", "rows", "steps", "solver", "tol", "max_epochs", "samples")
PARTS = ("samples", "posterior", "curves")
SAMPLES = (16, 64, 256, 1024)
TOLERANCES, EPOCHS = (1e-2, 1e-3, 1e-4), (20, 30, 40)

Row = dict[str, Any]


def record(row: Row) -> None:
    """Print a row and write it."""
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    merge(NAME, KEY, row)


def holds(row: Row) -> bool:
    """Whether the file has a row about this already."""
    return any(all(row.get(name) == old.get(name) for name in KEY) for old in read(NAME))


def measure_samples(options: argparse.Namespace) -> None:
    """NLL by the number of samples that the variance is an average of; the solves are exact."""
    data = uci("protein", rows=options.rows)
    about = {"part": "samples", "set": "protein", "seed": 0, "rows": len(data.X)}
    mean, variance = exact(data, data.noise)
    y = data.y_test.double()
    record(about | {"solver": "exact", "rmse": rmse(y, mean), "nll": nll(y, mean, variance + data.noise**2)})
    gp = pathgp.GP(data.kernel(), noise=data.noise)
    for count in SAMPLES:
        generator = torch.Generator().manual_seed(0)
        post = gp.condition(data.X, data.y, solver="cholesky", samples=count, generator=generator)
        variance = post.variance(data.X_test, noise=True, method="samples")
        record(about | {"solver": "Cholesky", "samples": count, "nll": nll(data.y_test, mean.to(data.y), variance)})


def measure_posterior(options: argparse.Namespace) -> None:
    """Test log-likelihood of pol by the solver, tolerance and epochs of the last solve alone."""
    data = uci("pol", rows=options.rows)
    given = uci("pol", rows=options.solve_rows or options.rows)
    about = {"part": "posterior", "set": "pol", "seed": 0, "rows": len(given.X), "steps": options.steps}
    gp = fitted(data, options.steps)
    ways: list[tuple[str, Any, float, int | None]] = [("CG", solvers.CG(), TOL, epochs) for epochs in EPOCHS]
    ways += [("CG", solvers.CG(), tol, None) for tol in TOLERANCES]
    ways += [("AP", solvers.AP(), TOL, None), ("Cholesky", "cholesky", TOL, None)]
    for name, solver, tol, epochs in ways:
        about |= {"solver": name, "tol": tol, "max_epochs": epochs, "fit_rows": len(data.X)}
        if holds(about):
            continue
        draws: Row = {"samples": 64, "features": FEATURES, "generator": torch.Generator().manual_seed(0)}
        post = gp.condition(given.X, given.y, solver=solver, tol=tol, max_epochs=epochs, **draws)
        score = -nll(data.y_test, post.mean(data.X_test), post.variance(data.X_test, noise=True))
        found = {"log_likelihood": score, "residual": post.report.worst_residual, "epochs": post.report.epochs}
        record(about | found)


def fitted(data: Regression, steps: int) -> pathgp.GP:
    """A model after the fit of CG-standard-cold, or with the hyperparameters that the file holds of it."""
    gp = initial(data)
    row: Row = {"part": "fit", "set": data.name, "seed": 0, "rows": len(data.X), "steps": steps}
    known = next((old for old in read(NAME) if row.items() <= old.items()), None)
    if known:
        move(gp, known["values"])
        return gp
    learning: Row = {"steps": steps, "learning_rate": RATE, "samples": 64, "features": FEATURES}
    learning |= {"solver": solvers.CG(), "tol": TOL, "warm_start": False, "min_gain": 0.0}
    generator = torch.Generator().manual_seed(0)
    report = gp.fit(data.X, data.y, generator=generator, **learning, **THESIS_FIT | {"estimator": "standard"})
    record(row | {"solver": "CG", "tol": TOL, "values": report.history[-1].values})
    return gp


def measure_curves(options: argparse.Namespace) -> None:
    """Scores of learning curves by the epochs of the last solve."""
    fits = [r for r in read("lcbench_cuda") if r["method"] == "pathgp" and (r["steps"], r["probes"]) == (100, 64)]
    for name in options.sets:
        for seed in options.seeds:
            fit = next(row for row in fits if (row["set"], row["seed"]) == (name, seed))
            data = curves(name, seed)
            gp = model(data)
            move(gp, fit["path"][-1])
            for epochs in options.epochs:
                chosen: Row = {"tol": 1e-5, "max_epochs": epochs, "samples": options.samples}
                about: Row = {"part": "curves", "set": name, "seed": seed, "solver": "auto", **chosen}
                if holds(about):
                    continue
                generator = torch.Generator().manual_seed(seed)
                post = gp.condition([data.X, data.T], data.given, generator=generator, **chosen)
                mean = post.mean()
                variance = post.variance(noise=True) if options.samples > 1 else None
                row = about | {"residual": post.report.worst_residual, "epochs": post.report.epochs}
                for part, cells in (("train", data.observed), ("test", ~data.observed)):
                    if variance is None:
                        row[f"{part}_rmse"] = rmse(data.Y[cells], mean[cells])
                    else:
                        row |= scores(part, data.Y[cells], mean[cells], variance[cells])
                record(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--sets", nargs="*", default=["segment", "kr-vs-kp", "MiniBooNE", "blood"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=4000, help="training rows of protein and pol")
    parser.add_argument(
        "--solve-rows", type=int, help="training rows of the posterior of pol, as for its fit if not given"
    )
    parser.add_argument("--steps", type=int, default=100, help="steps of the fit of pol")
    parser.add_argument("--epochs", nargs="*", type=int, default=[10, 30, 100, 1000], help="of the learning curves")
    parser.add_argument("--samples", type=int, default=1, help="of the learning curves; 1 scores means only")
    options = parse(parser, parts=["samples", "posterior"], rows=60, steps=2)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    measures = {"samples": measure_samples, "posterior": measure_posterior, "curves": measure_curves}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        for part in options.parts:
            measures[part](options)
    print(table([{name: row.get(name) for name in KEY} for row in read(NAME)]))


if __name__ == "__main__":
    main()
