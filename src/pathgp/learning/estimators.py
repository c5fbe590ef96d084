"""Estimates of the gradient of the log marginal likelihood (thesis, chapter 5).

    dL = 1/2 v^T dH v - 1/2 tr(H^-1 dH),    v = H^-1 (y - mu)

Each estimator turns the trace into a sum of bilinear forms l^T dH r with constant l and r, so that one scalar,

    1/2 [ v^T H v - 1/s sum_j l_j^T H r_j ],

has all the derivatives, for one pass over K:

    standard    l = H^-1 z,  r = z        z ~ N(0, I)             (Hutchinson 1990)
    pathwise    l = r = H^-1 xi           xi = f(X) + eps ~ N(0, H)
    exact       l = column of H^-1,  r = column of the identity, from one factorisation

The solutions of the pathwise estimator are the weights of posterior samples. With a trend L is the restricted
likelihood, whose gradient has P (see `pathgp.posterior.trend`) in place of H^-1.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pathgp.data.observations import Data
from pathgp.learning.model import Learnable
from pathgp.operators import Operator
from pathgp.posterior.conditioning import ACCURACY, Settings
from pathgp.posterior.system import System
from pathgp.posterior.trend import GeneralisedLeastSquares
from pathgp.solvers import Solution
from pathgp.solvers.cholesky import factorise


@dataclass
class State:
    """What a fit carries from one step to the next; serves warm starts, the posterior and checkpoints alike.

    prior: frozen draws of prior functions, which follow the hyperparameters (pathwise); more are drawn where a periodic
        kernel needs more harmonics.
    draws: (n, s) standard normal: the paths' noise (pathwise), or the probes (standard).
    rows: the rows of the data that the current stage uses; None for all n.
    solutions: (len(rows), 1 + s), of the previous step.
    operator: H of the previous step, whose memory the next one reuses.
    variational: (m, m + 1) the precision of q(u) and its first natural parameter, with inducing points in mini-batches.
    """

    prior: Any = None
    draws: Tensor | None = None
    rows: Tensor | None = None
    solutions: Tensor | None = None
    operator: Operator | None = None
    variational: Tensor | None = None

    def restrict_rows(self, rows: Tensor | None, n: int) -> None:
        """Continue with other rows: weights of rows used before are kept, new ones start at zero."""
        if self.solutions is not None:
            everywhere = self.solutions.new_zeros(n, self.solutions.shape[1])
            everywhere[slice(None) if self.rows is None else self.rows] = self.solutions
            self.solutions = everywhere if rows is None else everywhere[rows]
        self.rows, self.operator = rows, None

    def promote(self) -> None:
        """Continue in float64."""
        self.draws = None if self.draws is None else self.draws.to(torch.float64)
        self.solutions = None if self.solutions is None else self.solutions.to(torch.float64)
        self.operator = None

    def select(self, data: Data) -> Any:
        """The rows of the data that the current stage uses."""
        return data if self.rows is None else data.subset(self.rows)


@dataclass(frozen=True)
class StepRequest:
    """How one step solves its systems: settings, source of random draws, seconds that the solve may take."""

    settings: Settings
    generator: torch.Generator
    time_limit: float | None = None


@dataclass(frozen=True)
class GradientEstimate:
    """One evaluation.

    objective: a scalar whose gradient is the estimate; its value has no meaning.
    value: the log marginal likelihood itself, if known.
    solution: what the solver did, without the weights.
    solver_seconds: time in the solver.
    misfit: (y - mu)^T H^-1 (y - mu) / n. Its expectation is 1 if the data are a draw of the model.
    """

    objective: Tensor
    value: float | None
    solution: Solution | None
    solver_seconds: float
    misfit: float


@dataclass(frozen=True)
class Exact:
    """The gradient by a Cholesky factorisation in float64. Time O(n^3), memory 24 n^2 bytes."""

    # Whose values the objective has if not those of the log likelihood, for reports.
    approximation = ""

    @property
    def description(self) -> str:
        """The estimator in words, for reports."""
        return "exact"

    def draw(self, model: Learnable, data: Data, state: State, generator: torch.Generator) -> None:
        """Nothing is random here."""

    def evaluate(self, model: Learnable, data: Data, state: State, request: StepRequest) -> GradientEstimate:
        data = state.select(data)
        n = len(data.y)
        H = state.operator = model.operator(data, request.settings, state.operator)
        if 24 * n**2 > H.memory:
            raise ValueError(
                f"the exact estimator needs {24e-9 * n**2:.2g} GB, the memory budget is {H.memory / 1e9:.2g} GB: "
                "use estimator='pathwise', or raise memory="
            )
        began = time.perf_counter()
        mean = model.mean_at(data.X_raw)
        with torch.no_grad():
            y = data.targets(mean).to(torch.float64)
            factor, _ = factorise(H.block(torch.arange(n, device=H.device)).to(torch.float64))
            v, inverse = torch.cholesky_solve(y.unsqueeze(1), factor), torch.cholesky_inverse(factor)
            value = -0.5 * float(y @ v[:, 0]) - float(factor.diagonal().log().sum()) - 0.5 * n * math.log(2 * math.pi)
            if data.basis is not None:
                trend = GeneralisedLeastSquares(data.basis, inverse @ data.basis)
                value += trend.log_density_change(y)
                v, inverse = trend.project(v), trend.project(inverse)
            W = inverse.neg_().addmm_(v, v.T).to(H.dtype)
        seconds = time.perf_counter() - began
        objective = 0.5 * H.contract(W) + mean_term(v[:, 0], mean, data)
        return GradientEstimate(objective, value, None, seconds, float(y @ v[:, 0]) / n)


@dataclass(frozen=True)
class Iterative:
    """The standard and the pathwise estimator: one batch of 1 + s systems for an iterative solver.

    pathwise: which of the two.  samples: s.  features: of every path's prior.  warm_start: keep the draws and start
    each solve from the previous solution; otherwise new draws and a start from zero at every step.
    """

    approximation = ""

    pathwise: bool
    samples: int
    features: int
    warm_start: bool

    def draw(self, model: Learnable, data: Data, state: State, generator: torch.Generator) -> None:
        """Fill the state with fresh draws."""
        if self.pathwise:
            state.prior = model.draw_prior(data, self.samples, self.features, generator)
        state.draws = model.draw_noise(data, self.samples, generator)
        state.solutions = None

    def evaluate(self, model: Learnable, data: Data, state: State, request: StepRequest) -> GradientEstimate:
        if not self.warm_start:
            self.draw(model, data, state, request.generator)
        settings = request.settings
        system = self.system(model, data, state)
        data = state.select(data)
        H = state.operator = model.operator(data, settings, state.operator)
        began = time.perf_counter()
        # A residual r shifts the gradient by up to 2 |r| / noise, relative to its size: small beside the noise will do.
        largest = model.largest_variance(data)
        allowed = ACCURACY * system.error_scale(None, largest)
        limits: dict[str, Any] = {"allowed": lambda x: allowed, "time_limit": request.time_limit}
        solution = settings.solve(H, system, request.generator, state.solutions, rule="average", **limits)
        state.solutions = solution.x
        seconds = time.perf_counter() - began
        x, trend = system.split(solution.x)
        # With a trend P = H^-1 - W G^-1 W^T takes the place of H^-1 in both terms.
        x = x if trend is None else trend.project(x)
        v, Z = x[:, :1], x[:, 1:]
        right = Z if self.pathwise else system.targets[:, 1:]
        L, R = torch.cat([v, -Z / self.samples], 1), torch.cat([v, right], 1)
        forms = 0.5 * H.bilinear(L, R, symmetric=self.pathwise)
        mean = model.mean_at(data.X_raw)
        misfit = float((v[:, 0] * system.targets[:, 0]).mean())
        return GradientEstimate(forms + mean_term(v[:, 0], mean, data), None, solution, seconds, misfit)

    def system(self, model: Learnable, data: Data, state: State) -> System:
        """The right-hand sides at the current hyperparameters."""
        assert state.draws is not None
        data, draws = state.select(data), state.draws if state.rows is None else state.draws[state.rows]
        if self.pathwise:
            return model.system(data, state.prior, draws)
        alone = model.system(data, None, draws[:, :0])
        return replace(alone, targets=torch.cat([alone.targets, draws], 1))


def mean_term(v: Tensor, mean: Tensor, data: Data) -> Tensor:
    """A scalar whose gradient is that of L in the parameters of the mean: v^T dmu, in the model's units."""
    return (v.to(torch.float64) * mean / data.scaling.target_scale).sum()
