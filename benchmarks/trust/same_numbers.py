"""Record results before a refactoring and compare them afterwards.

    python -m benchmarks.trust.same_numbers record FOLDER
    python -m benchmarks.trust.same_numbers compare FOLDER [--rtol 1e-6]

Seventeen problems with fixed seeds that use only public names: posteriors by every solver, predictions, paths, updates,
evidence, steps of fits, grids, integrations. Posteriors are also saved in the folder and loaded by the comparison. It
fails unless every number agrees to ``rtol`` times the largest one of its array. Record and compare on the same machine:
another processor rounds differently, and a solver may take another iteration.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import table
from pathgp import kernels

Numbers = dict[str, Any]
PROBLEMS: dict[str, Callable[[Path], Numbers]] = {}


def problem(function: Callable[[Path], Numbers]) -> Callable[[Path], Numbers]:
    PROBLEMS[function.__name__] = function
    return function


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(n: int, d: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, noisy values of a smooth function, and five new inputs."""
    generator = seeded(n + d)
    X = torch.rand(n + 5, d, generator=generator, dtype=torch.float64)
    f = torch.sin(5.0 * X[:, 0]) + X[:, -1].square()
    y = f[:n] + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    return X[:n].to(dtype), y.to(dtype), X[n:].to(dtype)


def grid() -> tuple[list[torch.Tensor], torch.Tensor]:
    places, times = torch.rand(12, 2, generator=seeded(1), dtype=torch.float64), torch.linspace(0.0, 3.0, 17).double()
    Y = torch.sin(3.0 * places[:, :1] + 2.0 * times) + 0.1 * torch.randn(12, 17, generator=seeded(2)).double()
    Y[torch.rand(12, 17, generator=seeded(3)) < 0.3] = torch.nan
    return [places, times.unsqueeze(1)], Y


def predictions(posterior: Any, Xs: torch.Tensor) -> Numbers:
    return {
        "mean": posterior.mean(Xs),
        "variance": posterior.variance(Xs, noise=True),
        "paths": posterior.paths(Xs),
        "residual": posterior.report.worst_residual,
        "epochs": posterior.report.epochs,
    }


def steps(report: Any) -> Numbers:
    values = [[number for value in step.values.values() for number in value] for step in report.history]
    return {"gains": [step.gain for step in report.history], "values": values}


def matern(d: int) -> kernels.Kernel:
    return kernels.Scale(kernels.Matern(2.5, torch.full((d,), 0.6)), 1.3)


def by_solver(solver: str, dtype: torch.dtype = torch.float64) -> Numbers:
    X, y, Xs = rows(300, 3, dtype)
    return predictions(pathgp.GP(matern(3), 0.1).condition(X, y, solver=solver, generator=seeded()), Xs)


for name in ("cg", "ap", "cholesky", "sdd", "sgd"):
    PROBLEMS[name] = lambda folder, solver=name: by_solver(solver)
PROBLEMS["float32"] = lambda folder: by_solver("ap", torch.float32)


@problem
def sums(folder: Path) -> Numbers:
    X, y, Xs = rows(200, 2)
    kernel = kernels.SquaredExponential(0.7) + kernels.Scale(kernels.Periodic(1.0, 0.8, active_dims=[0]), 0.4)
    posterior = pathgp.GP(kernel, 0.1, standardise=True).condition(X, y, generator=seeded())
    posterior.save(folder / "sums.pgp")
    parts = {f"part {i}": part.mean(Xs) for i, part in enumerate(posterior.components().values())}
    return predictions(posterior, Xs) | parts


@problem
def evidence(folder: Path) -> Numbers:
    X, y, _ = rows(250, 2)
    posterior = pathgp.GP(matern(2), 0.1).condition(X, y, solver="cg", generator=seeded())
    left_out = posterior.leave_one_out()
    value = posterior.log_marginal_likelihood(generator=seeded(1))
    return {"value": value.value, "means": left_out.means, "variances": left_out.variances}


@problem
def updates(folder: Path) -> Numbers:
    X, y, Xs = rows(200, 2)
    posterior = pathgp.GP(matern(2), 0.1).condition(X[:150], y[:150], solver="cg", generator=seeded())
    return predictions(posterior.update(X[150:], y[150:], generator=seeded(1)), Xs)


@problem
def counts(folder: Path) -> Numbers:
    X = torch.randint(0, 4, (80, 20), generator=seeded()).double()
    kernel = kernels.Scale(kernels.Tanimoto(), 0.9)
    return predictions(pathgp.GP(kernel, 0.2).condition(X[:70], X[:70].sum(1), generator=seeded()), X[70:])


