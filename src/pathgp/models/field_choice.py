"""The choice among models of a field: the one whose exact likelihood on a few groups of neighbours is highest.

How rough a field is shows at short distances. A random subset of a large table has none, so that the likelihood is that
of groups of neighbours, and of single rows between them, which show the variance at long distances.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pathgp.compute.inputs import Array
from pathgp.compute.random import permutation
from pathgp.learning.initialise import set_values
from pathgp.learning.loop import Fit
from pathgp.learning.policy import FIELD_GROUPS, FIELD_ROWS, FIELD_STEPS, FitOptions
from pathgp.models.gp import GP
from pathgp.posterior.conditioning import Settings


def choose_model(
    candidates: Sequence[GP], X: Tensor, y: Array, noise: Array | None, generator: torch.Generator
) -> tuple[GP, list[float]]:
    """Return a copy of the best candidate, and the log likelihoods of all in nats, each at its own optimum.

    The copy has the hyperparameters of its optimum, at which a fit of all rows can start. Candidates have the same
    number of hyperparameters. At most 30 evaluations of each, with 600 rows.
    """
    best, values = candidates[0], []
    for number, candidate in enumerate(candidates):
        model = copy.deepcopy(candidate)
        data = model.prepare_data(X, y, noise, torch.float64)
        # A copy: all candidates see the same rows, and the fit that follows can be repeated by its seed.
        fixed = generator.clone_state()
        subset = data.subset(choose_rows(data.X, fixed))
        set_values(model, subset, fixed, has_sides=False)
        settings = Settings.read("auto", 1e-2, None, None)
        options = FitOptions(settings, steps=FIELD_STEPS, estimator="exact", initialise="model", min_gain=1e-3)
        fit = Fit(model, subset, options.resolve(len(subset.y), False), fixed)
        fit.run()
        likelihoods = [step.log_likelihood for step in fit.history if step.log_likelihood is not None]
        values.append(max(likelihoods, default=-math.inf))
        if number == 0 or values[-1] > max(values[:-1]):
            best = model
    return best, values


def choose_rows(X: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of X (n, d): all up to 600; otherwise groups of nearest neighbours, and as many random rows as a group."""
    n = len(X)
    if n <= FIELD_ROWS:
        return torch.arange(n, device=X.device)
    size = FIELD_ROWS // (FIELD_GROUPS + 1)
    order = permutation(n, generator, X.device)
    groups = [(X - X[centre]).square().sum(1).topk(size, largest=False).indices for centre in order[:FIELD_GROUPS]]
    return torch.cat([*groups, order[FIELD_GROUPS : FIELD_GROUPS + size]]).unique()
