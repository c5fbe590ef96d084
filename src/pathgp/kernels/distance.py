"""Squared Euclidean distances that are accurate for every pair of rows, independently of the other rows.

D_ij = sum_k scale_k^2 (x_ik - z_jk)^2. The expansion |x|^2 + |z|^2 - 2 x.z costs one matrix product, but its error is
the rounding error of |x|^2: in float32 it loses every digit for close points of norm 35, in float64 for close points of
norm 1e8. So the columns are split:

- narrow columns, a few hundred length scales wide, are centred and expanded in float64 as one product of augmented
  matrices;
- wide columns, such as seconds over ten years, are added one after the other as squares of differences, free of
  cancellation.

Only the n x m result is rounded to the dtype of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pathgp.compute.memory import spans

_EPS = torch.finfo(torch.float64).eps
# How far, in length scales, the narrow columns together reach from their centre at most: the error of the expansion,
# about 2 eps reach^2, stays below 1e-10, and below the rounding of float32.
_WIDEST = {torch.float64: 2.0**8}
_WIDEST_ROUNDED = 2.0**12
# The largest error of a rough kernel at close pairs, where an error of D becomes an error of D^smoothness.
_ROUGH_ERROR = {torch.float64: 1e-11}
_ROUGH_ERROR_ROUNDED = 1e-8
# Up to this many columns differences cost little more than a product; one column costs less.
_FEW = {"smooth": 1, "rough": 4}
# Entries of a strip in float64 that stay in the cache of one CPU core, and pairs whose differences are computed
# together.
_IN_CACHE = 2**17
_PAIRS = 2**16


class Columns(NamedTuple):
    """The columns of two sets of points, float64.

    X, Z: narrow columns, centred and scaled, (n, c) and (m, c).  wide_X, wide_Z: wide columns as they are, (n, w) and
    (m, w).  scale: the factors of differences in the wide columns, (w,).
    """

    X: Tensor
    Z: Tensor
    wide_X: Tensor
    wide_Z: Tensor
    scale: Tensor


def split_columns(X: Tensor, Z: Tensor, scale: Tensor, dtype: torch.dtype, smoothness: float = 1.0) -> Columns:
    """The narrow and the wide columns of X (n, d) and Z (m, d), for distances in ``dtype``, with their graphs.

    ``scale``: the factors of differences, one number or (d,).  ``smoothness``: see `strips`.
    """
    d = X.shape[1]
    scale = scale.expand(d)
    if d <= _FEW["rough" if smoothness < 1.0 else "smooth"]:
        return Columns(X[:, :0], Z[:, :0], X, Z, scale)
    centre = Z.detach().mean(0)
    near_X, near_Z = (X - centre) * scale, (Z - centre) * scale
    wide = _wide_columns(near_X.detach(), near_Z.detach(), _WIDEST.get(dtype, _WIDEST_ROUNDED))
    if not wide:
        return Columns(near_X, near_Z, X[:, :0], Z[:, :0], scale[:0])
    narrow = [k for k in range(d) if k not in wide]
    return Columns(near_X[:, narrow], near_Z[:, narrow], X[:, wide], Z[:, wide], scale[wide])


def _wide_columns(X: Tensor, Z: Tensor, widest: float) -> list[int]:
    """As few columns of centred and scaled points as it takes for the others to reach no farther than ``widest``."""
    if not X.numel() or not Z.numel():
        return []
    # Most often the largest number of all columns says that none is wide, in a tenth of the time.
    ends = torch.stack([end for points in (X, Z) for end in points.aminmax()])
    if X.shape[1] * float(ends.abs().max()) ** 2 <= widest**2:
        return []
    reach = torch.maximum(*(points.T.abs().amax(1) for points in (X, Z)))
    squares, order = reach.square().sort()
    found: list[int] = order[squares.cumsum(0) > widest**2].tolist()
    return sorted(found)


class _SquaredDistance(torch.autograd.Function):
    """D_ij with a closed-form gradient, see `stationary._Contraction`."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, smoothness: float, *columns: Tensor) -> Tensor:
        ctx.save_for_backward(*columns)
        return evaluate(Columns(*columns), dtype, smoothness, lambda sq, start: sq)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        columns = Columns(*ctx.saved_tensors)
        needed = Columns(*ctx.needs_input_grad[2:])
        if not torch.is_grad_enabled() and not len(columns.scale):
            in_X, in_Z = _pull_narrow(grads[0], columns.X, columns.Z, needed)
            return None, None, in_X, in_Z, None, None, None
        A = grads[0].to(torch.float64)
        grad_X = grad_Z = None
        if needed.X:
            grad_X = 2.0 * (A.sum(1, keepdim=True) * columns.X - A @ columns.Z)
        if needed.Z:
            grad_Z = 2.0 * (A.sum(0).unsqueeze(1) * columns.Z - A.T @ columns.X)
        return None, None, grad_X, grad_Z, *pull_differences(A, *columns[2:])


