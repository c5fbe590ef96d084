"""The base class of all models: condition, fit, constrain."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from pathgp.compute.inputs import Array, whole_number
from pathgp.compute.random import as_generator, repeating_seed, spawn_generator
from pathgp.compute.settings import Compute
from pathgp.kernels.parameters import LogNormal, Positive
from pathgp.learning.checkpoint import Checkpoint
from pathgp.learning.fitting import fit
from pathgp.learning.hyperparameters import matching, read_bounds, values
from pathgp.learning.model import Learnable
from pathgp.learning.policy import FitOptions
from pathgp.learning.report import FitReport, Step
from pathgp.means import Constant, Trend
from pathgp.pathwise import PriorPaths
from pathgp.posterior.base import BasePosterior
from pathgp.posterior.conditioning import Settings, SolveRequest
from pathgp.posterior.prediction_rule import read_goal
from pathgp.solvers import Solver
from pathgp.solvers.solution import Callback

P = TypeVar("P", bound=BasePosterior)


class Model(Learnable, Generic[P]):
    """A Gaussian process prior that can be conditioned, fitted and constrained; P is the class of its posterior.

    A subclass implements the abstract methods of `Learnable` and ``prepare_data``.
    """

    least_samples = 0
    _posterior: P | None

    @abstractmethod
    def prepare_data(self, X: Any, y: Array, noise: Array | None = None, dtype: torch.dtype | str | None = None) -> Any:
        """Check the data and convert them to the model's units."""

    def condition(
        self,
        X: Any,
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
        dtype: torch.dtype | str | None = None,
        until: str = "residual",
        at: Array | None = None,
    ) -> P:
        """Return the posterior given observations, with fixed hyperparameters.

        Solves the linear systems of the mean and of all samples as one batch. If the kernel has no random features, the
        posterior has no paths, and its report says why.

        Args:
            X: inputs (n, d). For a `LatentKroneckerGP` a list with the inputs of every side, (p_i, d_i) or (p_i,);
                None means 0, 1, ..., p_i - 1.
            y: observations (n,). For a `LatentKroneckerGP` a grid (p_1, ..., p_k), NaN for missing values.
            noise: known standard deviations (n,); the total variance of row i is gp.noise^2 + noise_i^2. For a grid
                anything that broadcasts to y, or (p_i,) for the side of this length.
            solver: "auto", "cholesky", "cg", "ap", "sdd", "sgd", or a solver with settings.
            samples: number of posterior paths. Grids need at least 1; with 0, variances are computed by solves.
            features: number of random features of each prior path.
            tol: relative residual to reach in every system. With until="predictions": the largest error of mean and
                paths at the inputs ``at``, in posterior standard deviations, for instance 0.1.
            max_epochs: budget in products with K; 1000 by default.
            generator: source of all draws; None draws a fresh seed, which the report records.
            callback: called with a `Record` whenever residuals are known.
            compute: backend, memory budget, devices and precision of products, see `Compute`; None for the defaults.
                Grids use the memory budget only.
            dtype: dtype of the computations, for tables. None: that of X. "auto": float64 up to 10,000 rows; above,
                float32 unless it has too few digits for a column. "float32", or torch.float32, with X in float64: X is
                shifted and scaled (``standardise=True``), then rounded; ValueError if float32 has too few digits for a
                column. If the noise is too small for float32, float64 is always used. Predictions have the dtype of X,
                or float64 if y needs more digits than that, such as 2.4e8 + sin(x) in float64 with X in float32.
            until: "residual", or "predictions": stop as soon as mean and paths are accurate at given inputs, for tables
                with paths. The report says what was promised. See `pathgp.posterior.prediction_rule`.
            at: inputs (m, d) for until="predictions". A few hundred suffice; a check costs m / n of an epoch.
        """
        began = time.perf_counter()
        samples, features = whole_number(samples, "samples", self.least_samples), whole_number(features, "features", 1)
        goal = read_goal(until, at, tol)
        # A later update, without inputs to predict at, uses the default for residuals.
        settings = Settings.read(solver, tol if goal is None else 1e-2, max_epochs, compute)
        settings.compute.require_equal(samples=samples, features=features)
        generator = settings.compute.sync_generator(generator)
        seed = repeating_seed(generator)
        data = self.prepare_data(X, y, noise, dtype)
        self.require_supported(data, settings, has_draws=samples > 0)
        model = self.frozen(data.device)
        prior, no_paths = None, ""
        try:
            prior = model.draw_prior(data, samples, features, generator) if samples else None
        except NotImplementedError as error:
            samples, no_paths = 0, str(error)
        draws = model.draw_noise(data, samples, generator)
        request = SolveRequest(settings, generator, seed, no_paths, callback=callback, began=began, goal=goal)
        return model.make_posterior(data, prior, draws, request)

    def fit(
        self,
        X: Any,
        y: Array,
        noise: Array | None = None,
        *,
        time_limit: float | None = None,
        steps: int | None = None,
        optimiser: str = "auto",
        estimator: str = "auto",
        stages: str = "auto",
        initialise: str = "auto",
        learning_rate: float | None = None,
        warm_start: bool = True,
        samples: int = 64,
        features: int = 512,
        solver: str | Solver = "auto",
        tol: float = 1e-2,
        max_epochs: float | None = None,
        starts: int = 1,
        min_gain: float = 5e-4,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        progress: bool = False,
        callback: Callable[[Step], None] | None = None,
        generator: torch.Generator | None = None,
        compute: Compute | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> FitReport:
        """Learn the hyperparameters by maximising the log marginal likelihood (with priors: the posterior density).

        Each step solves one batch of linear systems to estimate the gradient, starting from the solutions of the
        previous step, and changes the hyperparameters. A last solve computes ``gp.posterior``. With the pathwise
        estimator the probes of the gradient become the samples of this posterior, so that prediction needs no further
        solve. Thesis, chapter 5. `pathgp.learning.policy` makes the automatic choices.

        The model changes only when the fit ends. After Ctrl-C or an error in a later step, it has the hyperparameters
        of the last complete step, and with the pathwise estimator its posterior, given the rows of that step; with
        several starts, those of the best complete one. The checkpoint is written, and the exception is raised again.

        Args:
            X: inputs (n, d); for a `LatentKroneckerGP` the inputs of every side, as in its `condition`.
            y: observations (n,); for a `LatentKroneckerGP` a grid with NaN for missing values.
            noise: known standard deviations of y; the learned noise adds to them, gp.noise^2 + noise_i^2.
            time_limit: seconds that the fit may take, from this call to its end; None for no limit. The fit takes fewer
                steps if necessary. The posterior is that of all rows if their solve fits into the limit, otherwise that
                of the largest random subset that does, and the reports say so. A grid is always solved as a whole. The
                choices depend on the speed of the machine. A resumed fit gets the limit anew.
            steps: maximum number of steps of the optimiser; by default 100, or 125 if the first steps are taken from
                two initial values of the noise (see ``initialise``); for grids 10 on all cells, with stages="full" 50.
                With 0 the model is only conditioned, at its current hyperparameters unless ``initialise`` says
                otherwise.
            optimiser: "adam", or "lbfgs" for deterministic gradients (exact, or warm starts); "auto" is L-BFGS
                whenever possible.
            estimator: estimator of the gradient: "pathwise", "standard" (also used for kernels without random
                features), "exact" by Cholesky factorisation, or "vecchia": the gradient of Vecchia's likelihood with 30
                neighbours, for tables and kernels that are functions of differences of inputs. "auto" is exact for
                tables of up to 2,000 rows, pathwise for larger ones, and vecchia for more than 1,000 rows and such
                kernels of at most three columns.
            stages: "full" uses all rows in every estimated step. "coarse" takes half of the estimated steps on an
                eighth of the rows, a quarter on a third of them, and the last quarter on all; stages of fewer than
                2,500 rows are left out. On a grid "coarse" first maximises the exact likelihood of a few sub-grids of
                600 cells, and takes the steps on all cells from there, with 8 probes. "auto" is "coarse" for grids and
                for tables whose gradients are estimated.
            initialise: "model" starts from the current values; "data" from median distances and the spread of y;
                "best", for tables, from the most likely of the current values, those of "data", and these with a larger
                noise; "noise" as "data" with the standard deviation of y as noise and a tenth of it as signal;
                "neighbours" from distances between neighbours, for grids; "subsets" from exact fits of ten small
                subsets. "auto" is "model" for steps=0, "neighbours" for grids, and for tables "best" up to 20 steps,
                otherwise "data". With "data", estimated gradients and L-BFGS, the first steps, on 1,000 rows, are taken
                from two initial values of the noise, and 2,000 other rows decide between them. After "data" and "best",
                a fit of a table whose leave-one-out predictions are worse than the average of y starts again from
                "noise". On a grid `kernels.Task` starts from half of the correlations of the data, unless "model" is
                chosen.
            learning_rate: learning rate of Adam, by default 0.1. The first step of L-BFGS is limited to five times it.
            warm_start: keep the random draws fixed and start every solve from the previous solution.
            samples: number of paths of the posterior, and of probes of the gradient (see ``stages`` for grids).
            features: number of random features of each prior path.
            solver: as in `condition`.
            tol: relative residual to reach, in the mean system and on average over the probes; the last solve reaches
                it in every system.
            max_epochs: budget of each solve in products with K.
            starts: number of starts. All but the first multiply the initial values by random factors exp(z). The fit
                with the highest marginal likelihood is kept.
            min_gain: end early if ten steps change the log likelihood by less than this, in nats per row. If the
                quadratic model of L-BFGS predicts a smaller gain, too, four steps suffice in stages that continue an
                earlier one; except in the last stage of a table with estimated gradients, they must change the
                likelihood by less than 0.4 times this. On a grid after sub-grids two steps suffice, with 0.2 times
                this. 0 never ends early.
            checkpoint: file to save the fit to and to resume it from; `Checkpoint` also sets how often.
            progress: print the plan of the fit, and show a bar with the time left. Without it a fit that is predicted
                to take more than three minutes issues a `LongFitWarning`.
            callback: called with a `Step` after every step.
            generator: source of all draws; None draws a fresh seed, which the report records.
            compute: as in `condition`. The first rank shows the progress and writes the checkpoint; if a rank fails,
                all remaining ranks write it.
            dtype: dtype of the computations, for tables, as in `condition`.
        """
        settings = Settings.read(solver, tol, max_epochs, compute)
        choices = (steps, optimiser, estimator, stages, initialise, learning_rate, warm_start, samples, features)
        options = FitOptions(settings, *choices, starts=starts, min_gain=min_gain, time_limit=time_limit)
        data = self.prepare_data(X, y, noise, dtype)
        return fit(self, data, options, checkpoint, progress, callback, generator)

    def prior_sampler(
        self, samples: int, features: int, generator: torch.Generator | None
    ) -> Callable[[Tensor, tuple[int, ...]], Tensor]:
        """Draw paths of the prior as one function: X (m, d) and the widths of its sides -> values (samples, m)."""
        if self.standardise:
            raise ValueError("standardise=True: the prior is known in the units of the data only after condition()")
        if isinstance(self.mean, Trend):
            raise ValueError("the prior of a trend is flat and has no draws: use mean=0.0 for draws of f alone")
        samples, features = whole_number(samples, "samples", 1), whole_number(features, "features", 1)
        seed = spawn_generator(as_generator(generator)).initial_seed()
        model = self.frozen(torch.device("cpu"))

        @cache
        def paths(widths: tuple[int, ...]) -> PriorPaths:
            fixed = torch.Generator().manual_seed(seed)
            return PriorPaths.draw(model.product(widths), samples, features, sum(widths), fixed)

        return lambda X, widths: paths(widths)(X) + model.mean_at(X).to(X.dtype)

    @property
    def posterior(self) -> P:
        """The posterior of the last `fit`."""
        if self._posterior is None:
            raise RuntimeError("there is no posterior yet: call fit, or use the posterior that condition returns")
        return self._posterior

    def constrain(
        self,
        name: str,
        fixed: bool | None = None,
        bounds: tuple[float, float] | None = None,
        prior: LogNormal | None = None,
    ) -> Self:
        """Restrict what `fit` may do with a hyperparameter; returns the model, so that calls can be chained.

        Args:
            name: name as in `hyperparameters`; the last part of a name, such as "lengthscale", means all names that
                end with it.
            fixed: True keeps the value fixed, False makes it learned again.
            bounds: smallest and largest value; 0 and inf mean no bound.
            prior: prior distribution; the fit then maximises the posterior density of the hyperparameters.
        """
        for full_name, parameter in matching(self, name).items():
            if fixed is not None:
                (parameter.raw if isinstance(parameter, Positive) else parameter).requires_grad_(not fixed)
            if bounds is None and prior is None:
                continue
            if not isinstance(parameter, Positive):
                raise ValueError(
                    f"{full_name} may have any sign: bounds and log-normal priors are for positive parameters"
                )
            if bounds is not None:
                parameter.bounds = read_bounds(bounds, full_name)
                parameter.project()
            if not (prior is None or isinstance(prior, LogNormal)):
                raise TypeError(
                    f"the prior of {full_name} must be a LogNormal(median, spread), got {type(prior).__name__}"
                )
            parameter.prior = prior or parameter.prior
        return self

    def hyperparameters(self) -> dict[str, Tensor]:
        """Return the values of all hyperparameters by name: copies in float64, in the model's units."""
        return values(self)

    def frozen(self, device: torch.device) -> Self:
        """Return a copy on a device, without gradients; posteriors keep such copies."""
        return self.working_copy(device).requires_grad_(False)

    def refuse_trend(self, mean: Any) -> None:
        """NotImplementedError for a `means.Trend`, for models without trends."""
        if isinstance(mean, Trend):
            raise NotImplementedError(
                f"{type(self).__name__} has no trends with unknown coefficients: use a GP, a learned mean such as "
                "means.Constant, or add kernels.Linear to the kernel"
            )

    @property
    def mean_sees_inputs(self) -> bool:
        """Whether the prior mean may depend on the inputs."""
        return callable(self.mean) and not isinstance(self.mean, Constant | Trend)

    def _repr_details(self) -> str:
        """Mean and standardisation, for a repr."""
        mean = "a function" if callable(self.mean) else f"{self.mean:g}"
        mean = repr(self.mean) if isinstance(self.mean, nn.Module) else mean
        return f"mean={mean}" + (f", standardise={self.standardise!r}" if self.standardise else "")
