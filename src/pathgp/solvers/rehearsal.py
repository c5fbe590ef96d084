"""The epochs that AP and CG will need, found on a few hundred rows of the system."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pathgp.compute.hardware import Rates
from pathgp.compute.random import normal, permutation
from pathgp.operators import Operator
from pathgp.operators.low_rank import automatic_rank
from pathgp.solvers.cholesky import factorise
from pathgp.solvers.preconditioners import pivots_per_round
from pathgp.solvers.predict import block_factor
from pathgp.solvers.run import Run

# Rows and columns of the rehearsal. With 200 to 800 rows its epochs differ by a few percent.
_ROWS, _COLUMNS = 384, 4
# Blocks of rehearsed AP, whatever the number of blocks of the real one: a block then determines about as much of the
# solution, because fewer rows do not determine its fine scales anyway. Every third sweep is random, as in AP.
_BLOCKS, _RANDOM_EVERY = 4, 3
# Measured on 18 data sets with three noises: sweeps of AP per rehearsed sweep, and the factor in the number of
# iterations of CG for one column, for which theory gives one half.
_SWEEPS, _ITERATIONS = 1.2, 0.45
# Sweeps and iterations after which a solver counts as unsuitable.
_MAX_SWEEPS, _MAX_ITERATIONS = 60, 2000.0
# Iterations and vectors of the power method, which is off by a few percent.
_POWER, _VECTORS = 10, 4
# Seconds of the small operations, which do not depend on sizes.
_OVERHEAD = 0.01


class Rehearsal:
    """A few hundred rows E of a system in progress, and the columns of K at up to `automatic_rank` other rows.

    AP solves K[E, E] + Sigma for the initial residuals of these rows, in four blocks; its sweeps are about the epochs
    of AP on all rows. The iterations of CG follow from the condition number that a factor F of rank k leaves:

        kappa = 1 + |K - F F^T| / sigma^2,    iterations = 0.45 sqrt(kappa) log(2 |r| / goal) * block_factor(s)

    with r the part of the residual that F does not explain. |K - F F^T| is that of the rows E times sqrt(n / |E|): for
    smooth remainders it grows in proportion to n, for rough ones not at all.

    Time O(k^3 + |E| k^2 + |E|^3), memory O((|E| + k)^2). Nothing is timed: the same generator gives the same numbers.
    """

    def __init__(self, run: Run) -> None:
        H, n = run.H, run.H.shape[0]
        count = min(_ROWS, len(run.sample))
        chosen = permutation(len(run.sample), run.generator, H.device)[:count].sort().values
        self.rows = run.sample[chosen]
        others = permutation(n, run.generator, H.device)[: largest_rank(H) + count]
        pivots = others[~torch.isin(others, self.rows)][: largest_rank(H)]
        block = H.block(torch.cat([self.rows, pivots])).to(torch.float64)
        noise = H.noise.to(torch.float64)
        self.noise_of_rows = (noise[self.rows] if noise.ndim else noise.expand(count)).cpu()
        block.diagonal().sub_(noise[torch.cat([self.rows, pivots])] if noise.ndim else noise)
        self.kernel = block[:count, :count].cpu()
        self.factor = _nystrom_factor(block[count:, count:], block[count:, :count]).cpu()
        self.variance = float(self.kernel.diagonal().mean())
        self.noise = max(float(noise.mean()), torch.finfo(H.dtype).eps * self.variance)
        self.growth = math.sqrt(n / count)
        self._factor_of_block = block_factor(H, run.b.shape[1])
        excess = (run.initial_norms.cpu() / run.goal.clamp_min(torch.finfo(H.dtype).eps)).to(torch.float64)
        self.excess = max(float(excess.max()), 1.0)
        # The columns farthest from their goals, and the first.
        worst = excess.index_fill(0, torch.tensor([0]), math.inf).topk(min(_COLUMNS, len(excess))).indices
        self._residual = run.initial_sample[chosen][:, worst.to(H.device)].to(torch.float64).cpu()
        self._limit = self._residual.norm(dim=0) / excess[worst].clamp_min(1.0)
        self._start = normal((count, _VECTORS), run.generator, torch.float64, torch.device("cpu"))
        self._generator = run.generator
        self._near = [_restrict(H, self.rows, run.generator) for _ in range(_RANDOM_EVERY - 1)]

    def epochs_ap(self) -> float:
        """Sweeps of AP on these rows, and a product that confirms the solution."""
        A = self.kernel + torch.diag(self.noise_of_rows)
        r = self._residual.clone()
        for sweep in range(_MAX_SWEEPS):
            for I in self._blocks(sweep):
                factor, _ = factorise(A[I][:, I])
                r -= A[:, I] @ torch.cholesky_solve(r[I], factor)
            if bool((r.norm(dim=0) <= self._limit).all()):
                return 1.0 + _SWEEPS * (1.0 + sweep)
        return math.inf

    def epochs_cg(self, rank: int) -> float:
        """Iterations of CG with a low-rank preconditioner, the cost of its columns, and a product that confirms."""
        F = self.factor[:, :rank]
        remainder = self.kernel - F @ F.T
        left = max(float(remainder.diagonal().mean()), 0.0)
        V = self._start
        for _ in range(_POWER):
            V = remainder @ (V / V.norm(dim=0).clamp_min(1e-300))
        condition = 1.0 + self.growth * float(V.norm(dim=0).max()) / self.noise
        explained = math.sqrt((left + self.noise) / (self.variance + self.noise))
        digits = math.log(2.0 * max(self.excess * explained, 1.0))
        iterations = 1.0 + _ITERATIONS * math.sqrt(condition) * digits * self._factor_of_block
        return 1.0 + iterations if iterations < _MAX_ITERATIONS else math.inf

    def _blocks(self, sweep: int) -> Sequence[Tensor]:
        if sweep % _RANDOM_EVERY < len(self._near):
            return self._near[sweep % _RANDOM_EVERY]
        return permutation(len(self.rows), self._generator, torch.device("cpu")).tensor_split(_BLOCKS)


def largest_rank(H: Operator) -> int:
    """The largest rank that a rehearsal tries: `automatic_rank`, less if its matrices exceed the memory budget."""
    return max(1, min(automatic_rank(H), H.shape[0] // 2, int(math.sqrt(H.memory / 64.0))))


def ranks_to_try(H: Operator) -> list[int]:
    """Ranks of preconditioners: doubled from one round of pivots to the largest."""
    ranks, largest = [pivots_per_round(H.device)], largest_rank(H)
    while ranks[-1] < largest:
        ranks.append(2 * ranks[-1])
    return sorted({min(rank, largest) for rank in ranks})


def cost_of_rehearsal(H: Operator, s: int) -> float:
    """Epochs of a rehearsal, by its operations, for a solve with s columns."""
    k = largest_rank(H)
    return ((_ROWS + k) ** 2 + (k**3 / 3 + 2 * _ROWS * k**2) / (2 * s)) / H.shape[0] ** 2


def predict_rehearsal(H: Operator, r: Rates) -> float:
    """Seconds of a rehearsal."""
    k = largest_rank(H)
    entries = (_ROWS + k) ** 2 / r.evaluation(H.entry_backend)
    return _OVERHEAD + entries + (k**3 / 3 + 2 * _ROWS * k**2 + 20 * _ROWS**3) / r.multiply64 + 2 * r.latency


def _nystrom_factor(K: Tensor, columns: Tensor) -> Tensor:
    """F (m, k) with F F^T = columns^T K^-1 columns, for K (k, k) of the pivots and their columns (k, m)."""
    factor, _ = factorise(K.clone())
    return torch.linalg.solve_triangular(factor, columns, upper=False).T


def _restrict(H: Operator, rows: Tensor, generator: torch.Generator) -> list[Tensor]:
    """A partition of all rows into blocks of similar rows, and the places of given rows in each block."""
    owner = torch.empty(H.shape[0], dtype=torch.long, device=H.device)
    for number, I in enumerate(H.partition(_BLOCKS, generator, near=True)):
        owner[I] = number
    owner_of_rows = owner[rows].cpu()
    blocks = [torch.nonzero(owner_of_rows == number).flatten() for number in range(_BLOCKS)]
    return [I for I in blocks if len(I)]
