"""The Matern family."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from pathgp.kernels.stationary import Stationary


class Matern(Stationary):
    """The Matern kernel of smoothness nu, with a = sqrt(2 nu) r, r = |(x - z) / lengthscale|.

    nu = 1/2: exp(-a).    nu = 3/2: (1 + a) exp(-a).    nu = 5/2: (1 + a + a^2/3) exp(-a).
    Sample paths are ceil(nu) - 1 times differentiable. Thesis, section 2.1.3.
    """

    def __init__(
        self,
        nu: float = 1.5,
        lengthscale: float | Tensor = 1.0,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(lengthscale, active_dims)
        self.nu = float(nu)
        if not self.nu > 0 or not math.isfinite(self.nu):
            raise ValueError(f"nu must be positive and finite, got {nu}")

    def profile(self, sq: Tensor, *shape: Tensor) -> Tensor:
        a = sq.mul_(2.0 * self.nu).sqrt_()
        decay = a.neg().exp_()
        if self.nu == 0.5:
            return decay
        if self.nu == 1.5:
            return a.add_(1.0).mul_(decay)
        return a.square().div_(3.0).add_(a).add_(1.0).mul_(decay)

    def slope(self, sq: Tensor, *shape: Tensor) -> Tensor:
        a = (2.0 * self.nu * sq).sqrt()
        decay = (-a).exp()
        if self.nu == 0.5:
            return (-0.5 * decay / a).masked_fill(a == 0, 0.0)
        if self.nu == 1.5:
            return -1.5 * decay
        return -(5.0 / 6.0) * (1.0 + a) * decay
