"""Gneiting's non-separable kernels of space and time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathgp.kernels.base import Kernel
from pathgp.kernels.distance import squared_distance
from pathgp.kernels.parameters import Positive, PositiveValue, positive
from pathgp.kernels.stationary import Stationary

# What a fit may do: beyond, the kernel is not valid (alpha and beta above one), or hardly changes.
_BOUNDS = {"alpha": (0.05, 1.0), "beta": (1e-3, 1.0), "decay": (0.01, 50.0)}


class Gneiting(Kernel):
    """k((x, t), (z, s)) = psi(u)^-(decay + beta d / 2) k_1(|x - z| / psi(u)^(beta / 2)),  psi(u) = 1 + |u|^(2 alpha).

    u = (t - s) / timescale, k_1 a stationary kernel in d columns of space, with its own length scale. Correlations in
    space reach the farther, the more time lies between two observations: weather systems move. beta = 0 is separable, a
    product of k_1 and (1 + |u|^(2 alpha))^-decay, and beta = 1 is the strongest interaction. Time series are smooth for
    alpha = 1, and rough like those of Matern-1/2 for alpha = 1/2.

    Positive semi-definite for 0 < alpha <= 1, 0 <= beta <= 1, decay > 0 and every stationary k_1 of this package,
    which are mixtures of squared exponentials. In other notation delta = decay + beta d / 2 >= beta d / 2 and
    a = timescale^(-2 alpha). Gneiting (2002), equations 14 to 16.

    The frequencies in time, given those in space, follow tempered stable distributions, whose quantiles are not known:
    there are no random features and no paths. Means, variances and joint draws (``post.sample``) are exact, and `fit`
    uses the standard estimator.

    Args:
        kernel: the stationary kernel of space, without ``active_dims``, such as ``Matern(0.5, 0.3)``.
        timescale: unit of time.
        alpha: smoothness in time, in (0, 1], learned.
        beta: interaction of space and time, in [0, 1], learned; 0 stays 0.
        decay: the exponent of the correlation of a time series at one place, minus beta d / 2; learned.
        active_dims: the columns of space, and last that of time; all by default.
    """

    timescale = PositiveValue("Unit of time: a scalar, float64.")
    alpha = PositiveValue("Smoothness in time: a scalar in (0, 1], float64.")
    decay = PositiveValue("Exponent of the decay in time: a scalar, float64.")
    no_features = "the quantiles of its frequencies in time are not known"

    def __init__(
        self,
        kernel: Kernel,
        timescale: float | Tensor = 1.0,
        alpha: float | Tensor = 0.5,
        beta: float | Tensor = 0.5,
        decay: float | Tensor = 0.5,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims)
        if not isinstance(kernel, Stationary):
            raise TypeError(
                f"Gneiting takes a stationary kernel such as Matern(0.5, 0.3), got {type(kernel).__name__}: "
                "scales, sums and products go around Gneiting(...)"
            )
        if kernel.active_dims is not None:
            raise ValueError("the kernel inside Gneiting has no active_dims: name them in Gneiting(..., active_dims=)")
        self.kernel = kernel
        self._timescale = Positive(timescale, "timescale", scalar=True)
        self._alpha = Positive(alpha, "alpha", scalar=True)
        self._decay = Positive(decay, "decay", scalar=True)
        self._beta = None if float(torch.as_tensor(beta)) == 0.0 else Positive(beta, "beta", scalar=True)
        for name, bounds in _BOUNDS.items():
            if getattr(self, f"_{name}") is not None:
                positive(self, name).bounds = bounds
        self._shape(torch.zeros((), dtype=torch.float64))

    @property
    def beta(self) -> Tensor:
        """Interaction of space and time: a scalar in [0, 1], float64."""
        return torch.zeros((), dtype=torch.float64) if self._beta is None else self._beta.value

    @beta.setter
    def beta(self, value: float | Tensor) -> None:
        if self._beta is None:
            raise ValueError("this kernel was built with beta=0 and is separable: give beta to its constructor")
        self._beta.assign(value)

    @property
    def parts(self) -> list[Kernel]:
        """None: the inner kernel depends on time as well."""
        return []

    def scales(self, X: Tensor) -> list[tuple[Positive, Tensor]]:
        """The length scales, each with the columns (n, c) of X (n, d + 1) whose distances it divides."""
        return [(positive(self.kernel, "lengthscale"), X[:, :-1]), (self._timescale, X[:, -1:])]

    def combine(self, space: Tensor, time: Tensor, d: int) -> Tensor:
        """k elementwise, for squared scaled distances in d columns of space and in time; differentiable."""
        alpha, beta, decay = self._shape(space)
        # |u|^(2 alpha) has no derivative at zero.
        zero = time == 0
        power = (alpha * time.masked_fill(zero, 1.0).log()).exp().masked_fill(zero, 0.0)
        log_psi = power.log1p()
        return self.kernel.radial(space * (-beta * log_psi).exp()) * (-(decay + 0.5 * d * beta) * log_psi).exp()

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        d = X.shape[1] - 1
        if d < 1:
            raise ValueError("Gneiting reads at least one column of space and one of time, but X has one column")

        def squares(columns: slice, scale: Tensor, smoothness: float) -> Tensor:
            left, right = X[:, columns].to(torch.float64), Z[:, columns].to(torch.float64)
            sq = squared_distance(left, right, scale, X.dtype, smoothness)
            return sq.fill_diagonal_(0.0) if Z is X else sq

        space = squares(slice(d), 1.0 / self.kernel.lengthscales(d, X.device), self.kernel.smoothness)
        smoothness = min(float(self.alpha.detach()), 1.0)
        time = squares(slice(d, None), 1.0 / self.timescale.to(X.device).unsqueeze(0), smoothness)
        return self.combine(space, time, d)

    def _diagonal(self, X: Tensor) -> Tensor:
        return torch.ones_like(X[:, 0])

    def _coordinates(self, X: Tensor) -> Tensor:
        return torch.cat([self.kernel.coordinates(X[:, :-1]), X[:, -1:] / self.timescale.to(X)], 1)

    def _shape(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """alpha, beta and decay; ValueError where the kernel would not be positive semi-definite."""
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            if float(value.detach()) > 1.0 + 1e-9:
                raise ValueError(f"{name} of Gneiting must be at most 1, got {float(value.detach()):g}")
        return self.alpha.to(like), self.beta.to(like), self.decay.to(like)

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={float(getattr(self, name).detach()):.4g}" for name in _NAMES)
        dims = "" if self.active_dims is None else f", active_dims={list(self.active_dims)}"
        return f"Gneiting({self.kernel!r}, {numbers}{dims})"


_NAMES = ("timescale", "alpha", "beta", "decay")
