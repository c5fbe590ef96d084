"""The posterior on a grid with holes: mean, variance and samples at any grid of inputs, old, new or mixed.

    mean  = mu + (K_1(G_1, F_1) x ... x K_k(G_k, F_k)) P^T v,     v = H^-1 (y - mu)
    sample_j = mean + f_j(G) - (K_1(G_1, F_1) x ...) P^T alpha_j,  alpha_j = H^-1 (P f_j(F) + eps_j)

f_j is a joint draw from the prior at F and at G, see `data.grid`. Thesis, section 6.2.4.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.inputs import Array, read_matrix, read_side, whole_number
from pathgp.compute.memory import spans
from pathgp.compute.random import as_generator, normal, repeating_seed, spawn_generator
from pathgp.data.grid import GridObservations, GridPrior, cells, multiply_rows, prior_variance
from pathgp.operators import Operator
from pathgp.operators.grid_base import multiply_sides, scatter
from pathgp.pathwise import PriorPaths, variance_from_moments, variance_from_paths
from pathgp.posterior.base import BasePosterior
from pathgp.posterior.conditioning import SolveRequest, solve_system
from pathgp.posterior.exact_covariance import ExactCovariance
from pathgp.posterior.leave_one_out import LeaveOneOut
from pathgp.posterior.system import System
from pathgp.solvers.solution import Callback


@dataclass(frozen=True)
class Predictions:
    """Values at scattered points: ``mean`` (m,), ``variance`` (m,) of f, ``samples`` (s, m)."""

    mean: Array
    variance: Array
    samples: Array


@dataclass(eq=False, repr=False)
class GridPosterior(BasePosterior):
    """A Gaussian process conditioned on a grid of data with holes. Returned by `LatentKroneckerGP.condition`.

    The methods are those of `Posterior`, with one set of inputs per side: arrays (g_i, d_i) or (g_i,), None for those
    of the training grid. Results have the shape of the grid that the inputs span.

    Further attributes: ``data``, the observed cells; ``paths_seed``, the seed of draws at new inputs and of paths, None
    in files of earlier versions.
    """

    prior: GridPrior | None
    data: GridObservations
    paths_seed: int | None = field(default=None, kw_only=True)

    @classmethod
    def solve(
        cls, model: Any, data: GridObservations, system: System, prior: GridPrior | None, request: SolveRequest
    ) -> GridPosterior:
        """Solve the systems of a model and its prior draws: the last step of conditioning, updates and fits."""
        if request.goal is not None:
            raise ValueError("until='predictions' is for tables: a grid is solved until='residual'")
        H, largest = model.operator(data, request.settings), model.largest_variance(data)
        weights, report = solve_system(H, largest, data.columns, system, data.scaling, request)
        # After the solve, whose random numbers are those of the generator.
        seed = spawn_generator(request.generator).initial_seed() if request.seed is None else request.seed
        return cls(model, data.scaling, system, prior, weights, request.settings, report, data, paths_seed=seed)

    @property
    def X(self) -> list[Tensor]:
        """The inputs of every side (p_i, d_i), in the units of the caller."""
        return self.data.originals

    @cached_property
    def has_paths(self) -> bool:
        """Whether `paths` can be evaluated: there are samples, observations, and random features of every kernel."""
        try:
            return self.prior is not None and self.system.is_complete and self._draw_paths(1) is not None
        except (NotImplementedError, ValueError):
            return False

    def mean(self, *inputs: Array | None) -> Array:
        """Posterior mean (g_1, ..., g_k) at a grid of inputs."""
        sides, to_caller = self._read(inputs)
        return to_caller(self._restore(self._explained(sides, self.weights[:, :1])[..., 0], sides))

    def variance(self, *inputs: Array | None, noise: bool = False, method: str | None = None) -> Array:
        """Posterior variance (g_1, ..., g_k) of f, or with ``noise=True`` of a new observation (plus gp.noise^2).

        method="solve": exact, from a factor of H up to 10,000 observed cells, above by one solve per cell. The default
        up to 2,000 observed cells, and without samples.
        method="samples", the default otherwise: relative standard error at most sqrt(2 / s), see
        `variance_from_paths`; no further solve.
        method="smooth": as in `Posterior.variance`.
        """
        if method == "neighbours":
            raise ValueError(
                "method='neighbours' is for tables: on a grid it would compare every cell with every observation; use "
                "'samples', or 'solve' for exact variances"
            )
        sides, to_caller = self._read(inputs)
        if self._choose_method(method) == "solve":
            variance = self._exact.variance(cells(sides)).view([len(G) for G in sides])
        else:
            variance = self._variance_from_samples(sides)
        return to_caller(self._restore_variance(variance, noise))

    def covariance(self, *inputs: Array | None, noise: bool = False) -> Array:
        """Exact posterior covariance (g, g) of f between all g = g_1 ... g_k cells of a grid of inputs, row by row;
        with ``noise=True`` of new observations.

        K(G, G) - K(G, X) H^-1 K(X, G), from a factor of H up to 10,000 observed cells, above from g solves. Memory
        O(g^2).
        """
        sides, to_caller = self._read(inputs)
        return to_caller(self._restore_covariance(self._exact.covariance(cells(sides)), noise))

    def sample(self, *inputs: Array | None, num: int | None = None, generator: torch.Generator | None = None) -> Array:
        """The first ``num`` of the posterior samples (num, g_1, ..., g_k) at a grid of inputs: exact joint draws.

        By default all that were solved for, and at most as many (`Posterior.sample` solves for new draws at every call
        instead). On the training grid they are the same at every call; at new inputs every call continues them anew.
        """
        num = self.num_samples if num is None else whole_number(num, "num", 1)
        if num > self.num_samples:
            raise ValueError(f"{num} samples asked for, {self.num_samples} solved: use condition(samples={num})")
        sides, to_caller = self._read(inputs)
        centre = self._explained(sides, self.weights[:, :1])
        parts = [centre + f - h for f, h in self._draws(sides, num, as_generator(generator))]
        return to_caller(self._restore(torch.cat(parts, -1).movedim(-1, 0), sides))

    def paths(self, *inputs: Array | None) -> Array:
        """Posterior paths (s, g_1, ..., g_k) that are functions: the same however the inputs are split or grouped.

        **The first call solves** for s further systems, about as expensive as conditioning: the samples of a grid are
        values at its cells, whereas the prior of a path consists of random features of the product kernel. ``report``
        then has a line "paths" with the cost. `sample` needs neither. Later calls, and all calls of `Posterior.paths`,
        need no solve. A kernel without features raises NotImplementedError. Differentiable in the inputs. The paths of
        an updated posterior are other functions.
        """
        sides, to_caller = self._read(inputs)
        prior, weights = self._paths
        update = self._explained(sides, self.weights[:, :1] - weights)
        f = prior(cells(sides)).T.reshape(*(len(G) for G in sides), self.num_samples)
        return to_caller(self._restore((f + update).movedim(-1, 0), sides))

    def paths_at(self, Xs: Array) -> Array:
        """Raise NotImplementedError: `Posterior.paths_at` is for tables."""
        raise NotImplementedError(
            "the paths of a grid are evaluated on grids of inputs: use paths(*sides). For paths at their own points "
            "condition a GP on the observed cells as rows, with a product of kernels that have active_dims"
        )

    def at(self, points: Array, generator: torch.Generator | None = None) -> Predictions:
        """Mean, variance and samples at scattered points (m, d_1 + ... + d_k), the columns side by side.

        Joint draws at these points. Time O(m p) for p cells, and O(m^3) for the roots.
        """
        read = read_matrix(points, "points", columns=self.data.columns, like=self.data.originals[0])
        dtype, split = self.data.dtype, read.X.split(self.data.widths, 1)
        scaled = [scaling.inputs(G, dtype) for scaling, G in zip(self.data.scalings, split, strict=True)]
        crosses = [k(G, F) for k, G, F in zip(self.model.sides, scaled, self.data.factors, strict=True)]
        both = multiply_rows(crosses, self._scatter(self.weights))
        f = multiply_rows(*self._extend_prior(scaled, as_generator(generator)))
        variances = torch.stack([k.diag(G) for k, G in zip(self.model.sides, scaled, strict=True)]).prod(0)
        h = both[:, 1:]
        variance = self.scaling.restore_variance(variance_from_paths((f - h).T, h.T, variances))
        prior_mean, restore = self.model.mean_at(read.X.to(dtype)), self.scaling.restore
        mean, samples = restore(both[:, 0], prior_mean), restore((both[:, :1] + f - h).T, prior_mean)
        return Predictions(read.to_caller(mean), read.to_caller(variance), read.to_caller(samples))

    def leave_one_out(self) -> LeaveOneOut:
        """As `Posterior.leave_one_out`, for every observed cell: grids of the shape of Y, NaN in the holes."""
        found, observed = super().leave_one_out(), self.data.observed

        def scatter(values: Tensor) -> Tensor:
            return values.new_full(observed.shape, torch.nan).masked_scatter(observed, values)

        means, variances, log_densities = map(scatter, (found.means, found.variances, found.log_densities))
        return replace(found, means=means, variances=variances, log_densities=log_densities)

    def update(
        self,
        Y: Array,
        noise: Array | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
    ) -> GridPosterior:
        """The posterior with other observations on the same grid: same prior draws, warm-started.

        ``Y``: all values of the grid (p_1, ..., p_k), old and new ones, NaN in the holes; cells may also be removed.
        (`Posterior.update` takes the new rows only.) Cells observed before keep the draws of their noise;
        hyperparameters and settings stay. ``noise``: known standard deviations of all cells, as in
        `LatentKroneckerGP.condition`.
        """
        if noise is None and self.data.noise_std is not None:
            raise ValueError("the noise was known so far: give that of all cells to update(Y, noise=...)")
        began, system = time.perf_counter(), self.system.require_targets("update")
        generator = as_generator(generator)
        seed = repeating_seed(generator)
        data, old = self.model.prepare_data(self.data.originals, Y, noise), self.data
        units = data.scaling.target_scale / old.scaling.target_scale
        noise_std = None if data.noise_std is None else data.noise_std * units
        data = replace(data, factors=old.factors, originals=old.originals, noise_std=noise_std, scalings=old.scalings)
        shape = (len(data.y), self.num_samples)
        draws = normal(shape, spawn_generator(generator), torch.float64, data.device).to(data.dtype)
        kept = old.observed.flatten()[data.cells].unsqueeze(1)
        draws = torch.where(kept, self._scatter(system.noise_draws).reshape(-1, self.num_samples)[data.cells], draws)
        x0 = self._scatter(self.weights).reshape(-1, self.weights.shape[1])[data.cells]
        request = SolveRequest(self.settings, generator, seed, x0=x0, callback=callback, began=began)
        updated: GridPosterior = self.model.make_posterior(data, self.prior, draws, request)
        updated.about = self.about
        return updated

    def _read(self, inputs: Sequence[Array | None]) -> tuple[list[Tensor], Callable[[Tensor], Array]]:
        """Standardised inputs of every side, the factors themselves for None; and how to return results."""
        originals, is_numpy = self.data.originals, self.data.is_numpy
        if len(inputs) not in (0, len(originals)):
            raise ValueError(f"{len(inputs)} sets of inputs for a grid with {len(originals)} sides")
        sides = list(self.data.factors)
        for i, G in enumerate(inputs):
            if G is not None:
                is_numpy = not isinstance(G, Tensor)
                read = read_side(G, f"inputs {i}", originals[i], columns=originals[i].shape[1])
                sides[i] = self.data.scalings[i].inputs(read.X, self.data.dtype)
        return sides, lambda result: result.detach().cpu().numpy() if is_numpy else result

    def _scatter(self, V: Tensor) -> Tensor:
        """P^T V (p_1, ..., p_k, columns), zero in the holes."""
        return scatter(V, self.data.cells, self.data.observed.shape)

    def _explained(self, sides: Sequence[Tensor], W: Tensor) -> Tensor:
        """(K(G_1, F_1) x ...) P^T W: (g_1, ..., g_k, columns)."""
        pairs = zip(self.model.sides, sides, self.data.factors, strict=True)
        return multiply_sides([k(G, F) for k, G, F in pairs], self._scatter(W))

    def _draws(self, sides: Sequence[Tensor], num: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Prior parts f and explained parts h, (g_1, ..., g_k, c) each, for c samples at a time."""
        S, W = self._extend_prior(sides, generator)
        size = max(W.shape[:-1].numel(), math.prod(len(root) for root in S))
        step = max(1, self.settings.compute.budget(W.device) // (8 * W.element_size() * size))
        for part in spans(num, step):
            yield multiply_sides(S, W[..., part]), self._explained(sides, self.weights[:, 1:][:, part])

    def _extend_prior(self, sides: Sequence[Tensor], generator: torch.Generator) -> tuple[list[Tensor], Tensor]:
        budget = self.settings.compute.budget(self.data.device)
        return self._require_samples().extend(self.model.sides, self.data.factors, sides, generator, budget)

    def _require_samples(self) -> GridPrior:
        if self.prior is None:
            raise ValueError("this posterior has no samples: use condition(samples=64)")
        return self.prior

    def _variance_from_samples(self, sides: Sequence[Tensor]) -> Tensor:
        fixed = torch.Generator().manual_seed(self._seed)
        G = H = torch.zeros((), dtype=self.data.dtype, device=self.data.device)
        for f, h in self._draws(sides, self.num_samples, fixed):
            G, H = G + (f - h).square().sum(-1) / self.num_samples, H + h.square().sum(-1) / self.num_samples
        return variance_from_moments(G, H, prior_variance(self.model.sides, sides))

    def _restore(self, values: Tensor, sides: Sequence[Tensor]) -> Tensor:
        """Function values in the units of y; a mean function is evaluated at every cell."""
        data = self.data
        if not callable(self.model.mean):
            return self.scaling.restore(values, self.model.mean)
        X = [
            original.to(data.dtype) if G is F else scaling.restore_inputs(G)
            for G, F, original, scaling in zip(sides, data.factors, data.originals, data.scalings, strict=True)
        ]
        return self.scaling.restore(values, self.model.mean_at(cells(X)).view([len(G) for G in X]))

    @cached_property
    def _exact(self) -> ExactCovariance:
        model, data, deviation, settings = self.model, self.data, self.system.deviation, self.settings
        kernel, X = model.product(data.widths), data.inputs()
        # Without a reference to self: a cycle would delay the release of the factor.
        return ExactCovariance(kernel, X, deviation, settings, lambda: model.operator(data, settings))

    @property
    def _seed(self) -> int:
        """Of the draws at new inputs for `variance` and of the paths, so that repeated calls agree."""
        seed = self.report.seed if self.paths_seed is None else self.paths_seed
        return 0 if seed is None else seed % 2**62

    def _prior_mean(self) -> Tensor:
        return self.model.mean_at(self.data.X_raw)

    def _operator(self, dtype: torch.dtype | None = None, backend: str | None = None) -> Operator:
        """H; its backend follows from the grid."""
        data = self.data if dtype is None else replace(self.data, factors=[F.to(dtype) for F in self.data.factors])
        return self.model.operator(data, self.settings)

    def _draw_paths(self, samples: int) -> tuple[PriorPaths, torch.Generator]:
        """Prior paths of random features, and the generator that drew them."""
        # Spawned: the noise of the samples may come from the same seed.
        source = spawn_generator(torch.Generator().manual_seed(self._seed))
        kernel, features = self.model.product(self.data.widths), self._require_samples().features
        return PriorPaths.draw(kernel, samples, features, self.data.columns, source), source

    @cached_property
    def _paths(self) -> tuple[PriorPaths, Tensor]:
        """Prior paths of random features, and their weights (n, s)."""
        began, data, system = time.perf_counter(), self.data, self.system.require_targets("paths")
        drawn, source = self._draw_paths(self.num_samples)
        with torch.no_grad():
            values = drawn(data.inputs()).T
            # The mean has been solved for: a column of zeros takes its place.
            system = replace(system, targets=torch.cat([torch.zeros_like(values[:, :1]), values], 1))
        request, largest = SolveRequest(self.settings, source, began=began), self.model.largest_variance(data)
        weights, report = solve_system(self._operator(), largest, data.columns, system, data.scaling, request)
        self.report = replace(self.report, paths=replace(report, features=drawn.features.num))
        report.warn_unless_converged("paths")
        return drawn, weights[:, 1:]
