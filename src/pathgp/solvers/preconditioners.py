"""Low-rank preconditioners P = F F^T + Sigma with K ~ F F^T from a partial Cholesky factorisation of K.

Everything here is float64: in float32 the Woodbury identity cancels to nothing when the noise is small.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.operators import Operator
from pathgp.operators.low_rank import partial_cholesky, random_pivots
from pathgp.solvers.base import Run

MAX_RANK = {"cpu": 1000, "cuda": 2000}


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

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")

    def largest_rank(self, H: Operator) -> int:
        return min(H.shape[0], automatic_rank(H) if self.rank is None else self.rank)

    def cost(self, H: Operator) -> float:
        """The most epochs that ``build`` can take."""
        return H.cost(self.largest_rank(H))

    def apply_cost(self, H: Operator) -> float:
        """Epochs of one application, where it counts beside a product."""
        return 0.0

    def build(self, run: Run) -> tuple[Callable[[Tensor], Tensor], str]:
        """The preconditioner of ``run.H`` and a note on it; columns of K are counted as epochs."""
        noise = run.H.noise
        variances = run.H.diagonal().to(torch.float64) - noise
        factor, left = self.factorise(run, variances)
        # Without noise there is nothing to stand on: take what the factor leaves of K instead.
        floor = torch.clamp(left.mean(), min=1e-12 * float(variances.max()))
        inverse = LowRankInverse(factor, torch.where(noise > 0, noise, floor))
        name = type(self).__name__
        share = float(left.sum() / variances.sum())
        return inverse, f"{name} of rank {factor.shape[1]}, {share:.1e} of the trace left"

    def factorise(self, run: Run, variances: Tensor) -> tuple[Tensor, Tensor]:
        """F (n, k) with F F^T ~ K, and what is left of the variances (n,)."""
        enough = 0.0 if self.rank is not None else float(run.H.noise.mean())
        return partial_cholesky(
            lambda pivots: _kernel_columns(run, pivots),
            variances,
            self.largest_rank(run.H),
            lambda left, most: self._pivots(run, left, most),
            enough,
            rounding=torch.finfo(run.H.dtype).eps,
        )

    @abstractmethod
    def _pivots(self, run: Run, left: Tensor, most: int) -> Tensor:
        """Which columns of K to take next, ``most`` of them at most, given the variances not yet explained."""


@dataclass(frozen=True)
class PivotedCholesky(Preconditioner):
    """Greedy pivots: always the point with the largest variance left (Harbrecht et al. 2012)."""

    def _pivots(self, run: Run, left: Tensor, most: int) -> Tensor:
        return left.argmax().reshape(1)


@dataclass(frozen=True)
class RandomlyPivotedCholesky(Preconditioner):
    """Pivots drawn in blocks with probability proportional to the variance left (Chen et al. 2023).

    Blocks turn the work into matrix products; the draw avoids the outliers that the greedy choice chases.
    """

    def _pivots(self, run: Run, left: Tensor, most: int) -> Tensor:
        return random_pivots(run.generator, pivots_at_once(left.device))(left, most)


def pivots_at_once(device: torch.device) -> int:
    """Columns of K drawn in a round. On an H200 100 steps of a fit took 3.4 s with 128 (elevators), 2.8 s with 512."""
    return 512 if device.type == "cuda" else 128


def automatic_rank(H: Operator) -> int:
    """The largest rank chosen without being asked: n / 8, at most 1000 on a CPU and 2000 on a GPU.

    Beyond it building the factor costs more than it saves. On a grid the rank is no larger than the multiplications of
    a product per observed cell, so that an application costs a few products at most. The factor, a copy while it is cut
    to size and its scaled form must fit into half of the operator's memory budget.
    """
    n = H.shape[0]
    fits, balanced = H.memory // (2 * 3 * 8 * n), max(H.entries // n, 16)
    return max(1, min(max(n // 8, 16), MAX_RANK.get(H.device.type, 1000), fits, balanced, n))


def _kernel_columns(run: Run, pivots: Tensor) -> Tensor:
    """K[:, pivots] in float64, noise removed."""
    identity = torch.eye(len(pivots), dtype=run.H.dtype, device=run.H.device)
    columns = run.columns(pivots, identity).to(torch.float64)
    noise = run.H.noise[pivots] if run.H.noise.ndim else run.H.noise
    columns[pivots, torch.arange(len(pivots), device=pivots.device)] -= noise
    return columns
