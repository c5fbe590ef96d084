"""Door to scikit-learn: a regressor for pipelines, grid searches and frames.

    from pathgp.sklearn import GPRegressor

    model = GPRegressor().fit(X, y)
    mean, std = model.predict(X_new, return_std=True)
    functions = model.sample_paths(16)               # functions(X_new) is (16, m)

Text and categorical columns of a frame become one column of 0 and 1 per category, dates become days since 1970, and
time spans become days. Sparse matrices of counts, such as fingerprints of molecules, stay sparse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pathgp import kernels
from pathgp.compute.inputs import as_float64, read_device, read_matrix, read_vector, whole_number
from pathgp.data import tabular
from pathgp.learning.policy import divide_time_limit
from pathgp.learning.report import FitReport
from pathgp.models import GP
from pathgp.models.outputs import RelatedOutputs
from pathgp.solvers import Solver

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, validate_data
except ImportError as error:
    raise ImportError("pathgp.sklearn needs scikit-learn: pip install 'pathgp[sklearn]'") from error

_DTYPES = (np.float64, np.float32)


@dataclass(kw_only=True, repr=False, eq=False)
class GPRegressor(RegressorMixin, BaseEstimator):
    """Gaussian process regression with learned hyperparameters.

    `GP.fit`, `Posterior.variance` and `GridPosterior.variance` explain what is exact and what comes from samples.

    Args:
        kernel: a kernel, or the name of one with a length scale per column: "squared-exponential", "matern-1/2",
            "matern-3/2", "matern-5/2" or "rational-quadratic". It refers to standardised inputs and targets where
            ``standardise`` is on.
        noise: standard deviation of the noise to start from, in the same units.
        outputs: how several outputs are modelled. "independent": one by one. "related": as one `LatentKroneckerGP`
            whose second side is a `Task` kernel; they share the kernel on X, and their covariance is learned. Needs
            several outputs. ``standardise`` then scales every output by itself.
        standardise: shift and scale inputs and targets to mean zero and standard deviation one inside the model.
        time_limit: seconds that learning may take, as in `GP.fit`; independent outputs share them.
        steps: largest number of steps of the optimiser, as in `GP.fit`; 0 keeps the hyperparameters as they are.
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
        posteriors_: one `Posterior` per output, of the learned model, in the units of y. Of related outputs one
            `GridPosterior`; with ``standardise`` its units are the standard deviations of the outputs, about their
            averages. Inputs are the columns after the conversion of text and dates.
        kernel_: the learned kernel of the first output, or the one that related outputs share.
        reports_: one `FitReport` per posterior, in its units.
        categories_: the categories of every text column, by its name.
        dates_: the names of the columns with dates or spans of time.
        n_features_in_: number of columns of X.
        feature_names_in_: their names, where X is a frame.
    """

    kernel: str | kernels.Kernel = tabular.DEFAULT_KERNEL
    noise: float = 0.1
    outputs: str = "independent"
    standardise: bool = True
    time_limit: float | None = None
    steps: int | None = None
    optimiser: str = "auto"
    estimator: str = "auto"
    stages: str = "auto"
    initialise: str = "auto"
    samples: int = 64
    solver: str | Solver = "auto"
    tol: float = 1e-2
    max_epochs: float | None = None
    device: str | None = None
    progress: bool = False
    random_state: Any = 0

    def fit(self, X: Any, y: ArrayLike, noise: ArrayLike | None = None) -> GPRegressor:
        """Learn from X (n, d) and y (n,) or (n, outputs); ``noise``: known standard deviations of y (n,)."""
        self._columns: tabular.Columns = tabular.find_columns(X)
        self.categories_, self.dates_ = self._columns.categories, list(self._columns.dates)
        if self.categories_ or self.dates_:
            validate_data(self, X, skip_check_array=True)
            numbers = tabular.convert_columns(X, self._columns)
            X, y = check_X_y(numbers, y, dtype=_DTYPES, y_numeric=True, multi_output=True)
        else:
            _refuse_rounding(X)
            options = {"dtype": _DTYPES, "accept_sparse": "csr"}
            X, y = validate_data(self, X, y, y_numeric=True, multi_output=True, **options)
        y = _numbers(y, X.dtype)
        self._one_output = y.ndim == 1
        generator = torch.Generator().manual_seed(check_random_state(self.random_state).randint(2**31))
        inputs = self._tensor(X)
        known = None if noise is None else read_vector(noise, len(inputs), "noise", like=inputs)
        if self.outputs not in ("independent", "related"):
            raise ValueError(f"outputs must be 'independent' or 'related', got {self.outputs!r}")
        self.posteriors_: list[Any] = []
        self.reports_: list[FitReport] = []
        self._related: RelatedOutputs | None = None
        fit = self._fit_related if self.outputs == "related" else self._fit_independent
        fit(inputs, y, known, generator)
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False, noise: bool = False) -> Any:
        """Posterior mean at X (m, d): (m,) or (m, outputs).

        With ``return_std`` also the standard deviations of f, of the same shape; with ``return_cov`` also its
        covariances (m, m) or (m, m, outputs). With ``noise=True`` they are those of new observations: the learned noise
        is in them.
        """
        if return_std and return_cov:
            raise ValueError("ask for return_std or for return_cov, not for both")
        if not isinstance(noise, (bool, np.bool_)):
            raise TypeError(f"noise must be True or False, got {noise!r}: known standard deviations belong to fit")
        X = self._read(X)
        mean = self._evaluate("mean", X)
        if return_std:
            return mean, self._evaluate("variance", X, noise=noise) ** 0.5
        return (mean, self._evaluate("covariance", X, noise=noise)) if return_cov else mean

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray[np.floating]:
        """Joint draws of f at X from the posterior: (m, n_samples) or (m, outputs, n_samples)."""
        X = self._read(X)
        generator = torch.Generator().manual_seed(check_random_state(random_state).randint(2**31))
        return np.moveaxis(self._evaluate("sample", X, num=n_samples, generator=generator), 0, -1)

    def sample_paths(self, k: int) -> Callable[[Any], NDArray[np.floating]]:
        """k of the ``samples`` functions that came with the posterior: X (m, d) to (k, m) or (k, m, outputs).

        The same functions at every call.
        """
        check_is_fitted(self)
        if whole_number(k, "k", 1) > self.samples:
            raise ValueError(f"k must be between 1 and samples={self.samples}, got {k}")
        return lambda X: self._evaluate("paths", self._read(X))[:k]

    def log_marginal_likelihood(self) -> float:
        """Of the learned hyperparameters, the sum over outputs, in the units of y.

        Exact or an estimate, see `Posterior`.
        """
        check_is_fitted(self)
        value = float(sum(posterior.log_marginal_likelihood().value for posterior in self.posteriors_))
        if self._related is not None:
            value = self._related.restore_log_density(value, self.posteriors_[0].report.rows)
        return value

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _fit_independent(self, X: torch.Tensor, y: Any, noise: Any, generator: torch.Generator) -> None:
        outputs = y.reshape(len(y), -1).T
        for output in outputs:
            gp = GP(self._kernel(X.shape[1]), noise=self.noise, standardise=self.standardise)
            self._learn(gp, (X, self._tensor(np.ascontiguousarray(output))), noise, generator, len(outputs))
        self.kernel_ = self.posteriors_[0].model.kernel

    def _fit_related(self, X: torch.Tensor, y: Any, noise: Any, generator: torch.Generator) -> None:
        Y = self._tensor(y)
        self._related = outputs = RelatedOutputs.of(Y, self.standardise)
        gp = outputs.model(self._kernel(X.shape[1]), self.noise)
        known = None if noise is None else outputs.noise(noise)
        self._learn(gp, ([X, None], outputs.targets(Y, X.dtype)), known, generator)
        self.kernel_ = self.posteriors_[0].model.sides[0]

    def _learn(self, gp: Any, data: tuple[Any, Any], noise: Any, generator: torch.Generator, models: int = 1) -> None:
        """Learn one of ``models`` models, which share the time limit."""
        names = ("steps", "optimiser", "estimator", "stages", "initialise", "progress")
        options = {name: getattr(self, name) for name in (*names, "samples", "solver", "tol", "max_epochs")}
        options["time_limit"] = divide_time_limit(self.time_limit, models)
        self.reports_.append(gp.fit(*data, noise=noise, generator=generator, **options))
        self.posteriors_.append(gp.posterior)

    def _kernel(self, columns: int) -> kernels.Kernel:
        if isinstance(self.kernel, kernels.Kernel):
            return self.kernel
        if not isinstance(self.kernel, str) or self.kernel not in tabular.KERNELS:
            names = ", ".join(map(repr, tabular.KERNELS))
            raise ValueError(f"kernel must be a pathgp kernel or one of {names}, got {self.kernel!r}")
        return tabular.kernel_of_columns(self.kernel, columns)

    def _read(self, X: Any) -> torch.Tensor:
        check_is_fitted(self)
        if self.categories_ or self.dates_:
            validate_data(self, X, reset=False, skip_check_array=True)
            return self._tensor(check_array(tabular.convert_columns(X, self._columns), dtype=_DTYPES))
        now = tabular.find_columns(X)
        for name in (*now.dates, *now.categories):
            kind = "dates" if name in now.dates else "text"
            raise ValueError(f"column {name!r} holds {kind} and held numbers at the fit")
        _refuse_rounding(X)
        return self._tensor(validate_data(self, X, dtype=_DTYPES, reset=False, accept_sparse="csr"))

    def _tensor(self, values: Any) -> torch.Tensor:
        device = read_device(self.device)
        return read_matrix(values).X.to(device) if hasattr(values, "tocsr") else torch.tensor(values, device=device)

    def _evaluate(self, quantity: str, X: torch.Tensor, **options: Any) -> NDArray[np.floating]:
        """A quantity of the posterior at X, such as "mean", (..., outputs); without the last axis if y had none."""
        if self._related is not None:
            values = self._related.evaluate(self.posteriors_[0], quantity, X, **options)
        else:
            values = torch.stack([getattr(posterior, quantity)(X, **options) for posterior in self.posteriors_], -1)
        array = values.detach().cpu().numpy()
        return array[..., 0] if self._one_output else array


def _numbers(y: Any, dtype: Any) -> NDArray[Any]:
    """Targets of any numeric dtype, never rounded: the model subtracts their mean before that."""
    y = np.asarray(y)
    if y.dtype.kind not in "fiub":
        raise ValueError(f"y must hold numbers, got dtype {y.dtype}")
    return y.astype(np.result_type(dtype, y))


def _refuse_rounding(X: Any) -> None:
    """Refuse whole numbers that float64 cannot hold: scikit-learn would round them."""
    columns = {f"column {name!r}": X[name].to_numpy() for name in X.columns} if tabular.is_frame(X) else {"X": X}
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and column.dtype.kind in "iu":
            as_float64(column, name)
