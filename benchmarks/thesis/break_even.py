"""Missing ratio from which a dense matrix costs less than the factors of a grid: SARCOS (thesis, section 6.3.1).

    python -m benchmarks.thesis.break_even [--rows 4449] [--ratios 0 0.1 ...] [--columns 65] [--runs 5]
                                           [--fit-rows 400] [--steps 20] [--fit-ratios 0.2 0.5 0.8]
                                           [--seeds 0 1 2] [--no-comparison] [--time-limit S]

Two parts, both with a squared exponential kernel on the 21 inputs times a full-rank coregionalisation kernel on the
torques, cells missing uniformly at random, float32:

- products H V with a stored matrix of the observed cells and with stored factors: operations as counted by torch; bytes
  of the stored matrices; median wall-clock and processor time (other processes may use the machine); and peak memory
  while the operator is built and multiplied (CPU: of the process; GPU: of the allocator). The missing ratios at which
  the costs are equal are interpolated in log cost over log(1 - ratio), which is nearly linear, and compared with
  `pathgp.break_even`.
- fits and predictions with both methods from the same draws, on ``--fit-rows`` rows: Adam at 0.1 from GPyTorch's
  initial values, CG to 0.01. For the first seed then a solve to 1e-8 in float64 at the same hyperparameters, where the
  predictions of both methods must agree: their largest difference is given in standard deviations of the targets.

The 44,484 training rows of SARCOS are not available; the rows are those of its test file. The file keeps the results of
earlier runs with other sizes.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import pathgp
from benchmarks.common.datasets import load
from benchmarks.common.fits import THESIS_FIT
from benchmarks.common.options import parse
from benchmarks.common.peak import Peak
from benchmarks.common.recording import Rows, device_name, median_seconds, merge, results_file, seconds, table
from pathgp import kernels
from pathgp.data.grid import GridObservations
from pathgp.metrics import nll, rmse
from pathgp.operators import KernelOperator, LatentKroneckerOperator, Operator
from pathgp.posterior.conditioning import Settings

WAYS = ("dense", "kronecker")
NAMES = {"dense": "all observed cells", "kronecker": "factors"}
# softplus(0), the initial value of every variance and length scale in GPyTorch.
DEFAULT = math.log(2.0)
# Of the products: about what is learned. At GPyTorch's initial value 4 % of the entries of K are denormal numbers, and
# a CPU multiplies them eight times as slowly.
LENGTHSCALE = 4.0
KEY = ("part", "p", "missing", "way", "columns", "steps", "seed")
COSTS = ("flops", "bytes", "seconds", "cpu_seconds", "peak_bytes")


class Dense(pathgp.LatentKroneckerGP):
    """Always a matrix of all observed cells."""

    def operator(self, data: GridObservations, settings: Settings, reuse: Operator | None = None) -> Operator:
        return settings.operator(self.product(data.widths), data.inputs(), self.deviation(data), reuse)


class Latent(pathgp.LatentKroneckerGP):
    """Always through the factors."""

    def operator(self, data: GridObservations, settings: Settings, reuse: Operator | None = None) -> Operator:
        deviation = self.deviation(data)
        return LatentKroneckerOperator(
            self.sides, data.factors, data.observed, deviation, pathgp.Compute(memory=settings.compute.memory)
        )


MODELS = {"dense": Dense, "kronecker": Latent}


@dataclass(frozen=True)
class Arm:
    """Joint positions, velocities and accelerations X (p, 21), standardised; torques Y (p, 7), each standardised."""

    X: Tensor
    Y: Tensor

    def observed(self, ratio: float, seed: int = 0) -> Tensor:
        """A boolean grid with this share of its cells missing, uniformly at random."""
        order = torch.rand(self.Y.numel(), generator=torch.Generator().manual_seed(seed)).argsort()
        observed = torch.ones(self.Y.numel(), dtype=torch.bool)
        observed[order[: round(ratio * self.Y.numel())]] = False
        return observed.view(self.Y.shape).to(self.Y.device)


def arm(rows: int | None = None, device: str = "cpu") -> Arm:
    """The first ``rows`` rows of sarcos_test.npz, standardised with these."""
    table = load("sarcos_test")
    X, Y = (values[:rows].astype(np.float64) for values in (table.X, table.extra["Y"]))
    X, Y = ((values - values.mean(0)) / values.std(0) for values in (X, Y))
    return Arm(*(torch.tensor(values, dtype=torch.float32, device=device) for values in (X, Y)))


def sides(inputs: int, tasks: int, lengthscale: float = DEFAULT) -> list[kernels.Kernel]:
    """The kernels of the thesis, by default at GPyTorch's initial values; the second carries the signal scale."""
    each = torch.full((inputs,), lengthscale, dtype=torch.float64)
    return [kernels.SquaredExponential(each), kernels.Task(tasks, rank=tasks)]


