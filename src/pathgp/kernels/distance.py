"""Squared Euclidean distances that survive float32.

The expansion |x|^2 + |z|^2 - 2 x.z costs one matrix product, but in float32 it loses every digit for
close points far from the origin (at norm 35 its error is 1e-4, more than the squared distance itself).
Here the n x d inputs are centred and kept in float64, the expansion runs in float64 as one product of
augmented matrices, and only the n x m result is rounded to the dtype of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_EPS = torch.finfo(torch.float64).eps
_STRIP = 256


class _SquaredDistance(torch.autograd.Function):
    """D_ij = |x_i - z_j|^2 with a closed-form gradient.

    With the incoming gradient A (n, m): dX = 2 (diag(A 1) X - A Z) and dZ = 2 (diag(A^T 1) Z - A^T X),
    accumulated in float64 because both terms are large and nearly cancel when the length scale is small.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, Z: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(X, Z)
        return _evaluate(X, Z, dtype, lambda sq, start: sq)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        X, Z = ctx.saved_tensors
        A = grads[0].to(X.dtype)
        grad_X = grad_Z = None
        if ctx.needs_input_grad[0]:
            grad_X = 2.0 * (A.sum(1, keepdim=True) * X - A @ Z)
        if ctx.needs_input_grad[1]:
            grad_Z = 2.0 * (A.sum(0).unsqueeze(1) * Z - A.T @ X)
        return grad_X, grad_Z, None


def _evaluate(X: Tensor, Z: Tensor, dtype: torch.dtype, finish: Callable[[Tensor, int], Tensor]) -> Tensor:
    """finish(squared distances, first row) for strips of rows: (n, m) in ``dtype``. X and Z are centred."""
    if X.device.type != "cpu":
        return finish(next(strips(X, Z, dtype))[1], 0)
    result = torch.empty(len(X), len(Z), dtype=dtype)
    for rows, sq in strips(X, Z, dtype, result):
        finished = finish(sq, rows.start)
        if finished is not sq:
            sq.copy_(finished)
    return result


def strips(X: Tensor, Z: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
    """Rows, and their squared distances (rows, m) in ``dtype``. X and Z are centred.

    On a CPU the strips are narrow: the float64 product and all that is done to it stay in the cache. They are the
    rows of ``out``, or come in one buffer, the next in place of the last. Elsewhere there is one strip.
    """
    norms_X = X.square().sum(1, keepdim=True)
    norms_Z = Z.square().sum(1, keepdim=True)
    left = torch.cat([X, norms_X, torch.ones_like(norms_X)], 1)
    right = torch.cat([Z.mul(-2.0), torch.ones_like(norms_Z), norms_Z], 1).T
    # What lies below the rounding error of the expansion is zero: duplicates then have distance exactly
    # zero, where Matern-1/2 would turn an error of 1e-16 in the square into one of 1e-8 in the kernel.
    floor = 8.0 * _EPS * float(norms_X.max() + norms_Z.max()) if X.numel() and Z.numel() else 0.0
    n, m = len(X), len(Z)
    if X.device.type != "cpu":
        yield slice(0, n), torch.threshold_((left @ right).to(dtype), floor, 0.0)
        return
    product = torch.empty(min(_STRIP, n), m, dtype=left.dtype)
    buffer = torch.empty(min(_STRIP, n), m, dtype=dtype) if out is None else out
    for start in range(0, n, _STRIP):
        rows = slice(start, min(start + _STRIP, n))
        strip = buffer[: rows.stop - start] if out is None else buffer[rows]
        strip.copy_(torch.mm(left[rows], right, out=product[: rows.stop - start]))
        yield rows, torch.threshold_(strip, floor, 0.0)


def squared_distance(X: Tensor, Z: Tensor, dtype: torch.dtype) -> Tensor:
    """Squared distances between the rows of X (n, d) and Z (m, d), both float64, rounded to ``dtype``.

    Differentiable in X and Z. Time O(n m d), memory O(n m).
    """
    centre = Z.detach().mean(0)
    result: Tensor = _SquaredDistance.apply(X - centre, Z - centre, dtype)
    return result


def of_squared_distance(X: Tensor, Z: Tensor, dtype: torch.dtype, finish: Callable[[Tensor, int], Tensor]) -> Tensor:
    """An element-wise function of the squared distances, without a graph; see `_evaluate`."""
    centre = Z.mean(0)
    return _evaluate(X - centre, Z - centre, dtype, finish)
