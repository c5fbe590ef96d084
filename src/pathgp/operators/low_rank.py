"""Partial Cholesky factors F of a positive semi-definite matrix, K ~ F F^T, from some of its columns."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def partial_cholesky(
    columns: Callable[[Tensor], Tensor],
    variances: Tensor,
    largest: int,
    choose: Callable[[Tensor, int], Tensor],
    enough: float = 0.0,
    drop: float = 0.0,
    rounding: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """F (n, r) with r up to ``largest``, and the diagonal of K - F F^T (n,), never negative; all in float64.

    Time O(n r^2), memory O(n r). K - F F^T is positive semi-definite: none of its entries exceeds its largest variance.
    Ends when the mean variance left is not above ``enough``, and the largest not above ``drop`` where that is given.
    Harbrecht et al. (2012), Chen et al. (2023).

    Args:
        columns: K[:, index] in float64 for an index.
        variances: the diagonal of K, float64.
        largest: most columns of F.
        choose: the next pivots from the variances left and the most that may be taken.
        drop: directions of the pivots with no more variance than this are left out; 0 takes them all, damped where they
            depend on each other.
        rounding: of the columns, relative to the largest variance; that of the sums here is at least 1e-14.
    """
    factor = torch.zeros(len(variances), largest, dtype=torch.float64, device=variances.device)
    left, filled, rounding = variances.clone(), 0, max(rounding, 1e-14) * float(variances.max())
    enough, most = max(enough, 1e-14 * float(variances.mean())), drop or math.inf
    while filled < largest and (float(left.mean()) > enough or float(left.max()) > most):
        pivots = choose(left, largest - filled)
        new = columns(pivots)
        new -= factor[:, :filled] @ factor[pivots, :filled].T
        left[pivots] = 0.0
        new = new @ _directions(new[pivots], drop) if drop else _whitened(new, new[pivots], rounding)
        if not new.shape[1]:
            continue
        factor[:, filled : filled + new.shape[1]] = new
        filled += new.shape[1]
        left = torch.clamp(left - new.square().sum(1), min=0.0)
        left[pivots] = 0.0
    return factor[:, :filled].clone(), left


def _whitened(columns: Tensor, A: Tensor, rounding: float) -> Tensor:
    """columns L^-T with L L^T = A + ridge: pivots that depend on each other up to rounding count for nothing.

    The device is not waited for.
    """
    # Rounding errors are a random matrix: its norm grows as the root of its size.
    A.diagonal().clamp_min_(0.0).add_(2.0 * rounding * len(A) ** 0.5)
    L, failed = torch.linalg.cholesky_ex(A)
    return torch.linalg.solve_triangular(L.T, columns, upper=True, left=False).masked_fill_(failed != 0, 0.0)


def _directions(A: Tensor, drop: float) -> Tensor:
    """Scaled eigenvectors of A with more variance than ``drop``.

    The largest first: the leading columns of F are then a factor of their own. On the CPU: the matrix is small, and a
    GPU takes longer to begin than the CPU to finish.
    """
    values, vectors = (part.to(A.device) for part in torch.linalg.eigh(A.cpu()))
    keep = values > drop
    return (vectors[:, keep] / values[keep].sqrt()).flip(1)


def random_pivots(generator: torch.Generator, block: int) -> Callable[[Tensor, int], Tensor]:
    """Pivots in blocks, drawn with probability proportional to the variance left (Chen et al. 2023).

    The smallest of independent exponential variables with these rates are such a draw (Efraimidis and Spirakis 2006).
    """

    def choose(left: Tensor, most: int) -> Tensor:
        uniform = torch.rand(len(left), generator=generator, dtype=left.dtype, device=generator.device).to(left.device)
        return (-torch.log1p(-uniform) / left).topk(min(block, most, len(left)), largest=False).indices

    return choose
