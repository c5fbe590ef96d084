"""Low-rank preconditioners P = F F^T + Sigma with K ~ F F^T from a partial Cholesky factorisation of K.

Everything here is float64: in float32 the Woodbury identity cancels to nothing when the noise is small.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pathgp.operators import LatentKroneckerOperator, Operator
from pathgp.operators.kronecker import along_sides
from pathgp.operators.low_rank import partial_cholesky, random_pivots
from pathgp.solvers.base import Run

_MAX_RANK = {"cpu": 1000, "cuda": 2000}
# Iterations whose time a large rank of `GridBlocks` may take to build, and the part of the noise at which it is enough.
_ITERATIONS, _HIDDEN = 60, 1e-3
# Observed cells per column beyond which a factor over all of them explains too little to be worth applying.
_NARROW = 200


class LowRankInverse:
    """P^-1 R by the Woodbury identity, P = F F^T + Sigma.

    With G = Sigma^-1/2 F and L L^T = I + G^T G:  P^-1 = Sigma^-1/2 (I - W W^T) Sigma^-1/2,  W = G L^-T.
    Time O(n r^2) once and O(n r s) per application, two matrix products: triangular solves would be slow on a GPU.
    """

    def __init__(self, factor: Tensor, noise: Tensor) -> None:
        self._root = noise.sqrt().unsqueeze(1) if noise.ndim else noise.sqrt()
        G = factor / self._root
        capacity = G.T @ G
        capacity.diagonal().add_(1.0)
        L = torch.linalg.cholesky(capacity)
        self._W = torch.linalg.solve_triangular(L.T, G, upper=True, left=False)

    def __call__(self, R: Tensor) -> Tensor:
        U = R.to(torch.float64) / self._root
        U = torch.addmm(U, self._W, self._W.T @ U, alpha=-1.0)
        return (U / self._root).to(R.dtype)


@dataclass(frozen=True)
class Preconditioner(ABC):
    """Settings of a preconditioner; ``rank=None`` chooses the rank.

    The automatic rank grows until what is left of K is on average below the noise (more would not help),
    or to `automatic_rank`.
    """

    rank: int | None = None
    _block: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")

    def largest_rank(self, H: Operator) -> int:
        return min(H.shape[0], automatic_rank(H) if self.rank is None else self.rank)

    def cost(self, H: Operator) -> float:
        """The most epochs that ``build`` can take."""
        return H.cost(self.largest_rank(H))

    def applied(self, H: Operator) -> float:
        """Epochs of one application, where it counts beside a product."""
        return 0.0

    def build(self, run: Run) -> tuple[Callable[[Tensor], Tensor], str]:
        """The preconditioner of ``run.H`` and a note on it; columns of K are counted as epochs."""
        noise = run.H.noise
        variances = run.H.diagonal().to(torch.float64) - noise
        factor, left = self._factorise(run, variances)
        # Without noise there is nothing to stand on: take what the factor leaves of K instead.
        floor = torch.clamp(left.mean(), min=1e-12 * float(variances.max()))
        inverse = LowRankInverse(factor, torch.where(noise > 0, noise, floor))
        name = type(self).__name__
        share = float(left.sum() / variances.sum())
        return inverse, f"{name} of rank {factor.shape[1]}, {share:.1e} of the trace left"

    def _factorise(self, run: Run, variances: Tensor) -> tuple[Tensor, Tensor]:
        enough = 0.0 if self.rank is not None else float(run.H.noise.mean())
        return partial_cholesky(
            lambda pivots: _kernel_columns(run, pivots),
            variances,
            self.largest_rank(run.H),
            lambda left, most: self._pivots(run, left, min(self._block, most)),
            enough,
            rounding=torch.finfo(run.H.dtype).eps,
        )

    @abstractmethod
    def _pivots(self, run: Run, left: Tensor, num: int) -> Tensor:
        """Which columns of K to take next, given the variances not yet explained."""


@dataclass(frozen=True)
class PivotedCholesky(Preconditioner):
    """Greedy pivots: always the point with the largest variance left (Harbrecht et al. 2012)."""

    def _pivots(self, run: Run, left: Tensor, num: int) -> Tensor:
        return left.argmax().reshape(1)


@dataclass(frozen=True)
class RandomlyPivotedCholesky(Preconditioner):
    """Pivots drawn in blocks with probability proportional to the variance left (Chen et al. 2023).

    Blocks turn the work into matrix products; the draw avoids the outliers that the greedy choice chases.
    """

    _block: ClassVar[int] = 128

    def _pivots(self, run: Run, left: Tensor, num: int) -> Tensor:
        return random_pivots(run.generator, num)(left, num)


def automatic_rank(H: Operator) -> int:
    """The largest rank chosen without being asked: n / 8, at most 1000 on a CPU and 2000 on a GPU.

    Beyond it building the factor costs more than it saves. On a grid the rank is no larger than the multiplications of
    a product per observed cell, so that an application costs a few products at most. The factor, a copy while it is cut
    to size and its scaled form must fit into half of the operator's memory budget.
    """
    n = H.shape[0]
    fits, balanced = H.memory // (2 * 3 * 8 * n), max(H.entries // n, 16)
    return max(1, min(max(n // 8, 16), _MAX_RANK.get(H.device.type, 1000), fits, balanced, n))


def _kernel_columns(run: Run, pivots: Tensor) -> Tensor:
    """K[:, pivots] in float64, noise removed."""
    identity = torch.eye(len(pivots), dtype=run.H.dtype, device=run.H.device)
    columns = run.columns(pivots, identity).to(torch.float64)
    noise = run.H.noise[pivots] if run.H.noise.ndim else run.H.noise
    columns[pivots, torch.arange(len(pivots), device=pivots.device)] -= noise
    return columns


@dataclass(frozen=True)
class GridInverse(Preconditioner):
    """For grids with holes: the inverse on the whole grid through the factors, at the observed cells.

        M = P Q (Lambda + sigma^2)^-1 Q^T P^T,    K_1 x ... x K_k = Q Lambda Q^T

    Exact where nothing is missing (thesis, section 2.2.3). Noise that differs between cells is replaced by its mean.
    An application costs as much as two products.
    """

    def cost(self, H: Operator) -> float:
        return 0.0

    def applied(self, H: Operator) -> float:
        return 2.0 * H.cost()

    def build(self, run: Run) -> tuple[Callable[[Tensor], Tensor], str]:
        H = run.H
        if not isinstance(H, LatentKroneckerOperator):
            raise ValueError(f"GridInverse is for grids with holes, not for {type(H).__name__}")
        values, vectors = zip(*H.eigen, strict=True)
        spectrum = values[0]
        for side in values[1:]:
            spectrum = spectrum.unsqueeze(-1) * side
        inverse = (1.0 / (spectrum + H.noise.mean().clamp_min(1e-12 * float(spectrum.max())))).unsqueeze(-1).to(H.dtype)
        Q = [V.to(H.dtype) for V in vectors]
        Qt = [V.T for V in Q]

        def apply(R: Tensor) -> Tensor:
            run.epochs += self.applied(H)
            return H.gather(along_sides(Q, inverse * along_sides(Qt, H.scatter(R))))

        missing = 1.0 - H.shape[0] / inverse.numel()
        return apply, f"inverse on the whole grid, {100 * missing:.0f} % of it missing"

    def _pivots(self, run: Run, left: Tensor, num: int) -> Tensor:
        raise NotImplementedError("GridInverse has no pivots")


@dataclass(frozen=True)
class GridBlocks(Preconditioner):
    """For grids with holes of which one side is smooth: low rank along the other sides, exact along this one.

    With K_j = B B^T, B (p_j, r), the observed cells are A (K' x I_r) A^T, K' the product of the other factors and A
    block-diagonal: for every place i of the other sides the rows of B at its observed cells. K' is replaced by
    F F^T + D with a partial Cholesky factor F (p', m) and what it leaves of the diagonal, D:

        P = A ((F F^T + D) x I_r) A^T + Sigma

    equals H inside the block of every i, and has rank m r across them: ``rank``, by default 1000, on a GPU 2000; more,
    as much as some iterations take to build, where that makes D smaller than the noise. Columns of B that the noise
    hides are left out, so that the others have more of it. With
    G_i = A_i^T Sigma_i^-1 A_i and T_i = (I + D_i G_i)^-1,

        P^-1 v = Sigma^-1 (v - A l),   l = T (D u + F C^-1 F^T T u),   u = A^T Sigma^-1 v,
        C = I + sum_i F_i F_i^T x T_i G_i

    Time O(p' (m r)^2 + (m r)^3) once, where a factor of this rank over the observed cells takes n / p' times as much,
    and O(p s r + p' s r (m + r)) per application; memory O(p' r (m + r) + (m r)^2). Snelson and Ghahramani (2007) use
    such a P in place of H.
    """

    def cost(self, H: Operator) -> float:
        return 0.0

    def build(self, run: Run) -> tuple[Callable[[Tensor], Tensor], str]:
        H = run.H
        side = smooth_side(H)
        if not isinstance(H, LatentKroneckerOperator) or side is None:
            raise ValueError("GridBlocks is for grids with holes of which one side has a smooth kernel")
        variances, columns = H.without(side)
        places, blocks = H.unfolded(side)
        noise = H.noise.clamp_min(1e-12 * float(H.diagonal().max())).expand(H.shape[0]).unsqueeze(1)
        B = H.roots[side]
        assert B is not None
        # From the smallest to the largest; the last one stays in any case.
        hidden = int((B.square().sum(0) * variances.mean() <= noise.mean()).sum())
        B = B[:, min(hidden, B.shape[1] - 1) :]
        p, r = B.shape
        weights = _spread(1.0 / noise, places, blocks * p).view(blocks, p)
        G = (weights @ (B.unsqueeze(2) * B.unsqueeze(1)).view(p, r * r)).view(blocks, r, r)
        F, left = self._across(run, columns, variances, r, float(noise.mean() / B.square().sum(1).mean()))
        D = left.view(-1, 1, 1)
        T = torch.linalg.inv(torch.eye(r, dtype=B.dtype, device=B.device) + D * G)
        inverse = _inverse_capacity(F, T @ G)

        def apply(R: Tensor) -> Tensor:
            s = R.shape[1]
            V = R.to(torch.float64) / noise
            U = torch.bmm(B.T.expand(blocks, r, p), _spread(V, places, blocks * p).view(blocks, p, s))
            U = torch.bmm(T, U)
            inner = (F.T @ U.view(blocks, r * s)).view(-1, r, s).transpose(0, 1).reshape(-1, s)
            inner = (inverse @ inner).view(r, -1, s).transpose(0, 1).reshape(-1, r * s)
            latent = torch.baddbmm(D * U, T, (F @ inner).view(blocks, r, s))
            explained = torch.bmm(B.expand(blocks, p, r), latent).view(-1, s)[places]
            return V.sub_(explained.div_(noise)).to(R.dtype)

        share = float(left.sum() / variances.sum())
        return apply, f"blocks along side {side} of rank {r}, rank {F.shape[1]} across, {share:.1e} of the trace left"

    def _across(
        self, run: Run, columns: Callable[[Tensor], Tensor], variances: Tensor, r: int, noise: float
    ) -> tuple[Tensor, Tensor]:
        """F and D; a large F only if it leaves less than the noise, which is where iterations become few."""

        def factor(rank: int, enough: float) -> tuple[Tensor, Tensor]:
            m, pivots = min(len(variances), max(1, rank // r)), random_pivots(run.generator, 32)
            return partial_cholesky(columns, variances, m, pivots, enough, rounding=torch.finfo(run.H.dtype).eps)

        if self.rank is not None:
            return factor(self.rank, 0.0)
        F, left = factor(_blocks_rank(run.H, len(variances), r, run.b.shape[1]), _HIDDEN * noise)
        few = max(1, _MAX_RANK.get(run.H.device.type, 1000) // r)
        if float(left.mean()) <= noise or F.shape[1] <= few:
            return F, left
        # The leading columns are a factor of their own.
        F = F[:, :few].clone()
        return F, (variances - F.square().sum(1)).clamp_min(0.0)

    def _pivots(self, run: Run, left: Tensor, num: int) -> Tensor:
        raise NotImplementedError("GridBlocks has no pivots among the cells")


def _inverse_capacity(F: Tensor, E: Tensor) -> Tensor:
    """(I + sum_i E_i x F_i F_i^T)^-1 for F (p, m) and symmetric E_i (p, r, r): (r m, r m), r outside m."""
    (p, m), r = F.shape, E.shape[1]
    C = torch.zeros(r * m, r * m, dtype=F.dtype, device=F.device)
    for a in range(r):
        # The lower triangle is all that a Cholesky factorisation reads.
        right = (E[:, a, : a + 1].unsqueeze(2) * F.unsqueeze(1)).view(p, (a + 1) * m)
        C[a * m : (a + 1) * m, : (a + 1) * m] = F.T @ right
    C.diagonal().add_(1.0)
    return torch.cholesky_inverse(torch.linalg.cholesky(C))


def _spread(V: Tensor, places: Tensor, size: int) -> Tensor:
    """V (n, s) at the n places of a vector of this size, zero elsewhere: (size, s)."""
    return V.new_zeros(size, V.shape[1]).index_copy_(0, places, V)


def smooth_side(H: Operator) -> int | None:
    """The side for `GridBlocks`: that of the smallest rank, if its blocks fit into the memory budget."""
    if not isinstance(H, LatentKroneckerOperator) or len(H.sizes) < 2 or not any(B is not None for B in H.roots):
        return None
    side = min((i for i, B in enumerate(H.roots) if B is not None), key=lambda i: H.ranks[i])
    r, blocks = H.ranks[side], math.prod(H.sizes) // H.sizes[side]
    least = _MAX_RANK.get(H.device.type, 1000)
    return side if r <= least <= _room(H, blocks, r) else None


def _blocks_rank(H: Operator, blocks: int, r: int, s: int) -> int:
    """The rank R of `GridBlocks` that takes as long to build as ``_ITERATIONS`` iterations with s columns, or has room.

    It takes 2 p' R^2 operations for a matrix, p' the number of blocks, and 4 R^3 / 3 for its inverse. An iteration
    takes those of a product, and as long as 100 n s more to read some grids.
    """
    operations = _ITERATIONS * s * (2.0 * H.entries + 100.0 * H.shape[0])
    balanced = min((operations / (4.0 * blocks)) ** 0.5, (0.375 * operations) ** (1 / 3))
    least = _MAX_RANK.get(H.device.type, 1000)
    return max(least, min(int(balanced), _room(H, blocks, r)))


def _room(H: Operator, blocks: int, r: int) -> int:
    """The largest rank R whose matrices fit into half of the memory budget: 8 (6 p' r^2 + 2 p' R + 3 R^2) bytes."""
    left = H.memory / 16 - 6 * blocks * r**2
    return int((math.sqrt(blocks**2 + 3 * left) - blocks) / 3) if left > 0 else 0


def automatic(H: Operator) -> Preconditioner:
    """What "auto" means: the exact inverse on a complete grid, blocks where a side is smooth, otherwise a randomly
    pivoted Cholesky factor, or the inverse on the whole grid where such a factor would be too narrow.

    With a tenth of the cells missing the inverse on the whole grid takes 440 epochs where the low-rank factor takes 19
    (500 x 52 cells, squared exponential times periodic, noise 0.1 of the signal), with half missing 710 and 15. On 10 x
    144 x 72 cells, three Matern kernels, products are so cheap that the factor may have 256 columns for 91,000 cells:
    it takes 17 s where the inverse takes 2.5 s at a noise of 0.3, and 37 s against 4 s at 0.15.
    """
    if not isinstance(H, LatentKroneckerOperator):
        return RandomlyPivotedCholesky()
    # Matrices, their eigenvectors and copies in the dtype of H.
    fits = 3 * 8 * sum(p**2 for p in H.sizes) <= H.memory // 2
    if fits and H.shape[0] == math.prod(H.sizes) and H.noise.ndim == 0:
        return GridInverse()
    if smooth_side(H) is not None:
        return GridBlocks()
    largest = min(H.shape[0] // _NARROW, _MAX_RANK.get(H.device.type, 1000))
    return GridInverse() if fits and H.entries // H.shape[0] < largest else RandomlyPivotedCholesky()
