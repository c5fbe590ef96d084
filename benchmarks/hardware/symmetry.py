"""Speed of fused products that use the symmetry of K, for several orders of summation.

    python -m benchmarks.hardware.symmetry            written to results/symmetry.json

The library evaluates all n^2 entries of K: every program sums its own rows in a fixed order. This benchmark evaluates
half of them. A program holds M rows, processes the following half of the blocks (cyclically), and adds K^T V of every
tile to rows to which other programs add as well:

    floats      float32 atomics, in arbitrary order
    integers    64-bit fixed point; the sums do not depend on the order
    turns       float32 atomics; each program waits for the previous one
    no turns    the same without waiting: the cost of the signals

Matern-3/2, length scale sqrt(d), d = 16, normal inputs. Errors are relative, in norm, against the library's products.
"""

from __future__ import annotations

import argparse
import itertools
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.options import parse
from benchmarks.common.recording import median_seconds, write
from benchmarks.hardware import fused
from benchmarks.hardware.fused import column_widths, forms, need_a_device, normal, operator, relative, shown
from pathgp.operators import KernelOperator
from pathgp.operators.fused import source
from pathgp.operators.fused.engine import halves
from pathgp.operators.fused.leaves import Structure
from pathgp.operators.fused.tiles import Tile

WAYS = ("floats", "integers", "turns", "no turns")
TILES = (Tile(64, 64, 4), Tile(128, 128, 8))
CASES = ((64, "high"), (16, "high"), (64, "low"))
# Sums of 2^25 products of at most 2^30 each fit into 64 bits with so many more.
FIXED = 256.0

PRODUCT = """
import triton
import triton.language as tl


@triton.jit
def product(
    Xf, Xh, Xl, Xt, Xb, Xn, m, Zf, Zh, Zl, Zt, Zb, Zn, n, Vh, Vl, theta, out, turns, ticket,
    M: tl.constexpr, N: tl.constexpr, S: tl.constexpr, HIGH: tl.constexpr, WAY: tl.constexpr, FIXED: tl.constexpr,
):
    blocks = n // M
    # From the last block to the first: a program waits only for such as have begun.
    block = blocks - 1 - tl.atomic_add(ticket, 1, sem="relaxed")
    i = block.to(tl.int64) * M
    row, column = tl.arange(0, M), tl.arange(0, M)
    theta_0 = tl.load(theta)
{load}
    head = tl.arange(0, S)
    at = row[:, None] * S + head[None, :]
    total = tl.zeros((M, S), tl.float32)
    own_h, own_l = tl.load(Vh + i * S + at), tl.load(Vl + i * S + at)
    # Of an even number of blocks the opposite one is met from one side only.
    last = (blocks - 1) // 2 + ((blocks % 2 == 0) & (i < n // 2)).to(tl.int32) + 1
    for t in range(0, last):
        further = i + t * M
        j = tl.where(further < n, further, further - n)
{tile}
        high = K.to(tl.float16)
        right = tl.load(Vh + j * S + at)
        if HIGH:
            low = (K - high.to(tl.float32)).to(tl.float16)
            small = tl.dot(high, tl.load(Vl + j * S + at), tl.dot(low, right))
            total += tl.dot(high, right, small)
        else:
            total = tl.dot(high, right, total)
        if t > 1:
            if WAY == "turns" or WAY == "no turns":
                # What was added a step ago is there for all to see.
                tl.debug_barrier()
                tl.atomic_xchg(turns + block + t - 1, block, sem="release")
        if t > 0:
            if HIGH:
                back = tl.dot(tl.trans(high), own_l, tl.dot(tl.trans(low), own_h))
                back = tl.dot(tl.trans(high), own_h, back)
            else:
                back = tl.dot(tl.trans(high), own_h)
            if WAY == "integers":
                tl.atomic_add(out + j * S + at, (back * FIXED).to(tl.int64), sem="relaxed")
            elif WAY == "floats":
                tl.atomic_add(out + j * S + at, back, sem="relaxed")
            else:
                if WAY == "turns":
                    seen = tl.atomic_add(turns + block + t, 0, sem="acquire")
                    while seen > block + 1:
                        seen = tl.atomic_add(turns + block + t, 0, sem="acquire")
                tl.atomic_add(out + further * S + at, back, sem="relaxed")
    if WAY == "integers":
        tl.atomic_add(out + i * S + at, (total * FIXED).to(tl.int64), sem="relaxed")
    elif WAY == "floats":
        tl.atomic_add(out + i * S + at, total, sem="relaxed")
    else:
        if last > 1:
            tl.debug_barrier()
            tl.atomic_xchg(turns + block + last - 1, block, sem="release")
        tl.store(out + (2 * n + i) * S + at, total)
"""


@cache
def kernel(structure: Structure) -> Any:
    tile = [*source._tile(structure), f"K = theta_0 * {source.node_value(structure.tree, '')}"]
    body = PRODUCT.format(load=source.indent(source._loads(structure), 4), tile=source.indent(tile, 8))
    return source.compile_source(body, "product")


def product(H: KernelOperator, V: Tensor, tile: Tile, way: str) -> Tensor:
    """K V / coefficient, up to a power of two for every column."""
    engine, points = fused._engine(H), H._tiles.points
    (width, _), n = column_widths(V.shape[1]), points.padded
    high, low = halves(V, n, width, torch.linalg.vector_norm(V, float("inf"), dim=0))
    blocks = n // tile.rows
    out = torch.zeros(3, n, width, device=V.device)
    if way == "integers":
        out = torch.zeros(1, n, width, device=V.device, dtype=torch.int64)
    # The block that was the last to add to each, before the end of the circle and beyond it.
    order = torch.arange(blocks, dtype=torch.int32, device=V.device)
    turns = torch.cat([order, torch.full_like(order, blocks)])
    ticket = torch.zeros(1, dtype=torch.int32, device=V.device)
    arguments = *points.arguments(), *points.arguments(), high, low, engine.frame.theta, out, turns, ticket
    constants = {"N": tile.rows, "S": width, "HIGH": engine.precision == "high", "WAY": way, "FIXED": FIXED}
    kernel(engine.frame.structure)[(blocks,)](*arguments, **(tile.options() | constants))
    return out.sum(0)[: H.shape[0], : V.shape[1]].to(torch.float32)


def measured(n: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for s, precision in CASES:
        H, V = operator(n, 16, precision), normal(n, s, 1)
        now = median_seconds(lambda: H @ V)  # noqa: B023
        expected = (H @ V - H.noise * V).double()
        facts = {"columns": s, "precision": precision, "form": forms(H), "now": now}
        for tile, way in itertools.product(TILES, WAYS):
            call = lambda: product(H, V, tile, way)  # noqa: B023, E731
            found = call()
            repeats = all(torch.equal(call(), found) for _ in range(3))
            found = found.double() * (expected.norm(dim=0) / found.double().norm(dim=0))
            facts |= {"way": way, "tile": tile.rows, "seconds": median_seconds(call), "repeats": repeats}
            shown(rows, **facts, gain=now / facts["seconds"], error=relative(found, expected))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    n = parse(parser, rows=1000).rows
    need_a_device()
    write("symmetry", measured(n), n=n)


if __name__ == "__main__":
    main()
