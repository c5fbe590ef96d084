"""Blocks of alternating projections: sweeps to a residual of 0.01 by kind of partition.

    python -m benchmarks.solvers.partitions [--rows 5000] [--blocks 8 32]

Every sweep uses a new partition into blocks of equal size and solves each block once:

- random: blocks of random rows;
- accelerated: the same with the momentum of Tu et al. (2017) at strength 0.3;
- neighbours: blocks of rows between planes of random directions, inputs measured in length scales;
- L R, L L R: sweeps with neighbours (L) and with random rows (R) in turn. The library uses L L R.

The stopping rule is that of learning: the residual of y, or of the first draw, and the average of the others. The
problems are four regression data sets with the hyperparameters that the thesis's authors found, and generated ones: a
Matern-3/2 ("rough") or squared exponential ("smooth") kernel with unit variance on the unit cube, named by dimension,
length scale and noise. Right-hand sides are y and 8 prior draws with noise; "probes" are 8 columns of white noise.
float32.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.options import parse
from benchmarks.common.recording import table, write
from benchmarks.common.uci import system, uci
from pathgp import Compute, kernels
from pathgp.operators import KernelOperator
from pathgp.pathwise import PriorPaths

SETS = ("pol", "elevators", "bike", "protein")
# Smooth or rough, dimension, length scale, noise.
GENERATED = (
    ("rough", 1, 0.01, 0.03),
    ("rough", 2, 0.05, 0.1),
    ("rough", 3, 0.2, 0.03),
    ("rough", 11, 2.0, 0.05),
    ("smooth", 1, 0.1, 0.1),
    ("smooth", 2, 0.1, 0.1),
    ("smooth", 5, 0.7, 0.1),
)
# Whether a sweep has blocks of neighbours, and the strength of the momentum (1: none).
WAYS: dict[str, tuple[Callable[[int], bool], float]] = {
    "random": (lambda sweep: False, 1.0),
    "accelerated": (lambda sweep: False, 0.3),
    "neighbours": (lambda sweep: True, 1.0),
    "L R": (lambda sweep: sweep % 2 == 0, 1.0),
    "L L R": (lambda sweep: sweep % 3 < 2, 1.0),
}
LIMIT = 30


def problems(rows: int) -> Iterator[tuple[str, KernelOperator, Tensor]]:
    """Name, H and right-hand sides."""
    for name in SETS:
        yield name, *system(uci(name, 0, device="cpu", rows=rows), 8)
    for kind, d, scale, noise in GENERATED:
        source = torch.Generator().manual_seed(0)
        X = torch.rand(rows, d, generator=source)
        kernel = kernels.Matern(1.5, scale) if kind == "rough" else kernels.SquaredExponential(scale)
        H = KernelOperator(kernel, X, noise, Compute("dense"))
        white = torch.randn(rows, 8, generator=source)
        with torch.no_grad():
            draws = PriorPaths.draw(kernel, 8, 2048, d, source)(X).T + noise * white
        name = f"{kind}: {d}, {scale:g}, {noise:g}"
        yield name, H, draws.contiguous()
        yield f"{name}, probes", H, white


def sweeps(H: KernelOperator, B: Tensor, blocks: int, near: Callable[[int], bool], strength: float) -> int | None:
    """Sweeps until the rule is met; None beyond the limit."""
    generator, B = torch.Generator().manual_seed(1), B / torch.linalg.vector_norm(B, dim=0)
    x, z = torch.zeros_like(B), torch.zeros_like(B)
    mu, tau = strength / blocks, math.sqrt(strength) / blocks
    for sweep in range(LIMIT):
        for part in H.partition(blocks, generator, near(sweep)):
            ahead = torch.lerp(x, z, tau / (1.0 + tau)) if strength < 1.0 else x
            factor = torch.linalg.cholesky(H.block(part).double())
            d = torch.cholesky_solve((B[part] - H.rows(part, ahead)).double(), factor).to(B)
            z.lerp_(ahead, tau).index_add_(0, part, d, alpha=tau / mu)
            x = ahead.index_add_(0, part, d)
        residual = torch.linalg.vector_norm(B - H @ x, dim=0)
        if max(float(residual[0]), float(residual[1:].mean())) <= 0.01:
            return sweep + 1
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--blocks", type=int, nargs="*", default=[8, 32])
    options = parse(parser, rows=200, blocks=[4])
    rows: list[dict[str, Any]] = []
    for name, H, B in problems(options.rows):
        for blocks in options.blocks:
            found = {way: sweeps(H, B, blocks, *how) for way, how in WAYS.items()}
            rows.append({"problem": name, "blocks": blocks, **found})
            print(rows[-1], flush=True)
    print(table(rows))
    print("written to", write("partitions_cpu", rows, rows_of_data=options.rows, limit=LIMIT))


if __name__ == "__main__":
    main()
