"""The exact posterior for the same data and the same random draws, and the distance of an approximate one to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pathgp.compute.inputs import Array, Matrix, read_matrix
from pathgp.compute.memory import spans
from pathgp.compute.settings import Compute
from pathgp.diagnostics.spectral import require_small, require_table
from pathgp.operators import KernelOperator
from pathgp.pathwise import UpdatePaths
from pathgp.posterior import Posterior
from pathgp.solvers.cholesky import factorise

# Inputs at which all paths are evaluated at once.
_ROWS_AT_ONCE = 4096


def marginal_wasserstein(mean: Array, std: Array, other_mean: Array, other_std: Array) -> Array:
    """Wasserstein-2 distance of two normal distributions, sqrt((mean - mean')^2 + (std - std')^2), entry by entry.

    >>> float(marginal_wasserstein(0.0, 1.0, 3.0, 5.0))
    5.0
    """
    squared = (mean - other_mean) ** 2 + (std - other_std) ** 2
    return squared.sqrt() if isinstance(squared, Tensor) else np.sqrt(squared)


@dataclass(frozen=True, eq=False)
class ExactSolution:
    """The exact weights H^-1 B of a posterior's systems, by a Cholesky factorisation in float64.

    The paths of both posteriors have the same prior draws and the same noise, so that differences are due to the
    solver (and to rounding) alone, and vanish if it solves exactly.

    posterior: the approximate posterior.  weights: (n, 1 + s), exact, float64.
    """

    posterior: Posterior
    weights: Tensor

    @classmethod
    def of(cls, posterior: Posterior) -> ExactSolution:
        """Solve the systems of a posterior exactly. Time O(n^3), memory O(n^2); ValueError above 10,000 rows."""
        require_table(posterior)
        system = posterior.system.require_targets("an exact solution")
        if system.basis is not None:
            raise NotImplementedError("exact solutions for diagnosis are not available for models with a trend")
        require_small(len(system.X), system.X.device)
        X = system.X.to(torch.float64)
        H = KernelOperator(posterior.model.kernel, X, system.deviation, Compute("streamed"))
        factor, _ = factorise(H.block(torch.arange(len(X), device=X.device)))
        targets = torch.cat([system.targets[:, :1].to(torch.float64), system.noisy_draws()], 1)
        return cls(posterior, torch.cholesky_solve(targets, factor))

    @property
    def weight_errors(self) -> Tensor:
        """Approximate minus exact weights (n, 1 + s), float64."""
        return self.posterior.weights.to(torch.float64) - self.weights

    def mean(self, Xs: Array) -> Array:
        """The exact posterior mean (m,), in the units of y."""
        inputs, points = self._read(Xs)
        with torch.no_grad():
            update = self._update(self.weights[:, :1])(points)[0]
            prior_mean = self.posterior.model.mean_at(inputs.X.to(torch.float64))
        return inputs.to_caller(self.posterior.scaling.restore(update, prior_mean, torch.float64))

    def std(self, Xs: Array) -> Array:
        """The exact posterior standard deviation (m,) of f, in the units of y."""
        return self.posterior.variance(Xs, method="solve") ** 0.5

    def errors(self, Xs: Array) -> Array:
        """Approximate minus exact values at Xs in the units of y, (1 + s, m): the mean, and the paths about it.

        Time O(m n s).
        """
        inputs, points = self._read(Xs)
        with torch.no_grad():
            differences = self._update(self.weight_errors)(points)
        # Path j about the mean is f_j - K(., X) alpha_j.
        differences[1:].neg_()
        return inputs.to_caller(self.posterior.scaling.restore_deviation(differences))

    def wasserstein(self, Xs: Array) -> Array:
        """Wasserstein-2 distance (m,) between the marginals of the approximate and the exact posterior at Xs.

        sqrt((difference of the means)^2 + (difference of the standard deviations)^2), in the units of y. The
        approximate standard deviation is the exact one, times the ratio of the root mean squares of approximate and
        exact paths, which have the same draws: its sampling error is that of the solver's error, not of the paths.
        Without paths only the means differ. Time O(m n (n + s)).
        """
        inputs, points = self._read(Xs)
        std = torch.as_tensor(self.std(Xs)).to(points)
        differences = torch.as_tensor(self.errors(Xs)).to(points)
        other = std
        if self.posterior.num_samples:
            ratios = [self._ratio(points[rows], differences[1:, rows]) for rows in spans(len(points), _ROWS_AT_ONCE)]
            other = std * torch.cat(ratios)
        return inputs.to_caller(marginal_wasserstein(differences[0], other, torch.zeros_like(std), std))

    def _ratio(self, points: Tensor, differences: Tensor) -> Tensor:
        """Root mean square (m,) of the approximate paths about their mean, divided by that of the exact ones."""
        with torch.no_grad():
            exact = self.posterior.prior(points) - self._update(self.weights[:, 1:])(points)
        exact = self.posterior.scaling.restore_deviation(exact)
        tiny = torch.finfo(exact.dtype).tiny
        return ((exact + differences).square().sum(0) / exact.square().sum(0).clamp_min(tiny)).sqrt()

    def _read(self, Xs: Array) -> tuple[Matrix, Tensor]:
        X = self.posterior.system.X
        inputs = read_matrix(Xs, "Xs", columns=X.shape[1], like=X)
        return inputs, self.posterior.scaling.inputs(inputs.X, torch.float64)

    def _update(self, weights: Tensor) -> UpdatePaths:
        X = self.posterior.system.X.to(torch.float64)
        return UpdatePaths(self.posterior.model.kernel, X, weights, self.posterior.settings.compute.memory_bytes)
