"""The region of the best observations: a box that shrinks around them as an optimisation goes on.

With many columns the maximum of a path is usually far from all data, where the posterior is wide and the path exceeds
its values near the data. Evaluations there seldom improve the best value. Eriksson et al. (2019) therefore search in a
trust region. Here the region is the box of the best observations, as in the cross-entropy method, which needs no state
except the data. Some paths of a batch are maximised in the region, the others in the whole domain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.decisions.domain import Domain

# The region is the box of this number of best observations, enlarged by a margin.
_NUM_BEST = 10
# With this number of columns half of the paths are maximised in the region; with more columns, a larger share.
_COLUMNS_FOR_HALF = 6
# Margin on every side, as a share of the width of the box of the best observations, so that the region can move.
_MARGIN = 0.25
# The least margin on every side, as a share of the width of the domain.
_MIN_MARGIN = 1e-4
# Number of uniform points that estimate the share of a region that a constraint allows.
_TRIALS = 1000
# There is no region if the constraint allows less than this share of it.
_LEAST_ALLOWED = 0.01


def count_local_paths(count: int, columns: int) -> int:
    """How many of ``count`` paths are maximised in the region: the share d / (d + 6) with d columns."""
    return round(count * columns / (columns + _COLUMNS_FOR_HALF))


def best_region(domain: Domain, X: Tensor, y: Tensor, generator: torch.Generator) -> Tensor | None:
    """Bounds (2, d) of the region around the best of the observations X (n, d), y (n,), lower ends first.

    Larger y is better. The box of the ten best, enlarged by a quarter of its width on every side, within the domain.
    Columns with choices keep all their values. None if there are fewer than 20 observations, or if the constraint
    allows less than a hundredth of the region.
    """
    if len(y) < 2 * _NUM_BEST:
        return None
    best = X[y.topk(_NUM_BEST).indices].to(domain.lower)
    lower, upper = best.amin(0), best.amax(0)
    margin = (_MARGIN * (upper - lower)).clamp_min(_MIN_MARGIN * domain.width)
    ends = torch.stack([lower - margin, upper + margin])
    ends[:, ~domain.continuous] = torch.stack([domain.lower, domain.upper])[:, ~domain.continuous]
    ends = torch.minimum(torch.maximum(ends, domain.lower), domain.upper)
    if domain.constraint is not None:
        draws = torch.rand(_TRIALS, X.shape[1], generator=generator, dtype=torch.float64, device=generator.device)
        points = domain.clip(ends[0] + (ends[1] - ends[0]) * draws.to(ends))
        if float(domain.allows(points).double().mean()) < _LEAST_ALLOWED:
            return None
    return ends
