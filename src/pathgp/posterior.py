"""What a user gets back: mean, variance, covariance and paths of the posterior."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pathgp.conditioning import Settings, System, extend_prior, solve_system
from pathgp.inputs import Array, Matrix, read_matrix, read_vector, whole_number
from pathgp.operators import KernelOperator, cross_product
from pathgp.operators.memory import memory_budget, spans
from pathgp.pathwise import PosteriorPaths, PriorPaths, UpdatePaths
from pathgp.randomness import as_generator, normal, repeating_seed
from pathgp.report import ConditionReport, ConvergenceWarning
from pathgp.solvers.base import Callback
from pathgp.solvers.cholesky import factorise

if TYPE_CHECKING:
    from pathgp.models.gp import GP
    from pathgp.models.standardise import Standardisation

# Test rows whose paths are worked on at once: their parts and temporaries stay small beside the result.
_ROWS_AT_ONCE = 8192
# Columns of K(X, Xs) that are solved for at once when only the variances are asked for.
_COLUMNS_AT_ONCE = 256
# Rows up to which exact variances use a Cholesky factor of H, 8 n^2 bytes, kept after its first use.
_FACTOR_ROWS = 10_000
_SOLVE_TOL = {torch.float32: 1e-4, torch.float64: 1e-7}
# float64 numbers per row and column while systems with K(X, Xs) are solved: right-hand sides, iterates, residuals.
_NUMBERS_PER_SOLVE = 8


class Posterior:
    """A Gaussian process given data.

    Obtained from `GP.condition`. ``mean``, ``variance``, ``covariance`` and ``sample`` describe the posterior at
    chosen inputs, ``paths`` are posterior draws that are functions, ``update`` adds observations, ``report`` says
    how it all was obtained. Inputs are NumPy arrays or tensors (m, d), results come back in kind.
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
        paths = PosteriorPaths(prior, self._update(self._weights[:, :1] - self._weights[:, 1:]))

        def values(rows: slice) -> Tensor:
            return self._mean_from(paths(scaled[rows]), inputs.X[rows])

        return inputs.give(_in_parts(values, scaled, self.num_samples))

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
        num = whole_number(num, "num", 1)
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
        seed = repeating_seed(generator)
        scaled = self._scaling.inputs(new.X).detach()
        targets = self._scaling.targets(y - self.model.mean_at(new.X, exact=True)).to(X.dtype)
        deviation = self.model.deviation(noise, scaled, self._scaling)
        draws = normal((len(y), self.num_samples), generator, torch.float64, X.device).to(X.dtype)
        grown = system.extended(System(scaled, extend_prior(self._prior, scaled, targets), draws, deviation))
        x0 = torch.cat([self._weights, self._weights.new_zeros(len(y), self._weights.shape[1])])
        weights, report = solve_system(self.model.kernel, grown, self._settings, generator, x0, callback, began)
        report = replace(
            report,
            features=self.report.features,
            no_paths=self.report.no_paths,
            seed=seed,
            error_bound=report.error_bound * float(self._scaling.target_scale),
        )
        return Posterior(self.model, self._scaling, grown, self._prior, weights, self._settings, report)

    def __repr__(self) -> str:
        return f"Posterior\n{self.report!r}"

    def __getstate__(self) -> dict[str, Any]:
        """What cannot be had again from the rest: factor and operator are rebuilt where they are needed."""
        return {name: value for name, value in vars(self).items() if name not in ("_factor", "_operator")}

    def _read(self, Xs: Array) -> tuple[Matrix, Tensor]:
        X = self._system.X
        inputs = read_matrix(Xs, "Xs", columns=X.shape[1], like=X)
        return inputs, self._scaling.inputs(inputs.X)

    def _update(self, weights: Tensor) -> UpdatePaths:
        return UpdatePaths(self.model.kernel, self._system.X, weights, self._settings.memory)

    def _mean_from(self, values: Tensor, Xs: Tensor) -> Tensor:
        return self._scaling.restore(values) + self.model.mean_at(Xs)

    def _require_paths(self) -> PriorPaths:
        if self._prior is None and self.report.no_paths:
            raise NotImplementedError(self.report.no_paths)
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
        step = min(_COLUMNS_AT_ONCE, self._columns_at_once())
        parts = [self._explained_at_once(Xs[rows]).diagonal() for rows in spans(len(Xs), step)]
        explained = torch.cat(parts) if parts else prior
        return (prior - explained).clamp_min(0.0).to(Xs.dtype)

    def _exact_covariance(self, Xs: Tensor) -> Tensor:
        covariance = self.model.kernel(Xs.to(torch.float64)) - self._explained(Xs)
        return 0.5 * (covariance + covariance.T)

    def _explained(self, Xs: Tensor) -> Tensor:
        """K(Xs, X) H^-1 K(X, Xs): (m, m), float64. Beside it, as many columns of K(X, Xs) exist as the budget holds."""
        step = self._columns_at_once()
        if step >= len(Xs):
            return self._explained_at_once(Xs)
        kernel, memory = self.model.kernel, self._settings.memory
        X = self._system.X.to(torch.float64) if self._factorises else self._system.X
        points = Xs.to(X.dtype)
        parts = []
        for rows in spans(len(Xs), step):
            with torch.no_grad():
                weights = self._solve_for(kernel(X, points[rows]))
            parts.append(cross_product(kernel, points, X, weights, memory))
        half = torch.cat(parts, 1).to(torch.float64)
        # Both factors K depend on Xs and the weights are constants here: twice the gradient, once the value.
        both = half + half.T
        return both - 0.5 * both.detach()

    def _explained_at_once(self, Xs: Tensor) -> Tensor:
        X = self._system.X
        if self._factorises:
            cross = self.model.kernel(X.to(torch.float64), Xs.to(torch.float64))
            half = torch.linalg.solve_triangular(self._factor, cross, upper=False)
            return half.T @ half
        cross = self.model.kernel(X, Xs)
        solution = self._solve_for(cross.detach())
        # With r = K - H x the value x^T K + x^T r is wrong only by r^T H^-1 r, second order in the residual.
        residual = cross - self._operator @ solution
        return (solution.T @ (cross + residual)).to(torch.float64)

    def _solve_for(self, cross: Tensor) -> Tensor:
        """H^-1 cross for columns cross (n, m) of K(X, Xs); no gradient."""
        if self._factorises:
            return torch.cholesky_solve(cross, self._factor)
        # A generator of its own: the same question gets the same answer.
        solution = self._settings.solver.solve(
            self._operator, cross, tol=_SOLVE_TOL[cross.dtype], generator=torch.Generator().manual_seed(0)
        )
        if not solution.converged:
            warnings.warn(
                f"exact variances: {solution.solver} ended {solution.status.name} with a worst residual of "
                f"{float(solution.residual.max()):.1e} (tol {_SOLVE_TOL[cross.dtype]:.0e}): {solution.status.value}",
                ConvergenceWarning,
                stacklevel=6,
            )
        return solution.x

    @property
    def _budget(self) -> int:
        return memory_budget(self._settings.memory, self._system.X.device)

    @cached_property
    def _factorises(self) -> bool:
        """Whether exact variances come from a Cholesky factor of H, 16 n^2 bytes while it is made."""
        n = len(self._system.X)
        return n <= _FACTOR_ROWS and 16 * n**2 <= self._budget

    def _columns_at_once(self) -> int:
        return max(1, self._budget // (4 * 8 * _NUMBERS_PER_SOLVE * len(self._system.X)))

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
            memory=self._settings.memory,
        )


def _in_parts(values: Callable[[slice], Tensor], Xs: Tensor, count: int) -> Tensor:
    """values(rows) (count, rows) for all rows of Xs, some at a time: only the result exists in full size."""
    parts = spans(len(Xs), _ROWS_AT_ONCE)
    if len(Xs) and Xs.requires_grad and torch.is_grad_enabled():
        return torch.cat([values(rows) for rows in parts], 1)
    result = Xs.new_empty(count, len(Xs))
    for rows in parts:
        result[:, rows] = values(rows)
    return result
