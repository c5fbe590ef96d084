"""The Gaussian process: kernel, noise and mean, wired to operators, solvers and pathwise conditioning."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pathgp.compute.inputs import Array, read_dtype, read_matrix, read_vector, result_dtype
from pathgp.data.observations import Observations
from pathgp.data.standardise import Standardisation, blurred_column, require_digits, unscaled_columns
from pathgp.data.trend import TrendScaling
from pathgp.kernels import Kernel
from pathgp.kernels.parameters import short
from pathgp.learning.model import Mean
from pathgp.learning.policy import choose_dtype
from pathgp.means import Trend
from pathgp.models.base import Model
from pathgp.pathwise import PriorPaths
from pathgp.posterior.conditioning import SolveRequest
from pathgp.posterior.system import System
from pathgp.posterior.table import Posterior


class GP(Model[Posterior]):
    """A Gaussian process prior with Gaussian noise: y = f(x) + eps, f ~ GP(mean, kernel), eps ~ N(0, noise^2).

    Args:
        kernel: the covariance function; the model keeps a deep copy.
        noise: standard deviation of the noise.
        mean: a number, or a function from inputs (n, d) to values (n,), in the units of y; the parameters of a torch
            module such as `means.Constant` are learned. `means.Trend` is a trend with unknown coefficients, whose
            uncertainty is part of the posterior (universal kriging).
        standardise: shift and scale inputs and targets to mean zero and standard deviation one inside the model. Kernel
            and noise then refer to these units; predictions come back in the units of the data. Columns that `Task` and
            `Tanimoto` read stay as they are. "common" scales all columns of the inputs by one number, so that a kernel
            with one length scale remains isotropic, as on a map.
    """

    has_common_scale = True

    def __init__(self, kernel: Kernel, noise: float = 0.1, mean: Mean = 0.0, standardise: bool | str = False) -> None:
        super().__init__(noise, mean, standardise)
        if not isinstance(kernel, Kernel):
            kind = f"the class {kernel.__name__}" if isinstance(kernel, type) else type(kernel).__name__
            raise TypeError(f"kernel must be a pathgp kernel such as Matern(nu=1.5), got {kind}")
        self.kernel = copy.deepcopy(kernel)

    @property
    def sides(self) -> list[Kernel]:
        """The kernel."""
        return [self.kernel]

    def prior(
        self, samples: int, features: int = 512, generator: torch.Generator | None = None
    ) -> Callable[[Array], Array]:
        """``samples`` functions from the prior: call the result with inputs (m, d) to get values (samples, m).

        Standardisation is learned from data, so a model with ``standardise=True`` has no prior in the data's units.
        """
        paths = self.prior_sampler(samples, features, generator)

        def evaluate(X: Array) -> Array:
            inputs = read_matrix(X)
            return inputs.to_caller(paths(inputs.X, (inputs.X.shape[1],)))

        return evaluate

    def prepare_data(
        self, X: Array, y: Array, noise: Array | None = None, dtype: torch.dtype | str | None = None
    ) -> Observations:
        """Check data and bring it into the model's units, and then to the dtype of the computations."""
        data, dtype = read_matrix(X), read_dtype(dtype, "auto", None)
        y = read_vector(y, data.X.shape[0], "y", like=data.X)
        if data.X.shape[0] == 0:
            raise ValueError("X has no rows: at least one observation is needed")
        results = result_dtype(data.X, y)
        kept = unscaled_columns(self.kernel, data.X)
        learned = isinstance(self.mean, nn.Module)
        centred, basis, trend = y if learned else y - self.mean_at(data.X), None, None
        if isinstance(self.mean, Trend):
            values = self.mean(data.X).detach()
            trend = TrendScaling.of(values, y, self.mean.names(data.X.shape[1], values.shape[1]))
            basis = trend.basis(values)
            centred = y - basis @ trend.shift
        if self.standardise:
            scaling = Standardisation.of(data.X, centred, kept, results, common=self.standardise == "common")
            # A learned mean models the level of y: the units must not move with it.
            scaling = replace(scaling, target_shift=y.new_zeros(())) if learned else scaling
        else:
            scaling = Standardisation.identity(data.X, results)
        scaling, note = replace(scaling, trend=trend), ""
        if dtype == "auto":
            dtype, blurred = choose_dtype(scaling.inputs(data.X))
            note = "" if blurred is None else f"float64, because float32 would blur column {blurred} of X"
        elif dtype is None:
            dtype = data.X.dtype
        assert isinstance(dtype, torch.dtype)
        # Rounding must not spoil a column of X, neither for the kernel nor for a mean function.
        column = blurred_column(scaling.inputs(data.X), dtype)
        advice = "" if self.standardise else "standardise=True, which shifts X before it is rounded, or "
        if column is None and self.mean_sees_inputs:
            column, advice = blurred_column(data.X, dtype), "a mean function of shifted inputs, or "
        if column is not None:
            kind = str(dtype).removeprefix("torch.")
            raise ValueError(f"{kind} would blur or merge distinct values of column {column} of X: use {advice}float64")
        if not learned:
            require_digits(scaling.targets(centred), dtype)
        return replace(Observations.of(data.X, y, noise, scaling, dtype, basis), note=note)

    def system(self, data: Observations, prior: PriorPaths | None, draws: Tensor) -> System:
        with torch.no_grad():
            targets = data.targets(self.mean_at(data.X_raw)).unsqueeze(1)
            if prior is not None:
                targets = torch.cat([targets, prior(data.X).T], 1)
            basis = None if data.basis is None else data.basis.to(data.dtype)
            return System(data.X, targets, draws, self.deviation(data), basis)

    def draw_prior(self, data: Observations, samples: int, features: int, generator: torch.Generator) -> PriorPaths:
        return PriorPaths.draw(self.kernel, samples, features, data.columns, generator)

    def restore_prior(self, state: dict[str, Any]) -> PriorPaths:
        return PriorPaths.from_state(self.kernel, state)

    def solve(self, data: Observations, prior: PriorPaths | None, draws: Tensor, request: SolveRequest) -> Posterior:
        return Posterior.solve(self, data.scaling, self.system(data, prior, draws), prior, request)

    def __repr__(self) -> str:
        return f"GP({self.kernel!r}, noise={short(self.noise)}, {self._repr_details()})"
