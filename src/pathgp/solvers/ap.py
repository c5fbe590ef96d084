"""Alternating projections: exact solves on blocks of coordinates, in turn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.operators import Operator
from pathgp.solvers.base import Run, Solution, Solver, Status, column_norms
from pathgp.solvers.cholesky import factorise

# Of so many sweeps in turn the last has random blocks. Measured by benchmarks/solvers/partitions.py.
_TURN = 3
# Sweeps without an improvement by a percent after which a run counts as stalled.
_PATIENCE = 30


@dataclass(frozen=True)
class AP(Solver):
    """Block Gauss-Seidel on H x = b: for a block I of rows, x_I += H[I, I]^-1 (b_I - H[I, :] x).

    selection="shuffled": every sweep a new partition into blocks, each visited once. Two sweeps of three have blocks of
    neighbours, between planes of random directions, and take away what is rough in the error; the third has random
    blocks, each spread over all of space, and takes away what is smooth. Borders move from sweep to sweep. There is no
    step size to choose.

        for sweep = 0, 1, 2, ...:
            partition the rows, neighbours together unless sweep mod 3 = 2
            for each block I:  x_I += H[I, I]^-1 (b_I - H[I, :] x)
            look at b - H x in a few rows

    A product confirms what the look says before convergence is claimed.

    selection="greedy": a fixed partition, always the block with the largest residual, which is carried along
    by r -= H[:, I] d (thesis, algorithm 5.1, chapter 5).

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
        size = min(n, self.block_size or automatic_block_size(run.H, s))
        # Blocks of equal size: a small last block would waste its turn.
        blocks = math.ceil(n / size)
        note = f"{blocks} blocks of {math.ceil(n / blocks)} rows"
        if self.selection == "greedy":
            return self._greedy(run, blocks, note)
        return self._shuffled(run, blocks, note)

    def _shuffled(self, run: Run, blocks: int, note: str) -> Solution:
        x = run.start.clone()
        # The truth relative to what the look said, learned from the checks.
        correction = 1.0
        # With little noise the rounding of float32 products can outweigh a sweep, and the last iterate is not the best.
        best, lowest = run.start, math.inf
        for sweep in itertools.count():
            # What is left of the budget ends with random blocks: between neighbours residuals pile up.
            near = sweep % _TURN < _TURN - 1 and run.affords(1.5 * run.H.cost())
            parts = run.H.partition(blocks, run.generator, near)
            for index, solve in zip(parts, run.H.block_inverses(parts, _inverse), strict=True):
                if not run.affords(run.H.cost(len(index))):
                    return run.finish(x, Status.BUDGET_EXHAUSTED, repr(self), note)
                x.index_add_(0, index, solve(run.b[index] - run.rows(index, x)))
                run.iterations += 1
            if not run.affords(run.H.cost(len(run.sample))):
                break
            norms = run.estimate_residual(x)
            if not bool(torch.isfinite(norms).all()) or float(norms.max()) > 1e6:
                return run.finish(best, Status.DIVERGED, repr(self), note)
            if float(norms.mean()) < lowest:
                best, lowest = x.clone(), float(norms.mean())
            if run.tol > 0 and correction * run.measure(norms) <= 1.0:
                if not run.affords(run.H.cost()):
                    break
                exact = run.record(column_norms(run.residual(x)), exact=True)
                if run.confirmed(x, exact):
                    return run.finish(x, Status.CONVERGED, repr(self), note, exact)
                correction = run.measure(exact) / max(run.measure(norms), 1e-300)
            if run.stalled(norms, _PATIENCE):
                return run.finish(best, Status.STALLED, repr(self), note)
        return run.finish(x, Status.BUDGET_EXHAUSTED, repr(self), note)

    def _greedy(self, run: Run, blocks: int, note: str) -> Solution:
        n = run.b.shape[0]
        x, r = run.start.clone(), run.initial_residual.clone()
        partitioned = run.H.partition(blocks, run.generator)
        owner = torch.empty(n, dtype=torch.long, device=x.device)
        for number, index in enumerate(partitioned):
            owner[index] = number
        factors: dict[int, Tensor] = {}
        claims = 0
        while run.affords(run.H.cost(len(partitioned[0]))):
            energy = torch.zeros(blocks, dtype=torch.float64, device=x.device)
            energy.index_add_(0, owner, r.square().sum(1, dtype=torch.float64))
            chosen = int(energy.argmax())
            index = partitioned[chosen]
            if chosen not in factors:
                factors[chosen] = factorise(run.H.block(index).to(torch.float64))[0]
            d = torch.cholesky_solve(r[index].to(torch.float64), factors[chosen]).to(x.dtype)
            x.index_add_(0, index, d)
            r -= run.columns(index, d)
            run.iterations += 1
            if run.iterations % blocks:
                continue
            norms = run.record(column_norms(r), exact=False)
            if not bool(torch.isfinite(norms).all()) or float(norms.max()) > 1e6:
                return run.finish(run.start, Status.DIVERGED, repr(self), note)
            if run.satisfied(norms):
                if not run.affords(run.H.cost()):
                    break
                r = run.residual(x)
                norms = run.record(column_norms(r), exact=True)
                claims += 1
                if run.confirmed(x, norms):
                    return run.finish(x, Status.CONVERGED, repr(self), note, norms)
                if claims == 5:
                    return run.finish(x, Status.STALLED, repr(self), note, norms)
        return run.finish(x, Status.BUDGET_EXHAUSTED, repr(self), note)


def automatic_block_size(H: Operator, s: int) -> int:
    """The b at which factorising n / b blocks in float64 costs about half as much as one product with H.

    Half of b takes few sweeps more. A product costs 2 n^2 s operations, or as much as for some 100 columns more when K
    is evaluated on the way, and is bound by reading K below 32 columns. The factorisations cost (2 / 3) n b^2, each
    operation about 2.5 of those of a product, or 5 of a fused one.
    """
    columns = max(s, 32) + (0 if H.backend == "dense" else 100)
    return max(64, int(math.sqrt(1.5 * H.shape[0] * columns / (5.0 if H.backend == "fused" else 2.5))))


def _inverse(block: Tensor) -> Callable[[Tensor], Tensor]:
    factor, _ = factorise(block.to(torch.float64))
    return lambda r: torch.cholesky_solve(r.to(torch.float64), factor).to(r.dtype)
