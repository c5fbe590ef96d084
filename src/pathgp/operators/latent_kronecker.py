"""H = P (K_1 x K_2 x ... x K_k) P^T + Sigma: a grid with holes, through matrices of the size of its sides.

P selects the n observed cells of the p_1 p_2 ... p_k cells of the grid. A product scatters a vector to the grid with
zeros in the holes, multiplies by one factor after the other, and gathers the observed cells. This is exact for any
pattern of missing cells. Thesis, chapter 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from pathgp.compute.hardware import full_rate_float64
from pathgp.compute.memory import spans, tile_edge
from pathgp.compute.random import neighbourhoods
from pathgp.compute.settings import Compute
from pathgp.kernels import Kernel
from pathgp.operators import grid_base as arrays
from pathgp.operators.base import Preconditioner
from pathgp.operators.grid_blocks import GridBlocks, smooth_side
from pathgp.operators.grid_inverse import GridInverse, hole_variance
from pathgp.operators.kernel import KernelOperator, checked_noise
from pathgp.operators.low_rank import find_root

# Largest variance of holes, relative to the noise, at which `GridInverse` is faster than `GridBlocks`.
_WELL_KNOWN = 0.3
# Epochs that filling the holes may take.
_FILL_EPOCHS = 100.0


class LatentKroneckerOperator(arrays.GridOperator):
    """A Kronecker product of kernel matrices at the observed cells of a grid, plus noise.

    With p = p_1 ... p_k cells a product with s columns takes 2 s p (p_1 + ... + p_k) operations and the memory of the
    factors and of a few grids; a factor that exceeds the memory budget is evaluated again in every product. Rows cost
    as much as those of a dense matrix.

    Smooth kernels have factors of low rank. If K_i = B_i B_i^T up to rounding with B_i (p_i, r_i) and r_i small enough
    to save time (``roots``), a product uses B_i^T and B_i, and the other factors act on r_i places of that side.

    Args:
        kernels: k covariance functions, one per side of the grid.
        factors: their inputs, (p_i, d_i) each, of one dtype on one device.
        observed: boolean grid (p_1, ..., p_k), True where there is an observation; cells are counted row by row.
        noise: standard deviation of the noise, a number or one per observed cell.
        compute: memory budget for factors and grids. A grid has no use for its other options.
    """

    backend = "kronecker"

    def __init__(
        self,
        kernels: Sequence[Kernel],
        factors: Sequence[Tensor],
        observed: Tensor,
        noise: float | Tensor = 0.1,
        compute: Compute | None = None,
    ) -> None:
        compute = require_memory_only(compute)
        if not kernels or len(kernels) != len(factors):
            raise ValueError(f"{len(kernels)} kernels and {len(factors)} factors: one kernel per side of the grid")
        factors = [F if F.is_floating_point() else F.to(torch.float64) for F in factors]
        if len({(F.dtype, F.device) for F in factors}) > 1:
            raise TypeError("factors must have one dtype on one device")
        self.sizes = tuple(len(F) for F in factors)
        if tuple(observed.shape) != self.sizes or observed.dtype != torch.bool:
            raise ValueError(f"observed must be a boolean grid of shape {self.sizes}, got {tuple(observed.shape)}")
        self.device, self.dtype = factors[0].device, factors[0].dtype
        self.memory = compute.budget(self.device)
        self.cells = observed.to(self.device).flatten().nonzero().flatten()
        n = len(self.cells)
        if n == 0:
            raise ValueError("no cell of the grid is observed")
        self.shape = (n, n)
        self._deviation = checked_noise(noise, n, self.device)
        self.noise = self._deviation.detach().square()
        share = self._share = self.memory // (2 * len(self.sizes))
        pairs = list(zip(kernels, factors, strict=True))
        self.factors = [KernelOperator(k, F, 0.0, Compute(memory=share), accuracy=0.0) for k, F in pairs]
        self.roots = [find_root(k, F.detach(), self._worthwhile_rank(i), share) for i, (k, F) in enumerate(pairs)]
        # Roots by side, the strongest reduction first, so that all later products are small; and the other factors.
        self._roots = {i: B.to(self.dtype) for i in self.by_reduction() if (B := self.roots[i]) is not None}
        self._factors = {i: self._fast_factor(i) for i, B in enumerate(self.roots) if B is None}
        self.entries = self._multiplications()
        self.places = arrays.unravel(self.cells, self.sizes)

    def __matmul__(self, V: Tensor) -> Tensor:
        self._check(V, self.shape[0], "V")
        result = self._weighted_noise(V)
        for part in spans(V.shape[1], self.columns_at_once()):
            result[:, part] += self.gather(self.multiply(self.scatter(V[:, part])))
        return result

    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        self._check(V, self.shape[0], "V")
        if self.cost(len(index)) >= 1.0:
            return (self @ V)[index]
        result = self._weighted_noise(V[index], index)
        for part in spans(len(index), self._rows_at_once()):
            result[part] += self._between(index[part]) @ V
        return result

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        self._check(D, len(index), "D")
        result = torch.zeros(self.shape[0], D.shape[1], dtype=self.dtype, device=self.device)
        if self.cost(len(index)) >= 1.0:
            return self @ result.index_add_(0, index, D)
        for part in spans(len(index), self._rows_at_once()):
            result += self._between(index[part]).T @ D[part]
        return result.index_add_(0, index, self._weighted_noise(D, index))

    def block(self, index: Tensor) -> Tensor:
        result = self._between(index, index)
        result.diagonal().copy_(self.diagonal()[index])
        return result

    def diagonal(self) -> Tensor:
        variances = (factor.diagonal()[place] for factor, place in zip(self.factors, self.places, strict=True))
        return reduce(torch.mul, variances) + self.noise.to(self.dtype)

    def bilinear(self, L: Tensor, R: Tensor, symmetric: bool = False) -> Tensor:
        """sum_j L_j^T H R_j, with gradients through matrices of the size of the factors only.

        With l and r scattered to the grid and unfolded along side i, G_i = sum_j l_j (x_{m != i} K_m) r_j^T has the
        size of factor i, and the derivative in its parameters is that of sum(G_i * K_i).
        """
        self._check(L, self.shape[0], "L")
        self._check(R, self.shape[0], "R")
        L, R = L.detach(), R.detach()
        terms = [self._form(L, R, i) for i in range(len(self.sizes))]
        noise = (self._deviation.square() * (L * R).sum(1).to(torch.float64)).sum()
        # Every term has the same value and the gradient of its own factor.
        return noise + torch.stack(terms).sum() - (len(terms) - 1) * terms[0].detach()

    def _form(self, L: Tensor, R: Tensor, side: int) -> Tensor:
        """sum_j L_j^T K R_j, differentiable in the parameters of one factor; streamed if G exceeds the budget."""
        p, factor = self.sizes[side], self.factors[side]
        fits = 16 * p**2 <= self._share
        G = torch.zeros(p if fits else 0, p, dtype=torch.float64, device=self.device)
        total = torch.zeros((), dtype=self.dtype, device=self.device)
        for part in spans(L.shape[1], self.columns_at_once()):
            # With K_m = B_m B_m^T both vectors are multiplied by B_m^T; any other factor multiplies one of them.
            left = arrays.unfold(self._reduce(self.scatter(L[:, part]), side), side)
            right = self._multiply_factors(self._reduce(self.scatter(R[:, part]), side), side)
            if fits:
                G += left.to(torch.float64) @ arrays.unfold(right, side).to(torch.float64).T
            else:
                total = total + factor.bilinear(left, arrays.unfold(right, side))
        return factor.weighted_sum(G.to(self.dtype)) if fits else total

    def features(self, num: int, generator: torch.Generator | None = None, draws: int | None = None) -> Tensor:
        raise NotImplementedError("a grid with holes has no random features for primal SGD: use CG")

    def partition(self, parts: int, generator: torch.Generator, near: bool = False) -> tuple[Tensor, ...]:
        if not near:
            return super().partition(parts, generator)
        sides = [factor.coordinates[place] for factor, place in zip(self.factors, self.places, strict=True)]
        return neighbourhoods(torch.cat(sides, 1), parts, generator)

    def cost(self, rows: int | None = None) -> float:
        return 1.0 if rows is None else min(1.0, rows * self.shape[0] / self.entries)

    def __repr__(self) -> str:
        grid = " x ".join(map(str, self.sizes))
        return f"LatentKroneckerOperator(n={self.shape[0]} of {grid}, {self.dtype}, {self.device})"

    def multiply(self, grid: Tensor) -> Tensor:
        """(K_1 x ... x K_k) applied to a grid (p_1, ..., p_k, s)."""
        grid = self._multiply_factors(self._reduce(grid))
        for side, B in reversed(self._roots.items()):
            grid = arrays.multiply_side(B, side, grid)
        return grid

    def choose_preconditioner(self, epochs: float) -> Preconditioner | None:
        """`GridBlocks` along a side of low rank, which wide holes do not slow down, unless neighbours determine the
        holes to a part of the noise; otherwise `GridInverse`.

        `GridInverse` takes 5 to 40 iterations where a low-rank factor takes hundreds. On a small budget none that has
        to be finished.
        """
        # Matrices, their eigenvectors and copies.
        fits = 3 * 8 * sum(p * r for p, r in zip(self.sizes, self.ranks, strict=True)) <= self.memory // 2
        can_fill = fits and self.noise.ndim == 0
        if can_fill and self.is_complete:
            return GridInverse()
        # Eigenvectors take about ten cubes of a side; filling takes a hundred products with a few columns.
        cubes = sum(p**3 for p, B in zip(self.sizes, self.roots, strict=True) if B is None)
        can_fill = can_fill and 10.0 * cubes <= 3200.0 * self.entries and full_rate_float64(self.device)
        can_fill = can_fill and epochs >= _FILL_EPOCHS
        if smooth_side(self) is not None and not (can_fill and hole_variance(self) <= _WELL_KNOWN):
            return GridBlocks()
        return GridInverse() if can_fill else None

    def _between(self, index: Tensor, other: Tensor | None = None) -> Tensor:
        """K[index, other], by default for all cells, from the entries of the factors."""
        parts = []
        for factor, place in zip(self.factors, self.places, strict=True):
            parts.append(factor.between(place[index], place if other is None else place[other]))
        return reduce(torch.Tensor.mul_, parts)

    def _rows_at_once(self) -> int:
        return max(1, tile_edge(self.memory, self.dtype, self.device) ** 2 // self.shape[0])

    def _reduce(self, grid: Tensor, skip: int | None = None) -> Tensor:
        """B_i^T applied along every side with a root but ``skip``."""
        for side, B in self._roots.items():
            grid = grid if side == skip else arrays.multiply_side(B.T, side, grid)
        return grid

    def _multiply_factors(self, grid: Tensor, skip: int | None = None) -> Tensor:
        """K_i applied along every side without a root but ``skip``."""
        for side, K in self._factors.items():
            grid = grid if side == skip else arrays.multiply_side(K, side, grid)
        return grid

    def _fast_factor(self, side: int) -> KernelOperator | Tensor:
        """The factor of a side; as a matrix if that is small relative to a grid, because grids then need no copy."""
        factor, p = self.factors[side], self.sizes[side]
        if side == 0 or p**2 > math.prod(self.sizes):
            return factor
        return factor.block(torch.arange(p, device=self.device))

    def _worthwhile_rank(self, side: int) -> int:
        """The largest rank at which a root of a side saves time.

        With rank r a product takes r (2 p + q) instead of p (p + q) multiplications for every place along the other
        sides, whose sizes sum to q: three quarters of the break-even, and a third of a side that is longer than q.
        """
        p, q = self.sizes[side], sum(self.sizes) - self.sizes[side]
        return p // 3 if p > q else 3 * p * (p + q) // (4 * (2 * p + q))

    def _multiplications(self) -> int:
        """Multiplications of one product with one column."""
        shape, total = list(self.sizes), 0
        for side in self._roots:
            shape[side] = self.ranks[side]
            total += 2 * math.prod(shape) * self.sizes[side]
        return total + math.prod(shape) * sum(self.sizes[side] for side in self._factors)


def require_memory_only(compute: Compute | None) -> Compute:
    """Compute options for a grid; ValueError for a backend, a group or a precision, which only tables use."""
    compute = Compute.read(compute)
    for name in ("backend", "group", "precision"):
        if getattr(compute, name) != getattr(Compute, name):
            raise ValueError(f"a grid is computed from its factors, by one process: Compute({name}=...) is for tables")
    return compute
