"""Low-rank preconditioners P = F F^T + Sigma with K ~ F F^T from a partial Cholesky factorisation of K.

Everything here is float64: in float32 the Woodbury identity loses all digits if the noise is small. Preconditioners
that exploit the structure of a grid are in `pathgp.operators`: an operator chooses its own.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.hardware import Rates
from pathgp.operators import Operator, Preconditioner
from pathgp.operators.base import Solve, SolveInProgress
from pathgp.operators.low_rank import automatic_rank, partial_cholesky, random_pivots

# Rates of operations with matrices of many rows and few columns, relative to those of large square ones: of the
# factorisation, and of its products with vectors. Measured on a CPU with ranks of 128 to 1,000.
_FACTOR_RATE, _APPLICATION_RATE = 0.25, 0.5


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
        # Transposed: on a CPU, products with 8 to 16 rows take half of the time of products with as many columns.
        U = torch.addmm(U.T, U.T @ self._W, self._W.T, alpha=-1.0).T
        return torch.empty_like(R).copy_(U / self._root)


@dataclass(frozen=True)
class PartialCholesky(Preconditioner):
    """P = F F^T + Sigma with F (n, rank) from columns of K; ``rank=None`` chooses the rank.

    The automatic rank grows until the mean variance left of K is below the noise, or to `automatic_rank`.
    """

    rank: int | None = None

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")

    def cost(self, H: Operator) -> float:
        return H.cost(self._largest_rank(H))

    def build(self, run: SolveInProgress) -> tuple[Solve, str]:
        noise = run.H.noise
        variances = run.H.diagonal().to(torch.float64) - noise
        factor, left = self.factorise(run, variances)
        # Zero noise makes P singular: use the mean variance that the factor leaves of K.
        floor = torch.clamp(left.mean(), min=1e-12 * float(variances.max()))
        share = float(left.sum() / variances.sum())
        note = f"{type(self).__name__} of rank {factor.shape[1]}, {share:.1e} of the trace left"
        return LowRankInverse(factor, torch.where(noise > 0, noise, floor)), note

    def predict_seconds(self, H: Operator, s: int, epochs: float, product: float, rates: Rates) -> float:
        """Columns of K and their factorisation, in blocks; per epoch two products with the factor, which read it."""
        n, k = H.shape[0], self._largest_rank(H)
        build = n * k / rates.evaluation(H.entry_backend) + 4 * n * k**2 / (_FACTOR_RATE * rates.multiply64)
        build += math.ceil(k / pivots_per_round(H.device)) * rates.latency
        application = max(4 * n * k * s / (_APPLICATION_RATE * rates.multiply64), 16 * n * k / rates.read)
        return build + epochs * (product + application + rates.latency / 4)

    def factorise(self, run: SolveInProgress, variances: Tensor) -> tuple[Tensor, Tensor]:
        """F (n, k) with F F^T ~ K, and the variances (n,) that it leaves of the diagonal of K."""
        # At least one round: with much noise too, a few columns explain the largest eigenvalues.
        enough = 0.0 if self.rank is not None else min(float(run.H.noise.mean()), 0.999 * float(variances.mean()))
        return partial_cholesky(
            lambda pivots: _kernel_columns(run, pivots),
            variances,
            self._largest_rank(run.H),
            lambda left, most: self._pivots(run.generator, left, most),
            enough,
            rounding=torch.finfo(run.H.dtype).eps,
        )

    def _largest_rank(self, H: Operator) -> int:
        return min(H.shape[0], automatic_rank(H) if self.rank is None else self.rank)

    @abstractmethod
    def _pivots(self, generator: torch.Generator, left: Tensor, most: int) -> Tensor:
        """The next columns of K, at most ``most`` of them, given the variances left (n,)."""


@dataclass(frozen=True)
class PivotedCholesky(PartialCholesky):
    """Greedy pivots: always the point with the largest variance left (Harbrecht et al. 2012)."""

    def _pivots(self, generator: torch.Generator, left: Tensor, most: int) -> Tensor:
        return left.argmax().reshape(1)


@dataclass(frozen=True)
class RandomlyPivotedCholesky(PartialCholesky):
    """Pivots drawn in blocks with probability proportional to the variance left (Chen et al. 2023).

    Blocks turn the work into matrix products; random pivots avoid the outliers that greedy ones select.
    """

    def _pivots(self, generator: torch.Generator, left: Tensor, most: int) -> Tensor:
        return random_pivots(generator, pivots_per_round(left.device))(left, most)


def pivots_per_round(device: torch.device) -> int:
    """Columns of K per round. On an H200, 100 steps of a fit took 3.4 s with 128 (elevators), 2.8 s with 512."""
    return 512 if device.type == "cuda" else 128


def _kernel_columns(run: SolveInProgress, pivots: Tensor) -> Tensor:
    """K[:, pivots] in float64, without the noise."""
    identity = torch.eye(len(pivots), dtype=run.H.dtype, device=run.H.device)
    columns = run.columns(pivots, identity).to(torch.float64)
    noise = run.H.noise[pivots] if run.H.noise.ndim else run.H.noise
    columns[pivots, torch.arange(len(pivots), device=pivots.device)] -= noise
    return columns