def kept_bytes(H: Operator) -> int:
    """Bytes of the matrices that an operator keeps."""
    parts = H.factors if isinstance(H, LatentKroneckerOperator) else [H]
    kept = [getattr(part._tiles, "K", None) for part in parts if isinstance(part, KernelOperator)]
    return sum(K.numel() * K.element_size() for K in kept if K is not None)


def built(model: pathgp.LatentKroneckerGP, data: GridObservations, V: Tensor) -> tuple[Operator, dict[str, Any]]:
    """An operator, and what it and a product with it cost but for the time of the product."""
    settings = Settings.read("cg", 0.01, None, pathgp.Compute("dense"))
    with Peak() as peak:
        H = model.operator(data, settings)
        H @ V
    took = median_seconds(lambda: model.operator(data, settings), 3)
    costs = {"flops": operations(H, V), "bytes": kept_bytes(H), "peak_bytes": peak.bytes}
    return H, {"n": len(data.y), **costs, "evaluation_seconds": took}


def operations(H: Operator, V: Tensor) -> int:
    """Floating-point operations of a product; torch counts those of one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with FlopCounterMode(display=False) as counter:
            H @ V
    finally:
        torch.set_num_threads(threads)
    return int(counter.get_total_flops())


def timed(operators: dict[str, Operator], V: Tensor, runs: int) -> dict[str, dict[str, float]]:
    """Median seconds of a product, and of the processor's time for it; the ways take turns."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in operators}
    for _ in range(runs):
        for way, H in operators.items():
            began = time.process_time()
            took = seconds(lambda H=H: H @ V)
            found[way].append((took, time.process_time() - began))
    return {
        way: dict(zip(("seconds", "cpu_seconds"), map(median, zip(*pairs, strict=True)), strict=True))
        for way, pairs in found.items()
    }


def both(models: dict[str, pathgp.LatentKroneckerGP], factors: list[Any], Y: Tensor, columns: int, runs: int) -> Rows:
    """One row per way."""
    operators, rows = {}, {}
    for way, model in models.items():
        data = model.requires_grad_(False).to(Y.device).prepare_data(factors, Y)
        V = torch.randn(len(data.y), columns, generator=torch.Generator().manual_seed(0)).to(Y.device)
        operators[way], rows[way] = built(model, data, V)
    for way, times in timed(operators, V, runs).items():
        rows[way] = {"way": way, **rows[way], **times}
    return list(rows.values())


def products(data: Arm, ratios: list[float], columns: int, runs: int) -> Rows:
    """Both ways at every missing ratio."""
    rows = []
    for ratio in ratios:
        Y = torch.where(data.observed(ratio), data.Y, torch.nan)
        models = {way: MODELS[way](sides(data.X.shape[1], data.Y.shape[1], LENGTHSCALE)) for way in WAYS}
        about = {"part": "products", "p": len(Y), "q": Y.shape[1], "columns": columns, "missing": ratio}
        found = [{**about, **row} for row in both(models, [data.X, None], Y, columns, runs)]
        print(table(found), flush=True)
        rows += found
    return rows


def crossing(rows: Rows, cost: str) -> float | None:
    """The missing ratio from which on the dense way costs less; None where the lines do not cross."""
    named = {(row["missing"], row["way"]): max(row[cost], 1e-12) for row in rows}
    ratios = sorted({ratio for ratio, _ in named if ratio < 1.0})
    gaps = [math.log(named[ratio, "dense"] / named[ratio, "kronecker"]) for ratio in ratios]
    for (a, before), (b, after) in pairwise(zip(ratios, gaps, strict=True)):
        if before >= 0.0 > after:
            share = before / (before - after)
            return 1.0 - (1.0 - a) ** (1.0 - share) * (1.0 - b) ** share
    return None


