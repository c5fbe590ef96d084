"""What the posteriors of tables and of grids have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from pathgp.data.grid import GridObservations
from pathgp.data.standardise import Standardisation
from pathgp.kernels import Kernel
from pathgp.operators import Operator
from pathgp.posterior.conditioning import Settings, System
from pathgp.posterior.report import ConditionReport


class Model(Protocol):
    """What a posterior asks of its model."""

    mean: Any

    @property
    def noise(self) -> Tensor:
        """Standard deviation of the noise, in the model's units."""

    def mean_at(self, X: Tensor, exact: bool = False) -> Tensor:
        """The prior mean at X (m, d): (m,), or a scalar when it is constant; ``exact``: float64 whatever X is."""

    def system(self, data: Any, prior: Any, draws: Tensor) -> System:
        """The systems of the posterior mean and samples; ``draws``: (n, s) standard normal, for the noise."""


class TableModel(Model, Protocol):
    kernel: Kernel


class GridModel(Model, Protocol):
    @property
    def sides(self) -> list[Kernel]:
        """The kernel of every side of the grid."""

    def product(self, widths: Sequence[int]) -> Kernel:
        """The product of all side kernels on the concatenated columns; ``widths``: number of columns of each side."""

    def operator(self, data: Any, settings: Settings, reuse: Operator | None = None) -> Operator:
        """H of the observed cells."""

    def prepare_data(self, factors: Any, Y: Any, noise: Any = None) -> GridObservations:
        """A grid of data in the model's units."""

    def largest_variance(self, data: Any) -> float:
        """max k(x, x) at the data."""


class BasePosterior:
    """A model conditioned on data: the weights of the posterior, and how they were computed.

    model: a copy with the hyperparameters of the posterior.  scaling: between the units of the caller and those of the
    model.  report: how it was obtained.  system: the linear systems, in the model's units.  weights: their solutions
    (n, 1 + s), for the mean and s paths.  prior: the prior draws of the paths, or None.  settings: options of products
    and solves.  about: values saved along (see `save`).
    """

    about: dict[str, Any] | None = None

    def __init__(
        self,
        model: Any,
        scaling: Standardisation,
        system: System,
        prior: Any,
        weights: Tensor,
        settings: Settings,
        report: ConditionReport,
    ) -> None:
        self.model = model
        self.scaling = scaling
        self.system = system
        self.prior = prior
        self.weights = weights
        self.settings = settings
        self.report = report

    @property
    def num_samples(self) -> int:
        """The number of paths s."""
        return self.weights.shape[1] - 1

    @property
    def has_paths(self) -> bool:
        """Whether there are draws from the prior, and so paths."""
        return self.prior is not None

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise in the units of y; known noise of single rows comes on top of it."""
        return float(self.model.noise) * float(self.scaling.target_scale)

    def save(self, path: str | os.PathLike[str], data: bool = True, about: dict[str, Any] | None = None) -> None:
        """Write the posterior to one file, which `pathgp.load` reads; the model and the draws are in it.

        ``data=False`` leaves out the observed values and the draws of their noise. With many rows the file is then a
        third as large, but ``update``, ``leave_one_out``, ``log_marginal_likelihood``, variances by neighbours and the
        paths of a grid are not available. Inputs are always saved: predictions need them. ``about``: plain values to
        save along, such as column names; the loaded posterior has them as ``about``. With several processes rank 0
        writes. See `pathgp.io.saving`.
        """
        from pathgp.io.saving import save

        save(self, path, data, about)

    def __repr__(self) -> str:
        return f"{type(self).__name__}\n{self.report!r}"
