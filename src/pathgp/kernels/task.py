"""A kernel over tasks: the intrinsic coregionalisation model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathgp.kernels.finite import Finite
from pathgp.kernels.parameters import Positive, PositiveValue, Values


class Task(Finite):
    """k(i, j) = (B B^T + diag(scale^2))_ij for task numbers i, j in 0..num_tasks-1.

    The intrinsic coregionalisation model is its product with a kernel on the other columns:
    ``Matern(active_dims=[0, 1]) * Task(3, active_dims=[2])``. Bonilla et al. (2007); thesis, section 6.3.1.

    By default every task has variance one, half of it shared through ``B``.

    Args:
        num_tasks: the number q of tasks.
        rank: the number of columns of B.
        factor: the (q, rank) start value of B; by default smooth columns that differ from each other.
        scale: standard deviation of the part of a task that no other shares, one number or one per task.
        active_dims: the one column that holds the task number; may be left out if the inputs have one column.
    """

    scale = PositiveValue("Standard deviations of the parts that no other task shares: (q,), float64.")

    def __init__(
        self,
        num_tasks: int,
        rank: int = 1,
        factor: Tensor | None = None,
        scale: Values = 0.5**0.5,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims)
        if num_tasks < 1 or rank < 1:
            raise ValueError(f"num_tasks and rank must be at least 1, got {num_tasks} and {rank}")
        if self.active_dims is not None and len(self.active_dims) != 1:
            raise ValueError(f"Task reads one column of task numbers, got active_dims={list(self.active_dims)}")
        start = _default_factor(num_tasks, rank) if factor is None else torch.as_tensor(factor)
        if start.shape != (num_tasks, rank):
            raise ValueError(f"factor must have shape {(num_tasks, rank)}, got {tuple(start.shape)}")
        self.num_tasks, self.rank = num_tasks, rank
        self.factor = nn.Parameter(start.detach().to(torch.float64, copy=True))
        scale = torch.as_tensor(scale, dtype=torch.float64)
        self._scale = Positive(scale.expand(num_tasks) if scale.ndim == 0 else scale, "scale")
        if self._scale.raw.shape != (num_tasks,):
            raise ValueError(f"scale must be one number or one per task ({num_tasks}), got {tuple(scale.shape)}")

    @property
    def covariance(self) -> Tensor:
        """The covariance of the tasks, B B^T + diag(scale^2): (q, q), float64."""
        return self.factor @ self.factor.T + torch.diag(self.scale.square())

    def start_from(self, covariance: Tensor) -> None:
        """Set learned parameters so that half of this covariance (q, q) is shared, and variances agree with it."""
        variances = covariance.diagonal().clamp_min(1e-6 * float(covariance.diagonal().mean()) or 1.0)
        values, vectors = torch.linalg.eigh(covariance)
        # The largest eigenvalues are last; there are at most q, and further columns of B stay as they are.
        count = min(self.rank, self.num_tasks)
        factor = vectors[:, -count:] * (0.5 * values[-count:].clamp_min(0.0)).sqrt()
        if self.factor.requires_grad:
            with torch.no_grad():
                self.factor[:, :count] = factor.to(self.factor)
        if self._scale.raw.requires_grad:
            shared = self.factor.detach().cpu().square().sum(1)
            self._scale.assign((variances - shared).maximum(0.05 * variances).sqrt())
            self._scale.project()

    def exact_features(self, X: Tensor) -> Tensor:
        """Row i of the Cholesky factor of the covariance: (n, q)."""
        root = torch.linalg.cholesky(self.covariance)
        return root.to(X)[self._ids(X, "X")]

    def num_exact_features(self, dim: int | None) -> int | None:
        return self.num_tasks

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.covariance.to(X)[self._ids(X, "X")][:, self._ids(Z, "Z")]

    def _diagonal(self, X: Tensor) -> Tensor:
        return self.covariance.diagonal().to(X)[self._ids(X, "X")]

    def _ids(self, X: Tensor, name: str) -> Tensor:
        if X.shape[1] != 1:
            raise ValueError(
                f"Task reads one column of task numbers, but {name} has {X.shape[1]}: name it in active_dims"
            )
        values = X[:, 0].detach()
        known = (values >= 0) & (values < self.num_tasks) & (values == values.round())
        if not bool(known.all()):
            row = int(torch.nonzero(~known)[0])
            raise ValueError(
                f"task numbers are 0..{self.num_tasks - 1}, but {name} has {float(values[row]):g} in row {row}"
            )
        return values.to(torch.int64)


def _default_factor(num_tasks: int, rank: int) -> Tensor:
    """Cosines of growing frequency and falling weight, every row of squared length 1/2.

    Not zero, which is a saddle of the likelihood, and no two columns alike, which would stay alike.
    """
    task = torch.arange(num_tasks, dtype=torch.float64).add_(0.5).unsqueeze(1)
    order = torch.arange(rank, dtype=torch.float64)
    columns = torch.cos(math.pi * order * task / num_tasks) / (1.0 + order)
    return columns * math.sqrt(0.5) / columns.norm(dim=1, keepdim=True)
