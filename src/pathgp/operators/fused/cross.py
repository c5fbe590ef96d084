"""K(X, Z) V and its gradient in X, fused."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.kernels import Kernel
from pathgp.operators.fused.engine import Engine
from pathgp.operators.fused.expression import Expression
from pathgp.operators.fused.points import Extent, Frame, middle


def fused_cross(kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor) -> Tensor:
    """K(X, Z) V: (m, s), float32. Time O(m n (d + s)), memory O((m + n) (d + s))."""
    expression = Expression.read(kernel, X.shape[1])
    with torch.no_grad():
        centre = middle(Z.to(torch.float64))
        left, right = expression.points(X, centre), expression.points(Z, centre)
        frame = Frame.around(Extent.of(expression, left, right))
        return Engine.of(frame).add_product(frame.pack(left), frame.pack(right), V, V.new_zeros(len(X), V.shape[1]))


def fused_cross_gradient(kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, outer: Tensor) -> Tensor:
    """The gradient of sum(outer * K(X, Z) V) in X: (m, d), at the price of a product."""
    expression = Expression.read(kernel, X.shape[1])
    centre = middle(Z.to(torch.float64))
    with torch.enable_grad():
        inputs = X.detach().requires_grad_()
        left = expression.points(inputs, centre)
    with torch.no_grad():
        right = expression.points(Z, centre)
        extent = Extent.of(expression, left, right)
        frame = Frame.around(extent, exact=True)
        _, _, grads = Engine.of(frame).pull(frame.pack(left), frame.pack(right), outer, V)
    (grad,) = torch.autograd.grad(left, inputs, [extent.coefficient * g for g in grads])
    return grad
