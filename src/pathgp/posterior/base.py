"""The base class of the posteriors of tables and grids: everything that is the same for both."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from pathgp.compute.inputs import Array
from pathgp.data.standardise import Standardisation
from pathgp.operators import Operator
from pathgp.posterior.conditioning import Settings
from pathgp.posterior.evidence import Evidence, log_marginal_likelihood
from pathgp.posterior.exact_covariance import EXACT_ROWS, ExactCovariance
from pathgp.posterior.leave_one_out import LeaveOneOut, leave_one_out
from pathgp.posterior.report import ConditionReport
from pathgp.posterior.system import System
from pathgp.posterior.trend import GeneralisedLeastSquares


@dataclass(eq=False, repr=False)
class BasePosterior(ABC):
    """A model conditioned on data.

    Args:
        model: a copy of the model with the hyperparameters of the posterior.
        scaling: conversion between the units of the caller and those of the model.
        system: the linear systems, in the model's units.
        prior: the prior draws of the samples, or None.
        weights: solutions of the systems (n, 1 + s), for the mean and s samples.
        settings: options of products and solves.
        report: how the posterior was computed.
        about: metadata that is saved with the posterior (see `save`), or None.
        least_squares: the solutions of the basis functions of a trend, or None.
    """

    model: Any
    scaling: Standardisation
    system: System
    prior: Any
    weights: Tensor
    settings: Settings
    report: ConditionReport
    about: dict[str, Any] | None = field(default=None, kw_only=True)
    least_squares: GeneralisedLeastSquares | None = field(default=None, kw_only=True)

    # Methods of `variance` that use the samples; the most accurate one is first.
    _sample_methods: ClassVar[tuple[str, ...]] = ("samples",)

    @property
    @abstractmethod
    def X(self) -> Any:
        """Inputs of the data in the units of the caller."""

    @property
    def solutions(self) -> Tensor:
        """All solutions of the last solve (n, 1 + s + p): the weights, and those of the basis of a trend."""
        trend = self.least_squares
        return self.weights if trend is None else torch.cat([self.weights, trend.weights], 1)

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
        """Whether exact covariances use one Cholesky factor of H; otherwise they need one solve per row."""
        return self._exact.factorises

    @property
    def variance_method(self) -> str:
        """The method by which `variance` computes variances unless another one is asked for."""
        return self._choose_method(None)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the learned noise in the units of y, without the known noise of single observations."""
        return self.scaling.restore_deviation(float(self.model.noise))

    def log_marginal_likelihood(self, probes: int = 32, generator: torch.Generator | None = None) -> Evidence:
        """Return log p(y | X) in the units of y, with an error bar.

        Exact up to 10,000 observations, otherwise estimated by quadrature with ``probes`` random vectors. The error
        falls as 1 / sqrt(probes). See `pathgp.posterior.evidence`. With a trend of p functions it is the restricted
        likelihood, the density of n - p contrasts of y that do not depend on the trend: it compares models with the
        same trend.
        """
        system = self.system.require_targets("log_marginal_likelihood")
        factor = self._exact.factor if self.has_factor else None
        y, v, noise = system.targets[:, 0], self.weights[:, 0], system.deviation.square()
        generator = self.settings.compute.sync_generator(generator)
        evidence = log_marginal_likelihood(y, v, noise, factor, self._operator, probes, generator)
        value, count = evidence.value, len(y)
        if (trend := self._exact_least_squares) is not None:
            value, count = value + trend.log_density_change(y), count - trend.rank
        return replace(evidence, value=self.scaling.restore_log_density(value, count))

    def leave_one_out(self) -> LeaveOneOut:
        """Return mean, variance and log density of every observation given all others, in the units of y.

        The tensors have shape (n,) for a table; for a grid they have its shape, with NaN in the holes. Exact up to
        10,000 observations, otherwise estimated from the weights of the samples. See `pathgp.posterior.leave_one_out`.
        """
        system = self.system.require_targets("leave_one_out")
        factor = self._exact.factor[0] if self.has_factor else None
        # In float32 blocks of neighbouring rows with little noise would be singular.
        exact = partial(self._operator, torch.float64, "streamed")
        result = leave_one_out(system, self.weights, factor, exact, self._exact_least_squares)
        return result.in_units(self.scaling, self._prior_mean())

    def save(self, path: str | os.PathLike[str], data: bool = True, about: dict[str, Any] | None = None) -> None:
        """Write the posterior, with the model and the prior draws, to one file; `pathgp.load` reads it.

        With several processes rank 0 writes. See `pathgp.io.saving`.

        Args:
            path: the file.
            data: whether to save the observed values and the draws of their noise. Without them a file of many rows is
                a third as large, but the loaded posterior has no ``update``, ``leave_one_out``,
                ``log_marginal_likelihood``, variances by neighbours or paths of a grid. Inputs are always saved,
                because predictions need them.
            about: metadata in plain types, such as column names; the attribute ``about`` of the loaded posterior.
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

        The page shows accuracy and calibration, and how the model was learned and computed. For a table it also shows
        the relevance of every input and the function along it, for a grid maps and curves of the field. Cost: a few
        thousand predictions.

        Args:
            path: the file.
            X_test: held-out inputs (m, d); for a grid scattered points (m, d_1 + ... + d_k). Of more than 10,000 rows
                (1,000 for a grid) a random subset is predicted. Without X_test the accuracy of a table is that of
                `leave_one_out`.
            y_test: targets of X_test (m,). For a grid without X_test: true values on the training grid, NaN if
                unknown; the values in holes are compared with the predictions.
            names: names of the inputs, or of the sides of the grid; x0, x1, ... by default.
            target: name of the values.
            fit: the report that `fit` returned, for the learning curves.
            title: title of the page.
        """
        from pathgp.html.page import write

        write(self, path, X_test, y_test, names, target, fit, title)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes without the Cholesky factor and the operator, which are rebuilt when needed."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_exact")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}\n{self.report!r}"

    @property
    @abstractmethod
    def _exact(self) -> ExactCovariance:
        """Exact variances and covariances, in the model's units."""

    @cached_property
    def _exact_least_squares(self) -> GeneralisedLeastSquares | None:
        """The trend by solves as accurate as those of exact variances."""
        basis = self.system.basis
        return None if basis is None else GeneralisedLeastSquares(basis, self._exact.solve_for(basis))

    @abstractmethod
    def _prior_mean(self) -> Tensor:
        """The prior mean of all observations, a scalar or (n,), in float64 and the units of y."""

    @abstractmethod
    def _operator(self, dtype: torch.dtype | None = None, backend: str | None = None) -> Operator:
        """H, by default in the dtype of the data and with the backend of the settings."""

    def _choose_method(self, method: str | None) -> str:
        """Check the method of `variance`, and choose one for None and "smooth"."""
        if method in (None, "smooth") and (self.prior is None or (self.report.rows <= EXACT_ROWS and self.has_factor)):
            return "solve"
        if method == "smooth":
            return "samples"
        if method is None:
            # The method "neighbours" needs the observations, which may not have been saved.
            return self._sample_methods[0] if self.system.is_complete else "samples"
        if method not in (*self._sample_methods, "solve"):
            names = ", ".join(map(repr, self._sample_methods))
            raise ValueError(f"method must be {names}, 'solve' or 'smooth', got {method!r}")
        return method

    def _restore_variance(self, variance: Tensor, noise: bool) -> Tensor:
        """Convert variances of f to the units of y; with ``noise`` return those of a new observation."""
        if noise:
            variance = variance + self.model.noise.square().to(variance)
        return self.scaling.restore_variance(variance)

    def _restore_covariance(self, covariance: Tensor, noise: bool) -> Tensor:
        """The same for covariances (m, m): the noise is on the diagonal."""
        if noise:
            covariance.diagonal().add_(self.model.noise.square().to(covariance))
        return self.scaling.restore_variance(covariance)
