"""Partial Cholesky factors F of a positive semi-definite matrix, K ~ F F^T, from some of its columns."""

from __future__ import annotations

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
) -> tuple[Tensor, Tensor]:
    """F (n, r) with r up to ``largest``, and the diagonal of K - F F^T (n,), never negative; all in float64.

    Time O(n r^2), memory O(n r). K - F F^T is positive semi-definite: none of its entries exceeds its largest variance.
    Ends when the mean variance left is not above ``enough``. Harbrecht et al. (2012), Chen et al. (2023).

    Args:
        columns: K[:, index] in float64 for an index.
        variances: the diagonal of K, float64.
        largest: most columns of F.
        choose: the next pivots from the variances left and the most that may be taken.
        drop: directions of the pivots with no more variance than this are left out.
    """
    factor = torch.zeros(len(variances), largest, dtype=torch.float64, device=variances.device)
    left, filled = variances.clone(), 0
    while filled < largest and float(left.mean()) > max(enough, 1e-14 * float(variances.mean())):
        pivots = choose(left, largest - filled)
        new = columns(pivots)
        new -= factor[:, :filled] @ factor[pivots, :filled].T
        # Pivots that depend on each other up to rounding are dropped with the small eigenvalues.
        # On the CPU: the matrix is small, and a GPU takes longer to begin than the CPU to finish.
        values, vectors = (part.to(new.device) for part in torch.linalg.eigh(new[pivots].cpu()))
        least = max(drop, 1e-6 * float(values.max()) if drop == 0.0 and len(pivots) > 1 else 0.0)
        keep = values > least
        left[pivots] = 0.0
        if not bool(keep.any()):
            continue
        # The largest first: the leading columns of F are a factor of their own.
        new = (new @ (vectors[:, keep] / values[keep].sqrt())).flip(1)
        factor[:, filled : filled + new.shape[1]] = new
        filled += new.shape[1]
        left = torch.clamp(left - new.square().sum(1), min=0.0)
        left[pivots] = 0.0
    return factor[:, :filled].clone(), left


def random_pivots(generator: torch.Generator, block: int) -> Callable[[Tensor, int], Tensor]:
    """Pivots in blocks, drawn with probability proportional to the variance left (Chen et al. 2023)."""

    def choose(left: Tensor, most: int) -> Tensor:
        num = min(block, most, int((left > 0).sum()))
        return torch.multinomial(left.to(generator.device), num, generator=generator).to(left.device)

    return choose
