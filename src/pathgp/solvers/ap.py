"""Alternating projections: exact solves on blocks of coordinates, in turn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.operators import Operator
from pathgp.solvers.base import Solver
from pathgp.solvers.cholesky import factorise
from pathgp.solvers.monitor import Monitor
from pathgp.solvers.run import Run, column_norms
from pathgp.solvers.solution import Solution, Status

# One sweep in this number has random blocks. Measured by benchmarks/solvers/partitions.py.
_CYCLE = 3
# Sweeps without an improvement by a percent after which a run counts as stalled.
_PATIENCE = 30
# Failed confirmations after which greedy selection counts as stalled.
_MAX_FAILURES = 5


@dataclass(frozen=True)
class AP(Solver):
    """Block Gauss-Seidel on H x = b: for a block I of rows, x_I += H[I, I]^-1 (b_I - H[I, :] x).

    selection="shuffled": every sweep a new partition into blocks, each visited once. Two sweeps of three have blocks of
    neighbours, between planes of random directions, and reduce the rough part of the error. The third has random
    blocks, each spread over all of space, and reduces the smooth part. Borders move from sweep to sweep. There is no
    step size to choose.

        for sweep = 0, 1, 2, ...:
            partition the rows, neighbours together unless sweep mod 3 = 2
            for each block I:  x_I += H[I, I]^-1 (b_I - H[I, :] x)
            estimate b - H x from a sample of the rows

    A product confirms the estimate before convergence is claimed.

    selection="greedy": a fixed partition, always the block with the largest residual, which is updated by
    r -= H[:, I] d (thesis, algorithm 5.1, chapter 5).

    Time per epoch: one product with H plus n b^2 / 3 for the factorisations in float64, which cost half of the product
    with the automatic block size b. Memory O(n s + b^2).
    """

    block_size: int | None = None
    selection: str = "shuffled"

    def __post_init__(self) -> None:
        if self.block_size is not None and self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}")
        if self.selection not in ("shuffled", "greedy"):
            raise ValueError(f"selection must be 'shuffled' or 'greedy', got {self.selection!r}")

    def _solve(self, run: Run) -> Solution:
        n, s = run.b.shape
        # Blocks of equal size: a small last block would waste its turn.
        blocks = math.ceil(n / min(n, self.block_size or automatic_block_size(run.H, s)))
        note = f"{blocks} blocks of {math.ceil(n / blocks)} rows"
        projections: _Shuffled | _Greedy
        if self.selection == "greedy":
            projections, monitor = _Greedy(run, blocks), Monitor(run, math.inf, _MAX_FAILURES)
        else:
            projections, monitor = _Shuffled(run, blocks), Monitor(run, _PATIENCE)
        x, status = projections.x, Status.BUDGET_EXHAUSTED
        # With little noise, rounding of float32 products can outweigh a sweep: the last iterate is not always the best.
        best, lowest = run.start, math.inf
        while (norms := projections.sweep()) is not None:
            if run.is_diverged(norms):
                return run.finish(best, Status.DIVERGED, self, note)
            if float(norms.mean()) < lowest:
                best, lowest = x.clone(), float(norms.mean())
            if (verdict := monitor.check(x, norms, projections.residual)) is not None:
                status = verdict
                break
        return run.finish(best if status is Status.STALLED else x, status, self, note, monitor.confirmed)


class _Shuffled:
    """Sweeps over a new partition each; residuals are estimated from a sample of the rows."""

    def __init__(self, run: Run, blocks: int) -> None:
        self.run, self.blocks, self.sweeps = run, blocks, 0
        self.x = run.start.clone()

    def sweep(self) -> Tensor | None:
        """x_I += H[I, I]^-1 (b_I - H[I, :] x) for every block I; the residual norms, or None if the budget ends."""
        run, H, x = self.run, self.run.H, self.x
        # The last sweep of the budget has random blocks: between neighbours residuals pile up.
        near = self.sweeps % _CYCLE < _CYCLE - 1 and run.affords(1.5 * H.cost())
        blocks = H.partition(self.blocks, run.generator, near)
        for I, solve in zip(blocks, H.block_inverses(blocks, _inverse), strict=True):
            if not run.affords(H.cost(len(I))):
                return None
            x.index_add_(0, I, solve(run.b[I] - run.rows(I, x)))
            run.iterations += 1
        self.sweeps += 1
        return run.estimate_residual(x) if run.affords(H.cost(len(run.sample))) else None

    def residual(self) -> Tensor:
        """b - H x by a product."""
        return self.run.residual(self.x)


class _Greedy:
    """Steps on the block with the largest residual, of a fixed partition; the residual is updated along with x."""

    def __init__(self, run: Run, blocks: int) -> None:
        self.run, self.blocks = run, run.H.partition(blocks, run.generator)
        self.x, self.r = run.start.clone(), run.initial_residual.clone()
        self.owner = torch.empty(len(self.x), dtype=torch.long, device=self.x.device)
        for number, I in enumerate(self.blocks):
            self.owner[I] = number
        self.inverses: dict[int, Callable[[Tensor], Tensor]] = {}

    def sweep(self) -> Tensor | None:
        """d = H[I, I]^-1 r_I;  x_I += d;  r -= H[:, I] d, as often as there are blocks; the norms of r, or None."""
        run = self.run
        for _ in self.blocks:
            if not run.affords(run.H.cost(len(self.blocks[0]))):
                return None
            energy = torch.zeros(len(self.blocks), dtype=torch.float64, device=self.x.device)
            chosen = int(energy.index_add_(0, self.owner, self.r.square().sum(1, dtype=torch.float64)).argmax())
            I = self.blocks[chosen]
            if chosen not in self.inverses:
                self.inverses[chosen] = _inverse(run.H.block(I))
            d = self.inverses[chosen](self.r[I])
            self.x.index_add_(0, I, d)
            self.r -= run.columns(I, d)
            run.iterations += 1
        return run.record(column_norms(self.r), exact=False)

    def residual(self) -> Tensor:
        """b - H x by a product, which replaces the updated residual: rounding errors accumulate in that."""
        self.r = self.run.residual(self.x)
        return self.r


def automatic_block_size(H: Operator, s: int) -> int:
    """The b at which factorising n / b blocks in float64 costs about half as much as one product with H.

    Half of b needs only few more sweeps. A product costs 2 n^2 s operations, or as much as for about 100 more columns
    if K is evaluated during the product, and is bound by reading K below 32 columns. The factorisations cost
    (2 / 3) n b^2, each operation about 2.5 of those of a product, or 5 of a fused one.
    """
    columns = max(s, 32) + (0 if H.backend == "dense" else 100)
    return max(64, int(math.sqrt(1.5 * H.shape[0] * columns / (5.0 if H.backend == "fused" else 2.5))))


def _inverse(block: Tensor) -> Callable[[Tensor], Tensor]:
    """The function R -> block^-1 R, by a Cholesky factorisation in float64."""
    factor, _ = factorise(block.to(torch.float64))
    return lambda R: torch.cholesky_solve(R.to(torch.float64), factor).to(R.dtype)
