"""Inverses of the diagonal blocks of alternating projections: one at a time, or many at once on a GPU."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from pathgp.operators.base import Solve
from pathgp.solvers.cholesky import factorise

# Panels of a factor of several blocks have at most this number of rows. Narrow panels take fewer operations, wide ones
# fewer steps of a substitution.
_PANEL = 1024
# Triangles up to this size are inverted by a library call, larger ones by halves.
_LEAF = 128


def invert_blocks(blocks: Tensor) -> list[Solve]:
    """The functions R -> A^-1 R of all blocks A, given as (g, b, b), by Cholesky factorisations in float64.

    A single block is factorised by LAPACK or cuSOLVER. Several have one factorisation for all, whose steps are matrix
    products: a GPU takes as long for one small factorisation as for many. If one of them fails, each block has its own,
    with jitter where needed. Time O(g b^3).
    """
    if len(blocks) > 1:
        factors = blocks.to(torch.float64, copy=True)
        if _factorise_in_panels(factors):
            return [partial(_substitute, factor) for factor in factors]
    return [partial(_solve_one, factorise(block.to(torch.float64))[0]) for block in blocks]


def _solve_one(factor: Tensor, R: Tensor) -> Tensor:
    return torch.cholesky_solve(R.to(torch.float64), factor).to(R.dtype)


def _factorise_in_panels(A: Tensor) -> bool:
    """Replace every matrix (g, b, b) by its lower Cholesky factor L; return whether all are positive definite.

    The diagonal blocks of L, one for every panel, are replaced by their inverses, so that substitutions consist of
    matrix products:

        for each panel K:
            L[K:, K] = A[K:, K] - L[K:, :K] L[K, :K]^T
            D = L[K, K]^-1
            L[K+1:, K] = L[K+1:, K] D^T

    Time b^3 / 3 for the products, and about 3 q / b times this for panels of q rows.
    """
    info = torch.zeros(len(A), dtype=torch.int32, device=A.device)
    for K in _panels(A.shape[-1]):
        before, after = slice(0, K.start), slice(K.stop, None)
        if K.start:
            A[:, K.start :, K].baddbmm_(A[:, K.start :, before], A[:, K, before].mT, alpha=-1.0)
        info |= _invert_factor(A[:, K, K])
        A[:, after, K] = A[:, after, K] @ A[:, K, K].mT
    return not bool(info.any())


def _invert_factor(A: Tensor) -> Tensor:
    """Replace every matrix (g, q, q) by the inverse of its lower Cholesky factor; return which failed (g,).

    L[1, 1]^-1 by recursion,  S = A[2, 1] L[1, 1]^-T,  L[2, 2]^-1 by recursion from A[2, 2] - S S^T,
    the last block of L^-1 is -L[2, 2]^-1 S L[1, 1]^-1
    """
    q = A.shape[-1]
    if q <= _LEAF:
        factor, info = torch.linalg.cholesky_ex(A)
        A.copy_(torch.linalg.solve_triangular(factor, torch.eye(q, dtype=A.dtype, device=A.device), upper=False))
        return info
    one, two = slice(0, q // 2), slice(q // 2, q)
    info = _invert_factor(A[:, one, one])
    side = A[:, two, one] @ A[:, one, one].mT
    A[:, two, two].baddbmm_(side, side.mT, alpha=-1.0)
    info |= _invert_factor(A[:, two, two])
    A[:, two, one] = A[:, two, two] @ (side @ A[:, one, one]).neg_()
    A[:, one, two] = 0.0
    return info


def _substitute(factor: Tensor, R: Tensor) -> Tensor:
    """A^-1 R from one of the factors of `_factorise_in_panels`: L y = R, then L^T x = y."""
    r, panels = R.to(factor.dtype), _panels(len(factor))
    x, y = torch.empty_like(r), torch.empty_like(r)
    for K in panels:
        rest = torch.addmm(r[K], factor[K, : K.start], y[: K.start], alpha=-1.0) if K.start else r[K]
        torch.mm(factor[K, K], rest, out=y[K])
    for K in reversed(panels):
        rest = torch.addmm(y[K], factor[K.stop :, K].T, x[K.stop :], alpha=-1.0) if K is not panels[-1] else y[K]
        torch.mm(factor[K, K].T, rest, out=x[K])
    return x.to(R.dtype)


def _panels(b: int) -> list[slice]:
    """Slices of equal length, at most `_PANEL`, that cover range(b)."""
    count = math.ceil(b / _PANEL)
    return [slice(b * k // count, b * (k + 1) // count) for k in range(count)]
