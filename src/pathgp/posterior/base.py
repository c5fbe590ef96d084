"""The base of posteriors on tables and on grids: everything that does not depend on the layout of the data."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pathgp.compute.inputs import Array
from pathgp.data.standardise import Standardisation
from pathgp.operators import Operator
from pathgp.posterior.conditioning import Settings
from pathgp.posterior.evidence import Evidence, log_marginal_likelihood
from pathgp.posterior.exact_covariance import ExactCovariance
from pathgp.posterior.leave_one_out import LeaveOneOut, leave_one_out
from pathgp.posterior.report import ConditionReport
from pathgp.posterior.system import System


@dataclass(eq=False, repr=False)
class BasePosterior(ABC):
    """A model conditioned on data: the weights of the posterior, and how they were computed.

    model: a copy with the hyperparameters of the posterior.  scaling: between the units of the caller and those of the
    model.  report: how the posterior was computed.  system: the linear systems, in the model's units.  weights: their
    solutions (n, 1 + s), for the mean and s samples.  prior: the prior draws of the samples, or None.  settings:
    options of products and solves.  about: values saved along (see `save`).
    """

    model: Any
    scaling: Standardisation
    system: System
    prior: Any
    weights: Tensor
    settings: Settings
    report: ConditionReport
    about: dict[str, Any] | None = field(default=None, kw_only=True)

    # Methods of `variance` that need samples, the most accurate one first.
    _sample_methods: ClassVar[tuple[str, ...]] = ("samples",)

    @property
    @abstractmethod
    def X(self) -> Any:
        """Inputs of the data in the units of the caller."""

    @property
    def num_samples(self) -> int:
        """The number of samples s."""
        return self.weights.shape[1] - 1

    @property
    def has_paths(self) -> bool:
        """Whether `paths` can be evaluated."""
        return self.prior is not None

    @property
    def has_factor(self) -> bool:
        """Whether exact covariances come from one Cholesky factor, not from one solve per row."""
        return self._exact.factorises

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in the units of y; known noise of single observations adds to it."""
        return self.scaling.restore_deviation(float(self.model.noise))

    def log_marginal_likelihood(self, probes: int = 32, generator: torch.Generator | None = None) -> Evidence:
        """log p(y | X) in the units of y, with an error bar: exact up to 10,000 observations, above by quadrature.

        ``probes``: number of random vectors; the error falls with its square root. See `pathgp.posterior.evidence`.
        """
        system = self.system.require_targets("log_marginal_likelihood")
        factor = self._exact.factor if self.has_factor else None
        y, v, noise = system.targets[:, 0], self.weights[:, 0], system.deviation.square()
        generator = self.settings.compute.sync_generator(generator)
        found = log_marginal_likelihood(y, v, noise, factor, self._operator, probes, generator)
        return replace(found, value=self.scaling.restore_log_density(found.value, len(y)))

    def leave_one_out(self) -> LeaveOneOut:
        """Mean, variance and log density of every observation given all others, in the units of y, as tensors.

        For a table (n,), for a grid of its shape with NaN in the holes. Exact up to 10,000 observations, above from
        the weights of the samples; see `pathgp.posterior.leave_one_out`.
        """
        system = self.system.require_targets("leave_one_out")
        factor = self._exact.factor[0] if self.has_factor else None
        # float64: blocks of close rows with little noise are singular in float32.
        found = leave_one_out(system, self.weights, factor, lambda: self._operator(torch.float64, "streamed"))
        return found.in_units(self.scaling, self._prior_mean())

    def save(self, path: str | os.PathLike[str], data: bool = True, about: dict[str, Any] | None = None) -> None:
        """Write the posterior to one file, which `pathgp.load` reads; it contains the model and the draws.

        ``data=False`` leaves out the observed values and the draws of their noise. With many rows the file is then a
        third as large, but ``update``, ``leave_one_out``, ``log_marginal_likelihood``, variances by neighbours and the
        paths of a grid are not available. Inputs are always saved: predictions need them. ``about``: plain values to
        save along, such as column names; the loaded posterior has them as ``about``. With several processes rank 0
        writes. See `pathgp.io.saving`.
        """
        from pathgp.io.saving import save

        save(self, path, data, about)

    def to_html(
        self,
        path: str | os.PathLike[str],
        X_test: Array | None = None,
        y_test: Array | None = None,
        names: Sequence[str] | None = None,
        target: str | None = None,
        fit: Any = None,
        title: str | None = None,
    ) -> None:
        """Write a report on this posterior as one HTML page without scripts or requests.

        Accuracy and calibration, how the model was learned and computed; for a table the relevance of the inputs and
        the function along each of them, for a grid the field as maps and curves. Cost: a few thousand predictions.

        Args:
            path: the file.
            X_test: held-out inputs (m, d); for a grid scattered points (m, d_1 + ... + d_k). A random part is predicted
                if there are more than 10,000 of them, for a grid 1,000. Without them the accuracy of a table is that
                of `leave_one_out`.
            y_test: their targets (m,). For a grid without X_test: true values on the training grid, NaN if unknown, of
                which those in holes are compared.
            names: names of the inputs, or of the sides of the grid; x0, x1, ... by default.
            target: name of the values.
            fit: the report that `fit` returned, for the learning curves.
            title: title of the page.
        """
        from pathgp.html.page import write

        write(self, path, X_test, y_test, names, target, fit, title)

    def __getstate__(self) -> dict[str, Any]:
        """The state without the factor and the operator, which are rebuilt when needed."""
        return {name: value for name, value in vars(self).items() if name != "_exact"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}\n{self.report!r}"

    @property
    @abstractmethod
    def _exact(self) -> ExactCovariance:
        """Exact variances and covariances, in the model's units."""

    @abstractmethod
    def _prior_mean(self) -> Tensor:
        """The prior mean of all observations, a scalar or (n,), in the units of y, float64."""

    @abstractmethod
    def _operator(self, dtype: torch.dtype | None = None, backend: str | None = None) -> Operator:
        """H, in a dtype and with a backend other than those of the data and the settings if given."""

    def _choose_method(self, method: str | None) -> str:
        """The method of `variance`, checked; None is the most accurate one without a further solve."""
        if method is None and self.prior is None:
            return "solve"
        if method is None:
            # Neighbours need the observations.
            return self._sample_methods[0] if self.system.is_complete else "samples"
        if method not in (*self._sample_methods, "solve"):
            names = ", ".join(map(repr, self._sample_methods))
            raise ValueError(f"method must be {names} or 'solve', got {method!r}")
        return method

    def _restore_variance(self, variance: Tensor, noise: bool) -> Tensor:
        """Variances of f in the units of y, or with ``noise`` of a new observation."""
        if noise:
            variance = variance + self.model.noise.square().to(variance)
        return self.scaling.restore_variance(variance)
