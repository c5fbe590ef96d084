"""The rational quadratic kernel."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pathgp.kernels.parameters import Positive, PositiveValue, Values
from pathgp.kernels.quantiles import gamma_quantile
from pathgp.kernels.stationary import Stationary


class RationalQuadratic(Stationary):
    """k(x, z) = (1 + r^2 / (2 alpha))^(-alpha), r = |(x - z) / lengthscale|.

    A mixture of squared exponentials over length scales, wide for small alpha; alpha -> inf is
    SquaredExponential. Rasmussen and Williams (2006), eq. 4.19.

    Args:
        alpha: the mixture parameter, learned.
        lengthscale: one number, or a tensor or list with one length scale per dimension.
        active_dims: the columns the kernel sees; all by default.
    """

    alpha = PositiveValue("The mixture parameter: a scalar, float64.")

    def __init__(
        self, alpha: float | Tensor = 1.0, lengthscale: Values = 1.0, active_dims: Sequence[int] | None = None
    ) -> None:
        super().__init__(lengthscale, active_dims)
        self._alpha = Positive(alpha, "alpha", scalar=True)

    def shape_parameters(self) -> tuple[Tensor, ...]:
        return (self.alpha,)

    def profile(self, sq: Tensor, *shape: Tensor) -> Tensor:
        (alpha,) = shape
        return sq.div_(2.0 * alpha).log1p_().mul_(-alpha).exp_()

    def slope(self, sq: Tensor, *shape: Tensor) -> Tensor:
        (alpha,) = shape
        return -0.5 * (-(alpha + 1.0) * (sq / (2.0 * alpha)).log1p()).exp()

    def shape_slopes(self, sq: Tensor, *shape: Tensor) -> tuple[Tensor, ...]:
        (alpha,) = shape
        u = sq / (2.0 * alpha)
        log = u.log1p()
        return ((-alpha * log).exp() * (u / (1.0 + u) - log),)

    @property
    def tail(self) -> float:
        """As for Matern-5/2: data with little noise determine all but the highest frequencies."""
        return 5.0

    def mixing(self, uniform: Tensor) -> Tensor:
        """sqrt(tau), tau ~ Gamma(alpha, rate alpha); small quantiles are the large ones."""
        alpha = self.alpha
        return (gamma_quantile(alpha, uniform, upper=True) / alpha).sqrt()
