"""Alternating projections: exact solves on blocks of coordinates, in turn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.operators import Operator
from pathgp.randomness import partition
from pathgp.solvers.base import Run, Solution, Solver, Status, column_norms
from pathgp.solvers.cholesky import factorise

# Strength of the acceleration: 1 is none, and smaller values trust the problem to be harder. Measured by
# benchmarks/acceleration.py: 0.3 takes a fifth fewer sweeps than none on pol, bike and protein and is never worse.
_STRENGTH = 0.3
# Sweeps without an improvement by a percent after which a run counts as stalled.
_PATIENCE = 30


@dataclass(frozen=True)
class AP(Solver):
    """Block Gauss-Seidel on H x = b: for a block I of rows, x_I += H[I, I]^-1 (b_I - H[I, :] x).

    selection="shuffled": every epoch a new random partition into p blocks, each visited once, accelerated as
    by Nesterov (Tu et al. 2017). There is no step size to choose.

        for each block I:                                       tau = sqrt(c) / p,  mu = c / p,  c = 0.3
            u = (x + tau z) / (1 + tau)
            d = H[I, I]^-1 (b_I - H[I, :] u)
            z = (1 - tau) z + tau u;  z_I += (tau / mu) d
            x = u;  x_I += d

    A sweep sees every row's residual once, for free but not at the same time; a product confirms it before
    convergence is claimed.

    selection="greedy": a fixed partition, always the block with the largest residual, which is carried along
    by r -= H[:, I] d (thesis, algorithm 5.1, chapter 5).

    Time per epoch: one product with H plus n b^2 / 3 for the factorisations in float64. The automatic block
    size b balances the two. Memory O(n s + b^2).
    """

    block_size: int | None = None
    selection: str = "shuffled"

    def __post_init__(self) -> None:
        if self.block_size is not None and self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}")
        if self.selection not in ("shuffled", "greedy"):
            raise ValueError(f"selection must be 'shuffled' or 'greedy', got {self.selection!r}")

    def _solve(self, run: Run, residual: Tensor) -> Solution:
        n, s = run.b.shape
        size = min(n, self.block_size or automatic_block_size(run.H, s))
        # Blocks of equal size: a small last block would waste its turn.
        blocks = math.ceil(n / size)
        note = f"{blocks} blocks of {math.ceil(n / blocks)} rows"
        if self.selection == "greedy":
            return self._greedy(run, residual, blocks, note)
        return self._shuffled(run, blocks, note)

    def _shuffled(self, run: Run, blocks: int, note: str) -> Solution:
        n, s = run.b.shape
        x, z = run.start.clone(), run.start.clone()
        # One block is a direct solve, refined: there is nothing to accelerate.
        strength = _STRENGTH if blocks > 1 else 1.0
        mu, tau = strength / blocks, math.sqrt(strength) / blocks
        # The truth at the end of a sweep relative to its estimate, learned from the checks.
        correction = 1.0
        before = torch.full((s,), math.inf, dtype=torch.float64, device=x.device)
        # With little noise the rounding of float32 products can outweigh a sweep, and the last iterate is not the best.
        best, lowest = run.start, math.inf
        while True:
            seen = torch.zeros(s, dtype=torch.float64, device=x.device)
            parts = partition(n, blocks, run.generator, x.device)
            for index, solve in zip(parts, run.H.block_inverses(parts, _inverse), strict=True):
                if not run.affords(run.H.cost(len(index))):
                    return run.finish(x, Status.BUDGET_EXHAUSTED, repr(self), note)
                ahead = torch.lerp(x, z, tau / (1.0 + tau))
                r = run.b[index] - run.rows(index, ahead)
                d = solve(r)
                z.lerp_(ahead, tau).index_add_(0, index, d, alpha=tau / mu)
                x = ahead.index_add_(0, index, d)
                seen += column_norms(r).square()
                run.iterations += 1
            norms = run.record(seen.sqrt(), exact=False)
            if not bool(torch.isfinite(norms).all()) or float(norms.max()) > 1e6:
                return run.finish(best, Status.DIVERGED, repr(self), note)
            if float(norms.mean()) < lowest:
                best, lowest = x.clone(), float(norms.mean())
            # Rows were seen half a sweep ago on average, and the residual has gone on falling since.
            estimate = run.measure(norms * (norms / before).nan_to_num(1.0).clamp(max=1.0).sqrt())
            if 0.0 < correction * estimate <= run.tol:
                if not run.affords(run.H.cost()):
                    return run.finish(x, Status.BUDGET_EXHAUSTED, repr(self), note)
                exact = run.record(column_norms(run.residual(x)), exact=True)
                if run.satisfied(exact):
                    return run.finish(x, Status.CONVERGED, repr(self), note, exact)
                correction = run.measure(exact) / estimate
            before = norms
            if run.stalled(norms, _PATIENCE):
                return run.finish(best, Status.STALLED, repr(self), note)

    def _greedy(self, run: Run, residual: Tensor, blocks: int, note: str) -> Solution:
        n = run.b.shape[0]
        x, r = run.start.clone(), residual.clone()
        partitioned = partition(n, blocks, run.generator, x.device)
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
                if run.satisfied(norms):
                    return run.finish(x, Status.CONVERGED, repr(self), note, norms)
                if claims == 5:
                    return run.finish(x, Status.STALLED, repr(self), note, norms)
        return run.finish(x, Status.BUDGET_EXHAUSTED, repr(self), note)


def automatic_block_size(H: Operator, s: int) -> int:
    """The b at which factorising n / b blocks in float64 costs about as much as one product with H.

    A product costs 2 n^2 s operations, or as much as for some 100 columns more when K is evaluated on the
    way, and is bound by reading K below 32 columns. The factorisations cost (2 / 3) n b^2, each operation
    about 2.5 of those of a product, or 5 of a fused one.
    """
    columns = max(s, 32) + (0 if H.backend == "dense" else 100)
    return max(64, int(math.sqrt(3.0 * H.shape[0] * columns / (5.0 if H.backend == "fused" else 2.5))))


def _inverse(block: Tensor) -> Callable[[Tensor], Tensor]:
    factor, _ = factorise(block.to(torch.float64))
    return lambda r: torch.cholesky_solve(r.to(torch.float64), factor).to(r.dtype)
