"""A check of every step of a fit: the exact log marginal likelihood of a subset of the rows.

Estimated gradients can be wrong after a failed solve, and the value of the objective is unknown. The likelihood of a
fixed random subset is exact, costs one Cholesky factorisation in float64, and follows that of all rows closely enough
to detect bad steps. L-BFGS also uses its exact gradient, for its first steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathgp.compute.random import permutation
from pathgp.data.observations import Data
from pathgp.learning.hyperparameters import log_prior
from pathgp.learning.model import Learnable
from pathgp.learning.policy import GUARD_ROWS
from pathgp.solvers.solution import NumericalFailure

# Tolerated fall below the best value, in nats a row: SLACK + MORE_ROWS * log(n / size of the subset). The optimum of
# all rows differs from that of the subset, the more so for larger n: on houseelectric, at the optimum of 5,000 rows,
# the subset loses 0.29. Bad steps lose several.
SLACK, MORE_ROWS = 0.1, 0.2


@dataclass(frozen=True)
class Guard:
    """A subset of n rows, its first and its best value, and the hyperparameters of the best value."""

    rows: Tensor
    n: int
    first: float = -math.inf
    best: float = -math.inf
    state: dict[str, Tensor] | None = None

    @classmethod
    def draw(cls, data: Data) -> Guard:
        """Draw a random subset with a fixed seed; it affects only which steps are refused."""
        n = len(data.y)
        return cls(permutation(n, torch.Generator().manual_seed(0), data.device)[:GUARD_ROWS].sort().values, n)

    def value(self, model: Learnable, data: Data) -> float:
        """Log marginal likelihood of the subset plus log prior, in nats a row; -inf for an indefinite H."""
        with torch.no_grad():
            return float(self._objective(model, data))

    def gradient(self, model: Learnable, data: Data, parameters: Sequence[Tensor]) -> tuple[float, list[Tensor]]:
        """The same value and its gradient; NumericalFailure for an indefinite H."""
        objective = self._objective(model, data)
        if not math.isfinite(float(objective.detach())):
            raise NumericalFailure(f"the kernel matrix of {len(self.rows)} rows is not positive definite")
        found = torch.autograd.grad(objective, parameters, allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
        return float(objective.detach()), gradients

    def _objective(self, model: Learnable, data: Data) -> Tensor:
        deviation = model.deviation(data).to(torch.float64)
        noise = (deviation[self.rows] if deviation.ndim else deviation.expand(len(self.rows))).square()
        H = model.product(data.widths)(data.inputs(self.rows).to(torch.float64)) + noise.diag_embed()
        factor, info = torch.linalg.cholesky_ex(H)
        if int(info) or not bool(torch.isfinite(factor).all()):
            return H.new_tensor(-math.inf)
        y = data.targets(model.mean_at(data.X_raw))[self.rows].to(torch.float64)
        white = torch.linalg.solve_triangular(factor, y.unsqueeze(1), upper=False)
        total = -0.5 * white.square().sum() - factor.diagonal().log().sum()
        return total / len(y) - 0.5 * math.log(2 * math.pi) + log_prior(model).to(total.device) / len(data.y)

    def require_likely(self, value: float) -> None:
        """NumericalFailure for hyperparameters at which the rows are far less likely than before."""
        if not self._accepts(value):
            fall = self.best - value
            raise NumericalFailure(f"the log likelihood of {len(self.rows)} rows fell by {fall:.2g} a row")

    def ends_well(self, value: float) -> bool:
        """Whether this value is one to end with: accepted, and not below the first."""
        return self._accepts(value) and value >= self.first - self._allowance

    def enter(self, value: float, state: dict[str, Tensor]) -> Guard:
        """The guard that remembers the value of accepted hyperparameters."""
        if self.state is None:
            return replace(self, first=value, best=value, state=state)
        return replace(self, best=value, state=state) if value > self.best else self

    def _accepts(self, value: float) -> bool:
        return value >= self.best - SLACK - self._allowance

    @property
    def _allowance(self) -> float:
        """Allowed difference between the subset and all rows, in nats a row."""
        return MORE_ROWS * math.log(self.n / len(self.rows))
