"""A preconditioner for grids with wide holes: exact along a smooth side, low rank along the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.hardware import Rates
from pathgp.operators.base import Operator, Preconditioner, Solve, SolveInProgress
from pathgp.operators.grid_base import GridOperator, scatter
from pathgp.operators.low_rank import automatic_rank, max_rank, partial_cholesky, random_pivots

# A large rank may take as long to build as this number of iterations, and is large enough if what it leaves is below
# this part of the noise.
_ITERATIONS, _NEGLIGIBLE = 60, 1e-3
# The smallest useful rank across the blocks.
_MIN_ACROSS = 16


@dataclass(frozen=True)
class GridBlocks(Preconditioner):
    """For grids with holes and one smooth side: low rank along the other sides, exact along this one.

    With K_j = B B^T, B (p_j, r), the observed cells are A (K' x I_r) A^T, where K' is the product of the other factors
    and A is block-diagonal: for every place i of the other sides the rows of B at its observed cells. K' is replaced by
    F F^T + D with a partial Cholesky factor F (p', m) and D, the diagonal that it leaves:

        P = A ((F F^T + D) x I_r) A^T + Sigma

    equals H inside the block of every i, and has rank m r across them: ``rank``, by default 1000, on a GPU 2000. The
    default is larger, up to the time of 60 iterations, if that makes D smaller than the noise. Columns of B below the
    noise are left out, which leaves more rank for the others. With G_i = A_i^T Sigma_i^-1 A_i and
    T_i = (I + D_i G_i)^-1,

        P^-1 v = Sigma^-1 (v - A l),   l = T (D u + F C^-1 F^T T u),   u = A^T Sigma^-1 v,
        C = I + sum_i F_i F_i^T x T_i G_i

    Time O(p' (m r)^2 + (m r)^3) once, where a factor of this rank over the observed cells takes n / p' times as much,
    and O(p s r + p' s r (m + r)) per application; memory O(p' r (m + r) + (m r)^2). Snelson and Ghahramani (2007) use
    this P as a model instead of H.
    """

    rank: int | None = None

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")

    def build(self, run: SolveInProgress) -> tuple[Solve, str]:
        H = run.H
        side = smooth_side(H)
        if not isinstance(H, GridOperator) or side is None:
            raise ValueError("GridBlocks is for grids with holes of which one side has a smooth kernel")
        variances, columns = H.other_factors(side)
        places, blocks = H.cells_along(side)
        noise = H.noise.clamp_min(1e-12 * float(H.diagonal().max())).expand(H.shape[0]).unsqueeze(1)
        B = H.roots[side]
        assert B is not None
        # Columns are sorted from the smallest to the largest; the last one is always kept.
        below_noise = int((B.square().sum(0) * variances.mean() <= noise.mean()).sum())
        B = B[:, min(below_noise, B.shape[1] - 1) :]
        p, r = B.shape
        weights = scatter(1.0 / noise, places, (blocks, p)).squeeze(2)
        G = (weights @ (B.unsqueeze(2) * B.unsqueeze(1)).view(p, r * r)).view(blocks, r, r)
        F, left = self._across(run, columns, variances, r, float(noise.mean() / B.square().sum(1).mean()))
        D = left.view(-1, 1, 1)
        T = torch.linalg.inv(torch.eye(r, dtype=B.dtype, device=B.device) + D * G)
        inverse = _inverse_capacity(F, T @ G)

        def apply(R: Tensor) -> Tensor:
            s = R.shape[1]
            V = R.to(torch.float64) / noise
            U = torch.bmm(B.T.expand(blocks, r, p), scatter(V, places, (blocks, p)))
            U = torch.bmm(T, U)
            across = (F.T @ U.view(blocks, r * s)).view(-1, r, s).transpose(0, 1).reshape(-1, s)
            across = (inverse @ across).view(r, -1, s).transpose(0, 1).reshape(-1, r * s)
            latent = torch.baddbmm(D * U, T, (F @ across).view(blocks, r, s))
            explained = torch.bmm(B.expand(blocks, p, r), latent).view(-1, s)[places]
            return V.sub_(explained.div_(noise)).to(R.dtype)

        share = float(left.sum() / variances.sum())
        return apply, f"blocks along side {side} of rank {r}, rank {F.shape[1]} across, {share:.1e} of the trace left"

    def predict_seconds(self, H: Operator, s: int, epochs: float, product: float, rates: Rates) -> float:
        """A factor over the places of the other sides; an application reads about six grids in float64."""
        assert isinstance(H, GridOperator)
        k, cells, blocks = automatic_rank(H), math.prod(H.sizes), H.shape[0] / min(H.ranks)
        build = 2 * min(blocks, cells) * k**2 / rates.multiply64 + k**3 / rates.factorise
        return build + epochs * (product + 6 * 8 * cells * s / rates.read + rates.latency / 4)

    def _across(
        self, run: SolveInProgress, columns: Callable[[Tensor], Tensor], variances: Tensor, r: int, noise: float
    ) -> tuple[Tensor, Tensor]:
        """F and D; a large F only if it leaves less than the noise: only then are iterations few."""

        def factor(rank: int, enough: float) -> tuple[Tensor, Tensor]:
            m, pivots = min(len(variances), max(1, rank // r)), random_pivots(run.generator, 32)
            return partial_cholesky(columns, variances, m, pivots, enough, rounding=torch.finfo(run.H.dtype).eps)

        if self.rank is not None:
            return factor(self.rank, 0.0)
        F, left = factor(_balanced_rank(run.H, len(variances), r, run.b.shape[1]), _NEGLIGIBLE * noise)
        few = max(1, max_rank(run.H.device) // r)
        if float(left.mean()) <= noise or F.shape[1] <= few:
            return F, left
        # The leading columns are a factor of their own.
        F = F[:, :few].clone()
        return F, (variances - F.square().sum(1)).clamp_min(0.0)


def _inverse_capacity(F: Tensor, E: Tensor) -> Tensor:
    """(I + sum_i E_i x F_i F_i^T)^-1 for F (p, m) and symmetric E_i (p, r, r): (r m, r m), r outside m."""
    (p, m), r = F.shape, E.shape[1]
    C = torch.zeros(r * m, r * m, dtype=F.dtype, device=F.device)
    for a in range(r):
        # A Cholesky factorisation reads the lower triangle only.
        right = (E[:, a, : a + 1].unsqueeze(2) * F.unsqueeze(1)).view(p, (a + 1) * m)
        C[a * m : (a + 1) * m, : (a + 1) * m] = F.T @ right
    C.diagonal().add_(1.0)
    return torch.cholesky_inverse(torch.linalg.cholesky(C))


def smooth_side(H: Operator) -> int | None:
    """The side for `GridBlocks`: the one of the smallest rank, if enough rank is left across its blocks and the
    matrices fit into the memory budget."""
    if not isinstance(H, GridOperator) or len(H.sizes) < 2 or not any(B is not None for B in H.roots):
        return None
    side = min((i for i, B in enumerate(H.roots) if B is not None), key=lambda i: H.ranks[i])
    r, blocks = H.ranks[side], math.prod(H.sizes) // H.sizes[side]
    return side if _MIN_ACROSS * r <= max_rank(H.device) <= _affordable_rank(H, blocks, r) else None


def _balanced_rank(H: Operator, blocks: int, r: int, s: int) -> int:
    """The rank R that takes as long to build as ``_ITERATIONS`` iterations with s columns, limited by the memory.

    It takes 2 p' R^2 operations for a matrix, p' the number of blocks, and 4 R^3 / 3 for its inverse. An iteration
    takes those of a product, and as long as 100 n s more to read a few grids.
    """
    operations = _ITERATIONS * s * (2.0 * H.entries + 100.0 * H.shape[0])
    balanced = min((operations / (4.0 * blocks)) ** 0.5, (0.375 * operations) ** (1 / 3))
    return max(max_rank(H.device), min(int(balanced), _affordable_rank(H, blocks, r)))


def _affordable_rank(H: Operator, blocks: int, r: int) -> int:
    """The largest rank R whose matrices fit into half of the memory budget: 8 (6 p' r^2 + 2 p' R + 3 R^2) bytes."""
    left = H.memory / 16 - 6 * blocks * r**2
    return int((math.sqrt(blocks**2 + 3 * left) - blocks) / 3) if left > 0 else 0
