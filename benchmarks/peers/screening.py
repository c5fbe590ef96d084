"""Screen a library of molecules for its best docking scores: share of the top k found against evaluations.

    python -m benchmarks.peers.screening [--pool enamine50k_docking] [--batch 500] [--rounds 6] [--top 500]
                                         [--methods thompson top greedy ucb random] [--samples 64] [--seeds 0 1 2]
                                         [--device cuda]

One round with 1,000 paths: --methods thompson --samples 1000 --rounds 2 --seeds 0; ``rounds`` has its seconds.
The first batch is random, the others are chosen by `pathgp.decisions.screen` with a Tanimoto kernel on Morgan counts
(radius 1, 1,024 columns). Docking scores are energies: small ones are wanted. Positive scores, which are failures of
the docking program, are set to zero. The pool is the one of MolPAL (Graff, Shakhnovich and Coley 2021); the figures of
that paper are not quoted, because they could not be checked here.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

import pathgp
from benchmarks.common.datasets import load
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, read, table
from pathgp import kernels
from pathgp.compute.inputs import read_matrix
from pathgp.decisions import screen

KEY = ("method", "seed", "pool", "batch", "top", "samples")


def run(pool: Any, scores: np.ndarray[Any, Any], method: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One screening: recall after every batch, and seconds."""
    gp = pathgp.GP(
        kernels.Scale(kernels.Tanimoto(), 1.0), noise=0.5, mean=pathgp.means.Constant(float(np.mean(scores)))
    )
    began = time.perf_counter()
    ends: list[float] = []
    result = screen(
        gp,
        pool,
        lambda rows: scores[rows],
        batch=options.batch,
        rounds=options.rounds,
        method=method,
        minimise=True,
        samples=options.samples,
        fit={"steps": options.steps},
        condition={"features": options.features},
        callback=lambda _: ends.append(time.perf_counter() - began),
        generator=torch.Generator().manual_seed(seed),
    )
    seconds = time.perf_counter() - began
    evaluations, recall = result.recall(scores, options.top)
    print(
        f"{method} seed {seed}: {100 * recall[-1]:.1f} % after {evaluations[-1]} evaluations, {seconds:.0f} s",
        flush=True,
    )
    row = {"method": method, "seed": seed, "pool": len(scores), "batch": options.batch, "top": options.top}
    row |= {"samples": options.samples, "recall": recall.tolist(), "seconds": seconds}
    return {**row, "rounds": np.diff(ends, prepend=0.0).round(2).tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pool", default="enamine50k_docking", help="data set of molecules")
    parser.add_argument("--rows", type=int, help="use the first rows only")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--top", type=int, default=500)
    parser.add_argument("--methods", nargs="*", default=["thompson", "top", "greedy", "ucb", "random"])
    parser.add_argument("--samples", type=int, default=64, help="posterior paths")
    parser.add_argument("--features", type=int, default=512, help="random features of a path")
    parser.add_argument("--steps", type=int, default=20, help="steps of a fit")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default=device_name())
    tiny: dict[str, Any] = {"rows": 120, "batch": 8, "rounds": 2, "top": 10, "methods": ["thompson", "greedy"]}
    options = parse(parser, **tiny, samples=2, features=8, steps=1, seeds=[0], device="cpu")
    data = load(options.pool)
    assert data.y is not None
    scores = np.minimum(np.asarray(data.y, dtype=np.float64)[: options.rows], 0.0)
    pool = read_matrix(data.X[: options.rows].astype(np.float32)).X.to(options.device)
    name = f"screening_{options.pool}_{options.device.split(':')[0]}"
    for seed in options.seeds:
        for method in options.methods:
            written = merge(name, KEY, run(pool, scores, method, seed, options))
    shown = [
        {part: row[part] for part in KEY} | {"recall": row["recall"][-1], "seconds": row["seconds"]}
        for row in read(name)
    ]
    print(table(shown))
    print("written to", written)


if __name__ == "__main__":
    main()
