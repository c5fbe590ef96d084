"""Gaussian processes on grids with holes: a product kernel, one factor per side (thesis, chapter 6)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pathgp.compute.inputs import Array, read_factors, read_grid, read_side
from pathgp.compute.random import normal
from pathgp.data.grid import GridObservations, GridPrior, cells
from pathgp.data.standardise import Standardisation, blurred_column, unscaled_columns
from pathgp.kernels import Kernel, Matern, Scale, Task
from pathgp.kernels.parameters import positive, short
from pathgp.learning.model import Mean
from pathgp.models.base import Model
from pathgp.models.kernel_choice import choose_kernels, has_empty_entries
from pathgp.operators import LatentKroneckerOperator, Operator
from pathgp.operators.latent_kronecker import require_memory_only
from pathgp.posterior.conditioning import Settings, SolveRequest
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.system import System


class LatentKroneckerGP(Model[GridPosterior]):
    """y = f(x_1, ..., x_k) + eps on a grid, f ~ GP(mean, k_1 k_2 ... k_k), any cells of which may be missing.

    The covariance of the observed cells is a part of a Kronecker product of k small matrices, and products with it
    need only these: exact inference with p = p_1 ... p_k cells in the memory of a few grids.

    Args:
        kernels: one covariance function per side of the grid; the model keeps deep copies. Let only one of them carry
            a signal scale, `kernels.Scale`. None for a side means that `fit` chooses its kernel by the likelihood of
            sub-grids, or of single lines along a side with many entries without observations
            (`models.kernel_choice`); if no given kernel is a `Scale` or a `Task`, the first such side gets the signal.
        noise: standard deviation of the noise.
        mean: a number, or a function from inputs (n, d_1 + ... + d_k) to values (n,), in the units of y; the
            parameters of a torch module such as `means.Constant` are learned.
        standardise: shift and scale the inputs of every side and the observed values to mean zero and standard
            deviation one inside the model; inputs of `Task` and `Tanimoto` stay as they are.
    """

    is_grid = True
    least_samples = 1

    def __init__(
        self, kernels: Sequence[Kernel | None], noise: float = 0.1, mean: Mean = 0.0, standardise: bool = False
    ) -> None:
        self.refuse_trend(mean)
        super().__init__(noise, mean, standardise)
        if isinstance(kernels, Kernel) or not len(kernels):
            raise TypeError("kernels must be a list, one kernel per side of the grid")
        for kernel in kernels:
            if not (kernel is None or isinstance(kernel, Kernel)):
                raise TypeError(
                    f"kernels must be pathgp kernels such as Matern(nu=1.5), or None, got {type(kernel).__name__}"
                )
        # The sides whose kernels `fit` chooses, and whether it has done so.
        self.open_sides = tuple(side for side, kernel in enumerate(kernels) if kernel is None)
        self.is_chosen = not self.open_sides
        self.kernels = nn.ModuleList(copy.deepcopy([kernel or Matern(1.5) for kernel in kernels]))
        if self.open_sides and not any(isinstance(part, (Scale, Task)) for part in self.kernels.modules()):
            self.kernels[self.open_sides[0]] = Scale(Matern(1.5))

    @property
    def sides(self) -> list[Kernel]:
        """The kernels, one per side."""
        return [kernel for kernel in self.kernels if isinstance(kernel, Kernel)]

    def replace_kernel(self, side: int, kernel: Kernel) -> None:
        """Set the kernel of a side; a signal of this side stays."""
        present = self.kernels[side]
        if isinstance(present, Scale):
            present.kernel = kernel
        else:
            self.kernels[side] = kernel

    def choose_kernels(self, data: GridObservations) -> tuple[LatentKroneckerGP, str]:
        if not self.open_sides:
            return self, ""
        model = self.working_copy(data.device)
        best = choose_kernels(self.working_copy(data.device), data, self.open_sides)
        model.adopt_kernels(best)
        chosen = ", ".join(f"{model.sides[side]!r} for side {side}" for side in self.open_sides)
        lines = ", ".join(f"side {side}" for side in self.open_sides if has_empty_entries(data, side))
        note = f"kernels chosen by the likelihood of sub-grids: {chosen}"
        return model, f"{note}; that of {lines} by single lines along it" if lines else note

    def adopt_kernels(self, source: LatentKroneckerGP) -> None:
        if source is self:
            return  # nothing was chosen
        for side in self.open_sides:
            self.kernels[side] = copy.deepcopy(source.kernels[side])
        if positive(self, "noise").raw.requires_grad:
            self.noise = source.noise.detach()
        self.is_chosen = True

    def prior(
        self, samples: int, features: int = 512, generator: torch.Generator | None = None
    ) -> Callable[..., Array]:
        """``samples`` functions from the prior: call the result with one set of inputs per side to get values
        (samples, g_1, ..., g_k). See `GP.prior`.
        """
        paths = self.prior_sampler(samples, features, generator)

        def evaluate(*inputs: Array) -> Array:
            if len(inputs) != len(self.sides):
                raise ValueError(f"{len(inputs)} sets of inputs for a grid with {len(self.sides)} sides")
            read = [read_side(G, f"inputs {i}") for i, G in enumerate(inputs)]
            sides = [G.X.to(read[0].X.device) for G in read]
            values = paths(cells(sides), tuple(G.shape[1] for G in sides))
            return read[0].to_caller(values.view(-1, *(len(G) for G in sides)))

        return evaluate

    def prepare_data(
        self,
        X: Sequence[Array | None],
        y: Array,
        noise: Array | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> GridObservations:
        """Check a grid of data and bring it into the model's units.

        Computations and results have the dtype of Y; computations use float64 if float32 would spoil a side's inputs.
        """
        if dtype is not None:
            raise ValueError("dtype= is for tables: a grid is computed in the dtype of its observations")
        grid = read_grid(y, "Y")
        factors = read_factors(X, tuple(grid.shape), len(self.kernels), grid)
        originals = [F.detach().clone() for F in factors]
        observed = ~torch.isnan(grid)
        if not bool(observed.any()):
            raise ValueError("every value of Y is missing: at least one observation is needed")
        targets = grid[observed].to(torch.float64)
        noise_std = None
        if noise is not None:
            noise_grid = read_grid(noise, "noise").detach().to(grid.device)
            noise_std = _spread(noise_grid, grid)[observed].to(torch.float64)
            if not bool((noise_std >= 0).all()):
                raise ValueError("noise must hold standard deviations, not negative and not missing, in observed cells")
        results, is_numpy = grid.dtype, not isinstance(y, Tensor)
        scalings = [Standardisation.identity(F, results) for F in originals]
        # A mean function uses the inputs as they are, a kernel with standardise=True only shifted and scaled.
        unscaled = self.mean_sees_inputs or not self.standardise
        wanted = self._dtype(originals, scalings, results) if unscaled else results
        rounded = [F.to(wanted) for F in originals]
        data = GridObservations(rounded, originals, observed, targets, noise_std, scalings, is_numpy)
        if not self.standardise:
            return data
        # As in `GP.prepare_data`: a learned mean models the level of y, any other is subtracted first.
        learned = isinstance(self.mean, nn.Module)
        centred = targets if learned else targets - self.mean_at(data.X_raw)
        kept = [unscaled_columns(k, F) for k, F in zip(self.sides, originals, strict=True)]
        scalings = [Standardisation.of(F, centred, names, results) for F, names in zip(originals, kept, strict=True)]
        if learned:
            scalings[0] = replace(scalings[0], target_shift=targets.new_zeros(()))
        wanted = self._dtype(originals, scalings, wanted)
        inputs = [scaling.inputs(F, wanted) for scaling, F in zip(scalings, originals, strict=True)]
        noise_std = None if noise_std is None else noise_std / scalings[0].target_scale
        return replace(data, factors=inputs, noise_std=noise_std, scalings=scalings)

    @staticmethod
    def _dtype(sides: Sequence[Tensor], scalings: Sequence[Standardisation], wanted: torch.dtype) -> torch.dtype:
        """The dtype of the computations: ``wanted``, or float64 if that would spoil the inputs of a side."""
        scaled = [scaling.inputs(F) for scaling, F in zip(scalings, sides, strict=True)]
        return torch.float64 if any(blurred_column(F, wanted) is not None for F in scaled) else wanted

    def operator(self, data: GridObservations, settings: Settings, reuse: Operator | None = None) -> Operator:
        """Products through the factors, or dense if a dense product of the observed cells takes fewer operations.

        Entries of a side without any observation do not occur in H.
        """
        factors, observed = data.without_empty()
        shape = observed.shape
        if len(data.y) ** 2 < shape.numel() * sum(shape):
            return super().operator(data, settings, reuse)
        return LatentKroneckerOperator(self.sides, factors, observed, self.deviation(data), settings.compute)

    def system(self, data: GridObservations, prior: GridPrior | None, draws: Tensor) -> System:
        with torch.no_grad():
            targets = data.targets(self.mean_at(data.X_raw)).unsqueeze(1)
            if prior is not None:
                grid = prior.on_grid(self.sides, data.factors)
                targets = torch.cat([targets, grid.reshape(-1, grid.shape[-1])[data.cells]], 1)
            return System(data.cells.unsqueeze(1).to(data.dtype), targets, draws, self.deviation(data))

    def draw_prior(self, data: GridObservations, samples: int, features: int, generator: torch.Generator) -> GridPrior:
        return GridPrior(normal((*data.observed.shape, samples), generator, data.dtype, data.device), features)

    def restore_prior(self, state: dict[str, Any]) -> GridPrior:
        return GridPrior(state["w"].to(self.noise.device), state["features"])

    def require_supported(self, data: GridObservations, settings: Settings, has_draws: bool) -> None:
        require_memory_only(settings.compute)
        # Prior draws need the root of every side and its kernel matrix, float64.
        longest, budget = max(data.observed.shape), settings.compute.budget(data.device)
        if has_draws and (needed := 16 * longest**2) > budget:
            raise ValueError(
                f"samples need a square root for the side of {longest} entries, {needed / 1e9:.2g} GB, and the memory "
                f"budget is {budget / 1e9:.2g} GB: raise memory=, shorten this side, or use pathgp.GP on the observed "
                "cells"
            )

    def solve(
        self, data: GridObservations, prior: GridPrior | None, draws: Tensor, request: SolveRequest
    ) -> GridPosterior:
        if not self.is_chosen:
            raise ValueError(f"the kernel of side {self.open_sides[0]} is None: give one, or let fit choose it")
        prior = None if prior is None else replace(prior, w=prior.w.to(data.dtype))
        return GridPosterior.solve(self, data, self.system(data, prior, draws), prior, request)

    def __repr__(self) -> str:
        kernels = ", ".join(repr(kernel) for kernel in self.sides)
        return f"LatentKroneckerGP([{kernels}], noise={short(self.noise)}, {self._repr_details()})"


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
