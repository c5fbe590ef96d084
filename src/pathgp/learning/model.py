"""The base of models: a prior with Gaussian noise, as `learning` sees it."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from pathgp.compute.inputs import real_number
from pathgp.compute.random import normal
from pathgp.data.observations import Data
from pathgp.data.standardise import Standardisation
from pathgp.kernels import Kernel, Product, Sum
from pathgp.kernels.parameters import Positive, PositiveValue, refuse_value_of_part
from pathgp.means import Trend
from pathgp.operators import Operator
from pathgp.posterior.conditioning import Settings, SolveRequest, least_noise, solve_promoting
from pathgp.posterior.system import System

Mean = float | Callable[[Tensor], Tensor]


class Learnable(nn.Module):
    """A prior with Gaussian noise whose hyperparameters can be learned: noise, mean, and one kernel per side."""

    noise = PositiveValue("Standard deviation of the noise: a scalar, float64.")
    is_grid = False
    # Whether the model knows standardise="common".
    has_common_scale = False

    def __init__(self, noise: float, mean: Mean, standardise: bool | str) -> None:
        super().__init__()
        try:
            self._noise = Positive(noise, "noise")
        except (TypeError, RuntimeError):
            raise TypeError(f"noise must be a number, got {noise!r}") from None
        if self._noise.raw.ndim:
            raise ValueError("noise must be one number; give known per-point noise to condition(noise=...)")
        try:
            self.mean: Mean = mean if callable(mean) else real_number(mean, "mean")
        except TypeError:
            kinds = "a number, a function of X, or a module such as pathgp.means.Constant() or Trend('linear')"
            raise TypeError(f"mean must be {kinds}, got {mean!r}") from None
        if isinstance(standardise, str) and not (standardise == "common" and self.has_common_scale):
            allowed = "True, False or 'common'" if self.has_common_scale else "True or False"
            raise ValueError(f"standardise must be {allowed} for a {type(self).__name__}, got {standardise!r}")
        self.standardise = standardise if isinstance(standardise, str) else bool(standardise)
        self._posterior: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_value_of_part(self, name)
        super().__setattr__(name, value)

    @property
    @abstractmethod
    def sides(self) -> list[Kernel]:
        """The kernels, one per side of the data."""

    @abstractmethod
    def system(self, data: Any, prior: Any, draws: Tensor) -> System:
        """The systems of the posterior mean and samples; ``draws``: (n, s) standard normal, for the noise."""

    @abstractmethod
    def draw_prior(self, data: Any, samples: int, features: int, generator: torch.Generator) -> Any:
        """Frozen prior draws that follow the hyperparameters; NotImplementedError for kernels without features."""

    @abstractmethod
    def restore_prior(self, state: dict[str, Any]) -> Any:
        """The draws with this ``state()``, which holds tensors and plain types."""

    @abstractmethod
    def solve(self, data: Any, prior: Any, draws: Tensor, request: SolveRequest) -> Any:
        """The posterior of this model, solved for in the dtype of the data."""

    def choose_kernels(self, data: Any) -> tuple[Self, str]:
        """At the start of a fit, a copy with the kernels that the user left open, and a note for the report.

        The model itself, if none is open.
        """
        return self, ""

    def adopt_kernels(self, source: Self) -> None:
        """Take over the kernels and the noise chosen for a fit; ``source``: the result of `choose_kernels`."""

    def adapt_options(self, options: Any) -> Any:
        """The `FitOptions` of a fit with what this model decides itself; ValueError for those it cannot use."""
        return options

    def begin_fit(self, data: Any, options: Any, generator: torch.Generator) -> Learnable:
        """The model that a fit starts from, with everything in place that is learned."""
        return self

    def own_estimator(self) -> Any:
        """The gradient estimator of this model in place of the exact one; None for that."""
        return None

    def fit_facts(self) -> dict[str, str]:
        """Facts of the model by name, besides its description, that a fit and its checkpoint must have in common."""
        return {}

    @property
    def num_inducing(self) -> int:
        """The number of inducing points; 0 for none."""
        return 0

    def draw_noise(self, data: Any, samples: int, generator: torch.Generator) -> Tensor:
        """Standard normal draws (n, s) for the noise of the samples, in the dtype of the data."""
        return normal((len(data.y), samples), generator, torch.float64, data.device).to(data.dtype)

    def require_supported(self, data: Any, settings: Settings, has_draws: bool) -> None:
        """ValueError for settings that this model cannot use, or a memory budget that prior draws exceed."""

    def product(self, widths: Sequence[int]) -> Kernel:
        """k_1 k_2 ... k_k as one kernel on the columns of all sides, ``widths`` each; it shares their parameters."""
        if len(self.sides) == 1:
            return self.sides[0]
        parts, start = [], 0
        for kernel, width in zip(self.sides, widths, strict=True):
            parts.append(Sum(kernel, active_dims=range(start, start + width)))
            start += width
        return Product(*parts)

    def operator(self, data: Any, settings: Settings, reuse: Operator | None = None) -> Operator:
        """H at the current hyperparameters, with gradients in ``bilinear``; ``reuse``: the operator it replaces."""
        return settings.operator(self.product(data.widths), data.inputs(), self.deviation(data), reuse)

    def largest_variance(self, data: Data) -> float:
        """max k(x, x) at the data."""
        with torch.no_grad():
            largest = [kernel.diag(F).max() for kernel, F in zip(self.sides, data.factors, strict=True)]
        return float(torch.stack(largest).prod())

    def least_noise(self, data: Data) -> float:
        """The smallest standard deviation of the noise that products in the dtype of the data resolve."""
        return least_noise(data.dtype, len(data.y), self.largest_variance(data))

    def mean_at(self, X: Tensor) -> Tensor:
        """The prior mean at X (m, d): (m,), or a scalar when it is constant; float64."""
        if isinstance(self.mean, Trend):
            return torch.zeros((), dtype=torch.float64, device=X.device)
        if not callable(self.mean):
            return torch.as_tensor(self.mean, dtype=torch.float64, device=X.device)
        values = self.mean(X)
        if not isinstance(values, Tensor) or values.shape != X.shape[:1]:
            came = f"a tensor {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"the mean function must return a tensor of shape ({X.shape[0]},), it gave {came}")
        if not bool(torch.isfinite(values.detach()).all()):
            raise ValueError("the mean function gave NaN or infinite values")
        return values.to(X.device, torch.float64)

    def basis_at(self, X: Tensor, scaling: Standardisation) -> Tensor | None:
        """The basis functions of a trend at X (m, d) in the caller's units: (m, p), in the model's units, float64."""
        if scaling.trend is None or not isinstance(self.mean, Trend):
            return None
        return scaling.trend.basis(self.mean(X))

    def deviation(self, data: Data) -> Tensor:
        """Total standard deviation of the noise in the model's units: a scalar, or one per row, with gradients."""
        total = self.noise.to(data.device)
        if data.noise_std is not None:
            total = (total.square() + data.noise_std.square()).sqrt()
        variance = total.detach().square().to(data.dtype)
        if not bool(((variance > 0) & (variance < math.inf)).all()):
            raise ValueError(f"the square of the noise is beyond the range of {data.dtype}: use another unit for y")
        return total

    def make_posterior(self, data: Data, prior: Any, draws: Tensor, request: SolveRequest) -> Any:
        """The posterior of this model, which keeps references to the model and the draws: pass copies.

        Solves in float64 if rounding in float32 would hide what the data say. Warns if the solver did not converge.
        """

        def solve(dtype: torch.dtype) -> Any:
            if dtype == data.dtype:
                return self.solve(data, prior, draws, request)
            x0 = None if request.x0 is None else request.x0.to(dtype)
            return self.solve(data.to(dtype), prior, draws.to(dtype), replace(request, x0=x0))

        resolved = self.least_noise(data) <= float(self.deviation(data).detach().min())
        may_promote = request.settings.compute.allows_float64(data.device)
        return solve_promoting(solve, data.dtype, resolved, may_promote)

    def working_copy(self, device: torch.device) -> Self:
        """A copy on a device, without the posterior of an earlier fit."""
        return copy.deepcopy(self, {id(self._posterior): None}).to(device)

    def adopt(self, learned: dict[str, Tensor], posterior: Any) -> None:
        """Take over learned hyperparameters, and the posterior that belongs to them."""
        self.load_state_dict(learned)
        self._posterior = posterior
