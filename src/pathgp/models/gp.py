"""The Gaussian process: kernel, noise and mean, wired to operators, solvers and pathwise conditioning."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from pathgp.conditioning import Settings, System, extend_prior, solve_system
from pathgp.inputs import Array, read_matrix, read_vector, real_number, whole_number
from pathgp.kernels import Kernel
from pathgp.kernels.parameters import Positive, PositiveValue, short
from pathgp.models.standardise import Standardisation
from pathgp.pathwise import PriorPaths
from pathgp.posterior import Posterior
from pathgp.randomness import as_generator, normal, repeating_seed
from pathgp.solvers import Solver, as_solver
from pathgp.solvers.base import Callback

Mean = float | Callable[[Tensor], Tensor]


class GP(nn.Module):
    """A Gaussian process prior with Gaussian noise: y = f(x) + eps, f ~ GP(mean, kernel), eps ~ N(0, noise^2).

    Args:
        kernel: the covariance function; the model keeps a deep copy.
        noise: standard deviation of the noise.
        mean: a number, or a function from inputs (n, d) to values (n,), in the units of y.
        standardise: shift and scale inputs and targets to mean zero and standard deviation one inside the model. Kernel
            and noise then refer to these units; predictions come back in the units of the data.
    """

    noise = PositiveValue("Standard deviation of the noise: a scalar, float64.")

    def __init__(self, kernel: Kernel, noise: float = 0.1, mean: Mean = 0.0, standardise: bool = False) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            given = f"the class {kernel.__name__}" if isinstance(kernel, type) else type(kernel).__name__
            raise TypeError(f"kernel must be a pathgp kernel such as Matern(nu=1.5), got {given}")
        self.kernel = copy.deepcopy(kernel)
        try:
            self._noise = Positive(noise, "noise")
        except (TypeError, RuntimeError):
            raise TypeError(f"noise must be a number, got {noise!r}") from None
        if self._noise.raw.ndim:
            raise ValueError("noise must be one number; give known per-point noise to condition(noise=...)")
        self.mean: Mean = mean if callable(mean) else real_number(mean, "mean")
        self.standardise = bool(standardise)

    def prior(
        self, samples: int, features: int = 512, generator: torch.Generator | None = None
    ) -> Callable[[Array], Array]:
        """``samples`` functions from the prior: call the result with inputs (m, d) to get values (samples, m).

        Standardisation is learned from data, so a model with ``standardise=True`` has no prior in the data's units.
        """
        if self.standardise:
            raise ValueError("standardise=True: the prior is known in the units of the data only after condition()")
        samples, features = whole_number(samples, "samples", 1), whole_number(features, "features", 1)
        generator = as_generator(generator)
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        model = copy.deepcopy(self).requires_grad_(False)
        drawn: dict[int, PriorPaths] = {}

        def evaluate(X: Array) -> Array:
            inputs = read_matrix(X)
            columns = inputs.X.shape[1]
            if columns not in drawn:
                source = torch.Generator().manual_seed(seed)
                drawn[columns] = PriorPaths.draw(model.kernel, samples, features, columns, source)
            return inputs.give(drawn[columns](inputs.X) + model.mean_at(inputs.X))

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
        backend: str = "auto",
        memory: float | None = None,
        callback: Callback | None = None,
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
            backend: how K is held: "auto", "dense" or "streamed", see `KernelOperator`.
            memory: budget in bytes for K or its tiles; by default half of what is free.
            callback: called with a `Record` whenever residuals are known.
        """
        began = time.perf_counter()
        data = read_matrix(X)
        y = read_vector(y, data.X.shape[0], "y", like=data.X)
        if data.X.shape[0] == 0:
            raise ValueError("X has no rows: at least one observation is needed")
        samples, features = whole_number(samples, "samples", 0), whole_number(features, "features", 1)
        max_epochs = None if max_epochs is None else real_number(max_epochs, "max_epochs")
        memory = None if memory is None else int(real_number(memory, "memory"))
        settings = Settings(as_solver(solver), real_number(tol, "tol"), max_epochs, backend, memory)
        generator = as_generator(generator)
        seed = repeating_seed(generator)

        model = copy.deepcopy(self).requires_grad_(False).to(data.X.device)
        centred = y - model.mean_at(data.X, exact=True)
        scaling = Standardisation.of(data.X, centred) if self.standardise else Standardisation.identity(data.X)
        # A copy: the posterior must not change when the caller writes into X.
        inputs = scaling.inputs(data.X).detach().clone()
        deviation = model.deviation(noise, inputs, scaling)
        prior, no_paths = None, ""
        try:
            prior = PriorPaths.draw(model.kernel, samples, features, inputs.shape[1], generator) if samples else None
        except NotImplementedError as error:
            samples, no_paths = 0, str(error)
        draws = normal((len(y), samples), generator, torch.float64, inputs.device).to(inputs.dtype)
        targets = scaling.targets(centred).to(inputs.dtype)
        system = System(inputs, extend_prior(prior, inputs, targets), draws, deviation)
        weights, report = solve_system(model.kernel, system, settings, generator, callback=callback, began=began)
        report = replace(
            report,
            features=0 if prior is None else prior.features.num,
            no_paths=no_paths,
            seed=seed,
            error_bound=report.error_bound * float(scaling.target_scale),
        )
        return Posterior(model, scaling, system, prior, weights, settings, report)

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

    def deviation(self, noise: Array | None, X: Tensor, scaling: Standardisation) -> Tensor:
        """Total standard deviation of the noise in the model's units: a scalar, or one per row."""
        total = self.noise.detach().to(X.device)
        if noise is not None:
            known = read_vector(noise, X.shape[0], "noise", like=X)
            if bool((known < 0).any()):
                row = int(torch.nonzero(known < 0)[0])
                raise ValueError(f"noise is {float(known[row])} at row {row}: it holds standard deviations")
            total = (total.square() + (known / scaling.target_scale).square()).sqrt()
        variance = total.square().to(X.dtype)
        if not bool(((variance > 0) & (variance < math.inf)).all()):
            raise ValueError(f"the square of the noise is beyond the range of {X.dtype}: use another unit for y")
        return total

    def __repr__(self) -> str:
        mean = "a function" if callable(self.mean) else f"{self.mean:g}"
        scaled = ", standardise=True" if self.standardise else ""
        return f"GP({self.kernel!r}, noise={short(self.noise)}, mean={mean}{scaled})"
