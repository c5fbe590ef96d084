"""The door to scikit-learn: a regressor for pipelines, grid searches and frames.

    from pathgp.sklearn import GPRegressor

    model = GPRegressor().fit(X, y)
    mean, std = model.predict(X_new, return_std=True)
    functions = model.sample_paths(16)               # functions(X_new) is (16, m)

Frames may hold text and categorical columns: they become one column per category, 0 or 1. Dates become days since 1970,
spans of time days, whatever their unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pathgp import kernels
from pathgp.compute.inputs import as_float64
from pathgp.data.tabular import (
    KERNELS,
    MOST_CATEGORIES,
    Columns,
    are_dates,
    days,
    distinct,
    kernel_of_columns,
    refuse_unclear_dates,
)
from pathgp.learning.policy import EXACT_ROWS
from pathgp.learning.report import FitReport
from pathgp.models import GP, LatentKroneckerGP
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.table import Posterior
from pathgp.solvers import Solver

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, validate_data
except ImportError as error:
    raise ImportError("the door to scikit-learn needs it: pip install 'pathgp[sklearn]'") from error

_DTYPES = (np.float64, np.float32)


class GPRegressor(RegressorMixin, BaseEstimator):
    """Gaussian process regression with learned hyperparameters.

    Up to 1,000 rows hyperparameters and standard deviations are found exactly; beyond that, and for related outputs,
    gradients and standard deviations come from ``samples`` posterior samples (see `GP.fit`, `Posterior.variance` and
    `GridPosterior.variance`).

    Args:
        kernel: a kernel, or the name of one with a length scale per column: "squared-exponential", "matern-1/2",
            "matern-3/2", "matern-5/2" or "rational-quadratic". It refers to standardised inputs and targets where
            ``standardise`` is on.
        noise: standard deviation of the noise to start from, in the same units.
        outputs: how several outputs are modelled. "independent": one by one. "related": as one `LatentKroneckerGP`
            whose second side is a `Task` kernel; they share the kernel on X, and their covariance is learned. Needs
            several outputs.
        standardise: shift and scale inputs and targets to mean zero and standard deviation one inside the model.
        steps: largest number of steps of the optimiser, None for the default of `GP.fit`; 0 keeps the hyperparameters
            as they are.
        optimiser: as in `GP.fit`.
        estimator: of the gradient, as in `GP.fit`.
        stages: which steps use which rows, as in `GP.fit`.
        initialise: initial values, as in `GP.fit`; "model" starts from those of the kernel and the noise.
        samples: posterior samples, and probes of the gradient.
        solver: of the linear systems, by name or with settings.
        tol: relative residual of the linear systems.
        max_epochs: budget of each solve in products with the kernel matrix.
        device: of the computations, such as "cuda"; None is the CPU.
        progress: show a progress bar while learning.
        random_state: a seed, a generator of NumPy, or None for fresh draws at every fit.

    Attributes:
        posteriors_: one `Posterior` per output, of the learned model; of related outputs one `GridPosterior`.
        kernel_: the learned kernel of the first output, or the one that related outputs share.
        reports_: one `FitReport` per posterior; None where there was nothing to learn.
        categories_: the categories of every text column, by its name.
        dates_: the names of the columns with dates or spans of time.
        n_features_in_: number of columns of X.
        feature_names_in_: their names, where X is a frame.
    """

    posteriors_: list[Any]
    reports_: list[FitReport | None]
    categories_: dict[Any, list[Any]]
    dates_: list[Any]

    def __init__(
        self,
        *,
        kernel: str | kernels.Kernel = "matern-5/2",
        noise: float = 0.1,
        outputs: str = "independent",
        standardise: bool = True,
        steps: int | None = None,
        optimiser: str = "auto",
        estimator: str = "auto",
        stages: str = "auto",
        initialise: str = "auto",
        samples: int = 64,
        solver: str | Solver = "auto",
        tol: float = 1e-2,
        max_epochs: float | None = None,
        device: str | None = None,
        progress: bool = False,
        random_state: Any = 0,
    ) -> None:
        self.kernel = kernel
        self.noise = noise
        self.outputs = outputs
        self.standardise = standardise
        self.steps = steps
        self.optimiser = optimiser
        self.estimator = estimator
        self.stages = stages
        self.initialise = initialise
        self.samples = samples
        self.solver = solver
        self.tol = tol
        self.max_epochs = max_epochs
        self.device = device
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike, noise: ArrayLike | None = None) -> GPRegressor:
        """Learn from X (n, d) and y (n,) or (n, outputs); ``noise``: known standard deviations of y (n,)."""
        self.categories_, self.dates_ = _special_columns(X)
        if self.categories_ or self.dates_:
            validate_data(self, X, skip_check_array=True)
            X, y = check_X_y(self._numbers(X), y, dtype=_DTYPES, y_numeric=True, multi_output=True)
        else:
            X, y = validate_data(self, _exact(X), y, dtype=_DTYPES, y_numeric=True, multi_output=True)
        # No target is rounded here: the model subtracts their level before it does.
        y = np.asarray(y, dtype=np.result_type(X.dtype, y))
        self._one_output = y.ndim == 1
        generator = torch.Generator().manual_seed(check_random_state(self.random_state).randint(2**31))
        inputs, known = self._tensor(X), None if noise is None else self._tensor(np.asarray(noise, dtype=np.float64))
        if self.outputs not in ("independent", "related"):
            raise ValueError(f"outputs must be 'independent' or 'related', got {self.outputs!r}")
        self.posteriors_, self.reports_ = [], []
        fit = self._fit_related if self.outputs == "related" else self._fit_independent
        self._predictions: _Independent | _Related = fit(inputs, y, known, generator)
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Posterior mean at X (m, d): (m,) or (m, outputs).

        With ``return_std`` also the standard deviations of f, of the same shape; with ``return_cov`` also its
        covariances (m, m) or (m, m, outputs). Noise is not in them.
        """
        if return_std and return_cov:
            raise ValueError("ask for return_std or for return_cov, not for both")
        X = self._read(X)
        mean = self._given(self._predictions.mean(X))
        if return_std:
            return mean, self._given(self._predictions.variance(X)) ** 0.5
        if return_cov:
            return mean, self._given(self._predictions.covariance(X))
        return mean

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray[np.floating]:
        """Joint draws of f at X from the posterior: (m, n_samples) or (m, outputs, n_samples)."""
        X = self._read(X)
        generator = torch.Generator().manual_seed(check_random_state(random_state).randint(2**31))
        draws = self._given(self._predictions.sample(X, n_samples, generator))
        return np.moveaxis(draws, 0, -1)

    def sample_paths(self, k: int) -> Callable[[Any], NDArray[np.floating]]:
        """k of the ``samples`` functions that came with the posterior: X (m, d) to (k, m) or (k, m, outputs).

        The same functions at every call.
        """
        check_is_fitted(self)
        if not 1 <= k <= self.samples:
            raise ValueError(f"k must be between 1 and samples={self.samples}, got {k}")

        def functions(X: Any) -> NDArray[np.floating]:
            inputs = self._read(X)
            return self._given(self._predictions.paths(inputs)[:k])

        return functions

    def log_marginal_likelihood(self) -> float:
        """Of the learned hyperparameters, the sum over outputs; exact or estimated, see `Posterior`."""
        check_is_fitted(self)
        return float(sum(posterior.log_marginal_likelihood().value for posterior in self.posteriors_))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _fit_independent(self, X: torch.Tensor, y: Any, noise: Any, generator: torch.Generator) -> _Independent:
        for output in y.reshape(len(y), -1).T:
            gp = GP(self._kernel(X.shape[1]), noise=self.noise, standardise=self.standardise)
            self._learn(gp, (X, self._tensor(np.ascontiguousarray(output))), noise, generator)
        self.kernel_ = self.posteriors_[0].model.kernel
        return _Independent(self.posteriors_)

    def _fit_related(self, X: torch.Tensor, y: Any, noise: Any, generator: torch.Generator) -> _Related:
        if self._one_output or y.shape[1] < 2:
            raise ValueError(f"outputs='related' needs y with several columns, got {y.shape}")
        Y = self._tensor(y)
        shift, scale = Y.mean(0), Y.std(0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)
        tasks = _tasks((Y - shift) / scale)
        if not self.standardise:
            shift, scale = torch.zeros_like(shift), torch.ones_like(scale)
        Y = (Y - shift) / scale
        # Outputs of unit variance lose nothing in the dtype of X.
        Y = Y.to(X.dtype) if self.standardise else Y
        gp = LatentKroneckerGP([self._kernel(X.shape[1]), tasks], noise=self.noise, standardise=self.standardise)
        known = None if noise is None else (noise.unsqueeze(1) / scale).expand_as(Y)
        self._learn(gp, ([X, None], Y), known, generator)
        self.kernel_ = self.posteriors_[0].model.sides[0]
        return _Related(self.posteriors_[0], shift, scale)

    def _learn(self, gp: Any, data: tuple[Any, Any], noise: Any, generator: torch.Generator) -> None:
        """Learn, or condition where there is nothing to learn."""
        common: dict[str, Any] = {"noise": noise, "solver": self.solver, "samples": self.samples, "tol": self.tol}
        common |= {"max_epochs": self.max_epochs, "generator": generator}
        if self.steps == 0:
            self.reports_.append(None)
            self.posteriors_.append(gp.condition(*data, **common))
            return
        report = gp.fit(
            *data,
            steps=self.steps,
            optimiser=self.optimiser,
            estimator=self.estimator,
            stages=self.stages,
            initialise=self.initialise,
            progress=self.progress,
            **common,
        )
        self.reports_.append(report)
        self.posteriors_.append(gp.posterior)

    def _kernel(self, columns: int) -> kernels.Kernel:
        if isinstance(self.kernel, kernels.Kernel):
            return self.kernel
        if self.kernel not in KERNELS:
            names = ", ".join(map(repr, KERNELS))
            raise ValueError(f"kernel must be a pathgp kernel or one of {names}, got {self.kernel!r}")
        return kernel_of_columns(self.kernel, columns)

    def _read(self, X: Any) -> torch.Tensor:
        check_is_fitted(self)
        if self.categories_ or self.dates_:
            validate_data(self, X, reset=False, skip_check_array=True)
            return self._tensor(check_array(self._numbers(X), dtype=_DTYPES))
        _, dates = _special_columns(X, only_dates=True)
        if dates:
            raise ValueError(f"column {dates[0]!r} holds dates and held numbers at the fit: their unit is not known")
        return self._tensor(validate_data(self, _exact(X), dtype=_DTYPES, reset=False))

    def _tensor(self, values: NDArray[Any]) -> torch.Tensor:
        return torch.tensor(values, device=self.device)

    def _given(self, values: torch.Tensor) -> NDArray[np.floating]:
        """As NumPy, without the axis of outputs, the last, where y had none."""
        array = values.detach().cpu().numpy()
        return array[..., 0] if self._one_output else array

    def _numbers(self, X: Any) -> NDArray[np.float64]:
        """A frame with a column of 0 and 1 for every category of its text columns, and dates in days."""
        if not _is_frame(X):
            if getattr(X, "dtype", np.dtype(float)).kind in "mM" and not self.categories_:
                return np.stack([_days(name, X[:, name]) for name in self.dates_], 1)
            kinds = "times" if not hasattr(self, "feature_names_in_") else "names: give a frame with the same columns"
            raise ValueError(f"X was fitted as a table of {kinds}, got {type(X).__name__} of {np.asarray(X).dtype}")
        columns = Columns(self.feature_names_in_, self.categories_, self.dates_)

        def values(name: Any) -> NDArray[Any]:
            column = X[name].to_numpy()
            _refuse_zones(name, X[name].dtype)
            if name in self.dates_:
                return _days(name, column)
            if column.dtype.kind in "mM":
                raise ValueError(f"column {name!r} holds dates and held something else at the fit")
            return column

        return columns.matrix(values)


