"""Quantiles of the Gamma distribution at frozen uniforms, differentiable in the shape."""

from __future__ import annotations

from typing import Any

import torch
from scipy.special import gammainccinv, gammaincinv
from torch import Tensor


class _GammaQuantile(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shape: Tensor, uniform: Tensor, upper: bool) -> Tensor:
        ctx.save_for_backward(shape, uniform)
        ctx.upper = upper
        # Below 1e-300 a quantile is zero for every purpose, but its square root has no derivative there.
        return _quantile(float(shape), uniform, upper).to(shape).clamp_min_(1e-300)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        # d quantile / d shape has no closed form; the central difference is right to about ten digits.
        shape, uniform = ctx.saved_tensors
        centre, step = float(shape), 1e-5 * float(shape)
        difference = _quantile(centre + step, uniform, ctx.upper) - _quantile(centre - step, uniform, ctx.upper)
        return (grads[0] * difference.to(grads[0]) / (2.0 * step)).sum(), None, None


def gamma_quantile(shape: Tensor, uniform: Tensor, upper: bool) -> Tensor:
    """The value that Gamma(shape, 1) exceeds (``upper``) or does not reach with probabilities ``uniform``.

    shape: a scalar, float64.  uniform: any shape, float64 on the CPU.
    """
    quantile: Tensor = _GammaQuantile.apply(shape, uniform, upper)
    return quantile


def _quantile(shape: float, uniform: Tensor, upper: bool) -> Tensor:
    return torch.from_numpy((gammainccinv if upper else gammaincinv)(shape, uniform.numpy()))
