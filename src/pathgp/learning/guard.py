"""A check of every step of a fit: the exact log marginal likelihood of some of the rows.

Estimated gradients can point anywhere once a solve has gone wrong, and there is no value of the objective to notice it
by. The likelihood of a fixed random subset is exact, cheap (one Cholesky factor in float64) and follows that of all
rows closely enough to tell a step that helps from one that leads to where the systems cannot be solved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pathgp.learning.hyperparameters import log_prior
from pathgp.randomness import permutation

if TYPE_CHECKING:
    from pathgp.models.base import Model

# Rows whose likelihood is computed.
ROWS = 1000
# Nats a row below the best value so far at which a step is still accepted: hyperparameters that suit all rows better
# may suit some of them a little less.
SLACK = 0.1


@dataclass
class Guard:
    """The rows that are looked at, the first value, and the best so far with the hyperparameters that had it."""

    rows: Tensor
    first: float = -math.inf
    best: float = -math.inf
    state: dict[str, Tensor] | None = None

    @classmethod
    def draw(cls, data: Any) -> Guard:
        """A random subset, the same for the same number of rows: it decides nothing but which steps are refused."""
        n = len(data.y)
        return cls(permutation(n, torch.Generator().manual_seed(0), data.device)[:ROWS].sort().values)

    def value(self, model: Model, data: Any) -> float:
        """Log marginal likelihood of the subset plus log prior, in nats a row; -inf for an indefinite H."""
        with torch.no_grad():
            H = model.covariance(data, self.rows)
            deviation = model.deviation(data).to(torch.float64)
            H.diagonal().add_((deviation[self.rows] if deviation.ndim else deviation).square())
            factor, info = torch.linalg.cholesky_ex(H)
            if int(info) or not bool(torch.isfinite(factor).all()):
                return -math.inf
            mean = model.mean_at(data.given, exact=True)
            y = data.targets(mean)[self.rows].to(torch.float64)
            white = torch.linalg.solve_triangular(factor, y.unsqueeze(1), upper=False)
            total = -0.5 * float(white.square().sum()) - float(factor.diagonal().log().sum())
            prior = float(log_prior(model)) / len(data.y)
        return total / len(y) - 0.5 * math.log(2 * math.pi) + prior

    def accepts(self, value: float) -> bool:
        """Whether hyperparameters with this value are as good as any before, or nearly so."""
        return value >= self.best - SLACK

    def enter(self, value: float, state: dict[str, Tensor]) -> None:
        """Remember the value of accepted hyperparameters."""
        if self.state is None:
            self.first = value
        if self.state is None or value > self.best:
            self.best, self.state = value, state

    def pack(self) -> dict[str, Any]:
        return {"first": self.first, "best": self.best, "state": self.state}

    def unpack(self, content: dict[str, Any]) -> None:
        self.first, self.best, self.state = content["first"], content["best"], content["state"]