def _tasks(Y: torch.Tensor) -> kernels.Task:
    """A Task kernel to start from: half of the correlations of the outputs Y (n, q), and variance one.

    A start without them, or with the wrong sign, may stay there: the gradient in B of B B^T vanishes at zero.
    """
    Y = Y.to("cpu", torch.float64)
    values, vectors = torch.linalg.eigh(Y.T @ Y / len(Y))
    factor = (vectors * (0.5 * values.clamp_min(0.0)).sqrt())[:, 1:]
    return kernels.Task(len(values), len(values) - 1, factor, (1.0 - factor.square().sum(1)).clamp_min(0.05).sqrt())


@dataclass(frozen=True)
class _Independent:
    """Predictions of several outputs (..., outputs) from a posterior each."""

    posteriors: list[Posterior]

    def mean(self, X: torch.Tensor) -> torch.Tensor:
        return torch.stack([posterior.mean(X) for posterior in self.posteriors], -1)

    def variance(self, X: torch.Tensor) -> torch.Tensor:
        method = "solve" if self.posteriors[0].report.rows <= EXACT_ROWS else None
        return torch.stack([posterior.variance(X, method=method) for posterior in self.posteriors], -1)

    def covariance(self, X: torch.Tensor) -> torch.Tensor:
        return torch.stack([posterior.covariance(X) for posterior in self.posteriors], -1)

    def sample(self, X: torch.Tensor, num: int, generator: torch.Generator) -> torch.Tensor:
        return torch.stack([posterior.sample(X, num, generator) for posterior in self.posteriors], -1)

    def paths(self, X: torch.Tensor) -> torch.Tensor:
        return torch.stack([posterior.paths(X) for posterior in self.posteriors], -1)


