"""The order of the rows in nested subsets."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.compute.random import permutation
from pathgp.data.observations import Data
from pathgp.learning.model import Learnable
from pathgp.operators.structure_choice import find_sites
from pathgp.posterior.conditioning import Settings


def draw_order(model: Learnable, data: Data, settings: Settings, generator: torch.Generator) -> Tensor:
    """Draw a random order of the n rows; stages, and last solves within a time limit, use the first rows of this order.

    If products use the structure of sites x regular times, the sites are in random order, and the rows of a site stay
    together. A subset of single rows would have lost this structure.
    """
    n = len(data.y)
    if model.is_grid or model.num_inducing or settings.compute.group is not None:
        return permutation(n, generator, data.device)
    sites = find_sites(model.sides[0], data.factors[0], settings.compute.backend, settings.compute.budget(data.device))
    if sites is None:
        return permutation(n, generator, data.device)
    rank = permutation(int(sites.max()) + 1, generator, data.device).argsort()
    return rank[sites].argsort(stable=True)
