"""What all models share, and what learning asks of them."""

from __future__ import annotations

import copy
import math
import os
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from pathgp.compute.inputs import Array, real_number, whole_number
from pathgp.compute.random import as_generator, normal, repeating_seed
from pathgp.compute.settings import Compute
from pathgp.kernels import Kernel
from pathgp.kernels.parameters import LogNormal, Positive
from pathgp.learning.checkpoint import Checkpoint
from pathgp.learning.fitting import fit
from pathgp.learning.hyperparameters import matching, read_bounds, values
from pathgp.learning.model import Learnable, Mean
from pathgp.learning.policy import FitOptions
from pathgp.learning.report import FitReport, Step
from pathgp.means import Constant
from pathgp.pathwise import PriorPaths
from pathgp.posterior.base import BasePosterior
from pathgp.posterior.conditioning import Settings, SolveRequest
from pathgp.solvers import Solver, Status
from pathgp.solvers.solution import Callback

P = TypeVar("P", bound=BasePosterior)
# Required ratio of the noise variance to the rounding error of products. The limit in float32 is optimistic: systems
# that turn out harder are solved in float64. In float64 it is the largest ratio that smooth kernels needed.
RESOLVED = {torch.float32: 20.0, torch.float64: 250.0}


class Model(Learnable, Generic[P]):
    """A prior with Gaussian noise: noise, mean, constraints, and the posterior P of the last fit.

    A subclass implements the abstract methods of `Learnable`, ``prepare_data`` and ``solve``.
    """

    least_samples = 0

    def __init__(self, noise: float, mean: Mean, standardise: bool) -> None:
        super().__init__()
        try:
            self._noise = Positive(noise, "noise")
        except (TypeError, RuntimeError):
            raise TypeError(f"noise must be a number, got {noise!r}") from None
        if self._noise.raw.ndim:
            raise ValueError("noise must be one number; give known per-point noise to condition(noise=...)")
        self.mean: Mean = mean if callable(mean) else real_number(mean, "mean")
        self.standardise = bool(standardise)
        self._posterior: P | None = None

    @abstractmethod
    def prepare_data(self, X: Any, y: Array, noise: Array | None = None, dtype: torch.dtype | str | None = None) -> Any:
        """Check data and bring it into the model's units."""

    @abstractmethod
    def solve(self, data: Any, prior: Any, draws: Tensor, request: SolveRequest) -> P:
        """The posterior of this model, solved for in the dtype of the data."""

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
    ) -> P:
        """The posterior given observations, hyperparameters fixed.

        Solves the mean system and ``samples`` sample systems as one batch. A kernel without random features has no
        paths: the posterior then comes without them, and its report says why.

        Args:
            X: inputs (n, d). For a `LatentKroneckerGP` a list with the inputs of every side, (p_i, d_i) or (p_i,);
                None stands for 0, 1, ..., p_i - 1.
            y: observations (n,). For a `LatentKroneckerGP` a grid (p_1, ..., p_k), NaN for missing values.
            noise: known standard deviations (n,); the total variance of row i is gp.noise^2 + noise_i^2. For a grid
                anything that broadcasts to y, or (p_i,) for the side of this length.
            solver: "auto", "cholesky", "cg", "ap", "sdd", "sgd", or a solver with settings.
            samples: number of posterior paths; 0 for none (variances then come from solves), for grids 1 at least.
            features: random features of each path's prior.
            tol: relative residual to reach in every system.
            max_epochs: budget in products with K; 1000 by default.
            generator: source of all draws; None draws a fresh seed, which the report records.
            callback: called with a `Record` whenever residuals are known.
            compute: backend, memory budget, devices and precision of products, see `Compute`; None for the defaults.
                Grids use the memory budget only.
            dtype: of the computations, for tables. None is that of X; "auto" is float64 up to 10,000 rows, above
                float32 unless that blurs a column. X in float64 with dtype=torch.float32 is shifted and scaled
                (``standardise=True``) before it is rounded; ValueError if rounding would spoil a column. If the noise
                is too small for float32, float64 is used in any case. Predictions have the dtype of X; float64 if y
                has more digits than that can hold, such as 2.4e8 + sin(x) in float64 with X in float32.
        """
        began = time.perf_counter()
        samples, features = whole_number(samples, "samples", self.least_samples), whole_number(features, "features", 1)
        settings = Settings.read(solver, tol, max_epochs, compute)
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
        draws = normal((len(data.y), samples), generator, torch.float64, data.device).to(data.dtype)
        request = SolveRequest(settings, generator, seed, no_paths, callback=callback, began=began)
        return model.make_posterior(data, prior, draws, request)

    def fit(
        self,
        X: Any,
        y: Array,
        noise: Array | None = None,
        *,
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

        Each step solves one batch of linear systems to estimate the gradient, starting from the solutions of the step
        before, and moves the hyperparameters; a last solve makes ``gp.posterior``. With the pathwise estimator its
        samples are the probes of the gradient, so that prediction needs no further solve. Thesis, chapter 5. The
        automatic choices are those of `pathgp.learning.policy`.

        The model changes when the fit is done, or interrupted: Ctrl-C or an error in a later step leaves the
        hyperparameters of the last whole step (and its posterior, with the pathwise estimator; with several starts the
        best one that is complete), writes the checkpoint, and is raised again.

        Args:
            X: inputs (n, d); for a `LatentKroneckerGP` the inputs of every side, as in its `condition`.
            y: observations (n,); for a `LatentKroneckerGP` a grid with NaN for missing values.
            noise: known standard deviations of y; the learned noise adds to them, gp.noise^2 + noise_i^2.
            steps: largest number of steps of the optimiser; by default 100, for grids 50.
            optimiser: "adam", or "lbfgs" for deterministic gradients (exact, or warm starts); "auto" is L-BFGS
                whenever possible.
            estimator: of the gradient: "pathwise", "standard" (also used for kernels without random features), or
                "exact" by Cholesky factorisation; "auto" is exact for tables of up to 1,000 rows, else pathwise.
            stages: "full" uses all rows in every estimated step. "coarse" goes from coarse to fine: half of the steps
                on an eighth of the rows, a quarter on a third of them (2,000 at least), the last quarter on all;
                "auto" does so for tables whose gradients are estimated. Takes effect from 4,000 rows.
            initialise: "model" starts from the present values; "data" from median distances and the spread of y;
                "neighbours" from distances between neighbours, for grids; "subsets" from exact fits of ten small
                subsets. "auto" is "data" for tables and "neighbours" for grids.
            learning_rate: of Adam, by default 0.1; for L-BFGS five times as much limits the first step.
            warm_start: freeze the draws and start every solve from the previous solution.
            samples: probes of the gradient, and paths of the posterior.
            features: random features of each path's prior.
            solver: as in `condition`.
            tol: relative residual to reach, in the mean system and on average over the probes; the last solve reaches
                it in every system.
            max_epochs: budget of each solve in products with K.
            starts: number of starts; beyond the first the initial values are multiplied by random factors exp(z), and
                the fit with the highest marginal likelihood is kept.
            min_gain: end early when ten steps changed the log likelihood by less than this, in nats per row; 0 never
                ends early.
            checkpoint: a file to save the fit in and to continue from; see `Checkpoint` for how often.
            progress: show a progress bar.
            callback: called with a `Step` after every step.
            generator: source of all draws; None draws a fresh seed, which the report records.
            compute: as in `condition`. The first rank shows the progress and writes the checkpoint; when a rank is
                lost, all remaining ranks write it.
            dtype: of the computations, for tables, as in `condition`.
        """
        options = FitOptions(
            Settings.read(solver, tol, max_epochs, compute),
            steps=steps,
            optimiser=optimiser,
            estimator=estimator,
            stages=stages,
            initialise=initialise,
            learning_rate=learning_rate,
            warm_start=warm_start,
            samples=samples,
            features=features,
            starts=starts,
            min_gain=min_gain,
        )
        data = self.prepare_data(X, y, noise, dtype)
        run: dict[str, Any] = {"checkpoint": checkpoint, "progress": progress, "callback": callback}
        return fit(self, data, options, generator=generator, **run)

    def make_posterior(self, data: Any, prior: Any, draws: Tensor, request: SolveRequest) -> P:
        """The posterior of this model, which keeps references to the model and the draws: pass copies.

        Solves in float64 if rounding in float32 would hide what the data say. Warns if the solver did not converge.
        """
        compute = request.settings.compute
        single = data.dtype == torch.float32
        reason = "the noise is too small beside the signal"
        if not (single and compute.allows_float64(data.device)) or self.resolves(data):
            posterior = self.solve(data, prior, draws, request)
            rounding = posterior.report.status in (Status.STALLED, Status.DIVERGED)
            if not (single and rounding and compute.allows_float64(data.device)):
                posterior.report.warn_unless_converged()
                return posterior
            reason = f"in float32 the solver ended {posterior.report.status.name}"
        posterior = self.solve(data.to(torch.float64), prior, draws.to(torch.float64), request.in_float64())
        posterior.report = posterior.report.with_note(f"float64, for {reason}")
        posterior.report.warn_unless_converged()
        return posterior

    def resolves(self, data: Any) -> bool:
        """Whether products with H in the dtype of the data are accurate enough for the noise.

        Rounding disturbs the entries of K, and so residuals, by about eps sqrt(n) max k(x, x) times the weights, whose
        size is up to 1 / noise: that is to be less than a part of the noise.
        """
        return self.least_noise(data) <= float(self.deviation(data).detach().min())

    def least_noise(self, data: Any) -> float:
        """The smallest standard deviation of the noise that products in the dtype of the data resolve."""
        rounding = torch.finfo(data.dtype).eps * math.sqrt(len(data.y)) * self.largest_variance(data)
        return math.sqrt(RESOLVED[data.dtype] * rounding)

    def prior_sampler(
        self, samples: int, features: int, generator: torch.Generator | None
    ) -> Callable[[Kernel, int], PriorPaths]:
        """A function that draws paths of the prior for a kernel and a number of columns: the same at every call."""
        if self.standardise:
            raise ValueError("standardise=True: the prior is known in the units of the data only after condition()")
        samples, features = whole_number(samples, "samples", 1), whole_number(features, "features", 1)
        generator = as_generator(generator)
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))

        def draw(kernel: Kernel, columns: int) -> PriorPaths:
            return PriorPaths.draw(kernel, samples, features, columns, torch.Generator().manual_seed(seed))

        return draw

    @property
    def posterior(self) -> P:
        """The posterior that the last `fit` ended with."""
        if self._posterior is None:
            raise RuntimeError("there is no posterior yet: call fit, or use what condition returns")
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
            name: as in `hyperparameters`; a last word alone ("lengthscale") means all that end with it.
            fixed: True keeps its value, False learns it again.
            bounds: smallest and largest value; 0 and inf are no limit.
            prior: prior distribution; the fit then maximises the posterior density of the hyperparameters.
        """
        for full, parameter in matching(self, name).items():
            if fixed is not None:
                (parameter.raw if isinstance(parameter, Positive) else parameter).requires_grad_(not fixed)
            if bounds is None and prior is None:
                continue
            if not isinstance(parameter, Positive):
                raise ValueError(f"{full} may have any sign: bounds and log-normal priors are for positive parameters")
            if bounds is not None:
                parameter.bounds = read_bounds(bounds, full)
                parameter.project()
            if not (prior is None or isinstance(prior, LogNormal)):
                raise TypeError(f"the prior of {full} must be a LogNormal(median, spread), got {type(prior).__name__}")
            parameter.prior = prior or parameter.prior
        return self

    def hyperparameters(self) -> dict[str, Tensor]:
        """The values of all hyperparameters by name, in the model's units: copies, float64."""
        return values(self)

    def frozen(self, device: torch.device) -> Self:
        """A copy without gradients on a device, for a posterior to keep."""
        return self.working_copy(device).requires_grad_(False)

    def working_copy(self, device: torch.device) -> Self:
        """A copy on a device, without the posterior of an earlier fit."""
        return copy.deepcopy(self, {id(self._posterior): None}).to(device)

    def adopt(self, learned: dict[str, Tensor], posterior: Any) -> None:
        self.load_state_dict(learned)
        self._posterior = posterior

    @property
    def mean_sees_inputs(self) -> bool:
        """Whether the prior mean may depend on the inputs."""
        return callable(self.mean) and not isinstance(self.mean, Constant)

    def mean_at(self, X: Tensor, exact: bool = False) -> Tensor:
        """The prior mean at X (m, d): (m,), or a scalar when it is constant; ``exact``: float64 whatever X is."""
        dtype = torch.float64 if exact else X.dtype
        if not callable(self.mean):
            return torch.as_tensor(self.mean, dtype=dtype, device=X.device)
        values = self.mean(X)
        if not isinstance(values, Tensor) or values.shape != X.shape[:1]:
            came = f"a tensor {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"the mean function must return a tensor of shape ({X.shape[0]},), it gave {came}")
        if not bool(torch.isfinite(values.detach()).all()):
            raise ValueError("the mean function gave NaN or infinite values")
        return values.to(X.device, dtype)

    def deviation(self, data: Any) -> Tensor:
        """Total standard deviation of the noise in the model's units: a scalar, or one per row, with gradients."""
        total = self.noise.to(data.device)
        if data.noise_std is not None:
            total = (total.square() + data.noise_std.square()).sqrt()
        variance = total.detach().square().to(data.dtype)
        if not bool(((variance > 0) & (variance < math.inf)).all()):
            raise ValueError(f"the square of the noise is beyond the range of {data.dtype}: use another unit for y")
        return total

    def _repr_details(self) -> str:
        """Mean and standardisation, for a repr."""
        mean = "a function" if callable(self.mean) else f"{self.mean:g}"
        mean = repr(self.mean) if isinstance(self.mean, nn.Module) else mean
        return f"mean={mean}" + (", standardise=True" if self.standardise else "")
