"""The squared exponential kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.kernels.stationary import Stationary, bounded_


class SquaredExponential(Stationary):
    """k(x, z) = exp(-r^2 / 2), r = |(x - z) / lengthscale|.

    Sample paths are infinitely differentiable. Thesis, section 2.1.3.

    Args:
        lengthscale: one number, or a tensor with one length scale per dimension.
        active_dims: the columns the kernel sees; all by default.
    """

    def profile(self, sq: Tensor, *shape: Tensor) -> Tensor:
        return bounded_(sq.mul_(-0.5)).exp_()

    def slope(self, sq: Tensor, *shape: Tensor) -> Tensor:
        return -0.5 * bounded_(-0.5 * sq).exp()

    def contracted(self, sq: Tensor, W: Tensor, *shape: Tensor) -> tuple[Tensor, Tensor]:
        """Slope and profile differ by a factor only."""
        weighted = self.profile(sq).mul_(W)
        return weighted.sum(), weighted.mul_(-0.5)

    def mixing(self, uniform: Tensor) -> Tensor:
        """One: the frequencies are normal."""
        return torch.ones_like(uniform)
