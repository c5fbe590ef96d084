"""H = P (K_1 x K_2 x ... x K_k) P^T + Sigma: a grid with holes, through matrices of the size of its sides.

P picks the n observed cells out of the p_1 p_2 ... p_k cells of the grid. A product scatters a vector to the grid with
zeros in the holes, multiplies by one factor after the other, and gathers the observed cells. That is exact, whatever
is missing. Thesis, chapter 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, reduce

import torch
from torch import Tensor

from pathgp.kernels import Kernel
from pathgp.operators.base import Operator
from pathgp.operators.kernel import KernelOperator, checked_noise
from pathgp.operators.memory import memory_budget, spans, tile_edge


class LatentKroneckerOperator(Operator):
    """A Kronecker product of kernel matrices at the observed cells of a grid, plus noise.

    With p = p_1 ... p_k cells a product with s columns takes 2 s p (p_1 + ... + p_k) operations and the memory of the
    factors and of a few grids; a factor beyond the memory budget is evaluated anew at every product. Rows cost as much
    as those of a dense matrix.

    Args:
        kernels: k covariance functions, one per side of the grid.
        factors: their inputs, (p_i, d_i) each, of one dtype on one device.
        observed: boolean grid (p_1, ..., p_k), True where there is an observation; cells are counted row by row.
        noise: standard deviation of the noise, a number or one per observed cell.
        memory: budget in bytes for factors and grids; by default half of what is free.
    """

    backend = "kronecker"

    def __init__(
        self,
        kernels: Sequence[Kernel],
        factors: Sequence[Tensor],
        observed: Tensor,
        noise: float | Tensor = 0.1,
        memory: int | None = None,
    ) -> None:
        if not kernels or len(kernels) != len(factors):
            raise ValueError(f"{len(kernels)} kernels and {len(factors)} factors: one kernel per side of the grid")
        factors = [F if F.is_floating_point() else F.to(torch.float64) for F in factors]
        if len({(F.dtype, F.device) for F in factors}) > 1:
            raise TypeError("factors must have one dtype on one device")
        self.sizes = tuple(len(F) for F in factors)
        if tuple(observed.shape) != self.sizes or observed.dtype != torch.bool:
            raise ValueError(f"observed must be a boolean grid of shape {self.sizes}, got {tuple(observed.shape)}")
        self.device, self.dtype = factors[0].device, factors[0].dtype
        self.memory = memory_budget(memory, self.device)
        self.cells = observed.to(self.device).flatten().nonzero().flatten()
        n = len(self.cells)
        if n == 0:
            raise ValueError("no cell of the grid is observed")
        self.shape = (n, n)
        self.entries = math.prod(self.sizes) * sum(self.sizes)
        self._deviation = checked_noise(noise, n, self.device)
        self.noise = self._deviation.detach().square()
        share = self.memory // (2 * len(self.sizes))
        pairs = zip(kernels, factors, strict=True)
        self.factors = [KernelOperator(k, F, 0.0, memory=share) for k, F in pairs]
        # Where every observed cell lies along each side.
        self._places = torch.unravel_index(self.cells, self.sizes)

    def __matmul__(self, V: Tensor) -> Tensor:
        self._check(V, self.shape[0], "V")
        result = self._weighted_noise(V)
        for part in spans(V.shape[1], self._columns_at_once()):
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
        variances = (factor.diagonal()[place] for factor, place in zip(self.factors, self._places, strict=True))
        return reduce(torch.mul, variances) + self.noise.to(self.dtype)

    def bilinear(self, L: Tensor, R: Tensor) -> Tensor:
        """sum_j L_j^T H R_j, with gradients through matrices of the size of the factors only.

        With l and r scattered to the grid and unfolded along side i, G_i = sum_j l_j (x_{m != i} K_m) r_j^T has the
        size of factor i, and the derivative in its parameters is that of sum(G_i * K_i).
        """
        self._check(L, self.shape[0], "L")
        self._check(R, self.shape[0], "R")
        L, R = L.detach(), R.detach()
        k, step = len(self.sizes), self._columns_at_once()
        G = [torch.zeros(p, p, dtype=torch.float64, device=self.device) for p in self.sizes]
        with torch.no_grad():
            for part in spans(L.shape[1], step):
                left, right = self.scatter(L[:, part]), self.scatter(R[:, part])
                for i in range(k):
                    # Side i comes first after as many turns, and every other factor has been multiplied.
                    others = self._turned(self.multiply(right, leave_out=i), i)
                    G[i] += self._turned(left, i).to(torch.float64) @ others.T.to(torch.float64)
        noise = (self._deviation.square() * (L * R).sum(1).to(torch.float64)).sum()
        terms = [factor.weighted_sum(W.to(self.dtype)) for factor, W in zip(self.factors, G, strict=True)]
        # Every factor contributes the value once; the gradients add up as they should.
        return noise + torch.stack(terms).sum() - (k - 1) * terms[0].detach()

    def features(self, num: int, generator: torch.Generator | None = None, draws: int | None = None) -> Tensor:
        raise NotImplementedError("a grid with holes has no random features for primal SGD: use CG")

    def cost(self, rows: int | None = None) -> float:
        return 1.0 if rows is None else min(1.0, rows * self.shape[0] / self.entries)

    def __repr__(self) -> str:
        grid = " x ".join(map(str, self.sizes))
        return f"LatentKroneckerOperator(n={self.shape[0]} of {grid}, {self.dtype}, {self.device})"

    def scatter(self, V: Tensor) -> Tensor:
        """P^T V: (p_1, ..., p_k, s), zero in the holes."""
        return scattered(V, self.cells, self.sizes)

    def gather(self, grid: Tensor) -> Tensor:
        """P applied to a grid (p_1, ..., p_k, s): (n, s)."""
        return grid.reshape(-1, grid.shape[-1])[self.cells]

    def multiply(self, grid: Tensor, leave_out: int | None = None) -> Tensor:
        """(K_1 x ... x K_k) applied to a grid (p_1, ..., p_k, s), or all but one of the factors."""
        matrices = [None if i == leave_out else factor for i, factor in enumerate(self.factors)]
        return along_sides(matrices, grid)

    @cached_property
    def eigen(self) -> list[tuple[Tensor, Tensor]]:
        """Eigenvalues (p_i,), none negative, and eigenvectors (p_i, p_i) of every factor, in float64."""
        found = []
        for factor in self.factors:
            everything = torch.arange(factor.shape[0], device=self.device)
            values, vectors = torch.linalg.eigh(factor.block(everything).to(torch.float64))
            found.append((values.clamp_min(0.0), vectors))
        return found

    def _between(self, index: Tensor, other: Tensor | None = None) -> Tensor:
        """K[index, other], by default against all cells, from the factors' entries."""
        parts = []
        for factor, place in zip(self.factors, self._places, strict=True):
            parts.append(factor.between(place[index], place if other is None else place[other]))
        return reduce(torch.Tensor.mul_, parts)

    def _columns_at_once(self) -> int:
        """Columns whose grids, with a few temporaries, fit into half of the budget."""
        return max(1, self.memory // (2 * 4 * 8 * math.prod(self.sizes)))

    def _rows_at_once(self) -> int:
        return max(1, tile_edge(self.memory, self.dtype, self.device) ** 2 // self.shape[0])

    @staticmethod
    def _turned(grid: Tensor, side: int) -> Tensor:
        """A grid unfolded along one side: (p_side, everything else)."""
        return grid.movedim(side, 0).reshape(grid.shape[side], -1)


def scattered(V: Tensor, cells: Tensor, sizes: Sequence[int]) -> Tensor:
    """V (n, s) at the n cells of a grid with these numbers, zero elsewhere: (p_1, ..., p_k, s)."""
    grid = V.new_zeros(math.prod(sizes), V.shape[1])
    return grid.index_copy_(0, cells, V).view(*sizes, V.shape[1])


def along_sides(matrices: Sequence[KernelOperator | Tensor | None], grid: Tensor) -> Tensor:
    """A matrix (m_i, p_i), or nothing, applied along every side of a grid (p_1, ..., p_k, s): (m_1, ..., m_k, s)."""
    shape = list(grid.shape)
    for i, matrix in enumerate(matrices):
        if matrix is None:
            continue
        unfolded = grid.movedim(i, 0)
        rest = unfolded.shape[1:]
        grid = (matrix @ unfolded.reshape(shape[i], -1)).view(matrix.shape[0], *rest).movedim(0, i)
    return grid
