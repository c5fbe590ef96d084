"""What an epoch of alternating projections costs, in products with H, and where its time goes.

    python -m benchmarks.hardware.ap_epoch [--rows N ...] [--blocks B ...] [--columns S] [--epochs E]

The problem is the known process of `benchmarks.hardware.million`: a Matern-3/2 kernel in 11 dimensions. An epoch is the
difference between two solves of different lengths. Its parts are timed one by one: the products of the rows of all
blocks, the evaluation of the blocks, their factorisations, the substitutions, the partition of the rows and the
estimate of the residual. The file keeps the rows of earlier runs.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, median_seconds, merge, read, table
from benchmarks.hardware.million import known
from pathgp import solvers
from pathgp.operators import KernelOperator, Operator
from pathgp.solvers.ap import automatic_block_size
from pathgp.solvers.block_inverses import invert_blocks
from pathgp.solvers.cuda_graph import capture_step

# Of the rows, one in this number is sampled for an estimate of the residual.
SAMPLED = 64


def measure(rows: int, block_size: int | None, columns: int, epochs: int, runs: int) -> dict[str, Any]:
    """One line of the table: the seconds of a product, an epoch and its parts in products."""
    problem = known(rows, device_name())
    gp = problem.gp
    H = KernelOperator(gp.kernel.to(problem.X.device), problem.X, float(gp.noise.detach()))
    generator = torch.Generator().manual_seed(0)
    B = torch.randn(rows, columns, generator=generator).to(problem.X.device)
    num_blocks = -(-rows // min(rows, block_size or automatic_block_size(H, columns)))
    product = median_seconds(lambda: H @ B, runs)

    def solve(sweeps: int) -> solvers.Solution:
        # Room for the sweeps, their estimates and the product that checks the result.
        budget = sweeps * (1.0 + 1.0 / 32) + 1.5
        return solvers.AP(-(-rows // num_blocks)).solve(H, B, tol=0.0, max_epochs=budget, generator=generator)

    times = {sweeps: median_seconds(lambda sweeps=sweeps: solve(sweeps), runs) for sweeps in (epochs, 2 * epochs)}
    row: dict[str, Any] = {
        "n": rows,
        "blocks": num_blocks,
        "columns": columns,
        "backend": H.backend,
        "product, s": product,
        "epoch": (times[2 * epochs] - times[epochs]) / epochs / product,
    }
    return row | {name: taken / product for name, taken in parts(H, B, num_blocks, generator, runs).items()}


def parts(H: Operator, B: Tensor, num_blocks: int, generator: torch.Generator, runs: int) -> dict[str, float]:
    """Seconds of the parts of an epoch with blocks of neighbours."""
    blocks = H.partition(num_blocks, generator, near=True)
    sample = torch.arange(0, len(B), SAMPLED, device=B.device)

    def evaluate() -> None:
        for _ in H.block_inverses(blocks, lambda blocks: [torch.clone] * len(blocks)):
            pass

    def factorise() -> None:
        for _ in H.block_inverses(blocks, invert_blocks):
            pass

    def substitute() -> None:
        for I, solve in zip(blocks, H.block_inverses(blocks, invert_blocks), strict=True):
            solve(B[I])

    out = torch.empty_like(B)
    write_rows = capture_step(H, lambda I: out.__setitem__(slice(len(I)), H.rows(I, B)))

    def multiply() -> None:
        for I in blocks:
            write_rows(I)

    evaluated, factorised, substituted = (median_seconds(act, runs) for act in (evaluate, factorise, substitute))
    return {
        "row products": median_seconds(multiply, runs),
        "evaluation": evaluated,
        "factorisation": factorised - evaluated,
        "substitution": substituted - factorised,
        "partition": median_seconds(lambda: H.partition(num_blocks, generator, near=True), runs),
        "random partition": median_seconds(lambda: H.partition(num_blocks, generator), runs),
        "estimate": median_seconds(lambda: H.rows(sample, B), runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000])
    parser.add_argument("--blocks", type=int, nargs="+", default=[0], help="rows of a block; 0: automatic")
    parser.add_argument("--columns", type=int, default=65)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--runs", type=int, default=5)
    options = parse(parser, rows=[600], blocks=[0, 100], columns=3, epochs=1, runs=1)
    name = f"ap_epoch_{device_name()}"
    for rows in options.rows:
        for block_size in options.blocks:
            row = measure(rows, block_size or None, options.columns, options.epochs, options.runs)
            merge(name, ("n", "blocks", "columns"), row)
            print(table([row]), flush=True)
    print(table(read(name)))


if __name__ == "__main__":
    main()
