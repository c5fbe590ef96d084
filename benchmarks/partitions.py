"""Must every sweep of alternating projections have a new partition? A few of them, used in turn, against new ones.

    python benchmarks/partitions.py [--rows 3000]

Factors of partitions that come again could be kept, which would save their factorisations. Sweeps until the average
residual is 0.01 (y, 8 prior draws), float64, with the acceleration of the library: new partitions for ever, or the
first 1, 3 or 6 in turn with their blocks in a new order. The sets are four of regression data, and crowded inputs in
the unit square with little noise, with draws of the prior and with probes of white noise as right-hand sides.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

import torch
from data import system, uci
from recording import table, write
from torch import Tensor

from pathgp import kernels
from pathgp.operators import KernelOperator
from pathgp.randomness import partition
from pathgp.solvers.ap import _STRENGTH

SETS = ("pol", "elevators", "bike", "protein")
# Length scale, noise and blocks of Matern-3/2 systems with inputs in the unit square.
CROWDED = ((0.2, 0.05, 10), (0.2, 0.05, 20), (0.2, 0.01, 7))
KEPT = (0, 6, 3, 1)
LIMIT = 200


def problems(rows: int) -> Iterator[tuple[str, int, Tensor, Tensor]]:
    """Name, number of blocks, H and right-hand sides."""
    for name in SETS:
        H, B = system(uci(name, 0, device="cpu", rows=rows), 8)
        yield name, 8, H.block(torch.arange(len(B))).double(), B.double()
    for scale, noise, blocks in CROWDED:
        source = torch.Generator().manual_seed(0)
        X = torch.rand(rows, 2, generator=source, dtype=torch.float64)
        H = KernelOperator(kernels.Matern(1.5, scale), X, noise, backend="dense")
        K, white = H.block(torch.arange(rows)), torch.randn(rows, 9, generator=source, dtype=torch.float64)
        about = f"square, noise {noise}, {blocks} blocks"
        yield f"{about}, draws", blocks, K, torch.linalg.cholesky(K) @ white
        yield f"{about}, probes", blocks, K, white


def sweeps(H: Tensor, B: Tensor, blocks: int, kept: int) -> int:
    """Sweeps until the rule is met, ``LIMIT`` at most; ``kept=0`` never uses a partition twice."""
    generator, norms = torch.Generator().manual_seed(1), torch.linalg.vector_norm(B, dim=0)
    x, z = torch.zeros_like(B), torch.zeros_like(B)
    mu, tau = _STRENGTH / blocks, math.sqrt(_STRENGTH) / blocks
    known: list[list[tuple[Tensor, Tensor]]] = []
    for sweep in range(LIMIT):
        if kept and len(known) == kept:
            turn = known[sweep % kept]
            turn = [turn[i] for i in torch.randperm(blocks, generator=generator).tolist()]
        else:
            parts = partition(len(B), blocks, generator, B.device)
            turn = [(part, torch.linalg.cholesky(H[part][:, part])) for part in parts]
            known.append(turn)
        for part, factor in turn:
            ahead = torch.lerp(x, z, tau / (1.0 + tau))
            d = torch.cholesky_solve(B[part] - H[part] @ ahead, factor)
            z.lerp_(ahead, tau).index_add_(0, part, d, alpha=tau / mu)
            x = ahead.index_add_(0, part, d)
        residual = torch.linalg.vector_norm(B - H @ x, dim=0) / norms
        if max(float(residual[0]), float(residual[1:].mean())) <= 0.01:
            return sweep + 1
    return LIMIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=3000)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, blocks, H, B in problems(options.rows):
        found = {f"{kept} in turn" if kept else "new": sweeps(H, B, blocks, kept) for kept in KEPT}
        rows.append({"problem": name, **found})
        print(rows[-1], flush=True)
    print(table(rows))
    print("written to", write("partitions_cpu", rows, rows_of_data=options.rows, limit=LIMIT))


if __name__ == "__main__":
    main()