def fitted(n: int, **options: Any) -> Numbers:
    X, y, Xs = rows(n, 2)
    options = {"stages": "full", "initialise": "model"} | options
    gp = pathgp.GP(matern(2), 0.3, standardise=True)
    report = gp.fit(X, y, steps=12, min_gain=0.0, generator=seeded(), **options)
    return steps(report) | predictions(gp.posterior, Xs)


PROBLEMS["fit by adam"] = lambda folder: fitted(400, optimiser="adam", estimator="pathwise")
PROBLEMS["fit by lbfgs"] = lambda folder: fitted(1200, optimiser="lbfgs", estimator="pathwise", initialise="data")
PROBLEMS["fit exactly"] = lambda folder: fitted(150, optimiser="lbfgs", estimator="exact")


@problem
def grids(folder: Path) -> Numbers:
    factors, Y = grid()
    gp = pathgp.LatentKroneckerGP([matern(2), kernels.Matern(1.5, 1.0)], 0.1)
    posterior = gp.condition(factors, Y, generator=seeded())
    posterior.save(folder / "grids.pgp")
    new = [factors[0][:3] + 0.05, factors[1][:4] + 0.05]
    at_new = {"new mean": posterior.mean(*new), "new variance": posterior.variance(*new)}
    return {"mean": posterior.mean(), "variance": posterior.variance(), "samples": posterior.sample()} | at_new


@problem
def fitted_grids(folder: Path) -> Numbers:
    factors, Y = grid()
    gp = pathgp.LatentKroneckerGP([matern(2), kernels.Matern(1.5, 1.0)], 0.3)
    options = {"optimiser": "adam", "estimator": "pathwise", "stages": "full", "initialise": "model"}
    report = gp.fit(factors, Y, steps=8, min_gain=0.0, generator=seeded(), **options)
    return steps(report) | {"mean": gp.posterior.mean()}


@problem
def regressor(folder: Path) -> Numbers:
    from pathgp.sklearn import GPRegressor

    X, y, Xs = (array.numpy() for array in rows(300, 3))
    mean, std = GPRegressor(random_state=0).fit(X, y).predict(Xs, return_std=True)
    return {"mean": mean, "std": std}


@problem
def filled(folder: Path) -> Numbers:
    import xarray as xr

    from pathgp.xarray import fill

    factors, Y = grid()
    field = xr.DataArray(Y.numpy(), coords={"place": np.arange(12.0), "time": factors[1][:, 0].numpy()})
    result = fill(field, generator=seeded())
    return {"mean": result["mean"].values, "std": result["std"].values}


def saved(folder: Path) -> Numbers:
    """Predictions of the posteriors in the folder."""
    table_, grid_ = pathgp.load(folder / "sums.pgp"), pathgp.load(folder / "grids.pgp")
    return predictions(table_, rows(200, 2)[2]) | {"grid": grid_.mean(), "grid variance": grid_.variance()}


def flat(name: str, numbers: Numbers) -> dict[str, np.ndarray]:
    return {
        f"{name}: {key}": np.asarray(value.detach() if isinstance(value, torch.Tensor) else value, dtype=np.float64)
        for key, value in numbers.items()
    }


def evaluated(folder: Path, problems: list[str]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in problems:
            print(name, file=sys.stderr, flush=True)
            found |= flat(name, PROBLEMS[name](folder))
    return found


def compare(before: dict[str, np.ndarray], after: dict[str, np.ndarray], rtol: float) -> list[dict[str, Any]]:
    """The arrays that do not agree."""
    different = []
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a is None or b is None or a.shape != b.shape:
            shapes = [None if x is None else x.shape for x in (a, b)]
            different.append({"numbers": name, "difference": f"shape {shapes[0]} became {shapes[1]}"})
            continue
        scale = np.nanmax(np.abs(a), initial=1e-300)
        largest = float(np.nanmax(np.abs(a - b), initial=0.0) / scale)
        if largest > rtol or bool((np.isnan(a) != np.isnan(b)).any()):
            different.append({"numbers": name, "difference": f"{largest:.1e}"})
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rtol", type=float, default=1e-6)
    parser.add_argument("--problems", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    options = parse(parser, problems=["sums", "grids"])
    torch.set_num_threads(1)
    file = options.folder / "numbers.npz"
    if options.action == "record":
        options.folder.mkdir(parents=True, exist_ok=True)
        found = evaluated(options.folder, options.problems)
        np.savez(file, **found, **flat("saved", saved(options.folder)))
        print(f"{len(found)} arrays of {len(options.problems)} problems in {file}")
        return
    with np.load(file) as content:
        before = dict(content)
    read_back = flat("saved", saved(options.folder))
    scratch = options.folder / "again"
    scratch.mkdir(exist_ok=True)
    different = compare(before, evaluated(scratch, options.problems) | read_back, options.rtol)
    print(table(different) if different else f"all {len(before)} arrays agree to {options.rtol:g}")
    raise SystemExit(bool(different))


if __name__ == "__main__":
    main()
