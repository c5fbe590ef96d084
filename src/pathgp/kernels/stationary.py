"""Stationary kernels: a radial profile of the scaled distance, k(x, z) = p(r^2), r = |(x - z) / lengthscale|.

A subclass gives the profile p and its slope dp/d(r^2) in closed form. Both work on whole tiles: the
profile may overwrite its argument, so that a tile of K costs few passes over the cache, and the slope makes
every gradient (all length scales at once, or the inputs) one more tile of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pathgp.kernels.base import Kernel
from pathgp.kernels.distance import of_squared_distance, squared_distance
from pathgp.kernels.parameters import Positive, PositiveValue, short


class _Radial(torch.autograd.Function):
    """p(sq; shape parameters) with the closed-form slopes as gradient."""

    @staticmethod
    def forward(ctx: Any, kernel: Stationary, sq: Tensor, *shape: Tensor) -> Tensor:
        ctx.kernel = kernel
        needed = any(ctx.needs_input_grad)
        ctx.save_for_backward(*((sq, *shape) if needed else ()))
        return kernel.profile(sq.clone() if needed else sq, *shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sq, *shape = ctx.saved_tensors
        grad_sq = grads[0] * ctx.kernel.slope(sq, *shape) if ctx.needs_input_grad[1] else None
        if not any(ctx.needs_input_grad[2:]):
            return (None, grad_sq, *(None for _ in shape))
        slopes = ctx.kernel.shape_slopes(sq, *shape)
        return (None, grad_sq, *((grads[0] * slope).sum() for slope in slopes))


class Stationary(Kernel):
    """Base of the radial kernels; ``lengthscale`` is one number or a tensor with one entry per dimension."""

    lengthscale = PositiveValue("The length scales: a scalar, or (d,), float64.")

    def __init__(self, lengthscale: float | Tensor = 1.0, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(active_dims)
        self._lengthscale = Positive(lengthscale, "lengthscale")

    def lengthscales(self, columns: int, device: torch.device) -> Tensor:
        """The length scales on a device, checked against the number of columns."""
        return self._lengthscale.matching(columns, device)

    def profile(self, sq: Tensor, *shape: Tensor) -> Tensor:
        """k as a function of the squared scaled distance; may overwrite ``sq``."""
        raise NotImplementedError(f"{type(self).__name__} does not define its profile")

    def slope(self, sq: Tensor, *shape: Tensor) -> Tensor:
        """dk/d(sq), finite everywhere (zero where the true slope is singular at sq = 0)."""
        raise NotImplementedError(f"{type(self).__name__} does not define its slope")

    def shape_parameters(self) -> tuple[Tensor, ...]:
        """Further learned parameters of the profile (the mixture parameter of RationalQuadratic)."""
        return ()

    def shape_slopes(self, sq: Tensor, *shape: Tensor) -> tuple[Tensor, ...]:
        """dk/d(shape parameter), one (n, m) tensor each."""
        return ()

    @property
    def tail(self) -> float:
        """How much heavier a tail half of the frequencies are drawn from (see `features.fourier`); 1: no heavier."""
        return 1.0

    def mixing(self, uniform: Tensor) -> Tensor:
        """sqrt(tau) at frozen uniforms; the spectral measure is the scale mixture omega = sqrt(tau) normal.

        Every radial kernel that is positive semi-definite in all dimensions is such a mixture (Schoenberg
        1938). ``uniform`` holds one number in (0, 1) per frequency vector, float64 on the CPU; tau is a
        quantile, so that the frequencies move smoothly with the shape parameters.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define its spectral measure")

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        return self._evaluated(self._scaled(X), self._scaled(Z), X.dtype, same=False)

    def _gram(self, X: Tensor) -> Tensor:
        scaled = self._scaled(X)
        return self._evaluated(scaled, scaled, X.dtype, same=True)

    def _evaluated(self, X: Tensor, Z: Tensor, dtype: torch.dtype, same: bool) -> Tensor:
        """The kernel at scaled inputs; ``same`` inputs have a diagonal of exact zeros in the distances."""
        shape = tuple(p.to(X.device, dtype) for p in self.shape_parameters())
        if torch.is_grad_enabled() and any(t.requires_grad for t in (X, Z, *shape)):
            sq = squared_distance(X, Z, dtype)
            result: Tensor = _Radial.apply(self, sq.fill_diagonal_(0.0) if same else sq, *shape)
            return result

        def finish(sq: Tensor, start: int) -> Tensor:
            if same:
                sq.diagonal(start).fill_(0.0)
            return self.profile(sq, *shape)

        return of_squared_distance(X, Z, dtype, finish)

    def _diagonal(self, X: Tensor) -> Tensor:
        return torch.ones_like(X[:, 0])

    def _coordinates(self, X: Tensor) -> Tensor:
        return self._scaled(X)

    def _scaled(self, X: Tensor) -> Tensor:
        return X.to(torch.float64) / self.lengthscales(X.shape[1], X.device)

    def _settings(self) -> list[str]:
        return [f"lengthscale={short(self.lengthscale)}"]
