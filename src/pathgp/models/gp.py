"""The Gaussian process: kernel, noise and mean, wired to operators, solvers and pathwise conditioning."""

from __future__ import annotations

import copy
import inspect
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from pathgp.compute.inputs import Array, read_matrix, read_vector, result_dtype, whole_number
from pathgp.compute.random import normal, repeating_seed
from pathgp.compute.settings import Compute
from pathgp.data.observations import Observations
from pathgp.data.standardise import Standardisation, blurred_column, require_digits, task_columns
from pathgp.kernels import Kernel
from pathgp.kernels.parameters import short
from pathgp.learning.checkpoint import Checkpoint
from pathgp.learning.fitting import fit
from pathgp.learning.model import Mean
from pathgp.learning.report import FitReport, Step
from pathgp.models.base import Model
from pathgp.operators import Operator
from pathgp.pathwise import PriorPaths
from pathgp.posterior.conditioning import Settings, SolveRequest
from pathgp.posterior.system import System
from pathgp.posterior.table import Posterior
from pathgp.solvers import Solver
from pathgp.solvers.base import Callback


class GP(Model):
    """A Gaussian process prior with Gaussian noise: y = f(x) + eps, f ~ GP(mean, kernel), eps ~ N(0, noise^2).

    Args:
        kernel: the covariance function; the model keeps a deep copy.
        noise: standard deviation of the noise.
        mean: a number, or a function from inputs (n, d) to values (n,), in the units of y; the parameters of a torch
            module such as `means.Constant` are learned.
        standardise: shift and scale inputs and targets to mean zero and standard deviation one inside the model. Kernel
            and noise then refer to these units; predictions come back in the units of the data. Columns of task numbers
            stay as they are.
    """

    def __init__(self, kernel: Kernel, noise: float = 0.1, mean: Mean = 0.0, standardise: bool = False) -> None:
        super().__init__(noise, mean, standardise)
        if not isinstance(kernel, Kernel):
            given = f"the class {kernel.__name__}" if isinstance(kernel, type) else type(kernel).__name__
            raise TypeError(f"kernel must be a pathgp kernel such as Matern(nu=1.5), got {given}")
        self.kernel = copy.deepcopy(kernel)

    def prior(
        self, samples: int, features: int = 512, generator: torch.Generator | None = None
    ) -> Callable[[Array], Array]:
        """``samples`` functions from the prior: call the result with inputs (m, d) to get values (samples, m).

        Standardisation is learned from data, so a model with ``standardise=True`` has no prior in the data's units.
        """
        draw, model = self.drawing(samples, features, generator), self.frozen(torch.device("cpu"))

        @cache
        def paths(columns: int) -> PriorPaths:
            return draw(model.kernel, columns)

        def evaluate(X: Array) -> Array:
            inputs = read_matrix(X)
            return inputs.to_caller(paths(inputs.X.shape[1])(inputs.X) + model.mean_at(inputs.X))

        return evaluate

    def condition(
        self,
        X: Array,
        y: Array,
        noise: Array | None = None,
        solver: str | Solver = "auto",
        samples: int = 64,
        features: int = 512,
        tol: float = 1e-2,
        max_epochs: float | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
        compute: Compute | None = None,
        dtype: torch.dtype | None = None,
    ) -> Posterior:
        """The posterior given observations y (n,) at X (n, d), hyperparameters fixed.

        Solves the mean system and ``samples`` sample systems as one batch. A kernel without random features has no
        paths: the posterior then comes without them, and its report says why.

        Args:
            X: inputs (n, d).
            y: observations (n,).
            noise: known standard deviations (n,); the total variance of row i is gp.noise^2 + noise_i^2.
            solver: "auto", "cholesky", "cg", "ap", "sdd", "sgd", or a solver with settings.
            samples: number of posterior paths; 0 for none (variances then come from solves).
            features: random features of each path's prior.
            tol: relative residual to reach in every system.
            max_epochs: budget in products with K; 1000 by default.
            generator: source of all draws; None draws a fresh seed, which the report records.
            callback: called with a `Record` whenever residuals are known.
            compute: backend, memory budget, devices and precision of products, see `Compute`; None for the defaults.
            dtype: of the computations; None is that of X. X in float64 with dtype=torch.float32 is shifted and scaled
                (``standardise=True``) before it is rounded; ValueError where rounding would spoil a column. Where the
                noise is too small for float32, float64 is used all the same. Predictions have the dtype of X; float64
                where y has more digits than that can hold, such as 2.4e8 + sin(x) in float64 with X in float32.
        """
        began = time.perf_counter()
        samples, features = whole_number(samples, "samples", 0), whole_number(features, "features", 1)
        settings = Settings.read(solver, tol, max_epochs, compute)
        settings.compute.require_equal(samples=samples, features=features)
        generator = settings.compute.sync_generator(generator)
        seed = repeating_seed(generator)
        data = self.prepare_data(X, y, noise, dtype)
        model = self.frozen(data.device)
        prior, no_paths = None, ""
        try:
            prior = model.draw_prior(data, samples, features, generator) if samples else None
        except NotImplementedError as error:
            samples, no_paths = 0, str(error)
        draws = normal((len(data.y), samples), generator, torch.float64, data.device).to(data.dtype)
        request = SolveRequest(settings, generator, seed, no_paths, callback=callback, began=began)
        return model.solved(data, prior, draws, request)

    def fit(
        self,
        X: Array,
        y: Array,
        noise: Array | None = None,
        steps: int = 100,
        learning_rate: float = 0.1,
        estimator: str = "pathwise",
        warm_start: bool = True,
        samples: int = 64,
        features: int = 512,
        solver: str | Solver = "auto",
        tol: float = 1e-2,
        max_epochs: float | None = None,
        optimiser: str = "adam",
        initialise: str | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        progress: bool = False,
        generator: torch.Generator | None = None,
        *,
        starts: int = 1,
        coarse: bool = False,
        min_gain: float = 5e-4,
        callback: Callable[[Step], None] | None = None,
        compute: Compute | None = None,
        dtype: torch.dtype | None = None,
    ) -> FitReport:
        """Learn the hyperparameters by maximising the log marginal likelihood (with priors: the posterior density).

        Each step solves one batch of linear systems to estimate the gradient, from the solutions of the step before,
        and moves the hyperparameters; a last solve makes ``gp.posterior``. With the pathwise estimator its samples are
        the probes of the gradient, so that prediction needs no further solve. Thesis, chapter 5.

        The model is changed when the fit is done, or interrupted: Ctrl-C or an error in a later step leaves the
        hyperparameters of the last whole step (and its posterior, with the pathwise estimator; with several starts the
        best one that is complete), writes the checkpoint, and is raised again.

        Args:
            X: inputs (n, d).
            y: observations (n,).
            noise: known standard deviations (n,); the learned noise adds to them, gp.noise^2 + noise_i^2.
            steps: steps of the optimiser, at most.
            learning_rate: of Adam; for L-BFGS five times as much is the reach of the first step.
            estimator: of the gradient: "pathwise", "standard" (also taken where a kernel has no random features), or
                "exact" by Cholesky factorisation.
            warm_start: freeze the draws and start every solve from the solution before.
            samples: probes of the gradient, and paths of the posterior.
            features: random features of each path's prior.
            solver: as in `condition`.
            tol: relative residual to reach, in the mean system and on average over the probes; the last solve reaches
                it in every system.
            max_epochs: budget of each solve in products with K.
            optimiser: "adam", or "lbfgs" for deterministic gradients (exact, or warm starts).
            initialise: None starts from the present values, "data" from median distances and the spread of y,
                "subsets" from exact fits of ten small subsets.
            checkpoint: a file to save the fit in and to go on from; see `Checkpoint` for how often.
            progress: show a progress bar.
            generator: source of all draws; None draws a fresh seed, which the report records.
            starts: number of starts; beyond the first the starting values are multiplied by random factors exp(z), and
                the fit with the highest marginal likelihood is kept.
            coarse: coarse to fine: the first half of the steps on an eighth of the rows, a quarter on a third of them
                (2,000 at least), the last quarter on all.
            min_gain: end early when the log likelihood moved by less than this within ten steps, in nats per row; 0
                never ends early.
            callback: called with a `Step` after every step.
            compute: as in `condition`. The first rank shows the progress and writes the checkpoint; when a rank is
                lost, all that are left write it.
            dtype: as in `condition`.
        """
        return fit(
            self,
            self.prepare_data(X, y, noise, dtype),
            steps=steps,
            learning_rate=learning_rate,
            estimator=estimator,
            warm_start=warm_start,
            samples=samples,
            features=features,
            settings=Settings.read(solver, tol, max_epochs, compute),
            optimiser=optimiser,
            initialise=initialise,
            checkpoint=checkpoint,
            progress=progress,
            generator=generator,
            starts=starts,
            coarse=coarse,
            min_gain=min_gain,
            callback=callback,
        )

    def prepare_data(
        self, X: Array, y: Array, noise: Array | None = None, dtype: torch.dtype | None = None
    ) -> Observations:
        """Check data and bring it into the model's units, and then to the dtype of the computations."""
        data = read_matrix(X)
        dtype = data.X.dtype if dtype is None else dtype
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32, torch.float64 or None, got {dtype!r}")
        y = read_vector(y, data.X.shape[0], "y", like=data.X)
        if data.X.shape[0] == 0:
            raise ValueError("X has no rows: at least one observation is needed")
        results = result_dtype(data.X, y)
        kept = task_columns(self.kernel, data.X)
        learned = isinstance(self.mean, nn.Module)
        centred = y if learned else y - self.mean_at(data.X, exact=True)
        if self.standardise:
            scaling = Standardisation.of(data.X, centred, kept, results)
            # A learned mean stands for the level of y: the units must not move with it.
            scaling = replace(scaling, target_shift=y.new_zeros(())) if learned else scaling
        else:
            scaling = Standardisation.identity(data.X, results)
        self._require_digits(data.X, scaling, dtype)
        if not learned:
            require_digits(scaling.targets(centred), dtype)
        return Observations.of(data.X, y, noise, scaling, dtype)

    def _require_digits(self, X: Tensor, scaling: Standardisation, dtype: torch.dtype) -> None:
        """ValueError where rounding to a dtype would spoil a column of X, for the kernel or for a mean function."""
        column = blurred_column(scaling.inputs(X), dtype)
        advice = "" if self.standardise else "standardise=True, which shifts X before it is rounded, or "
        if column is None and self.mean_sees_inputs:
            column, advice = blurred_column(X, dtype), "a mean function of shifted inputs, or "
        if column is not None:
            kind = str(dtype).removeprefix("torch.")
            raise ValueError(f"{kind} would blur or merge distinct values of column {column} of X: use {advice}float64")

    def operator(self, data: Observations, settings: Settings, reuse: Operator | None = None) -> Operator:
        return settings.operator(self.kernel, data.X, self.deviation(data), reuse)

    def system(self, data: Observations, prior: PriorPaths | None, draws: Tensor) -> System:
        with torch.no_grad():
            targets = data.targets(self.mean_at(data.given, exact=True)).unsqueeze(1)
            if prior is not None:
                targets = torch.cat([targets, prior(data.X).T], 1)
            return System(data.X, targets, draws, self.deviation(data))

    def draw_prior(self, data: Observations, samples: int, features: int, generator: torch.Generator) -> PriorPaths:
        return PriorPaths.draw(self.kernel, samples, features, data.columns, generator)

    def restore_prior(self, state: dict[str, Any]) -> PriorPaths:
        return PriorPaths.from_state(self.kernel, state)

    def largest_variance(self, data: Observations) -> float:
        with torch.no_grad():
            return float(self.kernel.diag(data.X).max())

    def covariance(self, data: Observations, rows: Tensor) -> Tensor:
        return self.kernel(data.X[rows].to(torch.float64))

    def kernels_and_inputs(self, data: Observations) -> list[tuple[Kernel, Tensor]]:
        return [(self.kernel, data.X)]

    def solve(self, data: Observations, prior: PriorPaths | None, draws: Tensor, request: SolveRequest) -> Posterior:
        return Posterior.solve(self, data.scaling, self.system(data, prior, draws), prior, request)

    def __repr__(self) -> str:
        return f"GP({self.kernel!r}, noise={short(self.noise)}, {self._described()})"


# The options of `fit` and their defaults, for models that take the same.
FIT_OPTIONS = {
    name: parameter.default
    for name, parameter in inspect.signature(GP.fit).parameters.items()
    if name not in ("self", "X", "y", "noise", "dtype")
}