def _pull_narrow(A: Tensor, X: Tensor, Z: Tensor, needed: Columns) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of sum_ij A_ij D_ij in narrow columns X (n, c) and Z (m, c), where it is needed: float64.

    On a CPU A is converted to float64 in strips that stay in the cache.
    """
    left, right = (torch.cat([points, torch.ones_like(points[:, :1])], 1) for points in (X, Z))
    in_X = torch.empty_like(left) if needed.X else None
    in_Z = torch.zeros_like(right) if needed.Z else None
    height = max(1, _IN_CACHE // max(1, len(Z)) if X.device.type == "cpu" else len(X))
    for rows in spans(len(X), height):
        strip = A[rows].to(torch.float64)
        if in_X is not None:
            torch.mm(strip, right, out=in_X[rows])
        if in_Z is not None:
            in_Z.addmm_(strip.T, left[rows])
    pairs = ((in_X, X), (in_Z, Z))
    in_X, in_Z = (None if p is None else 2.0 * (p[:, -1:] * points - p[:, :-1]) for p, points in pairs)
    return in_X, in_Z


def pull_differences(A: Tensor, X: Tensor, Z: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of sum_ij A_ij D_ij in wide columns X (n, w), Z (m, w) and their scale (w,).

    dX_ik = 2 scale_k^2 sum_j A_ij (x_ik - z_jk), dZ_jk alike, d scale_k = 2 scale_k sum_ij A_ij (x_ik - z_jk)^2. Time
    O(n m w), memory O(n m); differentiable once more.
    """
    in_X, in_Z, in_scale = [], [], []
    for k in range(X.shape[1]):
        delta = X[:, k : k + 1] - Z[:, k]
        pulled = A * delta
        in_X.append(2.0 * scale[k].square() * pulled.sum(1))
        in_Z.append(-2.0 * scale[k].square() * pulled.sum(0))
        in_scale.append(2.0 * scale[k] * torch.dot(pulled.flatten(), delta.flatten()))
    if not in_X:
        return torch.zeros_like(X), torch.zeros_like(Z), torch.zeros_like(scale)
    return torch.stack(in_X, 1), torch.stack(in_Z, 1), torch.stack(in_scale)


