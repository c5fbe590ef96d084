"""Alternating projections: solve one block of coordinates after another exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pathgp.operators import Operator
from pathgp.solvers.base import Solver
from pathgp.solvers.block_inverses import invert_blocks
from pathgp.solvers.cuda_graph import capture_step
from pathgp.solvers.monitor import Monitor
from pathgp.solvers.run import Run, column_norms
from pathgp.solvers.solution import Solution, Status

# Every third sweep uses random blocks, the others local ones. Measured by benchmarks/solvers/partitions.py.
_RANDOM_EVERY = 3
# Rows of a tile of fused products. On an H200 epochs with blocks of fewer tiles than this take no less time
# (benchmarks/hardware/ap_epoch.py), and there are more of them.
_TILE, _MIN_TILES = 128, 13
# A run counts as stalled after this number of sweeps in a row without an improvement of 1 %.
_PATIENCE = 30
# Greedy selection counts as stalled if the true residual contradicts the updated one this number of times.
_MAX_FAILURES = 5


@dataclass(frozen=True)
class AP(Solver):
    """Block Gauss-Seidel on H x = b: for a block I of rows, x_I += H[I, I]^-1 (b_I - H[I, :] x).

    There is no step size to choose.

    selection="shuffled":

        for sweep = 0, 1, 2, ...:
            partition the rows into new blocks: random ones if sweep mod 3 = 2, otherwise local ones
            for each block I:  x_I += H[I, I]^-1 (b_I - H[I, :] x)
            estimate |b - H x| from a sample of the rows

    A local block contains neighbouring inputs; planes with random directions separate the blocks. Local blocks reduce
    the short-range part of the error, random blocks the smooth part. One product confirms the estimate before the
    solver reports convergence.

    selection="greedy" (thesis, chapter 5, algorithm 5.1), with a fixed random partition:

        r = b - H x
        repeat:
            I = the block with the largest |r_I|
            d = H[I, I]^-1 r_I;  x_I += d;  r -= H[:, I] d

    Time per epoch: one product with H plus O(n b^2) for the Cholesky factors of the blocks in float64. With the
    automatic block size b the factors cost about half as much as the product. Memory O(n s + g b^2) for groups of
    g blocks (`Operator.blocks_at_once`), or O(n s + n b) for "greedy", which keeps the factors of all blocks.
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
        # Blocks of equal size: a small last block would cost a step that changes few rows.
        num_blocks = math.ceil(n / min(n, self.block_size or automatic_block_size(run.H, s)))
        note = f"{num_blocks} blocks of {math.ceil(n / num_blocks)} rows"
        sweeps: _ShuffledSweeps | _GreedySweeps
        if self.selection == "greedy":
            sweeps, monitor = _GreedySweeps(run, num_blocks), Monitor(run, math.inf, _MAX_FAILURES)
        else:
            sweeps, monitor = _ShuffledSweeps(run, num_blocks), Monitor(run, _PATIENCE)
        x = sweeps.x
        status = Status.BUDGET_EXHAUSTED
        # With little noise, rounding errors of float32 products can exceed the progress of a sweep: keep the best x.
        best_x, best_mean = run.start, math.inf
        while (norms := sweeps.sweep()) is not None:
            if run.is_diverged(norms):
                return run.finish(best_x, Status.DIVERGED, self, note)
            if float(norms.mean()) < best_mean:
                best_x, best_mean = x.clone(), float(norms.mean())
            if (final_status := monitor.check(x, norms, sweeps.residual)) is not None:
                status = final_status
                break
        return run.finish(best_x if status is Status.STALLED else x, status, self, note, monitor.confirmed)


