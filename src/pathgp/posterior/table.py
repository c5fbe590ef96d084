"""The posterior on a table of rows: mean, variance, covariance, paths and updates."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pathgp.compute.counts import CountRows
from pathgp.compute.inputs import Array, Matrix, read_matrix, read_numbers, read_points, read_vector, whole_number
from pathgp.compute.memory import as_slice, spans
from pathgp.compute.random import normal, repeating_seed
from pathgp.data.observations import Observations
from pathgp.data.standardise import Standardisation
from pathgp.kernels import Kernel
from pathgp.operators import Operator
from pathgp.pathwise import PriorPaths, UpdatePaths
from pathgp.posterior.base import BasePosterior
from pathgp.posterior.conditioning import SolveRequest, least_noise, solve_promoting, solve_system
from pathgp.posterior.exact_covariance import ExactCovariance
from pathgp.posterior.path_variance import NEIGHBOURS, SampledVariance
from pathgp.posterior.prediction_rule import PredictionRule
from pathgp.posterior.system import System
from pathgp.posterior.trend import TrendEstimate
from pathgp.solvers.solution import Callback

if TYPE_CHECKING:
    from pathgp.posterior.components import Component

# Test rows whose paths are evaluated at once, so that temporaries stay small beside the result.
_ROWS_AT_ONCE, _MOST_ROWS_AT_ONCE = 8192, 2**18


class Posterior(BasePosterior):
    """A Gaussian process conditioned on a table of rows. Returned by `GP.condition`.

    ``mean``, ``variance``, ``covariance`` and ``sample`` describe the posterior at given inputs, ``paths`` are
    posterior draws that are functions, ``update`` adds observations, ``report`` says how the posterior was computed.
    Inputs are NumPy arrays or tensors (m, d); results are of the same kind.
    """

    _sample_methods = ("neighbours", "samples")

    @classmethod
    def solve(
        cls, model: Any, scaling: Standardisation, system: System, prior: PriorPaths | None, request: SolveRequest
    ) -> Posterior:
        """Solve the systems of a model and its prior draws: the last step of conditioning, updates and fits."""
        H = request.settings.operator(model.kernel, system.X, system.deviation)
        largest = float(model.kernel.diag(system.X).max())
        rule = None
        if request.goal is not None:
            if system.basis is not None:
                raise NotImplementedError(
                    "until='predictions' has no bound of the error of a trend: use until='residual' with a smaller tol"
                )
            memory = request.settings.compute.memory_bytes
            rule = PredictionRule(request.goal, model.kernel, system, scaling, prior, largest, memory)
        solutions, report = solve_system(H, largest, system.X.shape[1], system, scaling, request, rule)
        report = replace(report, features=0 if prior is None else prior.features.num)
        weights, trend = system.split(solutions)
        return cls(model, scaling, system, prior, weights, request.settings, report, least_squares=trend)

    @property
    def X(self) -> Tensor:
        """The inputs of the data (n, d), in the units of the caller, with the digits of predictions."""
        X, scaling = self.system.X, self.scaling
        if scaling.keeps_inputs:
            return X
        dtype = torch.promote_types(X.dtype, getattr(torch, scaling.result_dtype))
        return scaling.restore_inputs(X.to(torch.float64)).to(dtype)

    @property
    def has_targets(self) -> bool:
        """Whether the observed values are known: a file may have been saved without them."""
        return self.system.is_complete

    def training_inputs(self, rows: Tensor) -> Tensor:
        """Inputs of numbered rows of the data, dense, float64, in the units of the caller."""
        X = self.scaling.restore_inputs(self.system.X[rows].to(torch.float64))
        return X.dense() if isinstance(X, CountRows) else X

    def training_targets(self) -> Tensor:
        """All observed values (n,), float64, in the units of the caller."""
        system = self.system.require_targets("the training targets")
        with torch.no_grad():
            return self.scaling.restore(system.targets[:, 0], self._prior_mean(), torch.float64)

    @property
    def trend(self) -> TrendEstimate | None:
        """The coefficients of the trend of the model with their standard errors; None for a model without a trend."""
        scaling, found = self.scaling.trend, self.least_squares
        if scaling is None or found is None:
            return None
        unit = float(self.scaling.target_scale)
        values = unit * found.coefficients(self.weights[:, :1]) + scaling.shift.unsqueeze(1)
        root = unit * scaling.restore_coefficients(found.root)
        names = self.model.mean.names(self.system.X.shape[1], len(values))
        return TrendEstimate(names, scaling.restore_coefficients(values)[:, 0].cpu(), (root @ root.T).cpu())

    def mean(self, Xs: Array) -> Array:
        """Posterior mean (m,): mu + K(Xs, X) v. Time O(m n d), memory one tile. Differentiable in Xs."""
        inputs, scaled = self._read(Xs)
        update = self.settings.compute.map_rows(self._update(self._project(self.weights[:, :1])), scaled)
        return inputs.to_caller(self._mean_from(update[0], inputs.X, self.weights[:, :1]))

    def paths(self, Xs: Array) -> Array:
        """All paths at Xs: (s, m). Differentiable in Xs; the same functions at every call.

        path_j(x) = mu(x) + f_j(x) + K(x, X) (v - alpha_j). Time O(m s (n + features)), memory one tile.
        """
        prior = self._require_paths()
        inputs, scaled = self._read(Xs)
        weights = self.weights[:, :1] - self.weights[:, 1:]
        update = self._update(self._project(weights))

        def values(rows: slice) -> Tensor:
            paths = self.settings.compute.map_rows(lambda X: prior(X) + update(X), scaled[rows])
            return self._mean_from(paths, inputs.X[rows], weights)

        return inputs.to_caller(_in_parts(values, scaled, self.num_samples, len(self.system.X)))

    def paths_at(self, Xs: Array, which: Sequence[int] | Tensor | None = None) -> Array:
        """Path j at its own points Xs[j] only: (s, q) for Xs (s, q, d). Differentiable in Xs; the functions of `paths`.

        Equal to ``paths(Xs[j])[j]`` for every j. Time O(s q (n + features)) instead of O(s^2 q (n + features)), memory
        one tile and the weights; second derivatives keep all s q n entries of K. On a GPU the sums over the data are
        fused for float32 data in at most 64 columns, with the kernels of fused products except Tanimoto.

        ``which``: the numbers of p paths, for Xs (p, q, d); a number may occur repeatedly. None: all s paths.
        """
        prior, X = self._require_paths(), self.system.X
        chosen = read_numbers(range(self.num_samples) if which is None else which, "which", self.num_samples)
        inputs = read_points(Xs, "Xs", len(chosen), X.shape[1], like=X)
        scaled = self.scaling.inputs(inputs.X, X.dtype)
        p, q, d = scaled.shape

        def values(rows: Tensor) -> Tensor:
            # One row per path: its points, and its number in the last column.
            points, paths = rows[:, :-1].unflatten(1, (q, d)), rows[:, -1].detach().long().cpu()
            update = self._update(self._project(self.weights[:, :1] - self.weights[:, as_slice(1 + paths)]))
            return (prior.at(points, paths) + update.at(points)).T

        if p * q == 0:
            return inputs.to_caller(scaled.new_empty(p, q))
        numbered = torch.cat([scaled.flatten(1), chosen.to(scaled).unsqueeze(1)], 1)
        paths = self.settings.compute.map_rows(values, numbered).T
        if self.least_squares is not None:
            weights = self.weights[:, :1] - self.weights[:, as_slice(1 + chosen.cpu())]
            coefficients = self.least_squares.coefficients(weights).to(paths)
            paths = paths + torch.einsum("pqk,kp->pq", self._basis(inputs.X).to(paths), coefficients)
        return inputs.to_caller(self._mean_from(paths.flatten(), inputs.X.flatten(0, 1)).view(p, q))

    def variance(self, Xs: Array, noise: bool = False, method: str | None = None) -> Array:
        """Posterior variance (m,) of f, or with ``noise=True`` of a new observation (plus gp.noise^2).

        The known noise of single rows (``condition(noise=...)``) is not in it. Differentiable in Xs.

        method="solve": exact, k(x, x) - k(x, X) H^-1 k(X, x), from a factor of H up to 10,000 rows, above by one solve
        per row of Xs. The default up to 2,000 rows, and without paths. With a trend every method adds the variance
        t(x)^T G^-1 t(x) of its coefficients (see `pathgp.posterior.trend`).
        method="neighbours", the default otherwise: from the paths' zero-mean parts, with the exact variance given the
        32 most informative observations as the control variate (see `path_variance`); no further solve. The relative
        standard error is at most sqrt(2 / s), and a fraction of it where the neighbours explain most. It varies
        between neighbouring inputs.
        method="samples": from the paths alone; less accurate, faster, and a smooth function of x.
        method="smooth": for curves and optimisers, "solve" up to 2,000 rows, otherwise "samples".
        """
        inputs, scaled = self._read(Xs)
        variance = self._variance(scaled, method)
        if self.least_squares is not None:
            is_exact = self._choose_method(method) == "solve"
            variance = variance + self._trend_factor(inputs.X, scaled, is_exact).square().sum(1).to(variance)
        return inputs.to_caller(self._restore_variance(variance, noise))

    def covariance(self, Xs: Array, noise: bool = False) -> Array:
        """Exact posterior covariance (m, m) of f, K(Xs, Xs) - K(Xs, X) H^-1 K(X, Xs), or with ``noise=True`` of new
        observations. Memory O(m^2); ValueError if that exceeds the budget.
        """
        inputs, scaled = self._read(Xs)
        return inputs.to_caller(self._restore_covariance(self._covariance(inputs.X, scaled), noise))

    def sample(self, Xs: Array, num: int = 64, generator: torch.Generator | None = None) -> Array:
        """``num`` exact joint draws (num, m) at one set of inputs, for any kernel. Time O(m^3) and m solves.

        Unlike `paths` these are values, not functions: every call gives new draws, any number of them.
        `GridPosterior.sample` returns the draws that were solved for instead, by default all of them.
        """
        num = whole_number(num, "num", 1)
        inputs, scaled = self._read(Xs)
        covariance = self._covariance(inputs.X, scaled)
        # An eigendecomposition: the covariance of smooth kernels is singular up to rounding, Cholesky would fail.
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp_min(0.0).sqrt()
        generator = self.settings.compute.sync_generator(generator)
        draws = normal((num, len(values)), generator, torch.float64, scaled.device) @ root.T
        weights = self.weights[:, :1]
        centre = self.settings.compute.map_rows(self._update(self._project(weights)), scaled)
        return inputs.to_caller(self._mean_from(centre + draws.to(scaled.dtype), inputs.X, weights))

    def update(
        self,
        X_new: Array,
        y_new: Array,
        noise: Array | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
    ) -> Posterior:
        """The posterior with more observations: same prior draws, hyperparameters and settings, warm-started.

        ``noise``: known standard deviations of the new rows, as in `GP.condition`. Old rows stay; a grid takes all its
        values again (`GridPosterior.update`). Inducing points stay as well: O(m^3) and one pass over the new rows;
        ValueError after an iterative solve.
        """
        began, X, settings = time.perf_counter(), self.system.X, self.settings
        new = read_matrix(X_new, "X_new", columns=X.shape[1], like=X)
        y = read_vector(y_new, new.X.shape[0], "y_new", like=X)
        generator = settings.compute.sync_generator(generator)
        seed, reason = repeating_seed(generator), self.report.no_paths
        request = SolveRequest(settings, generator, seed, reason, callback=callback, began=began)
        updated = self._extend(new.X.detach(), y, noise, request)
        updated.about = self.about
        return updated

    def _extend(self, X_new: Tensor, y_new: Tensor, noise: Array | None, request: SolveRequest) -> Posterior:
        """Solve the system with more rows, starting from the solutions of the old ones.

        In float64 if float32 has too few digits for the noise of the new rows, as in `GP.condition`.
        """
        system, model, prior = self.system.require_targets("update"), self.model, self.prior
        basis = model.basis_at(X_new, self.scaling)
        draws = normal((len(y_new), self.num_samples), request.generator, torch.float64, system.X.device)

        def grow(dtype: torch.dtype) -> System:
            data = Observations.of(X_new, y_new, noise, self.scaling, dtype, basis)
            return system.to(dtype, prior).extend(model.system(data, prior, draws.to(dtype)))

        def solve(dtype: torch.dtype) -> Posterior:
            solutions = self.solutions.to(dtype)
            x0 = torch.cat([solutions, solutions.new_zeros(len(y_new), solutions.shape[1])])
            rows = grown if dtype == grown.X.dtype else grow(dtype)
            return Posterior.solve(model, self.scaling, rows, prior, replace(request, x0=x0))

        grown, compute = grow(system.X.dtype), request.settings.compute
        least = least_noise(grown.X.dtype, len(grown.X), float(model.kernel.diag(grown.X).max()))
        is_resolved = least <= float(grown.deviation.min())
        return solve_promoting(solve, grown.X.dtype, is_resolved, compute.allows_float64(grown.X.device))

    def components(self) -> dict[str, Component]:
        """For a kernel k = sum_c k_c the posterior of each summand, by name: mean, variance and paths of f_c.

        A scale of a sum is a sum of scales; a product stays one component, as does any other kernel. Components are
        in the units of y and have prior mean zero: their means, plus the prior mean (``GP(mean=...)``) and with
        ``standardise=True`` the shift of the targets, add up to ``mean``. So do their paths to ``paths``. With a trend
        the sums lack the trend itself.
        """
        from pathgp.posterior.components import components

        return components(self)

    def _read(self, Xs: Array) -> tuple[Matrix, Tensor]:
        X = self.system.X
        inputs = read_matrix(Xs, "Xs", columns=X.shape[1], like=X)
        return inputs, self.scaling.inputs(inputs.X, X.dtype)

    def _update(self, weights: Tensor, part: Kernel | None = None) -> UpdatePaths:
        kernel = self.model.kernel if part is None else part
        compute = self.settings.compute
        return UpdatePaths(kernel, self.system.X, weights, compute.memory_bytes, compute.cross_backend)

    def _project(self, weights: Tensor) -> Tensor:
        """Weights (n, k) of functions K(., X) weights about the trend that belongs to them."""
        return weights if self.least_squares is None else self.least_squares.project(weights)

    def _basis(self, Xs: Tensor) -> Tensor:
        """The basis functions of the trend at Xs (..., d) in the caller's units: (..., p), in the model's units."""
        values = self.model.basis_at(Xs.reshape(-1, Xs.shape[-1]), self.scaling)
        return values.unflatten(0, Xs.shape[:-1])

    def _mean_from(self, values: Tensor, Xs: Tensor, weights: Tensor | None = None) -> Tensor:
        """Values (m,) or (k, m) in the units of y, plus the prior mean; and the trend of ``weights`` (n, 1 or k)."""
        mean = self.model.mean_at(Xs.to(self.system.X.dtype))
        if self.least_squares is not None:
            assert self.scaling.trend is not None
            basis = self._basis(Xs)
            mean = mean + basis @ self.scaling.trend.shift
            if weights is not None:
                trend = (basis @ self.least_squares.coefficients(weights)).T.to(values)
                values = values + (trend if values.ndim == 2 else trend[0])
        return self.scaling.restore(values, mean)

    def _covariance(self, Xs: Tensor, scaled: Tensor) -> Tensor:
        """The exact posterior covariance (m, m), float64, in the model's units."""
        covariance = self._exact.covariance(scaled)
        if self.least_squares is not None:
            factor = self._trend_factor(Xs, scaled, is_exact=True)
            covariance = covariance + factor @ factor.T
        return covariance

    def _trend_factor(self, Xs: Tensor, scaled: Tensor, is_exact: bool, part: Kernel | None = None) -> Tensor:
        """T (m, r), float64, with T T^T = t(x)^T G^-1 t(z), the covariance of the trend; see `posterior.trend`.

        For a summand ``part`` of the kernel, which does not contain the trend, t(x) = -W^T k_part(X, x).
        """
        trend = self._exact_least_squares if is_exact else self.least_squares
        assert trend is not None
        explained = self.settings.compute.map_rows(self._update(trend.weights.to(scaled.dtype), part), scaled).T
        own = -explained.to(torch.float64)
        return (own if part is not None else self._basis(Xs) + own) @ trend.root

    def _require_paths(self) -> PriorPaths:
        if self.prior is None and self.report.no_paths:
            raise NotImplementedError(self.report.no_paths)
        if self.prior is None:
            raise ValueError(
                "this posterior has no paths: it was conditioned with samples=0. "
                "Use condition(samples=64), or sample(Xs) for joint draws at fixed inputs"
            )
        return self.prior

    def _variance(
        self, Xs: Tensor, method: str | None, part: Kernel | None = None, terms: Collection[int] | None = None
    ) -> Tensor:
        """In the model's units, of f or of the summand ``part`` of the kernel with the features ``terms``."""
        method = self._choose_method(method)
        if method == "solve":
            return self._exact.variance(Xs, part)
        kernel, alpha, compute = self.model.kernel, self.weights[:, 1:], self.settings.compute
        count = NEIGHBOURS if method == "neighbours" else 0
        system = self.system.require_targets("method='neighbours'") if count else self.system
        estimate = SampledVariance(kernel, system, self._require_paths(), alpha, compute, count, part, terms)

        def values(rows: slice) -> Tensor:
            return self.settings.compute.map_rows(lambda X: estimate(X).unsqueeze(0), Xs[rows])

        return _in_parts(values, Xs, 1, len(self.system.X))[0]

    @cached_property
    def _exact(self) -> ExactCovariance:
        kernel, X, deviation, settings = self.model.kernel, self.system.X, self.system.deviation, self.settings
        # Without a reference to self: a cycle would delay the release of the factor.
        return ExactCovariance(kernel, X, deviation, settings, lambda: settings.operator(kernel, X, deviation))

    def _prior_mean(self) -> Tensor:
        mean = self.model.mean_at(self.X)
        if self.system.basis is None or self.scaling.trend is None:
            return mean
        return mean + self.system.basis.to(torch.float64) @ self.scaling.trend.shift

    def _operator(self, dtype: torch.dtype | None = None, backend: str | None = None) -> Operator:
        compute = self.settings.compute
        settings = replace(self.settings, compute=replace(compute, backend=backend or compute.backend))
        X = self.system.X if dtype is None else self.system.X.to(dtype)
        return settings.operator(self.model.kernel, X, self.system.deviation)


def _in_parts(values: Callable[[slice], Tensor], Xs: Tensor, count: int, rows: int) -> Tensor:
    """values(rows) (count, rows) for all rows of Xs, a block at a time: only the result exists in full size.

    ``rows``: of the training data. Blocks that are as large need no more memory than the weights, and field products
    spread the weights once per block.
    """
    parts = spans(len(Xs), max(_ROWS_AT_ONCE, min(rows, _MOST_ROWS_AT_ONCE)))
    if len(Xs) and Xs.requires_grad and torch.is_grad_enabled():
        return torch.cat([values(block) for block in parts], 1)
    result: Tensor | None = None
    for block in parts:
        part = values(block)
        result = part.new_empty(count, len(Xs)) if result is None else result
        result[:, block] = part
    return Xs.new_empty(count, 0) if result is None else result