def evaluate(
    columns: Columns, dtype: torch.dtype, smoothness: float, finish: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """An element-wise function ``finish(squared distances, first row)``, without a graph: (n, m) in ``dtype``."""
    if columns.X.device.type != "cpu":
        return finish(next(strips(columns, dtype, smoothness))[1], 0)
    result = torch.empty(len(columns.X), len(columns.Z), dtype=dtype)
    for rows, sq in strips(columns, dtype, smoothness, result):
        finished = finish(sq, rows.start)
        if finished is not sq:
            sq.copy_(finished)
    return result


def strips(
    columns: Columns, dtype: torch.dtype, smoothness: float = 1.0, out: Tensor | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Rows, and their squared distances (rows, m) in ``dtype``.

    On a CPU the strips are narrow: the float64 product and all that is done to it stay in the cache. They are the
    rows of ``out``, or come in one buffer, the next in place of the last. Elsewhere there is one strip.

    ``smoothness``: the power p with which k(0) - k(D) ~ D^p near zero, at most 1. Below 1 an error of 1e-16 in D is one
    of 1e-8 in Matern-1/2: close pairs are then differences in all columns.
    """
    X, Z, wide_X, wide_Z, scale = columns
    n, m, c = len(X), len(Z), X.shape[1]
    if c:
        norms_X = X.square().sum(1, keepdim=True)
        norms_Z = Z.square().sum(1, keepdim=True)
        left = torch.cat([X, norms_X, torch.ones_like(norms_X)], 1)
        right = torch.cat([Z.mul(-2.0), torch.ones_like(norms_Z), norms_Z], 1).T
    # What lies below the rounding error of the expansion is zero: equal points then have distance exactly zero.
    floor = 8.0 * _EPS * float(norms_X.max() + norms_Z.max()) if c and n and m else 0.0
    close = 0.0
    if floor and smoothness < 1.0:
        close = max(floor, (floor / _ROUGH_ERROR.get(dtype, _ROUGH_ERROR_ROUNDED)) ** (1.0 / (1.0 - smoothness)))
        floor = 0.0
    wide, squares = (wide_Z.T.contiguous(), scale.square().tolist()) if len(scale) else (wide_Z, [])

    def fill(rows: slice, sq: Tensor) -> Tensor:
        """Write the squared distances of these rows to ``sq``, float64."""
        if c:
            torch.mm(left[rows], right, out=sq)
        # On a CPU a strip is small; elsewhere an eighth of the rows at a time, for the memory.
        step = max(1, len(sq) if X.device.type == "cpu" else -(-len(sq) // 8))
        for part in spans(len(sq), step) if squares else ():
            target, points = sq[part], wide_X[rows][part]
            delta = torch.empty_like(target)
            for k, square in enumerate(squares):
                torch.sub(points[:, k : k + 1], wide[k], out=delta)
                if c or k:
                    target.addcmul_(delta, delta, value=square)
                else:
                    torch.mul(delta, delta, out=target).mul_(square)
        if close:
            _repair(sq, close, columns, rows)
        return sq

    if X.device.type != "cpu":
        rows = slice(0, n)
        filled = fill(rows, torch.empty(n, m, dtype=torch.float64, device=X.device))
        yield rows, torch.threshold_(filled.to(dtype), floor, 0.0)
        return
    height = min(n, max(1, _IN_CACHE // max(1, m)))
    product = torch.empty(height, m, dtype=torch.float64)
    buffer = torch.empty(height if out is None else 0, m, dtype=dtype)
    for rows in spans(n, max(1, height)):
        length = rows.stop - rows.start
        strip = buffer[:length] if out is None else out[rows]
        strip.copy_(fill(rows, product[:length]))
        yield rows, torch.threshold_(strip, floor, 0.0)


def _repair(sq: Tensor, close: float, columns: Columns, rows: slice) -> None:
    """Replace squared distances below ``close`` by sums of squared differences."""
    X, Z, wide_X, wide_Z, scale = columns
    for pairs in (sq < close).nonzero().split(_PAIRS):
        row, column = pairs.unbind(1)
        i = row + rows.start
        apart = (X[i] - Z[column]).square().sum(1)
        sq[row, column] = apart + ((wide_X[i] - wide_Z[column]) * scale).square().sum(1)


def squared_distance(X: Tensor, Z: Tensor, scale: Tensor, dtype: torch.dtype, smoothness: float = 1.0) -> Tensor:
    """D_ij for the rows of X (n, d) and Z (m, d), both float64, rounded to ``dtype``.

    Differentiable in X, Z and the scale. Time O(n m d), memory O(n m).
    """
    columns = split_columns(X, Z, scale, dtype, smoothness)
    result: Tensor = _SquaredDistance.apply(dtype, smoothness, *columns)
    return result