def learned(data: Arm, ratio: float, steps: int, seed: int = 0, compare: bool = True) -> Rows:
    """Fit both ways from the same draws: scores of the held-out cells.

    ``compare``: also solve to 1e-8, which takes longer than the fit, and record how far the predictions differ.
    """
    observed = data.observed(ratio, seed)
    Y = torch.where(observed, data.Y, torch.nan)
    truth, rows, predicted = data.Y[~observed], [], {}
    hyperparameters: dict[str, Tensor] = {}
    for way in WAYS:
        model = MODELS[way](sides(data.X.shape[1], data.Y.shape[1]), noise=math.sqrt(DEFAULT))
        options = {"steps": steps, "learning_rate": 0.1, "min_gain": 0.0, "solver": "cg", "tol": 0.01, **THESIS_FIT}
        options["generator"] = torch.Generator().manual_seed(seed)
        with Peak() as peak:
            took = seconds(lambda model=model, options=options: model.fit([data.X, None], Y, **options))
        mean, variance = model.posterior.mean()[~observed], model.posterior.variance(noise=True)[~observed]
        if compare:
            # The same hyperparameters for both: those of the first way.
            hyperparameters = hyperparameters or model.state_dict()
            model.load_state_dict(hyperparameters)
            source = torch.Generator().manual_seed(seed)
            again = model.condition([data.X.double(), None], Y.double(), solver="cg", tol=1e-8, generator=source)
            predicted[way] = (again.mean(), again.variance())
        about = {
            "part": "fit",
            "p": len(Y),
            "q": Y.shape[1],
            "missing": ratio,
            "way": way,
            "steps": steps,
            "seed": seed,
        }
        scores = {"rmse": rmse(truth, mean), "nll": nll(truth, mean, variance)}
        rows.append({**about, "n": int(observed.sum()), "seconds": took, "peak_bytes": peak.bytes, **scores})
    for name, a, b in zip(("mean", "variance"), *predicted.values(), strict=True) if compare else ():
        rows[-1][f"{name}_difference"] = float((a - b).abs().max())
    for row in rows:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    return rows


def resources(root: int, ways: tuple[str, ...], runs: int = 15, inputs: int = 10) -> Rows:
    """Costs on a complete grid of root x root points in ten dimensions, one column (figure 6.2)."""
    source, device = torch.Generator().manual_seed(0), device_name()
    halves = [torch.randn(root, inputs // 2, generator=source).to(device) for _ in range(2)]
    models = {way: MODELS[way]([kernels.SquaredExponential(1.0) for _ in halves]) for way in ways}
    return both(models, halves, torch.zeros(root, root, device=device), 1, runs)


def crossings(rows: Rows) -> dict[str, Any]:
    """The predicted and the measured break-even ratios for every size of products."""
    found = {}
    for p, q, columns in sorted({(r["p"], r["q"], r["columns"]) for r in rows if r["part"] == "products"}):
        same = [r for r in rows if r["part"] == "products" and (r["p"], r["columns"]) == (p, columns)]
        measured = {cost: crossing(same, cost) for cost in COSTS}
        found[f"{p} x {q}, {columns} columns"] = {"formula": pathgp.break_even(p, q)._asdict(), **measured}
    return {"crossings": found}


def main() -> None:
    device = device_name()
    large = device == "cuda"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4449, help="rows of the products; 0 leaves them out")
    ratios = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
    parser.add_argument("--ratios", type=float, nargs="*", default=ratios)
    parser.add_argument("--columns", type=int, default=65)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--fit-rows", type=int, default=4449 if large else 400, help="rows of the fits; 0 for none")
    parser.add_argument("--fit-ratios", type=float, nargs="*", default=ratios[1:-1] if large else [0.2, 0.5, 0.8])
    parser.add_argument("--steps", type=int, default=50 if large else 20)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="of the missing cells of the fits")
    parser.add_argument("--no-comparison", action="store_true", help="no solves to 1e-8")
    parser.add_argument("--time-limit", type=float, default=math.inf, help="seconds after which no fit begins")
    options = parse(parser, rows=60, ratios=[0.0, 0.5], columns=3, runs=1, fit_rows=30, fit_ratios=[0.5], steps=2)
    name, began = f"break_even_{device}", time.perf_counter()
    if options.rows:
        found = products(arm(options.rows, device), options.ratios, options.columns, options.runs)
        merge(name, KEY, found, crossings)
        for size, ratios in crossings(found)["crossings"].items():
            print(f"{size}: {ratios}")
    if options.fit_rows:
        data = arm(options.fit_rows, device)
        for seed, ratio in product(options.seeds, options.fit_ratios):
            if time.perf_counter() - began < options.time_limit:
                compare = seed == options.seeds[0] and not options.no_comparison
                merge(name, KEY, learned(data, ratio, options.steps, seed, compare), crossings)
    print("written to", results_file(name))


if __name__ == "__main__":
    main()
