"""What all models share, and what learning asks of them."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from pathgp.compute.inputs import real_number, whole_number
from pathgp.compute.random import as_generator
from pathgp.kernels import Kernel
from pathgp.kernels.parameters import LogNormal, Positive
from pathgp.learning.hyperparameters import constrain, values
from pathgp.learning.model import Learnable, Mean
from pathgp.means import Constant
from pathgp.pathwise import PriorPaths
from pathgp.posterior.conditioning import SolveRequest
from pathgp.solvers import Status

# How many times the rounding of products must fit into the variance of the noise. In float32 a little is left to try:
# systems that turn out harder are solved in float64. There the largest factor seen with smooth kernels is needed.
RESOLVED = {torch.float32: 20.0, torch.float64: 250.0}


class Model(Learnable):
    """A prior with Gaussian noise: noise, mean, constraints, and the posterior of the last fit.

    A model of its own gives the abstract methods of `Learnable` and ``solve``.
    """

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
        self._posterior: Any = None

    @abstractmethod
    def solve(self, data: Any, prior: Any, draws: Tensor, request: SolveRequest) -> Any:
        """The posterior of this model, solved for in the dtype of the data."""

    def solved(self, data: Any, prior: Any, draws: Tensor, request: SolveRequest) -> Any:
        """The posterior of this model, which keeps the model and the draws: give copies.

        Where rounding in float32 hides what the data say, it is solved for in float64. Warns where it did not converge.
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

    def drawing(
        self, samples: int, features: int, generator: torch.Generator | None
    ) -> Callable[[Kernel, int], PriorPaths]:
        """How to draw functions of the prior for a kernel and a number of columns: the same ones at every call."""
        if self.standardise:
            raise ValueError("standardise=True: the prior is known in the units of the data only after condition()")
        samples, features = whole_number(samples, "samples", 1), whole_number(features, "features", 1)
        generator = as_generator(generator)
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))

        def draw(kernel: Kernel, columns: int) -> PriorPaths:
            return PriorPaths.draw(kernel, samples, features, columns, torch.Generator().manual_seed(seed))

        return draw

    @property
    def posterior(self) -> Any:
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
        """Say what `fit` may do with a hyperparameter; returns the model, so that calls can be chained.

        Args:
            name: as in `hyperparameters`; a last word alone ("lengthscale") means all that end with it.
            fixed: leave it as it is, or learn it again.
            bounds: the least and the largest value; 0 and inf are no limit.
            prior: what is known beforehand; the fit then maximises the posterior density of the hyperparameters.
        """
        constrain(self, name, fixed, bounds, prior)
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
        if data.known is not None:
            total = (total.square() + data.known.square()).sqrt()
        variance = total.detach().square().to(data.dtype)
        if not bool(((variance > 0) & (variance < math.inf)).all()):
            raise ValueError(f"the square of the noise is beyond the range of {data.dtype}: use another unit for y")
        return total

    def _described(self) -> str:
        """What follows the kernels in a repr."""
        mean = "a function" if callable(self.mean) else f"{self.mean:g}"
        mean = repr(self.mean) if isinstance(self.mean, nn.Module) else mean
        return f"mean={mean}" + (", standardise=True" if self.standardise else "")
