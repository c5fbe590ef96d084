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
from pathgp.solvers.base import Run

_MAX_RANK = {"cpu": 1000, "cuda": 2000}


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
        n = run.H.shape[0]
        largest = self.largest_rank(run.H)
        factor = torch.zeros(n, largest, dtype=torch.float64, device=run.H.device)
        left = variances.clone()
        enough = 0.0 if self.rank is not None else float(run.H.noise.mean())
        filled = 0
        while filled < largest and float(left.mean()) > max(enough, 1e-14 * float(variances.mean())):
            pivots = self._pivots(run, left, min(self._block, largest - filled))
            columns = _kernel_columns(run, pivots)
            columns -= factor[:, :filled] @ factor[pivots, :filled].T
            # Pivots that depend on each other up to rounding are dropped with the small eigenvalues.
            # On the CPU: the matrix is small, and a GPU takes longer to begin than the CPU to finish.
            values, vectors = (part.to(columns.device) for part in torch.linalg.eigh(columns[pivots].cpu()))
            keep = values > 1e-6 * float(values.max()) if len(pivots) > 1 else values > 0
            left[pivots] = 0.0
            if not bool(keep.any()):
                continue
            new = columns @ (vectors[:, keep] / values[keep].sqrt())
            factor[:, filled : filled + new.shape[1]] = new
            filled += new.shape[1]
            left = torch.clamp(left - new.square().sum(1), min=0.0)
            left[pivots] = 0.0
        return factor[:, :filled].clone(), left

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
        possible = int((left > 0).sum())
        weights = left.to(run.generator.device)
        return torch.multinomial(weights, min(num, possible), generator=run.generator).to(left.device)


def automatic_rank(H: Operator) -> int:
    """The largest rank chosen without being asked: n / 8, at most 1000 on a CPU and 2000 on a GPU.

    Beyond it building the factor costs more than it saves. The factor, a copy while it is cut to size and
    its scaled form must fit into half of the operator's memory budget.
    """
    n = H.shape[0]
    fits = H.memory // (2 * 3 * 8 * n)
    return max(1, min(max(n // 8, 16), _MAX_RANK.get(H.device.type, 1000), fits, n))


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


def automatic(H: Operator) -> Preconditioner:
    """What "auto" means: the exact inverse on a complete grid, otherwise a randomly pivoted Cholesky factor.

    With a tenth of the cells missing the inverse on the whole grid takes 440 epochs where the low-rank factor takes 19
    (500 x 52 cells, squared exponential times periodic, noise 0.1 of the signal), with half missing 710 and 15.
    """
    complete = isinstance(H, LatentKroneckerOperator) and H.shape[0] == math.prod(H.sizes) and H.noise.ndim == 0
    return GridInverse() if complete else RandomlyPivotedCholesky()
