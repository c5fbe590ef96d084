"""Several outputs of the same inputs as one model: a grid of inputs by outputs, whose covariance is learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathgp.kernels import Kernel, Task
from pathgp.models.latent_kronecker import LatentKroneckerGP
from pathgp.posterior.grid import GridPosterior


@dataclass(frozen=True)
class RelatedOutputs:
    """Related outputs Y (n, q): a `LatentKroneckerGP` whose second side is a `Task` kernel of rank q - 1.

    shift, scale: of every output (q,). With standardise=True each output is shifted and scaled by itself to mean zero
    and standard deviation one; a constant output is only shifted.
    """

    shift: Tensor
    scale: Tensor
    standardise: bool

    @classmethod
    def of(cls, Y: Tensor, standardise: bool) -> RelatedOutputs:
        if Y.ndim != 2 or Y.shape[1] < 2:
            raise ValueError(f"related outputs need y with several columns, got {tuple(Y.shape)}")
        shift, scale = Y.mean(0), Y.std(0, correction=0)
        if not standardise:
            return cls(torch.zeros_like(shift), torch.ones_like(scale), False)
        return cls(shift, torch.where(scale > 0, scale, 1.0), True)

    def model(self, kernel: Kernel, noise: float) -> LatentKroneckerGP:
        """The model: the outputs share a kernel on the inputs, and their covariance is learned."""
        outputs = len(self.shift)
        tasks = Task(outputs, rank=outputs - 1)
        return LatentKroneckerGP([kernel, tasks], noise=noise, standardise=self.standardise)

    def targets(self, Y: Tensor, dtype: torch.dtype) -> Tensor:
        """Y in the units of the model (n, q); standardised values lose nothing in the dtype of the inputs."""
        scaled = (Y - self.shift) / self.scale
        return scaled.to(dtype) if self.standardise else scaled

    def noise(self, noise: Tensor) -> Tensor:
        """Known standard deviations of the rows (n,), in the units of the model: (n, q)."""
        return noise.unsqueeze(1) / self.scale

    def restore_log_density(self, value: float, count: int) -> float:
        """The log density of ``count`` values, equally many of every output, in the units of Y."""
        return value - count * float(self.scale.log().mean())

    def evaluate(self, posterior: GridPosterior, quantity: str, X: Tensor, **options: Any) -> Tensor:
        """A quantity of the posterior at X (m, d), such as "mean", in the units of Y: (..., q).

        A covariance is that of every output by itself: (m, m, q).
        """
        values = getattr(posterior, quantity)(X, None, **options)
        if quantity == "covariance":
            m, q = len(X), len(self.scale)
            values = values.reshape(m, q, m, q).diagonal(dim1=1, dim2=3)
        is_square = quantity in ("variance", "covariance")
        restored: Tensor = values * self.scale.square() if is_square else values * self.scale + self.shift
        return restored
