"""Check every step of a fit by the exact log marginal likelihood of a subset of the rows.

Estimated gradients can be wrong after a failed solve, and iterative fits do not know the value of the objective. The
likelihood of a fixed random subset is exact and costs one Cholesky factorisation in float64. It is close enough to that
of all rows to detect bad steps. L-BFGS also uses the exact gradient of this likelihood, for its first steps. A larger
subset, drawn independently, then shows whether these steps suit other rows as well.

The optimum of all rows may be far from that of a few, above all with little noise. A step that the subset rejects is
therefore checked with up to 4,000 rows. If these accept it, they also check all further steps.
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
from pathgp.posterior.leave_one_out import from_factor
from pathgp.posterior.trend import GeneralisedLeastSquares
from pathgp.solvers.solution import NumericalFailure

# A step is rejected if the value falls below the best one by more than this number of nats per row ...
_TOLERANCE = 0.1
# ... plus this number times log(n / rows of the subset). The optimum of all rows differs from that of the subset, and
# the difference grows with n: on houseelectric, at the optimum of 5,000 rows, the value of the subset is 0.29 nats per
# row below its best. After bad steps it is several nats lower.
_SUBSET_TOLERANCE = 0.2
# Rows that decide whether a step is rejected. Two fits of 2,500 rows of bike, rejected by 1,000 of them, ended at test
# log-likelihoods of 2.5 and 2.1 instead of 4.3.
_MORE_ROWS = 4000


@dataclass(frozen=True)
class Guard:
    """A subset of the data and the values of its objective in a fit.

    rows: indices of the subset.  n: number of all rows.  first, best: first and best value.  state: parameters of the
    model at the best value.
    """

    rows: Tensor
    n: int
    first: float = -math.inf
    best: float = -math.inf
    state: dict[str, Tensor] | None = None

    @classmethod
    def draw(cls, data: Data, rows: int | None = None, seed: int = 0) -> Guard:
        """Draw a random subset, by default of 1,000 rows, from a fixed seed: the generator of the fit is not used."""
        n, rows = len(data.y), rows or GUARD_ROWS
        return cls(permutation(n, torch.Generator().manual_seed(seed), data.device)[:rows].sort().values, n)

    def enlarge(self, data: Data) -> Guard:
        """Return a guard with 4,000 rows, or all, that knows no values yet."""
        return Guard.draw(data, min(self.n, _MORE_ROWS))

    def value_at(self, state: dict[str, Tensor], model: Learnable, data: Data) -> float:
        """`value` at the parameters ``state``; those of the model stay."""
        current = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(state)
        try:
            return self.value(model, data)
        finally:
            model.load_state_dict(current)

    @property
    def is_large(self) -> bool:
        """Whether `enlarge` would not add rows."""
        return len(self.rows) >= min(self.n, _MORE_ROWS)

    def value(self, model: Learnable, data: Data) -> float:
        """Log marginal likelihood of the subset plus log prior, in nats per row; -inf if H is not positive definite."""
        with torch.no_grad():
            return self._evaluate(model, data)[0]

    def gradient(self, model: Learnable, data: Data, parameters: Sequence[Tensor]) -> tuple[float, list[Tensor]]:
        """Return `value` and its gradient; raise NumericalFailure if H is not positive definite.

        With v = H^-1 y the gradient is that of sum_ij W_ij H_ij - v^T y for constant W = (v v^T - H^-1) / 2 and v.
        """
        with torch.no_grad():
            value, factor, y, trend = self._evaluate(model, data)
            if not math.isfinite(value):
                raise NumericalFailure(f"the kernel matrix of {len(self.rows)} rows is not positive definite")
            v, inverse = torch.cholesky_solve(y.unsqueeze(1), factor), torch.cholesky_inverse(factor)
            if trend is not None:
                v, inverse = trend.project(v), trend.project(inverse)
            W = inverse.neg_().addmm_(v, v.T).mul_(0.5)
        X, y, noise = self._select(model, data)
        forms = model.product(data.widths).contract(W, X) + W.diagonal() @ noise - v[:, 0] @ y
        objective = forms / len(y) + log_prior(model).to(forms.device) / len(data.y)
        grads = torch.autograd.grad(objective, parameters, allow_unused=True)
        return value, [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]

    def relative_error(self, model: Learnable, data: Data) -> float:
        """Mean squared error of leave-one-out predictions of the subset, relative to that of the average of the others.

        Infinite if H is not positive definite, NaN if all y are equal. At least two rows, no trend.
        """
        with torch.no_grad():
            value, factor, y, _ = self._evaluate(model, data)
            if not math.isfinite(value):
                return math.inf
            if bool((y == y[0]).all()):
                return math.nan
            # The average of the others is further away than the average of all.
            errors_of_average = (y - y.mean()) * (len(y) / (len(y) - 1))
            return float((y - from_factor(factor, y).means).square().sum() / errors_of_average.square().sum())

    def _select(self, model: Learnable, data: Data) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (m, d), targets (m,) and variances of the noise (m,) of the subset, in float64."""
        deviation = model.deviation(data).to(torch.float64)
        deviation = deviation[self.rows] if deviation.ndim else deviation.expand(len(self.rows))
        y = data.targets(model.mean_at(data.X_raw))[self.rows].to(torch.float64)
        return data.inputs(self.rows).to(torch.float64), y, deviation.square()

    def _evaluate(self, model: Learnable, data: Data) -> tuple[float, Tensor, Tensor, GeneralisedLeastSquares | None]:
        """The value, the Cholesky factor of H, the targets y, and the trend if there is one."""
        X, y, noise = self._select(model, data)
        H = model.product(data.widths)(X)
        H.diagonal().add_(noise)
        factor, info = torch.linalg.cholesky_ex(H)
        if int(info) or not bool(torch.isfinite(factor).all()):
            return -math.inf, factor, y, None
        whitened_y = torch.linalg.solve_triangular(factor, y.unsqueeze(1), upper=False)
        total = -0.5 * whitened_y.square().sum() - factor.diagonal().log().sum()
        trend = None
        if data.basis is not None:
            basis = data.basis[self.rows]
            trend = GeneralisedLeastSquares(basis, torch.cholesky_solve(basis, factor))
            total = total + trend.log_density_change(y)
        value = total / len(y) - 0.5 * math.log(2 * math.pi) + log_prior(model).to(total.device) / len(data.y)
        return float(value), factor, y, trend

    def check(self, value: float) -> None:
        """Raise NumericalFailure if the value is far below the best one."""
        if not self.accepts(value):
            fall = self.best - value
            raise NumericalFailure(f"the log likelihood of {len(self.rows)} rows fell by {fall:.2g} nats per row")

    def accepts_final(self, value: float) -> bool:
        """Whether a fit may end with this value: it is accepted, and not clearly below the first one."""
        return self.accepts(value) and value >= self.first - self._subset_tolerance

    def update(self, value: float, state: dict[str, Tensor]) -> Guard:
        """Return a guard that knows the value of the accepted parameters ``state``, too."""
        if self.state is None:
            return replace(self, first=value, best=value, state=state)
        return replace(self, best=value, state=state) if value > self.best else self

    def accepts(self, value: float) -> bool:
        """Whether the value is not far below the best one."""
        return value >= self.best - _TOLERANCE - self._subset_tolerance

    @property
    def _subset_tolerance(self) -> float:
        """Tolerated loss because the subset and all rows have different optima, in nats per row."""
        return _SUBSET_TOLERANCE * math.log(self.n / len(self.rows))
