"""What a user gets back: mean, variance, covariance and paths of the posterior."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathgp.conditioning import Settings, System, extend_prior, solve_system
from pathgp.inputs import Array, Matrix, read_matrix, read_vector
from pathgp.operators import KernelOperator
from pathgp.operators.memory import memory_budget, spans
from pathgp.pathwise import PosteriorPaths, PriorPaths, UpdatePaths
from pathgp.randomness import as_generator, normal
from pathgp.report import ConditionReport
from pathgp.solvers.base import Callback
from pathgp.solvers.cholesky import factorise

if TYPE_CHECKING:
    from pathgp.models.gp import GP
    from pathgp.models.standardise import Standardisation

# Test rows whose paths are held at once while their squares are averaged.
_ROWS_AT_ONCE = 8192
# Columns of K(X, Xs) that are solved for at once where n is too large for a factorisation.
_COLUMNS_AT_ONCE = 256
# Rows up to which exact variances use a Cholesky factor of H, 8 n^2 bytes, kept after its first use.
_FACTOR_ROWS = 10_000
_SOLVE_TOL = {torch.float32: 1e-4, torch.float64: 1e-7}


class Posterior:
    """A Gaussian process given data.

    Obtained from `GP.condition`. ``mean``, ``variance``, ``covariance`` and ``sample`` describe the posterior at
    chosen inputs, ``paths`` are posterior draws that are functions, ``update`` adds observations, ``report`` says how it
    all was obtained. Inputs are NumPy arrays or tensors (m, d), results come back in kind.
    """

    def __init__(
        self,
        model: GP,
        scaling: Standardisation,
        system: System,
        prior: PriorPaths | None,
        weights: Tensor,
        settings: Settings,
        report: ConditionReport,
    ) -> None:
        self.model = model
        self.report = report
        self._scaling = scaling
        self._system = system
        self._prior = prior
        self._weights = weights
        self._settings = settings

    @property
    def num_samples(self) -> int:
        """Number of paths."""
        return self._weights.shape[1] - 1

    def mean(self, Xs: Array) -> Array:
        """Posterior mean (m,): mu + K(Xs, X) v. Time O(m n d), memory one tile. Differentiable in Xs."""
        inputs, scaled = self._read(Xs)
        return inputs.give(self._mean_from(self._update(self._weights[:, :1])(scaled)[0], inputs.X))

    def paths(self, Xs: Array) -> Array:
        """All paths at Xs: (s, m). Differentiable in Xs; the same functions at every call.

        path_j(x) = mu(x) + f_j(x) + K(x, X) (v - alpha_j). Time O(m s (n + features)), memory one tile.
        """
        prior = self._require_paths()
        inputs, scaled = self._read(Xs)
        weights = self._weights[:, :1] - self._weights[:, 1:]
        return inputs.give(self._mean_from(PosteriorPaths(prior, self._update(weights))(scaled), inputs.X))

    def variance(self, Xs: Array, noise: bool = False, method: str | None = None) -> Array:
        """Posterior variance (m,) of f, or with ``noise=True`` of a new observation (plus gp.noise^2).

        method="samples": the mean square of the paths' zero-mean parts, relative standard error sqrt(2 / s), no further
        solve. method="solve": exact, k(x, x) - k(x, X) H^-1 k(X, x), one solve per row of Xs. By default samples,
        where there are paths.
        """
        inputs, scaled = self._read(Xs)
        if method is None:
            method = "solve" if self._prior is None else "samples"
        if method == "samples":
            variance = self._sampled_variance(scaled)
        elif method == "solve":
            variance = self._exact_variance(scaled)
        else:
            raise ValueError(f"method must be 'samples' or 'solve', got {method!r}")
        if noise:
            variance = variance + self.model.noise.square().to(variance)
        return inputs.give(self._scaling.restore_variance(variance))

    def covariance(self, Xs: Array) -> Array:
        """Exact posterior covariance (m, m) of f: K(Xs, Xs) - K(Xs, X) H^-1 K(X, Xs). Memory O(m^2)."""
        inputs, scaled = self._read(Xs)
        return inputs.give(self._scaling.restore_variance(self._exact_covariance(scaled)).to(scaled.dtype))

    def sample(self, Xs: Array, num: int = 64, generator: torch.Generator | None = None) -> Array:
        """``num`` exact joint draws (num, m) at one set of inputs, for any kernel. Time O(m^3) and m solves.

        Unlike `paths` these are values, not functions: another call gives other draws.
        """
        if num < 1:
            raise ValueError(f"num must be at least 1, got {num}")
        inputs, scaled = self._read(Xs)
        covariance = self._exact_covariance(scaled)
        # An eigendecomposition: the covariance of smooth kernels is singular up to rounding, Cholesky would fail.
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp_min(0.0).sqrt()
        draws = normal((num, len(values)), as_generator(generator), torch.float64, scaled.device) @ root.T
        centre = self._update(self._weights[:, :1])(scaled)
        return inputs.give(self._mean_from(centre + draws.to(scaled.dtype), inputs.X))

    def update(
        self,
        X_new: Array,
        y_new: Array,
        noise: Array | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
    ) -> Posterior:
        """The posterior with more observations: same prior draws, hyperparameters and settings, warm-started.

        ``noise``: known standard deviations of the new rows, as in `GP.condition`.
        """
        began = time.perf_counter()
        system, X = self._system, self._system.X
        new = read_matrix(X_new, "X_new", columns=X.shape[1], like=X)
        y = read_vector(y_new, new.X.shape[0], "y_new", like=X)
        generator = as_generator(generator)
        scaled = self._scaling.inputs(new.X)
        targets = self._scaling.targets(y - self.model.mean_at(new.X))
        deviation = self.model.deviation(noise, scaled, self._scaling)
        draws = normal((len(y), self.num_samples), generator, torch.float64, X.device).to(X.dtype)
        grown = system.extended(System(scaled, extend_prior(self._prior, scaled, targets), draws, deviation))
        x0 = torch.cat([self._weights, self._weights.new_zeros(len(y), self._weights.shape[1])])
        weights, report = solve_system(
            self.model.kernel, grown, self._settings, generator, x0, callback, began
        )
        report = replace(report, features=self.report.features, error_bound=report.error_bound * self._unit)
        return Posterior(self.model, self._scaling, grown, self._prior, weights, self._settings, report)

    def __repr__(self) -> str:
        return f"Posterior\n{self.report!r}"

    @property
    def _unit(self) -> float:
        return float(self._scaling.target_scale)

    def _read(self, Xs: Array) -> tuple[Matrix, Tensor]:
        X = self._system.X
        inputs = read_matrix(Xs, "Xs", columns=X.shape[1], like=X)
        return inputs, self._scaling.inputs(inputs.X)

    def _update(self, weights: Tensor) -> UpdatePaths:
        return UpdatePaths(self.model.kernel, self._system.X, weights, self._settings.memory)

    def _mean_from(self, values: Tensor, Xs: Tensor) -> Tensor:
        return self._scaling.restore(values) + self.model.mean_at(Xs)

    def _require_paths(self) -> PriorPaths:
        if self._prior is None:
            raise ValueError(
                "this posterior has no paths: it was conditioned with samples=0. "
                "Use condition(samples=64), or sample(Xs) for joint draws at fixed inputs"
            )
        return self._prior

    def _sampled_variance(self, Xs: Tensor) -> Tensor:
        zero_mean = PosteriorPaths(self._require_paths(), self._update(-self._weights[:, 1:]))
        parts = [zero_mean(Xs[rows]).square().mean(0) for rows in spans(len(Xs), _ROWS_AT_ONCE)]
        return torch.cat(parts) if parts else Xs.new_zeros(0)

    def _exact_variance(self, Xs: Tensor) -> Tensor:
        prior = self.model.kernel.diag(Xs.to(torch.float64))
        parts = [self._explained(Xs[rows]).diagonal() for rows in spans(len(Xs), _COLUMNS_AT_ONCE)]
        explained = torch.cat(parts) if parts else prior
        return (prior - explained).clamp_min(0.0).to(Xs.dtype)

    def _exact_covariance(self, Xs: Tensor) -> Tensor:
        covariance = self.model.kernel(Xs.to(torch.float64)) - self._explained(Xs)
        return 0.5 * (covariance + covariance.T)

    def _explained(self, Xs: Tensor) -> Tensor:
        """K(Xs, X) H^-1 K(X, Xs): (m, m), float64."""
        X = self._system.X
        if len(X) <= _FACTOR_ROWS:
            cross = self.model.kernel(X.to(torch.float64), Xs.to(torch.float64))
            half = torch.linalg.solve_triangular(self._factor, cross, upper=False)
            return half.T @ half
        cross = self.model.kernel(X, Xs)
        solution = self._settings.solver.solve(self._operator, cross, tol=_SOLVE_TOL[X.dtype])
        # With r = K - H x the value x^T K + x^T r is wrong only by r^T H^-1 r, second order in the residual.
        residual = cross - self._operator @ solution.x
        return (solution.x.T @ (cross + residual)).to(torch.float64)

    @cached_property
    def _factor(self) -> Tensor:
        """Cholesky factor of H in float64."""
        X = self._system.X.to(torch.float64)
        H = KernelOperator(self.model.kernel, X, self._system.deviation, backend="streamed")
        return factorise(H.block(torch.arange(len(X), device=X.device)))[0]

    @cached_property
    def _operator(self) -> KernelOperator:
        return KernelOperator(
            self.model.kernel,
            self._system.X,
            self._system.deviation,
            backend=self._settings.backend,
            memory=memory_budget(self._settings.memory, self._system.X.device),
        )
