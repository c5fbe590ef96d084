"""Gaussian processes on grids with holes: a product kernel, one factor per side (thesis, chapter 6)."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from pathgp.compute.inputs import Array, read_factors, read_grid, read_side, whole_number
from pathgp.compute.random import as_generator, normal, repeating_seed
from pathgp.compute.settings import Compute
from pathgp.data.grid import GridObservations, GridPrior, cells, prior_variance, require_roots
from pathgp.data.standardise import Standardisation, blurred_column, task_columns
from pathgp.kernels import Kernel, Product, Sum
from pathgp.kernels.parameters import short
from pathgp.learning.fitting import fit
from pathgp.learning.model import Mean
from pathgp.learning.report import FitReport
from pathgp.models.base import Model
from pathgp.models.gp import FIT_OPTIONS
from pathgp.operators import LatentKroneckerOperator, Operator
from pathgp.operators.kronecker import require_memory_only
from pathgp.pathwise import PriorPaths
from pathgp.posterior.conditioning import Settings, SolveRequest
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.system import System
from pathgp.solvers import Solver
from pathgp.solvers.base import Callback


class LatentKroneckerGP(Model):
    """y = f(x_1, ..., x_k) + eps on a grid, f ~ GP(mean, k_1 k_2 ... k_k), any cells of which may be missing.

    The covariance of the observed cells is a part of a Kronecker product of k small matrices, and products with it
    need only these: exact inference with p = p_1 ... p_k cells in the memory of a few grids.

    Args:
        kernels: one covariance function per side of the grid; the model keeps deep copies. Let only one of them carry
            a signal scale, `kernels.Scale`.
        noise: standard deviation of the noise.
        mean: a number, or a function from inputs (n, d_1 + ... + d_k) to values (n,), in the units of y; the
            parameters of a torch module such as `means.Constant` are learned.
        standardise: shift and scale the inputs of every side and the observed values to mean zero and standard
            deviation one inside the model; task numbers stay as they are.
    """

    def __init__(
        self, kernels: Sequence[Kernel], noise: float = 0.1, mean: Mean = 0.0, standardise: bool = False
    ) -> None:
        super().__init__(noise, mean, standardise)
        if isinstance(kernels, Kernel) or not len(kernels):
            raise TypeError("kernels must be a list, one kernel per side of the grid")
        for kernel in kernels:
            if not isinstance(kernel, Kernel):
                raise TypeError(f"kernels must be pathgp kernels such as Matern(nu=1.5), got {type(kernel).__name__}")
        self.kernels = nn.ModuleList(copy.deepcopy(list(kernels)))

    @property
    def sides(self) -> list[Kernel]:
        """The kernels, one per side."""
        return [kernel for kernel in self.kernels if isinstance(kernel, Kernel)]

    def prior(
        self, samples: int, features: int = 512, generator: torch.Generator | None = None
    ) -> Callable[..., Array]:
        """``samples`` functions from the prior: call the result with one set of inputs per side to get values
        (samples, g_1, ..., g_k). See `GP.prior`.
        """
        draw, model = self.drawing(samples, features, generator), self.frozen(torch.device("cpu"))

        @cache
        def paths(widths: tuple[int, ...]) -> PriorPaths:
            return draw(model.product(widths), sum(widths))

        def evaluate(*inputs: Array) -> Array:
            if len(inputs) != len(self.sides):
                raise ValueError(f"{len(inputs)} sets of inputs for a grid with {len(self.sides)} sides")
            read = [read_side(G, f"inputs {i}") for i, G in enumerate(inputs)]
            sides = [G.X.to(read[0].X.device) for G in read]
            X = cells(sides)
            values = paths(tuple(G.shape[1] for G in sides))(X) + model.mean_at(X)
            return read[0].to_caller(values.view(-1, *(len(G) for G in sides)))

        return evaluate

    def condition(
        self,
        factors: Sequence[Array | None],
        Y: Array,
        noise: Array | None = None,
        solver: str | Solver = "auto",
        samples: int = 64,
        features: int = 512,
        tol: float = 1e-2,
        max_epochs: float | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
        compute: Compute | None = None,
    ) -> GridPosterior:
        """The posterior given a grid of observations, hyperparameters fixed.

        Args:
            factors: the inputs of every side, (p_i, d_i) or (p_i,); None stands for 0, 1, ..., p_i - 1.
            Y: observations (p_1, ..., p_k), NaN where there is none. Computations and results have its dtype; where
                float32 would spoil a side's inputs, computations are in float64.
            noise: known standard deviations: (p_1, ..., p_k) or anything that broadcasts to it, or (p_i,) for the side
                of this length; the total variance of a cell is gp.noise^2 + noise^2.
            solver: as in `GP.condition`.
            samples: number of posterior samples.
            features: random features of each path, see `GridPosterior.paths`.
            tol: relative residual to reach in every system.
            max_epochs: budget in products with the covariance.
            generator: source of all draws; None draws a fresh seed, which the report records.
            callback: called with a `Record` whenever residuals are known.
            compute: memory budget, see `Compute`; a grid has no use for its other options.
        """
        began = time.perf_counter()
        samples, features = whole_number(samples, "samples", 1), whole_number(features, "features", 1)
        settings = Settings.read(solver, tol, max_epochs, require_memory_only(compute))
        generator = as_generator(generator)
        seed = repeating_seed(generator)
        data = self.prepare_data(factors, Y, noise)
        require_roots(data, settings.compute.budget(data.device))
        model = self.frozen(data.device)
        prior = model.draw_prior(data, samples, features, generator)
        draws = normal((len(data.y), samples), generator, torch.float64, data.device).to(data.dtype)
        request = SolveRequest(settings, generator, seed, callback=callback, began=began)
        return model.solved(data, prior, draws, request)

    def fit(self, factors: Sequence[Array | None], Y: Array, noise: Array | None = None, **options: Any) -> FitReport:
        """Learn the hyperparameters; ``factors``, ``Y`` and ``noise`` as in `condition`, the options those of `GP.fit`.

        The same loop as for tables: pathwise gradients, warm starts, budgets, checkpoints. ``gp.posterior`` is ready
        afterwards. ``coarse``, ``initialise="subsets"`` are for tables.
        """
        unknown = set(options) - set(FIT_OPTIONS)
        if unknown:
            raise TypeError(f"fit has no option {', '.join(sorted(unknown))}")
        chosen = {**FIT_OPTIONS, **options}
        if chosen["coarse"] or chosen["initialise"] == "subsets":
            raise ValueError("a grid is learned from as a whole: coarse=True and initialise='subsets' are for tables")
        chosen["compute"] = require_memory_only(chosen["compute"])
        names = ("solver", "tol", "max_epochs", "compute")
        settings = Settings.read(*(chosen.pop(name) for name in names))
        data = self.prepare_data(factors, Y, noise)
        if chosen["estimator"] == "pathwise":
            require_roots(data, settings.compute.budget(data.device))
        return fit(self, data, settings=settings, **chosen)

    def prepare_data(self, factors: Sequence[Array | None], Y: Array, noise: Array | None = None) -> GridObservations:
        """Check a grid of data and bring it into the model's units."""
        grid = read_grid(Y)
        found = read_factors(factors, tuple(grid.shape), len(self.kernels), grid)
        originals = [F.detach().clone() for F in found]
        observed = ~torch.isnan(grid)
        if not bool(observed.any()):
            raise ValueError("every value of Y is missing: at least one observation is needed")
        y = grid[observed].to(torch.float64)
        known = None
        if noise is not None:
            known = _spread(read_grid(noise, "noise").to(grid.device), grid)[observed].to(torch.float64)
            if not bool((known >= 0).all()):
                raise ValueError("noise must hold standard deviations, not negative and not missing, in observed cells")
        results, is_numpy = grid.dtype, not isinstance(Y, Tensor)
        scalings = [Standardisation.identity(F, results) for F in originals]
        # A mean function sees the inputs as they are, a kernel with standardise=True only shifted and scaled.
        unscaled = self.mean_sees_inputs or not self.standardise
        dtype = self._dtype(originals, scalings, results) if unscaled else results
        rounded = [F.to(dtype) for F in originals]
        data = GridObservations(rounded, originals, observed, y, known, scalings, is_numpy)
        if not self.standardise:
            return data
        # As in `GP.prepare_data`: a learned mean stands for the level of y, any other is taken off first.
        learned = isinstance(self.mean, nn.Module)
        centred = y if learned else y - self.mean_at(data.given, exact=True)
        kept = [task_columns(k, F) for k, F in zip(self.sides, originals, strict=True)]
        scalings = [Standardisation.of(F, centred, names, results) for F, names in zip(originals, kept, strict=True)]
        if learned:
            scalings[0] = replace(scalings[0], target_shift=y.new_zeros(()))
        dtype = self._dtype(originals, scalings, dtype)
        inputs = [scaling.inputs(F, dtype) for scaling, F in zip(scalings, originals, strict=True)]
        known = None if known is None else known / scalings[0].target_scale
        return replace(data, factors=inputs, known=known, scalings=scalings)

    @staticmethod
    def _dtype(sides: Sequence[Tensor], scalings: Sequence[Standardisation], wanted: torch.dtype) -> torch.dtype:
        """The dtype of the computations: the wanted one, or float64 where that would spoil the inputs of a side."""
        scaled = [scaling.inputs(F) for scaling, F in zip(scalings, sides, strict=True)]
        return torch.float64 if any(blurred_column(F, wanted) is not None for F in scaled) else wanted

    def operator(self, data: GridObservations, settings: Settings, reuse: Operator | None = None) -> Operator:
        """Through the factors, or dense where so much is missing that a dense product takes fewer operations."""
        shape = data.observed.shape
        if len(data.y) ** 2 < shape.numel() * sum(shape):
            return settings.operator(self.product(data.widths), data.inputs, self.deviation(data), reuse)
        return LatentKroneckerOperator(self.sides, data.factors, data.observed, self.deviation(data), settings.compute)

    def product(self, widths: Sequence[int]) -> Kernel:
        """k_1 k_2 ... k_k as one kernel on the columns of all sides, so many each; it shares their parameters."""
        parts, start = [], 0
        for kernel, width in zip(self.sides, widths, strict=True):
            parts.append(Sum(kernel, active_dims=range(start, start + width)))
            start += width
        return Product(*parts)

    def system(self, data: GridObservations, prior: GridPrior | None, draws: Tensor) -> System:
        with torch.no_grad():
            targets = data.targets(self.mean_at(data.given, exact=True)).unsqueeze(1)
            if prior is not None:
                grid = prior.on_grid(self.sides, data.factors)
                targets = torch.cat([targets, grid.reshape(-1, grid.shape[-1])[data.cells]], 1)
            return System(data.cells.unsqueeze(1).to(data.dtype), targets, draws, self.deviation(data))

    def draw_prior(self, data: GridObservations, samples: int, features: int, generator: torch.Generator) -> GridPrior:
        return GridPrior.draw(tuple(data.observed.shape), samples, features, generator, data.factors[0])

    def restore_prior(self, state: dict[str, Any]) -> GridPrior:
        return GridPrior(state["w"].to(self._noise.raw.device), state["features"])

    def largest_variance(self, data: GridObservations) -> float:
        return float(prior_variance(self.sides, data.factors).max())

    def covariance(self, data: GridObservations, rows: Tensor) -> Tensor:
        return self.product(data.widths)(data.inputs_of(rows).to(torch.float64))

    def kernels_and_inputs(self, data: GridObservations) -> list[tuple[Kernel, Tensor]]:
        return list(zip(self.sides, data.factors, strict=True))

    def solve(
        self, data: GridObservations, prior: GridPrior | None, draws: Tensor, request: SolveRequest
    ) -> GridPosterior:
        prior = None if prior is None else replace(prior, w=prior.w.to(data.dtype))
        return GridPosterior.solve(self, data, self.system(data, prior, draws), prior, request)

    def __repr__(self) -> str:
        kernels = ", ".join(repr(kernel) for kernel in self.sides)
        return f"LatentKroneckerGP([{kernels}], noise={short(self.noise)}, {self._described()})"


def _spread(noise: Tensor, grid: Tensor) -> Tensor:
    """Noise on every cell of a grid, from what broadcasts to it or has one number for each entry of a side."""
    k = grid.ndim
    if noise.ndim == 1 and len(noise) > 1 and k > 1:
        sides = [i for i, p in enumerate(grid.shape) if p == len(noise)]
        if len(sides) > 1:
            shapes = ", ".join(str(tuple(len(noise) if m == i else 1 for m in range(k))) for i in sides)
            raise ValueError(f"noise of shape ({len(noise)},) fits several sides of Y: say which by one of {shapes}")
        noise = noise.view([len(noise) if m in sides else 1 for m in range(k)]) if sides else noise
    try:
        return noise.expand_as(grid)
    except RuntimeError:
        shapes = f"{tuple(noise.shape)}, which does not broadcast to that of Y, {tuple(grid.shape)}"
        raise ValueError(f"noise has shape {shapes}") from None
