"""Stop a solve when mean and paths at given inputs are accurate, in units of the posterior standard deviation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.inputs import Array, read_matrix, real_number
from pathgp.data.standardise import Standardisation
from pathgp.kernels import Kernel
from pathgp.pathwise import PriorPaths, UpdatePaths, variance_from_paths
from pathgp.posterior.system import System

# The goals of the residual fall by this factor from check to check.
_FACTOR = 4.0
# Errors of predictions are assumed to fall at least as fast as this power of the goals. They fall more slowly than
# residuals, because smooth functions converge last. On five UCI sets promises were 1.4 to 7 times the true errors.
_EXPONENT = 0.75
# Paths below which their standard deviation is no unit: its relative error is 1 / sqrt(2 s).
_LEAST_SAMPLES = 8


@dataclass(frozen=True)
class PredictionGoal:
    """What the caller asked for: errors of at most ``tol`` posterior stds of mean and paths at inputs ``at`` (m, d)."""

    at: Array
    tol: float


def read_goal(until: str, at: Array | None, tol: float) -> PredictionGoal | None:
    """Check the options of `condition`; None for the rule for residuals."""
    if until not in ("residual", "predictions"):
        raise ValueError(f"until must be 'residual' or 'predictions', got {until!r}")
    if (at is None) != (until == "residual"):
        raise ValueError("until='predictions' and at=Xs, the inputs to predict at, belong together: give both or none")
    if at is None:
        return None
    if not (real_number(tol, "tol") > 0.0 and len(at)):
        raise ValueError(f"until='predictions' needs a positive tol and at least one input, got {tol} and {len(at)}")
    return PredictionGoal(at, float(tol))


class PredictionRule:
    """The residual that a solver has to reach, given its solution: lowered until predictions are accurate enough.

    An `AllowedResidual`: solvers call it with a solution whose residual has reached the last goal. Two bounds of the
    error at the inputs are known then, in posterior standard deviations (estimated from the paths):

        the certificate   sqrt(k) |r| / (2 sigma) / std, which holds in any case, and is far too large as a rule
        the change        c / (q^(3/4) - 1), with c the largest change of mean or paths since the last check

    for goals that fell by a factor q in between. The change is a bound if errors fall at least by q^(3/4).

    The error of the paths is the root mean square over all of them; both errors are the largest over the inputs.
    Cost of a check: predictions at m inputs, m / n of an epoch, and the product that recomputes the residual.
    """

    def __init__(
        self,
        goal: PredictionGoal,
        kernel: Kernel,
        system: System,
        scaling: Standardisation,
        prior: PriorPaths | None,
        largest: float,
        memory: float | None = None,
    ) -> None:
        if prior is None or system.noise_draws.shape[1] < _LEAST_SAMPLES:
            raise ValueError(
                "until='predictions' needs paths, whose standard deviation is its unit: use a kernel with random "
                f"features and samples={_LEAST_SAMPLES} or more"
            )
        X = read_matrix(goal.at, "at", columns=system.X.shape[1], like=system.X).X
        self.goal, self.system, self._largest = goal, system, largest
        self._kernel, self._Xs, self._memory = kernel, scaling.inputs(X, system.X.dtype).detach(), memory
        with torch.no_grad():
            self._prior_values, self._prior_variance = prior(self._Xs), kernel.diag(self._Xs)
        self._least_noise = float(system.deviation.min())
        self._level = _FACTOR * goal.tol * self._least_noise
        # Predictions of the last solution, the last goal that its residual met, and the bound from the change.
        self._values: Tensor | None = None
        self._level_met, self._from_change = self._level, math.inf
        self.error, self.source, self.checks = math.inf, "", 0

    def __call__(self, x: Tensor | None) -> float:
        """The root mean square that the residual may have: infinite once the predictions are accurate enough."""
        if x is None:
            return self._level
        with torch.no_grad():
            values = UpdatePaths(self._kernel, self.system.X, x, self._memory)(self._Xs).to(torch.float64)
        std = self._std(values[1:])
        # A solver may ask again about the same solution: its residual met a lower goal, too.
        if self._values is None or not torch.equal(values, self._values):
            if self._values is not None:
                contraction = (self._level_met / self._level) ** _EXPONENT
                self._from_change = _largest_error(values - self._values, std) / (contraction - 1.0)
            self._values, self.checks = values, self.checks + 1
        self._level_met = self._level
        bound = math.sqrt(self._largest * len(self.system.X)) * self._level / (2.0 * self._least_noise)
        certificate = bound / float(std.min())
        self.error, self.source = min((certificate, "certificate"), (self._from_change, "change"))
        if self.error <= self.goal.tol:
            return math.inf
        self._level /= _FACTOR
        return self._level

    def _std(self, updates: Tensor) -> Tensor:
        """Posterior standard deviation (m,) at the inputs, from the paths f_j - K(., X) alpha_j."""
        prior = self._prior_values.to(torch.float64)
        variance = variance_from_paths(prior - updates, updates, self._prior_variance.to(torch.float64))
        return variance.clamp_min(torch.finfo(torch.float64).tiny).sqrt()


def _largest_error(differences: Tensor, std: Tensor) -> float:
    """The largest over the inputs, for differences (1 + s, m) of the mean and of paths, in units of std (m,)."""
    paths = differences[1:].square().mean(0).sqrt()
    return float((torch.maximum(differences[0].abs(), paths) / std).max())