class _ShuffledSweeps:
    """Sweeps, each over a new partition; residuals are estimated from a sample of the rows."""

    def __init__(self, run: Run, num_blocks: int) -> None:
        self.run, self.num_blocks = run, num_blocks
        self.sweeps_done = 0
        self.x = run.start.clone()
        self._residual = run.b.new_empty(math.ceil(len(self.x) / num_blocks), self.x.shape[1])
        self._compute_residual = capture_step(run.H, partial(_block_residual, run, self.x, self._residual))

    def sweep(self) -> Tensor | None:
        """Visit every block once; return residual norms (s,), or None if the budget ends.

        x_I += H[I, I]^-1 (b_I - H[I, :] x)  for every block I.
        """
        run, H, x = self.run, self.run.H, self.x
        # The last sweep of the budget has random blocks: a local sweep leaves large residuals along the block borders.
        is_local = self.sweeps_done % _RANDOM_EVERY < _RANDOM_EVERY - 1 and run.affords(1.5 * H.cost())
        blocks = H.partition(self.num_blocks, run.generator, near=is_local)
        inverses = H.block_inverses(blocks, invert_blocks)
        is_from_zero = run.starts_at_zero and self.sweeps_done == 0
        for number, I in enumerate(blocks):
            if not run.affords(H.cost(len(I))):
                return None
            if is_from_zero:
                # x is zero except in the blocks that have been visited.
                _block_residual(run, x, self._residual, I, torch.cat([*blocks[:number], I[:0]]))
            else:
                self._compute_residual(I)
            x.index_add_(0, I, next(inverses)(self._residual[: len(I)]))
            run.epochs += H.cost(len(I))
            run.iterations += 1
        self.sweeps_done += 1
        return run.estimate_residual(x) if run.affords(H.cost(len(run.sample))) else None

    def residual(self) -> Tensor:
        """b - H x by a product."""
        return self.run.residual(self.x)


def _block_residual(run: Run, x: Tensor, out: Tensor, I: Tensor, support: Tensor | None = None) -> None:
    """Write b_I - H[I, :] x into the first rows of ``out``; ``support``: rows outside of which x is zero."""
    product = run.H.rows(I, x) if support is None else run.H.sparse_rows(I, x, support)
    torch.sub(run.b[I], product, out=out[: len(I)])


class _GreedySweeps:
    """Steps on the block with the largest residual in a fixed partition; every step updates x and the residual r."""

    def __init__(self, run: Run, num_blocks: int) -> None:
        self.run, self.blocks = run, run.H.partition(num_blocks, run.generator)
        self.x, self.r = run.start.clone(), run.initial_residual.clone()
        self.block_of_row = torch.empty(len(self.x), dtype=torch.long, device=self.x.device)
        for number, I in enumerate(self.blocks):
            self.block_of_row[I] = number
        self.inverses = list(run.H.block_inverses(self.blocks, invert_blocks))
        self.d = run.b.new_empty(max(map(len, self.blocks)), run.b.shape[1])
        self._add = capture_step(run.H, partial(_add_block, run.H, self.d, self.x, self.r))

    def sweep(self) -> Tensor | None:
        """Take as many steps as there are blocks; return residual norms (s,), or None if the budget ends.

        d = H[I, I]^-1 r_I;  x_I += d;  r -= H[:, I] d  for the block I with the largest residual.
        """
        run = self.run
        for _ in self.blocks:
            if not run.affords(run.H.cost(len(self.blocks[0]))):
                return None
            row_squares = self.r.square().sum(1, dtype=torch.float64)
            block_squares = row_squares.new_zeros(len(self.blocks)).index_add_(0, self.block_of_row, row_squares)
            largest = int(block_squares.argmax())
            I = self.blocks[largest]
            self.d[: len(I)] = self.inverses[largest](self.r[I])
            self._add(I)
            run.epochs += run.H.cost(len(I))
            run.iterations += 1
        return run.record(column_norms(self.r), exact=False)

    def residual(self) -> Tensor:
        """Return b - H x by a product, and replace r by it: rounding errors accumulate in the updates of r."""
        return self.r.copy_(self.run.residual(self.x))


def _add_block(H: Operator, d: Tensor, x: Tensor, r: Tensor, I: Tensor) -> None:
    """x_I += d;  r -= H[:, I] d."""
    x.index_add_(0, I, d[: len(I)])
    r.sub_(H.columns(I, d[: len(I)]))


def automatic_block_size(H: Operator, s: int) -> int:
    """Return the block size b with which factorising n / b blocks in float64 costs half as much as a product with H.

    Blocks of half this size need only a few more sweeps. Cost model: a product takes 2 n^2 c operations for c = s
    columns. Below 32 columns the time to read K dominates, as if c = 32. If K is evaluated during the product, this
    costs as much as 100 more columns. The factorisations take (2 / 3) n b^2 operations; one of them takes about 2.5
    times as long as an operation of a product, or 14 times as long as one of a fused product. Blocks of fused products
    consist of whole tiles.
    """
    columns = max(s, 32) + (0 if H.entry_backend == "dense" else 100)
    if H.entry_backend != "fused":
        return max(64, int(math.sqrt(1.5 * H.shape[0] * columns / 2.5)))
    return _TILE * max(_MIN_TILES, int(math.sqrt(1.5 * H.shape[0] * columns / 14.0)) // _TILE)
