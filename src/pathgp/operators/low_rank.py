"""Low-rank factors F of a positive semi-definite matrix, K ~ F F^T, from a part of its columns."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pathgp.kernels import Kernel
from pathgp.operators.base import Operator

# Sides of a grid below this size do not gain from a root; columns of a factor that are evaluated at once to find one.
_MIN_SIDE, _PIVOTS_PER_ROUND = 32, 128


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
    Stop when the mean variance left is at most ``enough``, and the largest at most ``drop`` if that is given. et al.
    (2012), Chen et al. (2023).

    Args:
        columns: computes K[:, index] in float64 for an index.
        variances: the diagonal of K, float64.
        largest: the largest number of columns of F.
        choose: selects the next pivots from the variances left and their largest number.
        drop: leave out directions of the pivots with at most this variance; 0 keeps all, damped if they are dependent.
        rounding: error of the columns, relative to the largest variance; that of the sums here is at least 1e-14.
    """
    factor = torch.zeros(len(variances), largest, dtype=torch.float64, device=variances.device)
    left, filled, rounding = variances.clone(), 0, max(rounding, 1e-14) * float(variances.max())
    enough, most = max(enough, 1e-14 * float(variances.mean())), drop or math.inf
    while filled < largest and (float(left.mean()) > enough or float(left.max()) > most):
        pivots = choose(left, largest - filled)
        new = columns(pivots)
        new -= factor[:, :filled] @ factor[pivots, :filled].T
        left[pivots] = 0.0
        new = new @ _directions(new[pivots], drop) if drop else _whiten(new, new[pivots], rounding)
        if not new.shape[1]:
            continue
        factor[:, filled : filled + new.shape[1]] = new
        filled += new.shape[1]
        left = torch.clamp(left - new.square().sum(1), min=0.0)
        left[pivots] = 0.0
    return factor[:, :filled].clone(), left


def _whiten(columns: Tensor, A: Tensor, rounding: float) -> Tensor:
    """columns L^-T with L L^T = A + ridge: pivots that are dependent up to rounding get no weight.

    Does not synchronise with the device.
    """
    # Rounding errors are a random matrix: its norm grows as the root of its size.
    A.diagonal().clamp_min_(0.0).add_(2.0 * rounding * len(A) ** 0.5)
    L, failed = torch.linalg.cholesky_ex(A)
    return torch.linalg.solve_triangular(L.T, columns, upper=True, left=False).masked_fill_(failed != 0, 0.0)


def _directions(A: Tensor, drop: float) -> Tensor:
    """Scaled eigenvectors of A with more variance than ``drop``.

    The largest come first, so that the leading columns of F are a factor of their own. Computed on the CPU: the matrix
    is small, and a GPU takes longer to start than the CPU to finish.
    """
    values, vectors = (part.to(A.device) for part in torch.linalg.eigh(A.cpu()))
    keep = values > drop
    return (vectors[:, keep] / values[keep].sqrt()).flip(1)


def max_rank(device: torch.device) -> int:
    """The largest rank of automatic low-rank preconditioners."""
    return 2000 if device.type == "cuda" else 1000


def automatic_rank(H: Operator) -> int:
    """The largest automatic rank: n / 8, at most 1000 on a CPU and 2000 on a GPU.

    A larger factor costs more to build than it saves. On a grid the rank is at most the number of multiplications of a
    product per observed cell, so that an application costs a few products at most. The factor, a copy while it is cut
    to size and its scaled form must fit into half of the operator's memory budget.
    """
    n = H.shape[0]
    fits, balanced = H.memory // (2 * 3 * 8 * n), max(H.entries // n, 16)
    return max(1, min(max(n // 8, 16), max_rank(H.device), fits, balanced, n))


def random_pivots(generator: torch.Generator, block: int) -> Callable[[Tensor, int], Tensor]:
    """Pivots in blocks, drawn with probability proportional to the variance left (Chen et al. 2023).

    The smallest of independent exponential variables with these rates are such a draw (Efraimidis and Spirakis 2006).
    """

    def choose(left: Tensor, most: int) -> Tensor:
        uniform = torch.rand(len(left), generator=generator, dtype=left.dtype, device=generator.device).to(left.device)
        return (-torch.log1p(-uniform) / left).topk(min(block, most, len(left)), largest=False).indices

    return choose


def find_root(kernel: Kernel, X: Tensor, most: int, memory: int) -> Tensor | None:
    """B (p, r) in float64 with K = B B^T up to rounding in the dtype of X (p, d), or None if r exceeds ``most``.

    No entry of K - B B^T is larger than the rounding of the largest variance, and its norm is at most that of a matrix
    of rounding errors, which grows as sqrt(p). Time O(p r^2). The pivots are the same in every call.
    """
    p, eps = len(X), torch.finfo(X.dtype).eps
    if p < _MIN_SIDE:
        return None
    X = X.to(torch.float64)
    with torch.no_grad():
        variances = kernel.diag(X)
        # Rounding in float64 gives a matrix of full rank and norm sqrt(p) eps.
        rounding = max(eps, 8.0 * math.sqrt(p) * torch.finfo(torch.float64).eps)
        limit = rounding * float(variances.max())
        for columns in (most // 4, most):
            # A quarter of the columns first: a spectrum that decays in time leaves little after them.
            choose = random_pivots(torch.Generator().manual_seed(0), _PIVOTS_PER_ROUND)
            largest = min(max(columns + 1, min(p, _PIVOTS_PER_ROUND)), max(1, memory // (3 * 8 * p)))
            enough = limit / math.sqrt(p)
            B, left = partial_cholesky(lambda index: kernel(X, X[index]), variances, largest, choose, enough, limit)
            if float(left.max()) <= limit:
                break
            if float(left.mean()) > 0.1 * float(variances.mean()):
                return None
        else:
            return None
    # Pivots give a few columns more than needed; the eigenvectors of B B^T give the fewest.
    values, vectors = torch.linalg.eigh(B.T @ B)
    keep = values > limit
    return B @ vectors[:, keep] if int(keep.sum()) <= most else None
