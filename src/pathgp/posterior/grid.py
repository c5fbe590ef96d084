"""The posterior on a grid with holes: mean, variance and samples at any grid of inputs, seen, new or mixed.

    mean  = mu + (K_1(G_1, F_1) x ... x K_k(G_k, F_k)) P^T v,     v = H^-1 (y - mu)
    sample_j = mean + f_j(G) - (K_1(G_1, F_1) x ...) P^T alpha_j,  alpha_j = H^-1 (P f_j(F) + eps_j)

f_j is a joint draw from the prior at F and at G, see `models.grid`. Thesis, section 6.2.4.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.inputs import Array, read_matrix, read_side, whole_number
from pathgp.compute.memory import spans
from pathgp.compute.random import as_generator, normal, repeating_seed, spawn_generator
from pathgp.data.grid import GridObservations, GridPrior, cells, extended_root, prior_variance
from pathgp.operators.kronecker import along_sides, scattered
from pathgp.pathwise import PriorPaths, variance_from_moments
from pathgp.posterior.base import BasePosterior, GridModel
from pathgp.posterior.conditioning import Settings, SolveRequest, System, solve_system, warn_unless_converged
from pathgp.posterior.evidence import Evidence, log_density
from pathgp.posterior.exact_covariance import ExactCovariance
from pathgp.posterior.report import ConditionReport
from pathgp.solvers.base import Callback


@dataclass(frozen=True)
class Predictions:
    """Values at scattered points: ``mean`` (m,), ``variance`` (m,) of f, ``samples`` (s, m)."""

    mean: Array
    variance: Array
    samples: Array


class GridPosterior(BasePosterior):
    """A Gaussian process given a grid of data with holes. Obtained from `LatentKroneckerGP.condition`.

    Inputs of a side are arrays (g_i, d_i) or (g_i,), None for those of the training grid; results have the shape of
    the grid they span.
    """

    def __init__(
        self,
        model: GridModel,
        data: GridObservations,
        system: System,
        prior: GridPrior | None,
        weights: Tensor,
        settings: Settings,
        report: ConditionReport,
    ) -> None:
        super().__init__(model, data.scaling, system, prior, weights, settings, report)
        self.data = data
        # New blocks of the draws behind `variance`: the same question gets the same answer.
        self._seed = 0 if report.seed is None else report.seed % 2**62

    @classmethod
    def solved(
        cls,
        model: GridModel,
        data: GridObservations,
        prior: GridPrior | None,
        draws: Tensor,
        request: SolveRequest,
    ) -> GridPosterior:
        """Solve the systems of a model and its prior draws."""
        system = model.system(data, prior, draws)
        H = model.operator(data, request.settings)
        weights, report = solve_system(H, model.largest_variance(data), data.columns, system, request)
        scaling = data.scaling
        report = report.in_units(float(scaling.target_scale), scaling.rounding(system.targets[:, 0]))
        return cls(model, data, system, prior, weights, request.settings, report)

    def mean(self, *inputs: Array | None) -> Array:
        """Posterior mean (g_1, ..., g_k) at a grid of inputs."""
        sides, give = self._read(inputs)
        return give(self._restored(self._explained(sides, self.weights[:, :1])[..., 0], sides))

    def variance(self, *inputs: Array | None, noise: bool = False) -> Array:
        """Posterior variance (g_1, ..., g_k) of f, or with ``noise=True`` of a new observation, from the samples.

        Relative standard error at most sqrt(2 / s), see `variance_from_paths`.
        """
        sides, give = self._read(inputs)
        source = torch.Generator().manual_seed(self._seed)
        G = H = torch.zeros((), dtype=self.data.dtype, device=self.data.device)
        for f, h in self._draws(sides, self.num_samples, source):
            G, H = G + (f - h).square().sum(-1) / self.num_samples, H + h.square().sum(-1) / self.num_samples
        variance = variance_from_moments(G, H, prior_variance(self.model.sides, self._used(sides)))
        if noise:
            variance = variance + self.model.noise.square().to(variance)
        return give(self.scaling.restore_variance(variance))

    def covariance(self, *inputs: Array | None) -> Array:
        """Exact posterior covariance (g, g) of f between all g = g_1 ... g_k cells of a grid of inputs, row by row.

        K(G, G) - K(G, X) H^-1 K(X, G), from a factor of H up to 10,000 observed cells, above from g solves. Memory
        O(g^2).
        """
        sides, give = self._read(inputs)
        found = self._exact.covariance(cells(self._used(sides)))
        return give(self.scaling.restore_variance(found))

    def sample(self, *inputs: Array | None, num: int | None = None, generator: torch.Generator | None = None) -> Array:
        """Exact joint draws (num, g_1, ..., g_k) at a grid of inputs, at most as many as were solved for.

        On the training grid they are the same at every call; at new inputs another call gives other draws.
        """
        num = self.num_samples if num is None else whole_number(num, "num", 1)
        if num > self.num_samples:
            raise ValueError(f"{num} samples asked for, {self.num_samples} solved: use condition(samples={num})")
        sides, give = self._read(inputs)
        centre = self._explained(sides, self.weights[:, :1])
        parts = [centre + f - h for f, h in self._draws(sides, num, as_generator(generator))]
        draws = torch.cat(parts, -1).movedim(-1, 0)
        return give(self._restored(draws, sides))

    def paths(self, *inputs: Array | None) -> Array:
        """Posterior paths (s, g_1, ..., g_k) that are functions: the same however the inputs are split or grouped.

        Their priors are random features of the product kernel, drawn at the first call, which also solves their
        systems; a kernel without features raises NotImplementedError. Differentiable in the inputs. On grids `sample`
        is cheaper and needs no features.
        """
        sides, give = self._read(inputs)
        prior, weights = self._functions
        centre = self._explained(sides, self.weights[:, :1] - weights)
        used = self._used(sides)
        f = prior(cells(used)).T.reshape(*(len(G) for G in used), self.num_samples)
        return give(self._restored((f + centre).movedim(-1, 0), sides))

    def at(self, points: Array, generator: torch.Generator | None = None) -> Predictions:
        """Mean, variance and samples at scattered points (m, d_1 + ... + d_k), the columns side by side.

        Joint draws at these points. Time O(m p) for p cells, and O(m^3) for the roots.
        """
        read = read_matrix(points, "points", columns=self.data.columns, like=self.data.originals[0])
        given = list(read.X.split(self.data.widths, 1))
        dtype = self.data.dtype
        scaled = [scaling.inputs(G, dtype) for scaling, G in zip(self.data.scalings, given, strict=True)]
        crosses = [k(G, F) for k, G, F in zip(self.model.sides, scaled, self.data.factors, strict=True)]
        both = _row_by_row(crosses, self._scattered(self.weights))
        roots = [extended_root(k, F, G) for k, F, G in zip(self.model.sides, self.data.factors, scaled, strict=True)]
        f = _row_by_row([S.to(self.weights) for S, _ in roots], self._extended(roots, as_generator(generator)))
        variances = torch.stack([k.diag(G) for k, G in zip(self.model.sides, scaled, strict=True)]).prod(0)
        h = both[:, 1:]
        variance = variance_from_moments((f - h).square().mean(1), h.square().mean(1), variances)
        mean = self.model.mean_at(read.X.to(dtype), exact=True)
        restore = self.scaling.restore
        return Predictions(
            read.to_caller(restore(both[:, 0], mean)),
            read.to_caller(self.scaling.restore_variance(variance)),
            read.to_caller(restore((both[:, :1] + f - h).T, mean)),
        )

    def log_marginal_likelihood(self, probes: int = 32, generator: torch.Generator | None = None) -> Evidence:
        """log p(y) of the observed cells in the units of y, with an error bar, as for `Posterior`."""
        system = self.system.require_targets("log_marginal_likelihood")
        # In float64: rounding K to float32 can change its determinant by many nats.
        data = replace(self.data, factors=[F.to(torch.float64) for F in self.data.factors])
        H = self.model.operator(data, self.settings)
        found = log_density(H, system.targets[:, 0], self.weights[:, 0], probes, generator)
        units = len(self.data.y) * math.log(float(self.scaling.target_scale))
        return replace(found, value=found.value - units)

    def update(
        self,
        Y: Array,
        noise: Array | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
    ) -> GridPosterior:
        """The posterior with another set of observed cells on the same grid: same draws, warm-started.

        Cells observed before keep the draws of their noise; hyperparameters and settings stay. ``noise``: known
        standard deviations of all cells, as in `LatentKroneckerGP.condition`.
        """
        if noise is None and self.data.known is not None:
            raise ValueError("the noise was known so far: give that of all cells to update(Y, noise=...)")
        began = time.perf_counter()
        system = self.system.require_targets("update")
        generator = as_generator(generator)
        seed = repeating_seed(generator)
        data, old = self.model.prepare_data(self.data.originals, Y, noise), self.data
        if data.observed.shape != old.observed.shape:
            raise ValueError(f"Y has shape {tuple(data.observed.shape)}, the grid has {tuple(old.observed.shape)}")
        known = None if data.known is None else data.known * data.scaling.target_scale / old.scaling.target_scale
        data = replace(data, factors=old.factors, originals=old.originals, known=known, scalings=old.scalings)
        source = spawn_generator(generator)
        draws = normal((len(data.y), self.num_samples), source, torch.float64, data.device).to(data.dtype)
        everywhere = self._scattered(system.noise_draws).reshape(-1, self.num_samples)
        kept = old.observed.flatten()[data.cells].unsqueeze(1)
        draws = torch.where(kept, everywhere[data.cells], draws)
        x0 = self._scattered(self.weights).reshape(-1, self.weights.shape[1])[data.cells]
        request = SolveRequest(self.settings, generator, seed, x0=x0, callback=callback, began=began)
        return GridPosterior.solved(self.model, data, self.prior, draws, request)

    def to_html(
        self,
        path: str | os.PathLike[str],
        X_test: Array | None = None,
        y_test: Array | None = None,
        names: Sequence[str] | None = None,
        target: str | None = None,
        fit: Any = None,
        title: str | None = None,
    ) -> None:
        """Write what is to be known about this posterior as one HTML page that needs nothing else, as for `Posterior`.

        The field as maps and curves, accuracy and calibration where there are values to compare with, learning, solve.

        Args:
            path: the file.
            X_test: scattered points (m, d_1 + ... + d_k) with the targets y_test (m,), of which at most 1,000 are
                predicted; None where y_test is a grid.
            y_test: true values on the training grid, NaN where there are none: those in holes are compared.
            names: of the sides of the grid.
            target: the name of the values.
            fit: what `LatentKroneckerGP.fit` returned, for the learning curves.
            title: of the page.
        """
        from pathgp.html.page import write

        write(self, path, X_test, y_test, names, target, fit, title)

    def _read(self, inputs: Sequence[Array | None]) -> tuple[list[Tensor | None], Callable[[Tensor], Array]]:
        """Standardised inputs of every side, None for those of the training grid; and how to give results back."""
        originals, is_numpy = self.data.originals, self.data.is_numpy
        if len(inputs) not in (0, len(originals)):
            raise ValueError(f"{len(inputs)} sets of inputs for a grid with {len(originals)} sides")
        sides: list[Tensor | None] = []
        given = inputs or [None] * len(originals)
        for i, (G, F, scaling) in enumerate(zip(given, originals, self.data.scalings, strict=True)):
            if G is None:
                sides.append(None)
                continue
            is_numpy = not isinstance(G, Tensor)
            read = read_side(G, f"inputs {i}", F, columns=F.shape[1])
            sides.append(scaling.inputs(read.X, self.data.dtype))
        return sides, lambda result: result.detach().cpu().numpy() if is_numpy else result

    def _used(self, sides: Sequence[Tensor | None]) -> list[Tensor]:
        return [F if G is None else G for G, F in zip(sides, self.data.factors, strict=True)]

    def _scattered(self, V: Tensor) -> Tensor:
        return scattered(V, self.data.cells, self.data.observed.shape)

    def _explained(self, sides: Sequence[Tensor | None], W: Tensor) -> Tensor:
        """(K(G_1, F_1) x ...) P^T W: (g_1, ..., g_k, columns)."""
        pairs = zip(self.model.sides, self._used(sides), self.data.factors, strict=True)
        return along_sides([k(G, F) for k, G, F in pairs], self._scattered(W))

    def _draws(
        self, sides: Sequence[Tensor | None], num: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Prior parts f and explained parts h (g_1, ..., g_k, some samples), a few samples at a time."""
        parts = zip(self.model.sides, self.data.factors, sides, strict=True)
        roots = [extended_root(k, F, G) for k, F, G in parts]
        W = self._extended(roots, generator)
        S = [root.to(W) for root, _ in roots]
        size = max(W.shape[:-1].numel(), math.prod(len(root) for root in S))
        step = max(1, self.settings.compute.budget(W.device) // (8 * W.element_size() * size))
        for part in spans(num, step):
            yield along_sides(S, W[..., part]), self._explained(sides, self.weights[:, 1:][:, part])

    def _extended(self, roots: Sequence[tuple[Tensor, int]], generator: torch.Generator) -> Tensor:
        if self.prior is None:
            raise ValueError("this posterior has no samples: use condition(samples=64)")
        shapes = [(len(F), new) for F, (_, new) in zip(self.data.factors, roots, strict=True)]
        w, budget = self.prior.w, self.settings.compute.budget(self.data.device)
        needed = w.element_size() * w.shape[-1] * math.prod(old + new for old, new in shapes)
        if needed > max(budget, 2 * w.nbytes):
            raise ValueError(
                f"draws that continue the old ones to so many new inputs take {needed / 1e9:.2g} GB, and the memory "
                f"budget is {budget / 1e9:.2g} GB: ask for fewer inputs at once, or use paths"
            )
        return self.prior.extended(shapes, generator)

    def _restored(self, values: Tensor, sides: Sequence[Tensor | None]) -> Tensor:
        """Function values in the units of y; the mean of a function is evaluated at every cell."""
        restore = self.scaling.restore
        if not callable(self.model.mean):
            return restore(values, self.model.mean)
        given = [
            F.to(self.data.dtype) if G is None else scaling.original_inputs(G)
            for G, F, scaling in zip(sides, self.data.originals, self.data.scalings, strict=True)
        ]
        return restore(values, self.model.mean_at(cells(given), exact=True).view([len(G) for G in given]))

    @cached_property
    def _exact(self) -> ExactCovariance:
        model, data, settings = self.model, self.data, self.settings
        kernel, deviation = model.product(data.widths), self.system.deviation
        return ExactCovariance(kernel, data.inputs, deviation, settings, lambda: model.operator(data, settings))

    @cached_property
    def _functions(self) -> tuple[PriorPaths, Tensor]:
        """Prior paths made of features, and their weights (n, s)."""
        if self.prior is None:
            raise ValueError("this posterior has no samples: use condition(samples=64)")
        solved = self.system.require_targets("paths")
        # The noise of the paths may come from the same seed.
        data, model, source = self.data, self.model, spawn_generator(torch.Generator().manual_seed(self._seed))
        kernel, features = model.product(data.widths), self.prior.features
        drawn = PriorPaths.draw(kernel, self.num_samples, features, data.columns, source)
        H = model.operator(data, self.settings)
        with torch.no_grad():
            values = drawn(data.inputs).T
            # The mean has been solved for: a column of zeros takes its place.
            system = replace(solved, targets=torch.cat([torch.zeros_like(values[:, :1]), values], 1))
        largest = model.largest_variance(data)
        weights, report = solve_system(H, largest, data.columns, system, SolveRequest(self.settings, source))
        warn_unless_converged(report.in_units(float(data.scaling.target_scale)))
        return drawn, weights[:, 1:]


def _row_by_row(matrices: Sequence[Tensor], grid: Tensor) -> Tensor:
    """sum_c prod_i matrices_i[m, c_i] grid[c] over all cells c: (m, s) for (m, p_i) and a grid (p_1, ..., p_k, s)."""
    first, *others = matrices
    result = (first @ grid.reshape(grid.shape[0], -1)).view(len(first), *grid.shape[1:])
    for matrix in others:
        result = torch.einsum("mp,mp...->m...", matrix, result)
    return result
