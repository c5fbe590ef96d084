"""The Matern family."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from scipy.special import gammaincinv
from torch import Tensor

from pathgp.kernels.bessel import scaled_bessel
from pathgp.kernels.parameters import Values
from pathgp.kernels.stationary import Stationary, bounded_


class Matern(Stationary):
    """k(x, z) = 2^(1-nu)/Gamma(nu) a^nu K_nu(a), a = sqrt(2 nu) r, r = |(x - z) / lengthscale|.

    nu = 1/2: exp(-a).    nu = 3/2: (1 + a) exp(-a).    nu = 5/2: (1 + a + a^2/3) exp(-a).
    Sample paths are ceil(nu) - 1 times differentiable. For any other nu SciPy evaluates the Bessel function K_nu
    on the CPU, about forty times slower. `LearnedMatern` learns nu. Thesis, section 2.1.3.

    Args:
        nu: the smoothness, in (0, 50].
        lengthscale: one number, or a tensor or list with one length scale per dimension.
        active_dims: the columns the kernel sees; all by default.
    """

    def __init__(self, nu: float = 1.5, lengthscale: Values = 1.0, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(lengthscale, active_dims)
        self.nu = float(nu)
        if not 0 < self.nu <= 50:
            raise ValueError(f"nu must lie in (0, 50], got {nu}; SquaredExponential is the limit nu -> inf")
        self._log_factor = (1.0 - self.nu) * math.log(2.0) - math.lgamma(self.nu)

    def profile(self, sq: Tensor, *shape: Tensor) -> Tensor:
        if self.nu not in (0.5, 1.5, 2.5):
            value = scaled_bessel(sq.mul_(2.0 * self.nu), self.nu, self._log_factor)
            # Where 1 - k is less than the rounding of 1, the logarithms of a Bessel function would be off by 1e-14.
            return value.masked_fill_(sq <= 1e-18 ** (1.0 / self.smoothness), 1.0)
        # a is kept negated: its exponential is then one pass over the tile, and needs no copy.
        minus_a = bounded_(sq.sqrt_().mul_(-math.sqrt(2.0 * self.nu)))
        if self.nu == 0.5:
            return minus_a.exp_()
        decay = minus_a.exp()
        if self.nu == 1.5:
            return torch.addcmul(decay, minus_a, decay, value=-1.0, out=minus_a)
        return minus_a.square().div_(3.0).sub_(minus_a).add_(1.0).mul_(decay)

    def slope(self, sq: Tensor, *shape: Tensor) -> Tensor:
        if self.nu not in (0.5, 1.5, 2.5):
            return -self.nu * scaled_bessel(2.0 * self.nu * sq, self.nu - 1.0, self._log_factor)
        if not torch.is_grad_enabled() and self.nu > 1.0:
            minus_a = bounded_(sq.sqrt().mul_(-math.sqrt(2.0 * self.nu)))
            if self.nu == 1.5:
                return minus_a.exp_().mul_(-1.5)
            return minus_a.exp().mul_(minus_a.sub_(1.0)).mul_(5.0 / 6.0)
        # The square root has no derivative at zero, where the slope of nu = 1/2 and second derivatives stop.
        zero = sq == 0
        a = -bounded_(-(2.0 * self.nu * sq.masked_fill(zero, 1.0)).sqrt())
        if self.nu == 0.5:
            return (-0.5 * (-a).exp() / a).masked_fill(zero, 0.0)
        a = a.masked_fill(zero, 0.0)
        if self.nu == 1.5:
            return -1.5 * (-a).exp()
        return -(5.0 / 6.0) * (1.0 + a) * (-a).exp()

    def contracted(self, sq: Tensor, W: Tensor, *shape: Tensor) -> tuple[Tensor, Tensor]:
        """Profile and slope share their exponential."""
        if self.nu not in (1.5, 2.5):
            return super().contracted(sq, W, *shape)
        minus_a = bounded_(sq.sqrt_().mul_(-math.sqrt(2.0 * self.nu)))
        decayed = minus_a.exp().mul_(W)
        value = decayed.sum() - torch.dot(decayed.flatten(), minus_a.flatten())
        if self.nu == 1.5:
            return value, decayed.mul_(-1.5)
        value += torch.dot(decayed.flatten(), minus_a.square().flatten()) / 3.0
        return value, decayed.mul_(minus_a.sub_(1.0)).mul_(5.0 / 6.0)

    @property
    def smoothness(self) -> float:
        """min(nu, 1)."""
        return min(self.nu, 1.0)

    @property
    def tail(self) -> float:
        """Five: close to the least spread of the paths' variances for nu = 3/2 and 5/2, d = 1 to 4.

        Less below nu = 3/2, where the frequencies would become too high for the digits of their phases.
        """
        return max(1.0, min(5.0, 10.0 * self.nu / 3.0))

    def mixing(self, uniform: Tensor) -> Tensor:
        """sqrt(2 nu / chi^2), chi^2 with 2 nu degrees of freedom: a multivariate Student-t."""
        chi2 = 2.0 * torch.from_numpy(gammaincinv(self.nu, uniform.numpy()))
        return (2.0 * self.nu / chi2).sqrt()
