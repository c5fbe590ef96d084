"""The periodic kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pathgp.kernels.base import Kernel
from pathgp.kernels.distance import squared_distance
from pathgp.kernels.parameters import Positive, PositiveValue, Values
from pathgp.kernels.stationary import bounded_


class Periodic(Kernel):
    """k(x, z) = exp(-2 sum_k sin^2(pi (x_k - z_k) / period_k) / lengthscale_k^2).

    A product over dimensions; with the norm inside the sine, as often written, it is not positive
    semi-definite in two dimensions or more. It is the squared exponential kernel at the embedded points
    u(x) = (cos t_k, sin t_k) / lengthscale_k, t_k = 2 pi x_k / period_k. Thesis, section 2.1.3; MacKay (1998).

    Args:
        period: the period, one number or a tensor with one per dimension.
        lengthscale: one number, or a tensor or list with one length scale per dimension.
        active_dims: the columns the kernel sees; all by default.
    """

    lengthscale = PositiveValue("The length scales: a scalar, or (d,), float64.")
    period = PositiveValue("The periods: a scalar, or (d,), float64.")

    def __init__(
        self, period: Values = 1.0, lengthscale: Values = 1.0, active_dims: Sequence[int] | None = None
    ) -> None:
        super().__init__(active_dims)
        self._period = Positive(period, "period")
        self._lengthscale = Positive(lengthscale, "lengthscale")

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        points = self.embed(X)
        # Embedded points are scaled already.
        sq = squared_distance(points, points if Z is X else self.embed(Z), points.new_ones(()), X.dtype)
        return bounded_((sq.fill_diagonal_(0.0) if Z is X else sq).mul_(-0.5)).exp_()

    def _diagonal(self, X: Tensor) -> Tensor:
        return torch.ones_like(X[:, 0])

    def _coordinates(self, X: Tensor) -> Tensor:
        return self.embed(X)

    def embed(self, X: Tensor) -> Tensor:
        """u(x) at the columns that the kernel sees: (n, 2 d), float64."""
        period = self._period.matching(X.shape[1], X.device)
        lengthscale = self._lengthscale.matching(X.shape[1], X.device)
        phase = X.to(torch.float64) * (2.0 * math.pi / period)
        return torch.cat([phase.cos() / lengthscale, phase.sin() / lengthscale], 1)
