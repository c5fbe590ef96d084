"""Exact log likelihoods of `low_noise`, in float64, and the references that its fits are compared with."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import pathgp
from benchmarks.common.fits import THESIS_FIT
from benchmarks.trust.cases import Part, deviation_of
from pathgp.data.tabular import kernel_of_columns

if TYPE_CHECKING:
    from benchmarks.trust.low_noise_sets import FieldSet

# Up to these numbers of rows Adam has exact gradients, and likelihoods are computed.
EXACT_ROWS, DENSE_ROWS = 1500, 5000


def dense_log_likelihood(K: Tensor, y: Tensor, noise: float) -> float:
    """log N(y | 0, K + noise^2 I) a row, in float64."""
    K.diagonal().add_(noise**2)
    factor, failed = torch.linalg.cholesky_ex(K)
    if int(failed) or not bool(torch.isfinite(factor).all()):
        return -math.inf
    b = torch.linalg.solve_triangular(factor, y.unsqueeze(1), upper=False)
    value = -b.square().sum() / 2 - factor.diagonal().log().sum()
    return float(value) / len(y) - 0.5 * math.log(2 * math.pi)


def likelihood_of_table(model: pathgp.GP, X: Tensor, y: Tensor) -> float | None:
    """Of a Matern-5/2 model with ``standardise=True`` on its data; None for more than 5,000 rows."""
    if len(y) > DENSE_ROWS:
        return None
    X, y = X.to(torch.float64), y.to(torch.float64)
    scaled = model.kernel
    assert isinstance(scaled, pathgp.kernels.Scale)
    part = Part(
        "matern-5/2", tuple(range(X.shape[1])), scaled.kernel.lengthscale.detach(), float(scaled.signal.detach())
    )
    standardised = (X - X.mean(0)) / deviation_of(X)
    targets = (y - y.mean()) / deviation_of(y.unsqueeze(1))
    return dense_log_likelihood(part.covariance(standardised, standardised), targets, float(model.noise.detach()))


def likelihood_of_field(model: Any, data: FieldSet) -> float | None:
    """A row, in units of the spread of the field; the kernel, chosen by `fill`, is that of the package."""
    observed = np.isfinite(data.values)
    y = torch.from_numpy(data.values[observed].astype(np.float64))
    unit = float(deviation_of(y.unsqueeze(1))[0])
    columns = [side[place] for side, place in zip(data.coordinates.values(), np.nonzero(observed), strict=True)]
    X = torch.from_numpy(np.stack(columns, 1).astype(np.float64))
    with torch.no_grad():
        K = model.product((1, 1))(X).to(torch.float64) / unit**2
    level = float(model.mean) if not callable(model.mean) else float(model.mean.value)
    return dense_log_likelihood(K, (y - level) / unit, float(model.noise.detach()) / unit)


def new_model(columns: int) -> pathgp.GP:
    return pathgp.GP(kernel_of_columns("matern-5/2", columns), noise=0.1, standardise=True)


@dataclass(frozen=True)
class Reference:
    """A table whose start and Adam's end are computed once, for all doors that get it in this dtype."""

    X: Tensor
    y: Tensor

    def compare(self, learned: pathgp.GP) -> tuple[float | None, float | None, float | None]:
        """Likelihoods at the start, at the end and after Adam's steps; None for more than 5,000 rows."""
        if len(self.y) > DENSE_ROWS:
            return None, None, None
        return self.start, likelihood_of_table(learned, self.X, self.y), self.adam

    @cached_property
    def start(self) -> float | None:
        return likelihood_of_table(self._fit(steps=0, samples=1), self.X, self.y)

    @cached_property
    def adam(self) -> float | None:
        return likelihood_of_table(self.model_of_adam, self.X, self.y)

    @cached_property
    def model_of_adam(self) -> pathgp.GP:
        exact = {"estimator": "exact"} if len(self.y) <= EXACT_ROWS else {}
        return self._fit(steps=100, optimiser="adam", **exact)

    def _fit(self, **options: Any) -> pathgp.GP:
        gp = new_model(self.X.shape[1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = THESIS_FIT | {"initialise": "data"} | options
            gp.fit(self.X, self.y, generator=torch.Generator().manual_seed(0), **options)
        return gp
