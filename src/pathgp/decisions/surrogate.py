"""The model of a growing data set: fitted on a schedule, updated from its last solution in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.inputs import real_number
from pathgp.compute.random import spawn_generator
from pathgp.models import GP
from pathgp.posterior.table import Posterior

# Rows below which hyperparameters are not learned.
_LEAST_ROWS = 4
# Paths of the posterior of a fit, which only learns the hyperparameters.
_PROBES = 16


class Surrogate:
    """Data, a model and its posterior.

    Args:
        gp: the model; fits change its hyperparameters.
        refit: the hyperparameters are learned when there are ``refit`` times as many rows as at the last fit; None
            never learns them.
        fit: options of `GP.fit`.
        condition: options of `GP.condition`.
        generator: source of all draws.
    """

    def __init__(
        self,
        gp: GP,
        refit: float | None,
        fit: Mapping[str, Any] | None,
        condition: Mapping[str, Any] | None,
        generator: torch.Generator,
    ) -> None:
        if not isinstance(gp, GP):
            raise TypeError(f"the model must be a pathgp.GP, got {type(gp).__name__}")
        if refit is not None and not real_number(refit, "refit") > 1.0:
            raise ValueError(f"refit is the growth of the data between two fits, more than 1, or None; got {refit}")
        self.gp, self.refit, self.generator = gp, refit, generator
        self.fit_options, self.condition_options = dict(fit or {}), dict(condition or {})
        self.X, self.y = torch.empty(0, 0), torch.empty(0, dtype=torch.float64)
        self.fitted_rows = 0
        self._posterior: Posterior | None = None

    def add(self, X: Tensor, y: Tensor) -> None:
        """Add observations: X (m, d) and y (m,), finite."""
        self.X = torch.cat([self.X, X]) if len(self.y) else X.clone()
        self.y = torch.cat([self.y, y.to(torch.float64)]) if len(self.y) else y.to(torch.float64).clone()

    @property
    def is_fit_due(self) -> bool:
        """Whether the next posterior begins with a fit."""
        return self.refit is not None and len(self.y) >= max(_LEAST_ROWS, self.refit * self.fitted_rows)

    @property
    def last(self) -> Posterior | None:
        """The last posterior, of which new paths need not have been drawn."""
        return self._posterior

    def redraw(self) -> None:
        """Make the next posterior draw new paths."""
        self._posterior = None

    def posterior(self, samples: int) -> Posterior:
        """The posterior given all data, with at least ``samples`` paths: fitted, updated or conditioned anew.

        A fit or a larger number of samples draws new prior paths. An update keeps them and starts from the last
        solution.
        """
        if self.is_fit_due:
            options = {"samples": _PROBES, **self.fit_options}
            self.gp.fit(self.X, self.y, generator=spawn_generator(self.generator), **options)
            self.fitted_rows, self._posterior = len(self.y), None
        post = self._posterior
        if post is None or post.num_samples < samples:
            options = {"samples": samples, **self.condition_options}
            post = self.gp.condition(self.X, self.y, generator=spawn_generator(self.generator), **options)
        elif (known := len(post.system.X)) < len(self.y):
            post = post.update(self.X[known:], self.y[known:], generator=spawn_generator(self.generator))
        self._posterior = post
        return post
