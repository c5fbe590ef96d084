"""What a grid with holes costs with and without its structure, before anything is run (thesis, section 6.2.6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pathgp.compute.inputs import whole_number
from pathgp.solvers.auto import rates


class BreakEven(NamedTuple):
    """Missing ratios at which a dense matrix of the observed cells costs as much as the structure."""

    time: float
    memory: float


def break_even(*sizes: int) -> BreakEven:
    """The missing ratios beyond which a dense matrix is cheaper, for a grid with sides p_1, ..., p_k.

    n observed of p = p_1 ... p_k cells: n^2 against p (p_1 + ... + p_k) multiplications, and n^2 against
    p_1^2 + ... + p_k^2 numbers, so that with the missing ratio 1 - n / p

        time = 1 - sqrt(sum_i p_i / prod_i p_i),    memory = 1 - sqrt(sum_i p_i^2) / prod_i p_i.

    Never below zero: where it is zero the structure never pays.
    """
    if not sizes:
        raise ValueError("break_even needs the sizes of the sides, for instance break_even(2000, 52)")
    sizes = tuple(whole_number(p, "a side of the grid", 1) for p in sizes)
    cells = math.prod(sizes)
    time = 1.0 - math.sqrt(sum(sizes) / cells)
    memory = 1.0 - math.sqrt(sum(p**2 for p in sizes)) / cells
    return BreakEven(max(0.0, time), max(0.0, memory))


@dataclass(frozen=True)
class GridPlan:
    """Costs of one product of H with ``columns`` columns, dense and through the factors; prints as a small table.

    flops: operations.  bytes: of the matrices that are kept.  seconds: predicted, good to a factor of two or so.
    """

    sizes: tuple[int, ...]
    observed: int
    columns: int
    flops: dict[str, float]
    bytes: dict[str, float]
    seconds: dict[str, float]

    @property
    def missing(self) -> float:
        """The share of cells without an observation."""
        return 1.0 - self.observed / math.prod(self.sizes)

    @property
    def choice(self) -> str:
        """What `LatentKroneckerGP` takes: the way with fewer operations."""
        return "dense" if self.flops["dense"] < self.flops["kronecker"] else "kronecker"

    def __repr__(self) -> str:
        limit = break_even(*self.sizes)
        grid = " x ".join(map(str, self.sizes))
        lines = [
            f"{self.observed} of {grid} cells observed, {100 * self.missing:.1f} % missing",
            f"break-even at {100 * limit.time:.1f} % (time) and {100 * limit.memory:.1f} % (memory)",
            f"{'':<10}  {'operations':>12}  {'memory':>10}  {'seconds':>9}   a product with {self.columns} columns",
        ]
        for way in self.flops:
            mark = "  <- taken" if way == self.choice else ""
            memory = f"{self.bytes[way] / 1e9:.3g} GB"
            lines.append(f"{way:<10}  {self.flops[way]:>12.3g}  {memory:>10}  {self.seconds[way]:>9.2g}{mark}")
        return "\n".join(lines)


def plan_grid(
    *sizes: int,
    observed: int | None = None,
    columns: int = 65,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> GridPlan:
    """What products cost on a grid with these sides, of which ``observed`` cells (by default all) have a value."""
    if not sizes:
        raise ValueError("plan_grid needs the sizes of the sides, for instance plan_grid(2000, 52)")
    sizes = tuple(whole_number(p, "a side of the grid", 1) for p in sizes)
    cells, columns = math.prod(sizes), whole_number(columns, "columns", 1)
    n = cells if observed is None else whole_number(observed, "observed", 1)
    if n > cells:
        raise ValueError(f"{n} observed cells of {cells}")
    size, rate = torch.finfo(dtype).bits // 8, rates(torch.device(device), dtype)
    flops = {"dense": 2.0 * n**2 * columns, "kronecker": 2.0 * cells * sum(sizes) * columns}
    kept = {"dense": float(size * n**2), "kronecker": float(size * sum(p**2 for p in sizes))}
    grids = 4.0 * size * cells * columns
    seconds = {
        "dense": max(flops["dense"] / rate.multiply, kept["dense"] / rate.read),
        "kronecker": flops["kronecker"] / rate.multiply + grids / rate.read,
    }
    return GridPlan(sizes, n, columns, flops, kept, seconds)
