"""One fit of `low_noise` through each interface."""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import pathgp
import pathgp.cli
import pathgp.sklearn
import pathgp.xarray
from benchmarks.common.fits import THESIS_FIT
from benchmarks.trust.cases import deviation_of
from benchmarks.trust.low_noise_likelihoods import EXACT_ROWS, likelihood_of_field, new_model
from benchmarks.trust.low_noise_sets import FieldSet, TableSet
from pathgp.models.base import Model


@dataclass(frozen=True)
class Fitted:
    """What a door left behind: predictions of held-out values, and where its model started and ended.

    likelihoods: returns the exact log likelihood a row, in standardised units, at the start, at the end, and after
    Adam's steps from the same start; None where there are too many rows.
    adam: returns the model after Adam's steps, whose predictions are compared; None if they are not.
    """

    y: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    report: Any
    likelihoods: Callable[[], tuple[float | None, float | None, float | None]]
    steps: int | None = None
    noise: float | None = None
    adam: Callable[[], pathgp.GP] | None = None


def fit_gp(data: TableSet, generator: int) -> Fitted:
    return _fit_gp(data, generator, **THESIS_FIT | {"initialise": "data"})


def fit_default(data: TableSet, generator: int) -> Fitted:
    return replace(_fit_gp(data, generator), adam=lambda: data.given.model_of_adam)


def _fit_gp(data: TableSet, generator: int, **options: Any) -> Fitted:
    gp = new_model(data.X.shape[1])
    report = gp.fit(data.given.X, data.given.y, generator=torch.Generator().manual_seed(generator), **options)
    Xs, posterior = torch.from_numpy(data.X_test), gp.posterior
    mean, variance = posterior.mean(Xs).numpy(), posterior.variance(Xs, noise=True).numpy()
    return Fitted(
        data.y_test,
        mean,
        variance,
        posterior.report,
        lambda: data.given.compare(gp),
        steps=len(report.history),
        noise=float(gp.noise.detach()),
    )


def fit_sklearn(data: TableSet, generator: int) -> Fitted:
    model = pathgp.sklearn.GPRegressor(random_state=generator).fit(data.X, data.y)
    mean, std = model.predict(data.X_test, return_std=True)
    posterior, report = model.posteriors_[0], model.reports_[0]
    noise = float(posterior.model.noise)
    unit = float(deviation_of(torch.from_numpy(data.y).unsqueeze(1))[0])
    variance = std.astype(np.float64) ** 2 + (noise * unit) ** 2
    return Fitted(
        data.y_test,
        mean,
        variance,
        posterior.report,
        lambda: data.given.compare(posterior.model),
        steps=len(report.history),
        noise=noise,
    )


class ExitCode(RuntimeError):
    """A command ended with another exit code than 0."""


def fit_cli(data: TableSet, generator: int) -> Fitted:
    """`pathgp fit` on a CSV file with all digits; what it says on standard error becomes warnings."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "rows.csv", Path(folder) / "model.pgp"
        names = [f"x{i}" for i in range(data.X.shape[1])]
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*names, "y"])
            writer.writerows(np.column_stack([data.X, data.y]).astype(np.float64).tolist())
        said, printed = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            arguments = ["fit", str(path), "--target", "y", "--out", str(out), "--holdout", "0", "--json"]
            arguments += ["--seed", str(generator)]
            code = pathgp.cli.main(arguments)
        for line in said.getvalue().splitlines():
            warnings.warn(line, stacklevel=1)
        if code:
            raise ExitCode(f"exit code {code}: {said.getvalue().strip()[-200:]}")
        steps = json.loads(printed.getvalue())["steps"]
        posterior = pathgp.load(out)
    Xs = data.X_test.astype(np.float64)
    mean, variance = posterior.mean(Xs), posterior.variance(Xs, noise=True)
    return Fitted(
        data.y_test,
        mean,
        variance,
        posterior.report,
        lambda: data.double.compare(posterior.model),
        steps=steps,
        noise=float(posterior.model.noise),
    )


def fit_fill(data: FieldSet, generator: int) -> Fitted:
    import xarray as xr

    field = xr.DataArray(data.values, coords=data.coordinates, dims=list(data.coordinates))
    fits: list[tuple[Any, tuple[Any, ...], Any, Any]] = []
    fit = Model.fit

    def record(model: Any, *arguments: Any, **options: Any) -> Any:
        before = copy.deepcopy(model)
        report = fit(model, *arguments, **options)
        fits.append((before, arguments, model, report))
        return report

    with mock.patch.object(Model, "fit", record):
        filled = pathgp.xarray.fill(field, generator=torch.Generator().manual_seed(generator), progress=False)
    before, arguments, after, report = fits[-1]
    holes = np.isnan(data.values)
    mean, std = filled["mean"].values[holes], filled["std"].values[holes].astype(np.float64)
    noise = float(filled.attrs["noise"])

    def compare() -> tuple[float | None, float | None, float | None]:
        model = copy.deepcopy(before)
        estimator = "exact" if data.rows <= EXACT_ROWS else "pathwise"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = THESIS_FIT | {"estimator": estimator, "steps": 100}
            fit(model, *arguments, generator=torch.Generator().manual_seed(0), **options)
        start, end, adam = (likelihood_of_field(each, data) for each in (before, after, model))
        return start, end, adam

    return Fitted(
        data.whole[holes],
        mean,
        std**2 + noise**2,
        after.posterior.report,
        compare,
        steps=len(report.history),
        noise=noise / float(np.nanstd(data.values)),
    )


FITS: dict[str, Callable[[Any, int], Fitted]] = {
    "GP": fit_gp,
    "GPRegressor": fit_sklearn,
    "cli": fit_cli,
    "default": fit_default,
    "fill": fit_fill,
}
