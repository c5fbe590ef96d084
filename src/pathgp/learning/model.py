"""The interfaces of models and data that `learning` relies on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from pathgp.data.standardise import Standardisation
from pathgp.kernels import Kernel
from pathgp.kernels.parameters import Positive, PositiveValue
from pathgp.operators import Operator
from pathgp.posterior.conditioning import Settings, SolveRequest
from pathgp.posterior.system import System

Mean = float | Callable[[Tensor], Tensor]


class Data(Protocol):
    """n observations in the units of a model: `Observations`, `GridObservations`."""

    @property
    def y(self) -> Tensor:
        """(n,) float64, in the caller's units."""

    @property
    def known(self) -> Tensor | None:
        """Known standard deviations of the noise (n,) in the model's units."""

    @property
    def given(self) -> Tensor:
        """The inputs (n, d) as the caller gave them, which mean functions see."""

    @property
    def scaling(self) -> Standardisation: ...

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the computations."""

    @property
    def device(self) -> torch.device: ...

    @property
    def columns(self) -> int: ...

    def targets(self, mean: Tensor) -> Tensor:
        """(y - mean) in the model's units (n,), in the dtype of the computations."""

    def to(self, dtype: torch.dtype) -> Self:
        """The same data in another dtype of the computations."""

    def subset(self, rows: Tensor) -> Self:
        """Some of the observations, in the same units."""

    def fingerprint(self) -> str:
        """A digest of the numbers."""


class Learnable(nn.Module):
    """A prior with Gaussian noise whose hyperparameters can be learned."""

    noise = PositiveValue("Standard deviation of the noise: a scalar, float64.")
    _noise: Positive
    mean: Mean

    @abstractmethod
    def operator(self, data: Any, settings: Settings, reuse: Operator | None = None) -> Operator:
        """H at the current hyperparameters, with gradients in ``bilinear``; ``reuse``: the operator it replaces."""

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
    def largest_variance(self, data: Any) -> float:
        """max k(x, x) at the data."""

    @abstractmethod
    def least_noise(self, data: Any) -> float:
        """The smallest standard deviation of the noise that products in the dtype of the data resolve."""

    @abstractmethod
    def covariance(self, data: Any, rows: Tensor) -> Tensor:
        """The prior covariance of some rows of the data, without noise: (m, m), float64."""

    @abstractmethod
    def kernels_and_inputs(self, data: Any) -> list[tuple[Kernel, Tensor]]:
        """Every kernel with the inputs it sees."""

    @abstractmethod
    def mean_at(self, X: Tensor, exact: bool = False) -> Tensor:
        """The prior mean at X (m, d): (m,), or a scalar when it is constant; ``exact``: float64 whatever X is."""

    @abstractmethod
    def deviation(self, data: Any) -> Tensor:
        """Total standard deviation of the noise in the model's units: a scalar, or one per row, with gradients."""

    @abstractmethod
    def solved(self, data: Any, prior: Any, draws: Tensor, request: SolveRequest) -> Any:
        """Solve for the posterior. It keeps references to the model and the draws, so pass copies."""

    @abstractmethod
    def working_copy(self, device: torch.device) -> Self:
        """A copy on a device, without the posterior of an earlier fit."""

    @abstractmethod
    def adopt(self, learned: dict[str, Tensor], posterior: Any) -> None:
        """Take over learned hyperparameters, and the posterior that belongs to them."""
