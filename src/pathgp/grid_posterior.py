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
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathgp.conditioning import Settings, Solve, System, solve_system
from pathgp.inputs import Array, read_matrix, whole_number
from pathgp.learning.evidence import Evidence, log_density
from pathgp.models.grid import GridObservations, GridPrior, extended_root, prior_variance
from pathgp.operators.kronecker import along_sides, scattered
from pathgp.operators.memory import memory_budget, spans
from pathgp.pathwise import PriorPaths, variance_from_moments
from pathgp.randomness import as_generator, normal, offspring, repeating_seed
from pathgp.report import ConditionReport
from pathgp.solvers.base import Callback

if TYPE_CHECKING:
    from pathgp.models.latent_kronecker import LatentKroneckerGP


@dataclass(frozen=True)
class Predictions:
    """Values at scattered points: ``mean`` (m,), ``variance`` (m,) of f, ``samples`` (s, m)."""

    mean: Array
    variance: Array
    samples: Array


class GridPosterior:
    """A Gaussian process given a grid of data with holes. Obtained from `LatentKroneckerGP.condition`.

    Inputs of a side are arrays (g_i, d_i) or (g_i,), None for those of the training grid; results have the shape of
    the grid they span.
    """

    def __init__(
        self,
        model: LatentKroneckerGP,
        data: GridObservations,
        system: System,
        prior: GridPrior | None,
        weights: Tensor,
        settings: Settings,
        report: ConditionReport,
    ) -> None:
        self.model = model
        self.report = report
        self._data = data
        self._system = system
        self._prior = prior
        self._weights = weights
        self._settings = settings
        # New blocks of the draws behind `variance`: the same question gets the same answer.
        self._seed = 0 if report.seed is None else report.seed % 2**62

    @classmethod
    def solved(
        cls,
        model: LatentKroneckerGP,
        data: GridObservations,
        prior: GridPrior | None,
        draws: Tensor,
        how: Solve,
    ) -> GridPosterior:
        """Solve the systems of a model and its prior draws."""
        system = model.system(data, prior, draws)
        H = model.operator(data, how.settings)
        weights, report = solve_system(H, model.largest_variance(data), data.columns, system, how)
        report = replace(report, error_bound=report.error_bound * float(data.scaling.target_scale))
        return cls(model, data, system, prior, weights, how.settings, report)

    @property
    def num_samples(self) -> int:
        """Number of samples that were solved for."""
        return self._weights.shape[1] - 1

    def mean(self, *inputs: Array | None) -> Array:
        """Posterior mean (g_1, ..., g_k) at a grid of inputs."""
        sides, give = self._read(inputs)
        return give(self._restored(self._explained(sides, self._weights[:, :1])[..., 0], sides))

    def variance(self, *inputs: Array | None, noise: bool = False) -> Array:
        """Posterior variance (g_1, ..., g_k) of f, or with ``noise=True`` of a new observation, from the samples.

        Relative standard error at most sqrt(2 / s), see `variance_from_paths`.
        """
        sides, give = self._read(inputs)
        source = torch.Generator().manual_seed(self._seed)
        G = H = torch.zeros((), dtype=self._data.dtype, device=self._data.device)
        for f, h in self._draws(sides, self.num_samples, source):
            G, H = G + (f - h).square().sum(-1) / self.num_samples, H + h.square().sum(-1) / self.num_samples
        variance = variance_from_moments(G, H, prior_variance(self.model.sides, self._used(sides)))
        if noise:
            variance = variance + self.model.noise.square().to(variance)
        return give(self._data.scaling.restore_variance(variance))

    def sample(self, *inputs: Array | None, num: int | None = None, generator: torch.Generator | None = None) -> Array:
        """Exact joint draws (num, g_1, ..., g_k) at a grid of inputs, at most as many as were solved for.

        On the training grid they are the same at every call; at new inputs another call gives other draws.
        """
        num = self.num_samples if num is None else whole_number(num, "num", 1)
        if num > self.num_samples:
            raise ValueError(f"{num} samples asked for, {self.num_samples} solved: use condition(samples={num})")
        sides, give = self._read(inputs)
        centre = self._explained(sides, self._weights[:, :1])
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
        centre = self._explained(sides, self._weights[:, :1] - weights)
        used = self._used(sides)
        shape = torch.Size([len(G) for G in used])
        f = prior(_cells(used, shape)).T.reshape(*shape, self.num_samples)
        return give(self._restored((f + centre).movedim(-1, 0), sides))

    def at(self, points: Array, generator: torch.Generator | None = None) -> Predictions:
        """Mean, variance and samples at scattered points (m, d_1 + ... + d_k), the columns side by side.

        Joint draws at these points. Time O(m p) for p cells, and O(m^3) for the roots.
        """
        read = read_matrix(points, "points", columns=self._data.columns, like=self._data.originals[0])
        widths = [F.shape[1] for F in self._data.factors]
        given = list(read.X.split(widths, 1))
        scaled = [scaling.inputs(G) for scaling, G in zip(self._data.scalings, given, strict=True)]
        crosses = [k(G, F) for k, G, F in zip(self.model.sides, scaled, self._data.factors, strict=True)]
        both = _row_by_row(crosses, self._scattered(self._weights))
        roots = [extended_root(k, F, G) for k, F, G in zip(self.model.sides, self._data.factors, scaled, strict=True)]
        f = _row_by_row([S.to(self._weights) for S, _ in roots], self._extended(roots, as_generator(generator)))
        variances = torch.stack([k.diag(G) for k, G in zip(self.model.sides, scaled, strict=True)]).prod(0)
        h = both[:, 1:]
        variance = variance_from_moments((f - h).square().mean(1), h.square().mean(1), variances)
        shift = self.model.mean_at(read.X)
        restore = self._data.scaling.restore
        return Predictions(
            read.give(restore(both[:, 0]) + shift),
            read.give(self._data.scaling.restore_variance(variance)),
            read.give(restore((both[:, :1] + f - h).T) + shift),
        )

    def log_marginal_likelihood(self, probes: int = 32, generator: torch.Generator | None = None) -> Evidence:
        """log p(y) of the observed cells in the units of y, with an error bar, as for `Posterior`."""
        system = self._system.needed("log_marginal_likelihood")
        H = self.model.operator(self._data, self._settings)
        found = log_density(H, system.targets[:, 0], self._weights[:, 0], probes, generator)
        units = len(self._data.y) * math.log(float(self._data.scaling.target_scale))
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
        if noise is None and self._data.known is not None:
            raise ValueError("the noise was known so far: give that of all cells to update(Y, noise=...)")
        began = time.perf_counter()
        system = self._system.needed("update")
        generator = as_generator(generator)
        seed = repeating_seed(generator)
        data, old = self.model.observe(self._data.originals, Y, noise), self._data
        if data.observed.shape != old.observed.shape:
            raise ValueError(f"Y has shape {tuple(data.observed.shape)}, the grid has {tuple(old.observed.shape)}")
        known = None if data.known is None else data.known * data.scaling.target_scale / old.scaling.target_scale
        data = replace(data, factors=old.factors, originals=old.originals, known=known, scalings=old.scalings)
        source = offspring(generator)
        draws = normal((len(data.y), self.num_samples), source, torch.float64, data.device).to(data.dtype)
        everywhere = self._scattered(system.noise_draws).reshape(-1, self.num_samples)
        kept = old.observed.flatten()[data.cells].unsqueeze(1)
        draws = torch.where(kept, everywhere[data.cells], draws)
        x0 = self._scattered(self._weights).reshape(-1, self._weights.shape[1])[data.cells]
        how = Solve(self._settings, generator, seed, x0=x0, callback=callback, began=began)
        return GridPosterior.solved(self.model, data, self._prior, draws, how)

    def save(self, path: str | os.PathLike[str], data: bool = True) -> None:
        """Write the posterior to one file, which `pathgp.load` reads; the model and the draws are in it.

        ``data=False`` leaves out the observed values and the draws of their noise: ``update``, ``paths`` and
        ``log_marginal_likelihood`` are lost. Inputs and the places of the holes stay. See `pathgp.saving`.
        """
        from pathgp.saving import save

        save(self, path, data)

    def __repr__(self) -> str:
        return f"GridPosterior\n{self.report!r}"

    def _read(self, inputs: Sequence[Array | None]) -> tuple[list[Tensor | None], Callable[[Tensor], Array]]:
        """Standardised inputs of every side, None for those of the training grid; and how to give results back."""
        originals, is_numpy = self._data.originals, self._data.is_numpy
        if len(inputs) not in (0, len(originals)):
            raise ValueError(f"{len(inputs)} sets of inputs for a grid with {len(originals)} sides")
        sides: list[Tensor | None] = []
        given = inputs or [None] * len(originals)
        for i, (G, F, scaling) in enumerate(zip(given, originals, self._data.scalings, strict=True)):
            if G is None:
                sides.append(None)
                continue
            is_numpy = not isinstance(G, Tensor)
            column = G[:, None] if getattr(G, "ndim", 2) == 1 else G
            sides.append(scaling.inputs(read_matrix(column, f"inputs {i}", columns=F.shape[1], like=F).X))
        return sides, lambda result: result.detach().cpu().numpy() if is_numpy else result

    def _used(self, sides: Sequence[Tensor | None]) -> list[Tensor]:
        return [F if G is None else G for G, F in zip(sides, self._data.factors, strict=True)]

    def _scattered(self, V: Tensor) -> Tensor:
        return scattered(V, self._data.cells, self._data.observed.shape)

    def _explained(self, sides: Sequence[Tensor | None], W: Tensor) -> Tensor:
        """(K(G_1, F_1) x ...) P^T W: (g_1, ..., g_k, columns)."""
        pairs = zip(self.model.sides, self._used(sides), self._data.factors, strict=True)
        return along_sides([k(G, F) for k, G, F in pairs], self._scattered(W))

    def _draws(
        self, sides: Sequence[Tensor | None], num: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Prior parts f and explained parts h (g_1, ..., g_k, some samples), a few samples at a time."""
        parts = zip(self.model.sides, self._data.factors, sides, strict=True)
        roots = [extended_root(k, F, G) for k, F, G in parts]
        W = self._extended(roots, generator)
        S = [root.to(W) for root, _ in roots]
        cells = max(W.shape[:-1].numel(), math.prod(len(root) for root in S))
        step = max(1, memory_budget(self._settings.memory, W.device) // (8 * W.element_size() * cells))
        for part in spans(num, step):
            yield along_sides(S, W[..., part]), self._explained(sides, self._weights[:, 1:][:, part])

    def _extended(self, roots: Sequence[tuple[Tensor, int]], generator: torch.Generator) -> Tensor:
        if self._prior is None:
            raise ValueError("this posterior has no samples: use condition(samples=64)")
        shapes = [(len(F), new) for F, (_, new) in zip(self._data.factors, roots, strict=True)]
        return self._prior.extended(shapes, generator)

    def _restored(self, values: Tensor, sides: Sequence[Tensor | None]) -> Tensor:
        """Function values in the units of y; the mean of a function is evaluated at every cell."""
        restored = self._data.scaling.restore(values)
        if not callable(self.model.mean):
            return restored + self.model.mean
        given = [
            F if G is None else G * scaling.scale.to(G) + scaling.shift.to(G)
            for G, F, scaling in zip(sides, self._data.originals, self._data.scalings, strict=True)
        ]
        shape = torch.Size([len(G) for G in given])
        return restored + self.model.mean_at(_cells(given, shape)).view(shape)

    @cached_property
    def _functions(self) -> tuple[PriorPaths, Tensor]:
        """Prior paths made of features, and their weights (n, s)."""
        if self._prior is None:
            raise ValueError("this posterior has no samples: use condition(samples=64)")
        solved = self._system.needed("paths")
        # The noise of the paths may come from the same seed.
        data, model, source = self._data, self.model, offspring(torch.Generator().manual_seed(self._seed))
        drawn = PriorPaths.draw(model.product(data), self.num_samples, self._prior.features, data.columns, source)
        H = model.operator(data, self._settings)
        deviation = H.noise.sqrt().to(H.dtype)
        eps = (deviation.unsqueeze(1) if deviation.ndim else deviation) * solved.noise_draws
        with torch.no_grad():
            system = replace(solved, targets=drawn(data.inputs).T + eps, noise_draws=eps[:, :0])
        return drawn, self._settings.solve(H, system, source).x


def _cells(sides: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """The inputs of all cells of a grid, row by row: (g_1 ... g_k, d_1 + ... + d_k)."""
    places = torch.unravel_index(torch.arange(shape.numel(), device=sides[0].device), shape)
    return torch.cat([G[place] for G, place in zip(sides, places, strict=True)], 1)


def _row_by_row(matrices: Sequence[Tensor], grid: Tensor) -> Tensor:
    """sum_c prod_i matrices_i[m, c_i] grid[c] over all cells c: (m, s) for (m, p_i) and a grid (p_1, ..., p_k, s)."""
    first, *others = matrices
    result = (first @ grid.reshape(grid.shape[0], -1)).view(len(first), *grid.shape[1:])
    for matrix in others:
        result = torch.einsum("mp,mp...->m...", matrix, result)
    return result
