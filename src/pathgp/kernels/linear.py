"""The linear kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathgp.kernels.finite import Finite
from pathgp.kernels.parameters import Positive, PositiveValue, Values


class Linear(Finite):
    """k(x, z) = bias^2 + sum_k scale_k^2 x_k z_k: the functions b + w.x with normal b and w.

    Rasmussen and Williams (2006), section 2.1.

    Args:
        scale: standard deviation of the weights, one number or a tensor with one per dimension.
        bias: standard deviation of the intercept; None: the functions pass through the origin.
        active_dims: the columns the kernel sees; all by default.
    """

    scale = PositiveValue("Standard deviations of the weights: a scalar, or (d,), float64.")

    def __init__(
        self, scale: Values = 1.0, bias: float | Tensor | None = None, active_dims: Sequence[int] | None = None
    ) -> None:
        super().__init__(active_dims)
        self._scale = Positive(scale, "scale")
        self._bias = None if bias is None else Positive(bias, "bias", scalar=True)

    @property
    def bias(self) -> Tensor | None:
        """Standard deviation of the intercept: a scalar, float64, or None."""
        return None if self._bias is None else self._bias.value

    @bias.setter
    def bias(self, value: float | Tensor) -> None:
        if self._bias is None:
            raise ValueError("this Linear kernel was built without an intercept: give bias to its constructor")
        self._bias.assign(value)

    def exact_features(self, X: Tensor) -> Tensor:
        """[bias, scale * x]: (n, d + 1), or (n, d) without a bias."""
        weighted = (X.to(torch.float64) * self._scale.matching(X.shape[1], X.device)).to(X.dtype)
        if self.bias is None:
            return weighted
        return torch.cat([self.bias.to(X).expand(X.shape[0], 1), weighted], 1)

    def num_exact_features(self, dim: int | None) -> int | None:
        if self._scale.raw.ndim == 1:
            dim = self._scale.raw.shape[0]
        return None if dim is None else dim + (self._bias is not None)
