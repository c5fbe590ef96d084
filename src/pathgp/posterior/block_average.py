"""Averages of a posterior over cells: block kriging.

The average of f over a cell, sum_q w_q f(x_q) with sub-points x_q and weights w_q, has the mean sum_q w_q mean(x_q) and
the variance w^T C w with the posterior covariance C of the sub-points. It varies less than f at a point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.posterior.table import Posterior

# Sub-points whose exact covariance is computed at once.
_POINTS_AT_ONCE = 512
# Sub-points whose paths exist at once.
_PATHS_AT_ONCE = 8192


@dataclass(frozen=True, eq=False)
class BlockAverage:
    """Mean and variance of the average over every cell (m,), and paths (s, m) or None."""

    mean: Tensor
    variance: Tensor
    paths: Tensor | None


def block_average(post: Posterior, Xs: Tensor, weights: Tensor, with_paths: bool = False) -> BlockAverage:
    """Averages over m cells with sub-points Xs (m, q, d) and weights (m, q) that add up to one.

    Variances are exact where `Posterior.variance` is exact by default: up to 2,000 rows, or without paths. Otherwise
    they come from the paths' zero-mean parts g_j, scaled at every sub-point to the variance v of `Posterior.variance`:

        mean_j (sum_q w_q g_j(x_q) sqrt(v(x_q) / mean_i g_i(x_q)^2))^2

    Only the correlations between the sub-points are then estimated from s paths, and these are close to one in a small
    cell. Time as for m q predictions; memory for 8,192 sub-points at a time.
    """
    m, q, d = Xs.shape
    is_exact = post.variance_method == "solve"
    parts: list[tuple[Any, ...]] = []
    with torch.no_grad():
        for rows in spans(m, max(1, (_POINTS_AT_ONCE if is_exact else _PATHS_AT_ONCE) // q)):
            inside, w = Xs[rows].reshape(-1, d), weights[rows]
            mean = post.mean(inside)
            average = (mean.view(-1, q) * w).sum(1)
            paths = post.paths(inside) if post.has_paths and (with_paths or not is_exact) else None
            if is_exact:
                cells = len(w)
                C = post.covariance(inside).view(cells, q, cells, q).diagonal(dim1=0, dim2=2)  # (q, q, cells)
                variance = torch.einsum("aq,qra,ar->a", w.to(C), C, w.to(C)).clamp_min(0.0)
            else:
                assert paths is not None
                centred = paths - mean
                scale = (
                    post.variance(inside) / centred.square().mean(0).clamp_min(torch.finfo(mean.dtype).tiny)
                ).sqrt()
                variance = ((centred * scale).view(-1, *w.shape) * w).sum(2).square().mean(0)
            sampled = None if paths is None or not with_paths else (paths.view(-1, *w.shape) * w).sum(2)
            parts.append((average, variance, sampled))
    means, variances, samples = zip(*parts, strict=True)
    together = torch.cat(samples, 1) if samples[0] is not None else None
    return BlockAverage(torch.cat(means), torch.cat(variances), together)
