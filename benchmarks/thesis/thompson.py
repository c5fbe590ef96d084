"""Thompson sampling in batches of 1,000 on [0, 1]^8 (thesis, figures 3.6, 3.7 and 4.4).

    python -m benchmarks.thesis.thompson [--lengthscales .1 .2 .3 .4 .5] [--seeds 0 1 2 3 4]
                                         [--solvers ap cg sdd sgd svgp random] [--start 50000] [--rounds 30]
                                         [--batch 1000] [--epochs 30] [--search thesis] [--time-limit 300]
                                         [--figure FILE] [--axes evaluations seconds]

The target is a draw from a Matern-3/2 prior with 2,000 random features; the model has the same kernel, noise 1e-3, and
learns nothing. All solvers start from the same uniform points and have the same budget of epochs in every round. "svgp"
is the optimum of SVGP, which has a closed form for known hyperparameters: `InducingGP` with ``--inducing`` points.
"random" adds uniform points instead. A run results in the largest value of the target so far and the seconds so far
after every round, those of the search for maxima included. The regret at the end is the difference to the largest value
that a long search of the target itself finds (`largest_value`), or zero if that finds no larger one. Every run is
written to the file when it ends; the runs of earlier calls stay in it. Two cores: --start 2000 --rounds 10 --batch 100.

``--search``: "thesis" has 30 starts for every path, from 50,000 proposals each, and 100 steps; "ours" has the starts
and steps of `maximise_paths`, with 5 proposals for every path of a batch and start. ``--time-limit`` ends a run after
that number of seconds; its row then has fewer rounds. ``--figure`` draws all complete runs of the file with these start
points: best value, averaged over length scales and seeds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, read, results_file, table
from benchmarks.thesis.largest_value import largest_value
from pathgp import kernels
from pathgp.decisions import ThompsonSampler, maximise_paths

DIM, NOISE, FEATURES = 8, 1e-3, 2000
SEARCH: dict[str, dict[str, Any]] = {
    "ours": {},
    "thesis": {"starts": 30, "proposals": 50_000, "steps": 100},
    "quick": {"starts": 1, "proposals": 20, "steps": 2},
}
PROPOSALS = 5  # for every path of a batch, if the search does not say
KEY = ("solver", "lengthscale", "seed", "start", "batch", "epochs", "search")


class Sampler:
    """Inputs of the next batch from a solver, the sparse model or at random."""

    def __init__(self, solver: str, lengthscale: float, generator: torch.Generator, options: argparse.Namespace):
        self.solver, self.generator, self.options = solver, generator, options
        device = torch.device(options.device)
        self.bounds = torch.stack([torch.zeros(DIM), torch.ones(DIM)]).to(device, torch.float64)
        given = {name: value for name in ("starts", "proposals", "steps") if (value := getattr(options, name))}
        self.search = {"proposals": PROPOSALS * options.batch} | SEARCH[options.search] | given
        kernel = kernels.Matern(1.5, lengthscale)
        if solver == "svgp":
            self.sparse = pathgp.InducingGP(kernel, NOISE, inducing=options.inducing)
            self.X, self.y = self.bounds[:0], self.bounds[:0, 0]
        elif solver != "random":
            condition: dict[str, Any] = {"solver": solver, "max_epochs": options.epochs}
            condition["dtype"] = torch.float32 if device.type == "cuda" else None
            chosen: dict[str, Any] = {"condition": condition, "search": self.search, "generator": generator}
            self.sampler = ThompsonSampler(pathgp.GP(kernel, NOISE), self.bounds, refit=None, **chosen)

    def ask(self, count: int) -> Tensor:
        if self.solver == "random":
            return torch.rand(count, DIM, generator=self.generator, dtype=torch.float64).to(self.bounds)
        if self.solver != "svgp":
            return self.sampler.ask(count)
        post = self.sparse.condition(self.X, self.y, samples=count, generator=self.generator)
        X: Tensor = maximise_paths(post, self.bounds, avoid=self.X, generator=self.generator, **self.search)[0]
        return X

    def tell(self, X: Tensor, y: Tensor) -> None:
        if self.solver == "svgp":
            self.X, self.y = torch.cat([self.X, X]), torch.cat([self.y, y])
        elif self.solver != "random":
            self.sampler.tell(X, y)


def run(lengthscale: float, seed: int, solver: str, options: argparse.Namespace) -> dict[str, Any]:
    """One optimisation: best value and seconds after the start and after every round."""
    generator = torch.Generator().manual_seed(seed)
    target = pathgp.GP(kernels.Matern(1.5, lengthscale), NOISE).prior(1, FEATURES, generator)
    device = torch.device(options.device)

    def noisy(values: Tensor) -> Tensor:
        return values + NOISE * torch.randn(len(values), generator=generator, dtype=torch.float64).to(device)

    X = torch.rand(options.start, DIM, generator=generator, dtype=torch.float64).to(device)
    values = target(X)[0]
    sampler = Sampler(solver, lengthscale, generator, options)
    sampler.tell(X, noisy(values))
    best, seconds, spent = [float(values.max())], [0.0], 0.0
    for _ in range(options.rounds):
        began = time.perf_counter()
        X = sampler.ask(options.batch)
        values = target(X)[0]
        best.append(max(best[-1], float(values.max())))
        spent += time.perf_counter() - began
        seconds.append(spent)
        sampler.tell(X, noisy(values))
        if spent > options.time_limit:
            break
    found = largest_value(lambda inputs: target(inputs)[0], DIM, lengthscale, options.hops, device)
    largest = max(best[-1], found)
    change = f"{best[0]:.3f} -> {best[-1]:.3f} of {largest:.3f}"
    print(
        f"{solver} length scale {lengthscale} seed {seed}: {change} in {len(best) - 1} rounds, {spent:.0f} s",
        flush=True,
    )
    place = {"solver": solver, "lengthscale": lengthscale, "seed": seed}
    place |= {name: getattr(options, name) for name in KEY[3:]}
    values = {"best": best, "seconds": seconds, "largest": largest, "regret": largest - best[-1]}
    return {**place, "rounds": options.rounds, **values}


def draw(rows: list[dict[str, Any]], path: Path, axes_names: list[str]) -> None:
    """Best value, as a gain over the start, averaged over length scales and seeds."""
    from benchmarks.common.drawing import COLOURS, grid, legend, save

    figure, axes = grid(1, len(axes_names), width=1.0 + 4.5 * len(axes_names))
    for colour, solver in zip(COLOURS, sorted({row["solver"] for row in rows}), strict=False):
        mine = [row for row in rows if row["solver"] == solver]
        gains = np.array([np.array(row["best"]) - row["best"][0] for row in mine])
        mean, error = gains.mean(0), gains.std(0) / np.sqrt(len(gains))
        places = {
            "evaluations": mine[0]["start"] + mine[0]["batch"] * np.arange(len(mean)),
            "seconds": np.mean([row["seconds"] for row in mine], 0),
        }
        for axis, name in zip(axes[0], axes_names, strict=True):
            axis.plot(places[name], mean, color=colour, lw=1.6, label=f"{solver} ({len(mine)})")
            axis.fill_between(places[name], mean - error, mean + error, color=colour, alpha=0.15, lw=0)
            axis.set_xlabel(name, fontsize=8)
    axes[0][0].set_title("gain over the best start point (number of runs)", fontsize=9, loc="left")
    legend(figure, axes[0][0])
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengthscales", nargs="*", type=float, default=[0.1, 0.2, 0.3, 0.4, 0.5])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--solvers", nargs="*", default=["ap", "cg", "sdd", "sgd", "svgp", "random"])
    parser.add_argument("--start", type=int, default=50_000, help="uniform start points")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--batch", type=int, default=1000, help="paths of a round")
    parser.add_argument("--epochs", type=float, default=30.0, help="budget of the solve of a round")
    parser.add_argument("--search", choices=sorted(SEARCH), default="ours")
    for name in ("starts", "proposals", "steps"):
        parser.add_argument(f"--{name}", type=int, help="in place of the number of the search")
    parser.add_argument("--inducing", type=int, default=1024, help="inducing points of svgp")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds of a run")
    parser.add_argument("--hops", type=int, default=25, help="rounds of the search for the largest value of the target")
    parser.add_argument("--device", default=device_name())
    parser.add_argument("--figure", type=Path, help="PNG to draw")
    parser.add_argument("--axes", nargs="*", default=["evaluations", "seconds"], help="horizontal axes of the figure")
    solvers = ["ap", "svgp", "random"]
    tiny: dict[str, Any] = {"lengthscales": [0.4], "seeds": [0], "solvers": solvers, "start": 30, "rounds": 1}
    options = parse(parser, **tiny, batch=3, search="quick", inducing=8, hops=1, device="cpu")
    # Solves that end at their budget are part of the comparison.
    warnings.simplefilter("ignore")
    name = f"thompson_{options.device.split(':')[0]}"
    for lengthscale in options.lengthscales:
        for seed in options.seeds:
            for solver in options.solvers:
                merge(name, KEY, run(lengthscale, seed, solver, options))
    rows = read(name)
    lines = [{part: row[part] for part in KEY} for row in rows]
    for line, row in zip(lines, rows, strict=True):
        line |= {"first": row["best"][0], "last": row["best"][-1], "regret": row["regret"]}
        line |= {"seconds": row["seconds"][-1]}
        line["rounds"] = len(row["best"]) - 1
    print(table(lines))
    print("results in", results_file(name))
    if options.figure:
        complete = [row for row in rows if row["start"] == options.start and len(row["best"]) == 1 + row["rounds"]]
        draw(complete, options.figure, options.axes)


if __name__ == "__main__":
    main()
