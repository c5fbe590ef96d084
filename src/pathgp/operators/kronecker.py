"""H = P (K_1 x K_2 x ... x K_k) P^T + Sigma: a grid with holes, through matrices of the size of its sides.

P picks the n observed cells out of the p_1 p_2 ... p_k cells of the grid. A product scatters a vector to the grid with
zeros in the holes, multiplies by one factor after the other, and gathers the observed cells. That is exact, whatever
is missing. Thesis, chapter 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, reduce

import torch
from torch import Tensor

from pathgp.compute.memory import spans, tile_edge
from pathgp.compute.random import neighbourhoods
from pathgp.compute.settings import Compute
from pathgp.kernels import Kernel
from pathgp.operators.base import Operator
from pathgp.operators.kernel import KernelOperator, checked_noise
from pathgp.operators.low_rank import partial_cholesky, random_pivots

# Sides below this size are not worth a root.
_SMALLEST = 32
# Columns of a factor that exist at once while its root is looked for.
_PIVOTS = 128


class LatentKroneckerOperator(Operator):
    """A Kronecker product of kernel matrices at the observed cells of a grid, plus noise.

    With p = p_1 ... p_k cells a product with s columns takes 2 s p (p_1 + ... + p_k) operations and the memory of the
    factors and of a few grids; a factor beyond the memory budget is evaluated anew at every product. Rows cost as much
    as those of a dense matrix.

    Smooth kernels make factors of low rank. Where K_i = B_i B_i^T up to rounding with B_i (p_i, r_i), r_i so small that
    it pays (``roots``), a product goes through B_i^T and B_i, and the other factors see r_i entries of that side only.

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
        self.factors = [KernelOperator(k, F, 0.0, Compute(memory=share)) for k, F in pairs]
        self.roots = [_root(k, F.detach(), self._worth(i), share) for i, (k, F) in enumerate(pairs)]
        self._narrow = [None if B is None else B.to(self.dtype) for B in self.roots]
        self._whole = [None if B is not None else self._ready(i) for i, B in enumerate(self.roots)]
        # The strongest reduction first, so that what follows sees the least.
        reduced = [i for i, B in enumerate(self.roots) if B is not None]
        self._order = sorted(reduced, key=lambda i: self.ranks[i] / self.sizes[i])
        self.entries = self._multiplications()
        # Where every observed cell lies along each side.
        self._places = unravelled(self.cells, self.sizes)

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
        variances = (factor.diagonal()[place] for factor, place in zip(self.factors, self._places, strict=True))
        return reduce(torch.mul, variances) + self.noise.to(self.dtype)

    def bilinear(self, L: Tensor, R: Tensor, symmetric: bool = False) -> Tensor:
        """sum_j L_j^T H R_j, with gradients through matrices of the size of the factors only, symmetric or not.

        With l and r scattered to the grid and unfolded along side i, G_i = sum_j l_j (x_{m != i} K_m) r_j^T has the
        size of factor i, and the derivative in its parameters is that of sum(G_i * K_i).
        """
        self._check(L, self.shape[0], "L")
        self._check(R, self.shape[0], "R")
        L, R = L.detach(), R.detach()
        terms = [self._form(L, R, i) for i in range(len(self.sizes))]
        noise = (self._deviation.square() * (L * R).sum(1).to(torch.float64)).sum()
        # Every factor contributes the value once; the gradients add up as they should.
        return noise + torch.stack(terms).sum() - (len(terms) - 1) * terms[0].detach()

    def _form(self, L: Tensor, R: Tensor, side: int) -> Tensor:
        """sum_j L_j^T K R_j, differentiable in the parameters of one factor; streamed where G is beyond the budget."""
        p, factor = self.sizes[side], self.factors[side]
        fits = 16 * p**2 <= self._share
        G = torch.zeros(p if fits else 0, p, dtype=torch.float64, device=self.device)
        total = torch.zeros((), dtype=self.dtype, device=self.device)
        # With K_m = B_m B_m^T both sides see B_m^T; any other factor is multiplied on one of them.
        narrow = [None if m == side or B is None else B.T for m, B in enumerate(self._narrow)]
        whole = [None if m == side else K for m, K in enumerate(self._whole)]
        for part in spans(L.shape[1], self.columns_at_once()):
            one = _turned(self._along(narrow, self.scatter(L[:, part])), side)
            other = _turned(along_sides(whole, self._along(narrow, self.scatter(R[:, part]))), side)
            if fits:
                G += one.to(torch.float64) @ other.to(torch.float64).T
            else:
                total = total + factor.bilinear(one, other)
        return factor.weighted_sum(G.to(self.dtype)) if fits else total

    def features(self, num: int, generator: torch.Generator | None = None, draws: int | None = None) -> Tensor:
        raise NotImplementedError("a grid with holes has no random features for primal SGD: use CG")

    def partition(self, parts: int, generator: torch.Generator, near: bool = False) -> tuple[Tensor, ...]:
        if not near:
            return super().partition(parts, generator)
        sides = [factor.coordinates[place] for factor, place in zip(self.factors, self._places, strict=True)]
        return neighbourhoods(torch.cat(sides, 1), parts, generator)

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

    @property
    def ranks(self) -> tuple[int, ...]:
        """Columns of the factors' roots, r_i where there is one and p_i elsewhere."""
        return tuple(p if B is None else B.shape[1] for p, B in zip(self.sizes, self.roots, strict=True))

    def multiply(self, grid: Tensor) -> Tensor:
        """(K_1 x ... x K_k) applied to a grid (p_1, ..., p_k, s)."""
        grid = self._along([None if B is None else B.T for B in self._narrow], grid)
        return self._along(self._narrow, along_sides(self._whole, grid), backwards=True)

    def unfolded(self, side: int) -> tuple[Tensor, int]:
        """Where every observed cell lies (n,) when the cells are counted with one side last, and the number of places
        along all other sides."""
        others = [m for m in range(len(self.sizes)) if m != side]
        place = torch.zeros_like(self.cells)
        for m in [*others, side]:
            place = place * self.sizes[m] + self._places[m]
        return place, math.prod(self.sizes[m] for m in others)

    def without(self, side: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The diagonal (p',) of the product of all other factors, and a function that gives its columns (p', index);
        float64."""
        others = [m for m in range(len(self.sizes)) if m != side]
        sizes = [self.sizes[m] for m in others]
        cells = torch.arange(math.prod(sizes), device=self.device)
        places = unravelled(cells, sizes)
        pairs = [(self.factors[m], place) for m, place in zip(others, places, strict=True)]

        def columns(index: Tensor) -> Tensor:
            parts = (factor.between(place, place[index]).to(torch.float64) for factor, place in pairs)
            return reduce(torch.Tensor.mul_, parts)

        variances = (factor.diagonal()[place].to(torch.float64) for factor, place in pairs)
        return reduce(torch.mul, variances), columns

    @cached_property
    def basis(self) -> list[tuple[Tensor, Tensor]]:
        """Eigenvalues (r_i,), none negative, and eigenvectors (p_i, r_i) of every factor, in float64."""
        found = []
        for factor, B in zip(self.factors, self.roots, strict=True):
            if B is not None:
                # Columns of a root are eigenvectors already.
                values = B.square().sum(0)
                found.append((values, B / values.sqrt()))
                continue
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

    def columns_at_once(self) -> int:
        """Columns whose grids, with a few temporaries, fit into half of the budget."""
        return max(1, self.memory // (2 * 4 * 8 * math.prod(self.sizes)))

    def _rows_at_once(self) -> int:
        return max(1, tile_edge(self.memory, self.dtype, self.device) ** 2 // self.shape[0])

    def _along(self, matrices: Sequence[Tensor | None], grid: Tensor, backwards: bool = False) -> Tensor:
        """Narrow matrices applied along their sides, the strongest reduction first (``backwards``: last)."""
        for i in reversed(self._order) if backwards else self._order:
            grid = along_side(matrices[i], i, grid)
        return grid

    def _ready(self, side: int) -> KernelOperator | Tensor:
        """The factor of a side; its matrix where that is small beside a grid, so that no grid is turned for it."""
        factor, p = self.factors[side], self.sizes[side]
        if side == 0 or p**2 > math.prod(self.sizes):
            return factor
        everything = torch.arange(p, device=self.device)
        return factor.block(everything)

    def _worth(self, side: int) -> int:
        """Columns up to which a root of a side pays.

        With r of them a product takes r (2 p + q) in place of p (p + q) multiplications for every place along the other
        sides, whose sizes add up to q: three quarters of the break-even, and a third of a side that is longer than q.
        """
        p, q = self.sizes[side], sum(self.sizes) - self.sizes[side]
        return p // 3 if p > q else 3 * p * (p + q) // (4 * (2 * p + q))

    def _multiplications(self) -> int:
        """Of one product with one column."""
        shape, total = list(self.sizes), 0
        for i in self._order:
            shape[i] = self.ranks[i]
            total += 2 * math.prod(shape) * self.sizes[i]
        return total + math.prod(shape) * sum(p for p, B in zip(self.sizes, self.roots, strict=True) if B is None)


def require_memory_only(compute: Compute | None) -> Compute:
    """Compute options for a grid; ValueError for a backend, a group or a precision, which only tables use."""
    compute = Compute.read(compute)
    for name in ("backend", "group", "precision"):
        if getattr(compute, name) != getattr(Compute, name):
            raise ValueError(f"a grid is computed from its factors, by one process: Compute({name}=...) is for tables")
    return compute


def _root(kernel: Kernel, F: Tensor, most: int, memory: int) -> Tensor | None:
    """B (p, r) in float64 with K = B B^T up to rounding in the dtype of F, or None where r exceeds ``most``.

    No entry of K - B B^T is larger than the rounding of the largest variance, and the matrix no larger than one of
    rounding errors, whose norm grows as sqrt(p). Time O(p r^2); always the same pivots.
    """
    p, X = len(F), F.to(torch.float64)
    if p < _SMALLEST:
        return None
    with torch.no_grad():
        variances = kernel.diag(X)
        # Rounding in float64 makes a full rank of sqrt(p) eps.
        rounding = max(torch.finfo(F.dtype).eps, 8.0 * math.sqrt(p) * torch.finfo(torch.float64).eps)
        limit = rounding * float(variances.max())
        for columns in (most // 4, most):
            # A spectrum that is gone after so many values has lost most of itself after a quarter of them.
            choose = random_pivots(torch.Generator().manual_seed(0), _PIVOTS)
            largest = min(max(columns + 1, min(p, _PIVOTS)), max(1, memory // (3 * 8 * p)))
            enough = limit / math.sqrt(p)
            B, left = partial_cholesky(lambda index: kernel(X, X[index]), variances, largest, choose, enough, limit)
            if float(left.max()) <= limit:
                break
            if float(left.mean()) > 0.1 * float(variances.mean()):
                return None
        else:
            return None
    # Pivots give a few columns more than needed: those of B B^T's eigenvectors are the fewest.
    values, vectors = torch.linalg.eigh(B.T @ B)
    keep = values > limit
    return B @ vectors[:, keep] if int(keep.sum()) <= most else None


def _turned(grid: Tensor, side: int) -> Tensor:
    """A grid unfolded along one side: (p_side, everything else)."""
    return grid.movedim(side, 0).reshape(grid.shape[side], -1)


def unravelled(cells: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Where cells lie along every side, from their numbers (torch.unravel_index takes seconds for its first answer)."""
    places = []
    for p in reversed(sizes):
        places.append(cells % p)
        cells = cells // p
    return places[::-1]


def scattered(V: Tensor, cells: Tensor, sizes: Sequence[int]) -> Tensor:
    """V (n, s) at the n cells of a grid with these numbers, zero elsewhere: (p_1, ..., p_k, s)."""
    grid = V.new_zeros(math.prod(sizes), V.shape[1])
    return grid.index_copy_(0, cells, V).view(*sizes, V.shape[1])


def along_sides(matrices: Sequence[KernelOperator | Tensor | None], grid: Tensor) -> Tensor:
    """A matrix (m_i, p_i), or nothing, applied along every side of a grid (p_1, ..., p_k, s): (m_1, ..., m_k, s).

    Tensors are multiplied where they stand, one product for each place along the sides before; nothing is copied.
    """
    for i, matrix in enumerate(matrices):
        if matrix is None:
            continue
        shape = grid.shape
        if isinstance(matrix, Tensor):
            before, after = math.prod(shape[:i]), math.prod(shape[i + 1 :])
            parts = grid.reshape(before, shape[i], after)
            grid = torch.bmm(matrix.expand(before, *matrix.shape), parts)
        else:
            unfolded = grid.movedim(i, 0)
            product = matrix @ unfolded.reshape(shape[i], math.prod(shape) // shape[i])
            grid = product.view(matrix.shape[0], *unfolded.shape[1:]).movedim(0, i)
        grid = grid.reshape(*shape[:i], matrix.shape[0], *shape[i + 1 :])
    return grid


def along_side(matrix: Tensor | None, side: int, grid: Tensor) -> Tensor:
    """The same along one side."""
    return along_sides([matrix if m == side else None for m in range(grid.ndim - 1)], grid)
