"""Stationary kernels: a radial profile of the scaled distance, k(x, z) = p(r^2), r = |(x - z) / lengthscale|.

A subclass gives the profile p and its slope dp/d(r^2) in closed form. Both work on whole tiles: the
profile may overwrite its argument, so that a tile of K costs few passes over the cache, and the slope makes
every gradient (all length scales at once, or the inputs) one more tile of the same size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pathgp.kernels.base import Kernel
from pathgp.kernels.distance import Columns, evaluate, pull_differences, split_columns, squared_distance, strips
from pathgp.kernels.parameters import Positive, PositiveValue, Values


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
        grad_sq = None
        if ctx.needs_input_grad[1]:
            slope = ctx.kernel.slope(sq, *shape)
            grad_sq = grads[0] * slope if torch.is_grad_enabled() else slope.mul_(grads[0])
        if not any(ctx.needs_input_grad[2:]):
            return (None, grad_sq, *(None for _ in shape))
        slopes = ctx.kernel.shape_slopes(sq, *shape)
        return (None, grad_sq, *((grads[0] * slope).sum() for slope in slopes))


class _Contraction(torch.autograd.Function):
    """sum_ij W_ij p(D_ij; shape parameters), with all gradients from the same pass over the squared distances D.

    With A_ij = W_ij p'(D_ij), in narrow columns dX = 2 (diag(A 1) X - A Z) and dZ = 2 (diag(A^T 1) Z - A^T X),
    accumulated in float64 because both terms are large and nearly cancel when the length scale is small; in wide
    columns by `pull_differences`.
    """

    @staticmethod
    def forward(ctx: Any, kernel: Stationary, W: Tensor, same: bool, *inputs: Tensor) -> Tensor:
        columns, shape = Columns(*inputs[:5]), inputs[5:]
        X, Z, wide_X, wide_Z, scale = columns
        # Rows of few numbers multiply a tile several times faster than columns.
        left, right = (torch.cat([points, torch.ones_like(points[:, :1])], 1).T.contiguous() for points in (X, Z))
        pulled_X, pulled_Z = torch.empty_like(left), torch.zeros_like(right)
        wide = [torch.empty_like(wide_X), torch.zeros_like(wide_Z), torch.zeros_like(scale)]
        value, *slopes = torch.zeros(1 + len(shape), dtype=torch.float64, device=X.device)
        for rows, sq in strips(columns, W.dtype, kernel.smoothness):
            if same:
                sq.diagonal(rows.start).fill_(0.0)
            weights = W[rows]
            for total, slope in zip(slopes, kernel.shape_slopes(sq, *shape), strict=True):
                total += torch.dot(slope.flatten(), weights.flatten())
            part, A = kernel.contracted(sq, weights, *shape)
            value += part
            A = A.to(X.dtype)
            if X.shape[1]:
                pulled_X[:, rows] = right @ A.T
                pulled_Z.addmm_(left[:, rows], A)
            if len(scale):
                wide[0][rows], in_Z, in_scale = pull_differences(A, wide_X[rows], wide_Z, scale)
                wide[1] += in_Z
                wide[2] += in_scale
        grads = [2.0 * (p[-1:].T * q - p[:-1].T) for p, q in ((pulled_X, X), (pulled_Z, Z))]
        ctx.save_for_backward(*grads, *wide, *slopes)
        ctx.dtypes = [p.dtype for p in inputs]
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return (None, None, None, *((grads[0] * part).to(dtype) for part, dtype in found))


class Stationary(Kernel):
    """Base of the radial kernels; ``lengthscale`` is one number or a tensor with one entry per dimension."""

    lengthscale = PositiveValue("The length scales: a scalar, or (d,), float64.")

    def __init__(self, lengthscale: Values = 1.0, active_dims: Sequence[int] | None = None) -> None:
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

    def radial(self, sq: Tensor) -> Tensor:
        """k at squared scaled distances, which it may overwrite; differentiable in them and in the shape parameters."""
        shape = tuple(p.to(sq.device, sq.dtype) for p in self.shape_parameters())
        if torch.is_grad_enabled() and any(t.requires_grad for t in (sq, *shape)):
            result: Tensor = _Radial.apply(self, sq, *shape)
            return result
        return self.profile(sq, *shape)

    def shape_parameters(self) -> tuple[Tensor, ...]:
        """Further learned parameters of the profile (the mixture parameter of RationalQuadratic)."""
        return ()

    def shape_slopes(self, sq: Tensor, *shape: Tensor) -> tuple[Tensor, ...]:
        """dk/d(shape parameter), one (n, m) tensor each."""
        return ()

    def contracted(self, sq: Tensor, W: Tensor, *shape: Tensor) -> tuple[Tensor, Tensor]:
        """sum_ij W_ij k_ij, and the matrix of W_ij dk_ij/d(sq_ij); may overwrite ``sq``."""
        slope = self.slope(sq, *shape)
        return torch.dot(self.profile(sq, *shape).flatten(), W.flatten()), slope.mul_(W)

    @property
    def smoothness(self) -> float:
        """The power p with which 1 - k falls off near zero, 1 - k ~ r^2p, at most 1; below 1 close pairs need care."""
        return 1.0

    @property
    def tail(self) -> float:
        """How much heavier a tail half of the scales tau are drawn from (see `features.frequencies`); 1: no heavier."""
        return 1.0

    def mixing(self, uniform: Tensor) -> Tensor:
        """sqrt(tau) at frozen uniforms; the spectral measure is the scale mixture omega = sqrt(tau) normal.

        Every radial kernel that is positive semi-definite in all dimensions is such a mixture (Schoenberg
        1938). ``uniform`` holds one number in (0, 1) per frequency vector, float64 on the CPU; tau is a
        quantile, so that the frequencies move smoothly with the shape parameters.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define its spectral measure")

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        dtype, same = X.dtype, Z is X
        shape = tuple(p.to(X.device, dtype) for p in self.shape_parameters())
        X, Z, scale = X.to(torch.float64), Z.to(torch.float64), self._inverse_lengthscales(X)
        if torch.is_grad_enabled() and any(t.requires_grad for t in (X, Z, scale, *shape)):
            sq = squared_distance(X, Z, scale, dtype, self.smoothness)
            return self.radial(sq.fill_diagonal_(0.0) if same else sq)

        def finish(sq: Tensor, start: int) -> Tensor:
            if same:
                sq.diagonal(start).fill_(0.0)
            return self.profile(sq, *shape)

        return evaluate(split_columns(X, Z, scale, dtype, self.smoothness), dtype, self.smoothness, finish)

    def _contract(self, W: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        shape = tuple(p.to(X.device, W.dtype) for p in self.shape_parameters())
        scale, points = self._inverse_lengthscales(X), (X.to(torch.float64), Z.to(torch.float64))
        columns = split_columns(*points, scale, W.dtype, self.smoothness)
        result: Tensor = _Contraction.apply(self, W, Z is X, *columns, *shape)
        return result

    def _diagonal(self, X: Tensor) -> Tensor:
        return torch.ones_like(X[:, 0])

    def _coordinates(self, X: Tensor) -> Tensor:
        return X.to(torch.float64) * self._inverse_lengthscales(X)

    def _inverse_lengthscales(self, X: Tensor) -> Tensor:
        return 1.0 / self.lengthscales(X.shape[1], X.device)


def bounded_(exponent: Tensor) -> Tensor:
    """Raise exponents in place to where the exponential is at least 2^16 times the least normal number.

    That bound is 8e-34 in float32: negligible beside the variance of the kernel. Processors take a hundred times longer
    for subnormal numbers, and a few of them in a hundred make every product with K several times slower.
    """
    return exponent.clamp_(min=math.log(torch.finfo(exponent.dtype).tiny) + 16.0 * math.log(2.0))
