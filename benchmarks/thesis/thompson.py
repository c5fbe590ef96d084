"""Thompson sampling in batches of 1,000 on [0, 1]^8 (thesis, figures 3.6, 3.7 and 4.4).

    python -m benchmarks.thesis.thompson [--lengthscales .1 .2 .3 .4 .5] [--seeds 0 1 2 3 4] [--solvers ap cg sdd sgd]
                                         [--start 50000] [--rounds 30] [--batch 1000] [--starts 30]
                                         [--proposals 50000] [--steps 100] [--figure FILE] [--axes evaluations]

The target is a draw from a Matern-3/2 prior with 2,000 random features; the model has the same kernel, noise 1e-3, and
learns nothing. All solvers start from the same uniform points. "random" adds uniform points instead. A run results in
the largest value of the target so far and the seconds so far after every round. ``--figure`` draws all results of
the file: best value, averaged over length scales and seeds, against evaluations and seconds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, read, results_file, table, write
from pathgp import kernels
from pathgp.decisions import ThompsonSampler

DIM, NOISE, FEATURES = 8, 1e-3, 2000


def run(lengthscale: float, seed: int, solver: str, options: argparse.Namespace) -> dict[str, Any]:
    """One optimisation: best value and seconds after the start and after every round."""
    generator = torch.Generator().manual_seed(seed)
    gp = pathgp.GP(kernels.Matern(1.5, lengthscale), NOISE)
    target = gp.prior(1, FEATURES, generator)
    device = torch.device(options.device)
    bounds = torch.stack([torch.zeros(DIM), torch.ones(DIM)]).to(device, torch.float64)
    X = torch.rand(options.start, DIM, generator=generator, dtype=torch.float64).to(device)
    condition: dict[str, Any] = {"dtype": torch.float32 if device.type == "cuda" else None}
    if solver != "random":
        condition["solver"] = solver
    search = {"starts": options.starts, "proposals": options.proposals, "steps": options.steps}
    sampler = ThompsonSampler(gp, bounds, refit=None, condition=condition, search=search, generator=generator)
    values = target(X)[0]
    sampler.tell(X, values + NOISE * torch.randn(len(X), generator=generator, dtype=torch.float64).to(device))
    best, seconds, spent = [float(values.max())], [0.0], 0.0
    for _ in range(options.rounds):
        began = time.perf_counter()
        if solver == "random":
            X = torch.rand(options.batch, DIM, generator=generator, dtype=torch.float64).to(device)
        else:
            X = sampler.ask(options.batch)
        values = target(X)[0]
        spent += time.perf_counter() - began
        if solver != "random":
            noise = torch.randn(len(X), generator=generator, dtype=torch.float64).to(device)
            sampler.tell(X, values + NOISE * noise)
        best.append(max(best[-1], float(values.max())))
        seconds.append(spent)
    print(
        f"{solver} length scale {lengthscale} seed {seed}: {best[0]:.3f} -> {best[-1]:.3f}, {spent:.0f} s", flush=True
    )
    place = {"solver": solver, "lengthscale": lengthscale, "seed": seed, "start": options.start, "batch": options.batch}
    return {**place, "best": best, "seconds": seconds}


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
            axis.plot(places[name], mean, color=colour, lw=1.6, label=solver)
            axis.fill_between(places[name], mean - error, mean + error, color=colour, alpha=0.15, lw=0)
            axis.set_xlabel(name, fontsize=8)
    axes[0][0].set_title("gain over the best start point", fontsize=9, loc="left")
    legend(figure, axes[0][0])
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengthscales", nargs="*", type=float, default=[0.1, 0.2, 0.3, 0.4, 0.5])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--solvers", nargs="*", default=["ap", "cg", "sdd", "sgd", "random"])
    parser.add_argument("--start", type=int, default=50_000, help="uniform start points")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--batch", type=int, default=1000, help="paths of a round")
    parser.add_argument("--starts", type=int, default=30, help="starts of the ascent per path")
    parser.add_argument("--proposals", type=int, default=50_000, help="proposals per start")
    parser.add_argument("--steps", type=int, default=100, help="steps of the ascent")
    parser.add_argument("--device", default=device_name())
    parser.add_argument("--figure", type=Path, help="PNG to draw")
    parser.add_argument("--axes", nargs="*", default=["evaluations", "seconds"], help="horizontal axes of the figure")
    tiny = {"lengthscales": [0.4], "seeds": [0], "solvers": ["ap", "random"], "start": 30, "rounds": 1, "batch": 3}
    options = parse(parser, **tiny, starts=1, proposals=20, steps=2, device="cpu")
    name = f"thompson_{options.device.split(':')[0]}"
    key = ("solver", "lengthscale", "seed", "start", "batch")
    rows = {tuple(row[part] for part in key): row for row in read(name)}
    for lengthscale in options.lengthscales:
        for seed in options.seeds:
            for solver in options.solvers:
                row = run(lengthscale, seed, solver, options)
                rows[tuple(row[part] for part in key)] = row
                write(name, list(rows.values()))
    shown = [
        {part: row[part] for part in key} | {"first": row["best"][0], "last": row["best"][-1]} for row in rows.values()
    ]
    print(table([line | {"seconds": row["seconds"][-1]} for line, row in zip(shown, rows.values(), strict=True)]))
    print("results in", results_file(name))
    if options.figure:
        draw(list(rows.values()), options.figure, options.axes)


if __name__ == "__main__":
    main()