@dataclass(frozen=True)
class _Related:
    """The same from one posterior over rows and outputs; output j in units of ``scale[j]`` from ``shift[j]``."""

    posterior: GridPosterior
    shift: torch.Tensor
    scale: torch.Tensor

    def mean(self, X: torch.Tensor) -> torch.Tensor:
        return self.posterior.mean(X, None) * self.scale + self.shift

    def variance(self, X: torch.Tensor) -> torch.Tensor:
        return self.posterior.variance(X, None) * self.scale.square()

    def covariance(self, X: torch.Tensor) -> torch.Tensor:
        m, q = len(X), len(self.scale)
        found = self.posterior.covariance(X, None).reshape(m, q, m, q)
        return found.diagonal(dim1=1, dim2=3) * self.scale.square()

    def sample(self, X: torch.Tensor, num: int, generator: torch.Generator) -> torch.Tensor:
        return self.posterior.sample(X, None, num=num, generator=generator) * self.scale + self.shift

    def paths(self, X: torch.Tensor) -> torch.Tensor:
        return self.posterior.paths(X, None) * self.scale + self.shift


def _special_columns(X: Any, only_dates: bool = False) -> tuple[dict[Any, list[Any]], list[Any]]:
    """The categories of the text columns of a frame, by name, and the names of columns with dates or spans of time.

    Nothing for frames and arrays of numbers. Columns of an array of dates go by their numbers.
    """
    if not _is_frame(X):
        is_time = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "mM"
        return {}, list(range(X.shape[1])) if is_time else []
    found: dict[Any, list[Any]] = {}
    dates = []
    for name in X.columns:
        values, kind = X[name].to_numpy(), str(X[name].dtype).lower()
        _refuse_zones(name, kind)
        is_category = kind.startswith(("categor", "enum"))
        if values.dtype.kind in "mM":
            dates.append(name)
        if only_dates or not (is_category or values.dtype.kind in "OUT"):
            continue
        missing = [row for row, value in enumerate(values) if _is_missing(value)]
        if missing:
            raise ValueError(f"column {name!r} has no value in row {missing[0]}: fill it or leave the row out")
        if not is_category and are_dates(values):
            dates.append(name)
            continue
        found[name] = distinct(values.tolist())
        if is_category:
            continue
        refuse_unclear_dates(name, found[name], "use pandas.to_datetime, or give it the dtype 'category'")
        if len(found[name]) > MOST_CATEGORIES:
            raise ValueError(
                f"column {name!r} holds text, {len(found[name])} different ones such as {found[name][0]!r}: leave it "
                "out (names), turn it into numbers (dates), or give it the dtype 'category'"
            )
    return found, dates


def _is_frame(X: Any) -> bool:
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def _refuse_zones(name: Any, kind: Any) -> None:
    kind = str(kind).lower()
    if kind.startswith("datetime") and "," in kind:
        raise ValueError(f"column {name!r} has times with a zone: convert them, as with .dt.tz_convert(None)")


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:
        # pandas.NA has no truth value.
        return True


def _days(name: Any, column: NDArray[Any]) -> NDArray[np.float64]:
    """Dates in days since 1970; an error where one is missing."""
    if column.dtype.kind == "O":
        column = np.array([None if _is_missing(value) else value for value in column], dtype=object)
    found = days(name, column)
    if np.isnan(found).any():
        raise ValueError(f"column {name!r} has no time in row {int(np.isnan(found).argmax())}: fill it in")
    return found


def _exact(X: Any) -> Any:
    """X, with an error where scikit-learn would round whole numbers."""
    if isinstance(X, np.ndarray) and X.dtype.kind in "iu":
        return as_float64(X, "X")
    if _is_frame(X):
        for name in X.columns:
            if (column := X[name].to_numpy()).dtype.kind in "iu":
                as_float64(column, f"column {name!r}")
    return X
