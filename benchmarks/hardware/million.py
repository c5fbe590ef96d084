"""Millions of rows: posterior mean and 64 samples by alternating projections and by stochastic dual descent.

    python -m benchmarks.hardware.million [PROBLEM ...] [--solvers AP SDD] [--time-limit SECONDS] [--rows N]
                                         [--precision high] [--tolerances T ...]

Problems:

- known-1000000, known-1844352: y = f(x) + noise with f from a Matern-3/2 process with the hyperparameters that the
  thesis's authors found for houseelectric, x normal in 11 dimensions. The truth f is known at the held-out points.
- etopo5: height of the Earth's surface at two million points of the 5-minute grid, unit vectors on the sphere.
- flights3m: arrival delays of 2.7 million flights.

Hyperparameters of the real sets come from exact fits of small neighbourhoods. Each solve passes through a sequence of
decreasing tolerances; every stage starts from the solution of the previous one. Held-out scores are computed between
the stages and are not timed. A stage ends with a product that an uninterrupted solve would not need. ``--tolerances``
with a single number is such a solve. ``--precision`` is the precision of the products in solver iterations. The file
keeps the rows of earlier runs.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import pathgp
from benchmarks.common.datasets import load
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, read, table
from benchmarks.common.uci import hyperparameters
from pathgp import kernels, solvers
from pathgp.compute.random import normal
from pathgp.metrics import nll, rmse
from pathgp.operators import Operator
from pathgp.pathwise import PriorPaths
from pathgp.posterior import conditioning
from pathgp.posterior.conditioning import Settings, SolveRequest
from pathgp.posterior.table import Posterior

PROBLEMS = ("known-1000000", "known-1844352", "etopo5", "flights3m")
SOLVERS: dict[str, solvers.Solver] = {"AP": solvers.AP(), "SDD": solvers.SDD()}
LADDER = (0.3, 0.1, 0.03, 0.01, 0.003)
KEY = ("problem", "n", "solver", "precision", "tol", "first tol")
SAMPLES, FEATURES, HELD_OUT = 64, 512, 5000  # held out: at most as many as there are training rows
# A draw that stands for the truth has more features than the paths that are fitted to it.
TRUTH_FEATURES = 8192


@dataclass(frozen=True)
class Problem:
    """Data and a model with its hyperparameters. ``truth``: f at the held-out points, where it is known."""

    name: str
    gp: pathgp.GP
    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    truth: Tensor | None = None


def matern(lengthscale: Tensor, signal: float, noise: float) -> pathgp.GP:
    return pathgp.GP(kernels.Scale(kernels.Matern(1.5, lengthscale), signal), noise=noise)


def known(rows: int, device: str) -> Problem:
    """Data from the model itself."""
    found = hyperparameters("houseelectric")
    gp = matern(torch.tensor(found["lengthscale"], dtype=torch.float64), found["signal"], found["noise"])
    generator = torch.Generator().manual_seed(0)
    columns = len(found["lengthscale"])
    X = torch.randn(rows + min(rows, HELD_OUT), columns, generator=generator).to(device)
    path = PriorPaths.draw(gp.kernel.to(device), 1, TRUTH_FEATURES, columns, generator)
    with torch.no_grad():
        f = torch.cat([path(part)[0] for part in X.split(100_000)])
    y = f + found["noise"] * torch.randn(len(f), generator=generator).to(device)
    gp.kernel.cpu()
    return Problem(f"known-{rows}", gp, X[:rows], y[:rows], X[rows:], y[rows:], f[rows:])


def etopo5(rows: int | None, device: str) -> Problem:
    """Points of the grid, all equally likely per area."""
    grid = load("etopo5_global")
    lat, lon = (np.deg2rad(side[:, 0].astype(np.float64)) for side in grid.factors)
    rows = rows or 2_000_000
    count = rows + min(rows, HELD_OUT)
    weight = np.repeat(np.cos(lat).clip(0.0), len(lon))
    # The largest keys u^(1/w) are a weighted draw without replacement (Efraimidis and Spirakis 2006).
    keys = np.log(np.random.default_rng(0).random(weight.size)) / np.maximum(weight, 1e-12)
    chosen = np.argpartition(-keys, count)[:count]
    i, j = np.divmod(np.random.default_rng(1).permutation(chosen), len(lon))
    X = np.stack([np.cos(lat[i]) * np.cos(lon[j]), np.cos(lat[i]) * np.sin(lon[j]), np.sin(lat[i])], 1)
    return real("etopo5", X, grid.Y[i, j], matern(torch.tensor(0.05, dtype=torch.float64), 1.0, 0.1), False, device)


def flights3m(rows: int | None, device: str) -> Problem:
    """A tenth is held out, of which some rows are scored."""
    data = load("flights3m")
    rows = rows or 2_700_000
    count = rows + min(rows, HELD_OUT)
    order = np.random.default_rng(0).permutation(len(data.y))[:count]
    X, y = data.X[order], data.y[order]
    return real("flights3m", X, y, matern(torch.ones(X.shape[1], dtype=torch.float64), 1.0, 0.5), True, device)


def real(name: str, X: np.ndarray, y: np.ndarray, gp: pathgp.GP, scale_inputs: bool, device: str) -> Problem:
    """Standardise and find the hyperparameters."""
    X, y = X.astype(np.float64), y.astype(np.float64)
    if scale_inputs:
        X = (X - X.mean(0)) / X.std(0)
    inputs = torch.tensor(X, dtype=torch.float32, device=device)
    targets = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32, device=device)
    gp = neighbourhoods(gp, inputs, targets)
    held_out = min(len(X) // 2, HELD_OUT)
    return Problem(name, gp, inputs[held_out:], targets[held_out:], inputs[:held_out], targets[:held_out])


def neighbourhoods(gp: pathgp.GP, X: Tensor, y: Tensor, count: int = 5) -> pathgp.GP:
    """The average of what exact fits of the neighbours of a few points find (thesis, section 3.3.1)."""
    found = []
    size = min(len(X), 4000 if X.device.type == "cuda" else 500)
    for centre in range(count):
        near = (X - X[centre]).square().sum(1).topk(size, largest=False).indices
        local = copy.deepcopy(gp)
        local.fit(
            X[near].double(),
            y[near].double(),
            steps=40,
            estimator="exact",
            optimiser="lbfgs",
            initialise="model",
            samples=1,
        )
        found.append(local.hyperparameters())
    average = {name: torch.stack([values[name].cpu().double() for values in found]).mean(0) for name in found[0]}
    print({name: [round(v, 4) for v in value.reshape(-1).tolist()] for name, value in average.items()})
    return matern(average["lengthscale"], float(average["signal"]), float(average["noise"]))


def scores(posterior: Posterior, problem: Problem) -> dict[str, Any]:
    """Held-out error and density."""
    mean, variance = posterior.mean(problem.X_test), posterior.variance(problem.X_test, noise=True)
    found = {"rmse": rmse(problem.y_test, mean), "nll": nll(problem.y_test, mean, variance)}
    if problem.truth is not None:
        error = problem.truth - mean
        spread = (variance - float(problem.gp.noise.detach()) ** 2).clamp_min(1e-12).sqrt()
        found["rmse of f"] = rmse(problem.truth, mean)
        found["coverage of f"] = float((error.abs() <= 1.96 * spread).double().mean())
    return found


def climb(
    problem: Problem, name: str, limit: float, backend: str, precision: str, tolerances: Sequence[float]
) -> Iterator[list[dict[str, Any]]]:
    """Down the ladder of tolerances until the time is over; the rows so far after every rung."""
    device = problem.X.device
    settings = Settings.read(SOLVERS[name], tolerances[0], None, pathgp.Compute(backend, precision=precision))
    generator = torch.Generator().manual_seed(1)
    data = problem.gp.prepare_data(problem.X, problem.y)
    model = problem.gp.frozen(device)
    began = time.perf_counter()
    prior = model.draw_prior(data, SAMPLES, FEATURES, generator)
    draws = normal((len(data.y), SAMPLES), generator, torch.float32, device)
    _wait(device)
    drawn = time.perf_counter()
    system = model.system(data, prior, draws)
    _wait(device)
    took, epochs, weights = time.perf_counter() - began, 0.0, None
    preparation = time.perf_counter() - drawn  # repeated by every rung, and counted once
    print(f"{problem.name} {name}: right-hand sides after {took:.1f} s", flush=True)
    rows: list[dict[str, Any]] = []
    told = 0.0

    def tell(record: solvers.Record) -> None:
        nonlocal told
        if record.seconds < told + 2.0 and not record.is_exact:
            return
        told = record.seconds
        print(
            f"  {took + record.seconds:7.1f} s  {epochs + record.epochs:6.2f} epochs  mean {record.residual[0]:.4f}  "
            f"samples {record.residual[1:].mean():.4f}{'' if record.is_exact else ' (estimate)'}",
            flush=True,
        )

    pace = _pace(settings.operator(model.kernel, system.X, system.deviation), system.targets)
    for tol in tolerances:
        if took >= limit:
            break
        budget = max(3.0, (limit - took) / pace) if math.isfinite(limit) else None
        told = 0.0
        request = SolveRequest(replace(settings, tol=tol, max_epochs=budget), generator, x0=weights, callback=tell)
        # A stage stops at its tolerance, and not at the residual that the noise asks for.
        with warnings.catch_warnings(), mock.patch.object(conditioning, "ACCURACY", math.inf):
            warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
            posterior = model.solve(data, prior, draws, request)
        _wait(device)
        weights, solution = posterior.weights, posterior.report.solution
        took, epochs = took + posterior.report.seconds - preparation, epochs + solution.epochs
        pace = took / epochs
        rows.append(
            {
                "problem": problem.name,
                "n": len(problem.X),
                "d": problem.X.shape[1],
                "solver": name,
                "precision": precision,
                "tol": tol,
                "first tol": tolerances[0],
                "status": solution.status.name,
                "seconds": took,
                "epochs": epochs,
                "residual": float(solution.residual.max()),
                "residual of the mean": float(solution.residual[0]),
                **scores(posterior, problem),
                "gigabytes": torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None,
                "note": solution.note,
            }
        )
        print(table([{key: value for key, value in rows[-1].items() if key != "note"}]), flush=True)
        tightest = rows[-1]["nll"]
        enough = next(row["seconds"] for row in rows if row["nll"] <= tightest + 0.02)
        print(f"{problem.name} {name}: NLL within 0.02 of {tightest:.3f} after {enough:.0f} s", flush=True)
        yield [{**row, "seconds until nll within 0.02": enough} for row in rows]
        if not solution.converged:
            break


def _pace(H: Operator, V: Tensor) -> float:
    """Seconds of an epoch: 1.6 times those of a product, from the second of two with a hundredth of the rows."""
    index = torch.arange(-(-len(V) // 100), device=V.device)
    for _ in range(2):
        _wait(V.device)
        began = time.perf_counter()
        H.rows(index, V)
        _wait(V.device)
    return 160.0 * (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def build(name: str, rows: int | None, device: str) -> Problem:
    if name.startswith("known-"):
        return known(rows or int(name.removeprefix("known-")), device)
    return {"etopo5": etopo5, "flights3m": flights3m}[name](rows, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), help=", ".join(PROBLEMS))
    parser.add_argument("--solvers", nargs="*", choices=list(SOLVERS), default=list(SOLVERS))
    parser.add_argument("--time-limit", type=float, default=math.inf, help="seconds for each solve, roughly")
    parser.add_argument("--rows", type=int, help="training rows, instead of all")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--precision", choices=("high", "medium", "low"), default="high")
    parser.add_argument("--tolerances", type=float, nargs="+", default=list(LADDER), help="stages of a solve")
    options = parse(parser, problems=["known-1000000"], rows=500, solvers=["AP"])
    device = device_name()
    for name in options.problems:
        problem = build(name, options.rows, device)
        for solver in options.solvers:
            how = options.time_limit, options.backend, options.precision, options.tolerances
            for found in climb(problem, solver, *how):
                written = merge(f"million_{device}", KEY, found, samples=SAMPLES, features=FEATURES)
    shown = ("problem", "n", "solver", "precision", "tol", "seconds", "epochs", "residual", "rmse", "nll")
    print(table([{name: row[name] for name in shown} for row in read(f"million_{device}")]))
    print("written to", written)


if __name__ == "__main__":
    main()
