"""Default fits on data with little noise through every interface, compared with the exact likelihood and 100 steps of
Adam.

    python -m benchmarks.trust.low_noise [--sets smooth friedman-1e-03 bike ...] [--rows-max 5000] [--generators 4]
                                         [--doors GP GPRegressor cli default fill] [--hard] [--all-rows]
                                         [--free-rows 20000 ...] [--device cuda] [--processes 1] [--list]

Interfaces: `GP.fit(initialise="data")` with ``standardise=True`` and the thesis's options, `GPRegressor` and
`pathgp fit` for tables, with a Matern-5/2 kernel with a length scale per column; `xarray.fill` for fields; all other
options are defaults. 500 rows are held out; of fields about a quarter of the cells. ``--sets`` selects the sets whose
names contain one of the words.

The sets ``free-*`` have no noise in 2, 6 and 20 columns. They and ``bike-2500-*`` are learned by `GP.fit` with default
options ("default"), once per generator; *scatter* is the range of the test log-likelihood between generators.
``--free-rows`` adds sets ``free-*`` with these numbers of rows. ``--device`` is that of `GP.fit` ("GP", "default"); on
a GPU larger sets are compared with Adam.

A fit is ok unless

    failed         it raised an error, or had an exit code other than 0
    below start    its exact log likelihood (dense, float64) is below that of its initial values by more than 0.0005
                   nats per row, the gain at which fits end: fields start at the optimum of sub-grids
    below Adam     it is below that of 100 steps of Adam from the same initial values (exact gradients up to 1,500 rows)
                   by more than 0.01 nats per row and 1 % of their gain
    not converged  the solve of its posterior ended above the tolerance
    coverage       its 95 % intervals contain fewer than 85 % of the held-out values, or are NaN

*said* is the number of warnings. The file keeps the rows of earlier runs.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import io
import json
import math
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import pathgp
import pathgp.cli
from benchmarks.common.fits import THESIS_FIT
from benchmarks.common.options import parse
from benchmarks.common.recording import read, results_file, table, write
from benchmarks.common.uci import uci
from benchmarks.trust.cases import Part, deviation_of
from pathgp.data.tabular import kernel_of_columns
from pathgp.metrics import coverage, nll, rmse
from pathgp.models.base import Model

DOORS = ("GP", "GPRegressor", "cli", "default", "fill")
NOISES = (0.0, 1e-5, 1e-4, 1e-3, 5e-3, 1e-2)
# Rows of the tables, by noise: one in float64 and one in float32 for every generator, many small ones, two of 5,000.
ROWS = {
    "smooth": ((200, 1200), (400, 1000), (1200, 300), (600, 2000), (1500, 500), (800, 1200)),
    "matern": ((300, 1000), (1200, 200), (500, 1500), (2000, 400), (1000, 800), (5000, 600)),
    "friedman": ((500, 1200), (1200, 300), (300, 2000), (1000, 600), (5000, 400), (1500, 800)),
    "rough": ((400, 800), (200, 1200), (1500, 300), (1200, 500), (600, 1000), (2000, 200)),
}
# Columns and numbers of rows of the sets without noise, by function.
FREE = {"smooth": (2, (500, 2000)), "matern": (6, (500, 2000, 5000)), "friedman": (20, (500, 2000))}
HARD = ("smooth-0e+00-200", "smooth-0e+00-1200", "matern-1e-05-1200", "friedman-1e-05-1200", "rough-1e-05-1200")
HARD += ("field-smooth-0e+00", "field-matern-1e-04", "field-rough-1e-05")
HELD_OUT, EXACT_ROWS = 500, 1500
# Largest number of rows of a dense matrix.
DENSE_ROWS = {"cpu": 5000, "cuda": 25_000}
MARGIN, START_MARGIN, LEAST_COVERAGE = 0.01, 5e-4, 0.85
PROBLEMS = ("failed", "below start", "below Adam", "not converged", "coverage")


@dataclass(frozen=True)
class TableSet:
    """Rows to learn from, and rows held out, NumPy arrays in the dtype of the set."""

    name: str
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    doors: tuple[str, ...] = ("GP", "GPRegressor", "cli")
    device: str = "cpu"

    @property
    def rows(self) -> int:
        return len(self.y)

    @cached_property
    def given(self) -> Reference:
        """In the dtype of the set."""
        return Reference(*(torch.from_numpy(part).to(self.device) for part in (self.X, self.y)))

    @property
    def new(self) -> Tensor:
        """The inputs of the held-out rows."""
        return torch.from_numpy(self.X_test).to(self.device)

    @cached_property
    def double(self) -> Reference:
        """In float64, as a file of text is read."""
        if self.X.dtype == np.float64:
            return self.given
        return Reference(self.given.X.to(torch.float64), self.given.y.to(torch.float64))


@dataclass(frozen=True)
class FieldSet:
    """A field on a grid; ``values`` has NaN where cells are held out or missing, ``whole`` has them all."""

    name: str
    coordinates: dict[str, np.ndarray]
    values: np.ndarray
    whole: np.ndarray

    doors = ("fill",)

    @property
    def rows(self) -> int:
        return int(np.isfinite(self.values).sum())


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


def sets(all_rows: bool, free_rows: Sequence[int] = ()) -> Iterator[tuple[str, int, Callable[[], TableSet | FieldSet]]]:
    """Name, rows and maker of every set."""
    seed = 0
    for generator, choices in ROWS.items():
        for noise, (double, single) in zip(NOISES, choices, strict=True):
            for rows, dtype in ((double, np.float64), (single, np.float32)):
                name = f"{generator}-{noise:.0e}-{rows}-{np.dtype(dtype).name}"
                seed += 1

                def make(name=name, generator=generator, noise=noise, rows=rows, dtype=dtype, seed=seed) -> TableSet:
                    return _table(name, generator, noise, rows, dtype, seed)

                yield name, rows, make
    for generator in ROWS:
        for i, noise in enumerate(NOISES):
            dtype = (np.float64, np.float32)[i % 2]
            sizes = ((20, 15), (40, 30), (45, 42))[(i + len(generator)) % 3]
            name = f"field-{generator}-{noise:.0e}-{sizes[0]}x{sizes[1]}-{np.dtype(dtype).name}"
            seed += 1

            def make_field(
                name=name, generator=generator, noise=noise, sizes=sizes, dtype=dtype, seed=seed
            ) -> FieldSet:
                return _field(name, generator, noise, sizes, dtype, seed)

            yield name, round(0.7 * math.prod(sizes)), make_field
    for generator, (columns, sizes) in FREE.items():
        seed += 1
        for rows, dtype in product((*sizes, *free_rows), (np.float64, np.float32)):
            name = f"free-{generator}-{columns}d-{rows}-{np.dtype(dtype).name}"

            def make_free(
                name=name, generator=generator, rows=rows, dtype=dtype, seed=seed, columns=columns
            ) -> TableSet:
                return replace(_table(name, generator, 0.0, rows, dtype, seed, columns), doors=("default",))

            yield name, rows, make_free
    for rows in (2500, 3000, *([None] if all_rows else [])):
        for dtype in ("float64", "float32"):
            name = f"bike-{rows or 'all'}-{dtype}"
            yield name, rows or 0, lambda name=name, rows=rows, dtype=dtype: _bike(name, rows, dtype)


def _bike(name: str, rows: int | None, dtype: str) -> TableSet:
    data = uci("bike", dtype=getattr(torch, dtype), rows=rows)
    X_test, y_test = data.X_test[:HELD_OUT].numpy(), data.y_test[:HELD_OUT].numpy()
    found = TableSet(name, data.X.numpy(), data.y.numpy(), X_test, y_test)
    return replace(found, doors=("default",)) if rows == 2500 else found


def _table(
    name: str, generator: str, noise: float, rows: int, dtype: Any, seed: int, columns: int | None = None
) -> TableSet:
    rng = np.random.default_rng(seed)
    d = columns or {"smooth": 2, "matern": 2 + seed % 5, "friedman": 10, "rough": 3}[generator]
    X = rng.random((rows + HELD_OUT, d))
    f = _function(generator, X, rng)
    y = f + noise * f.std() * rng.normal(size=len(f))
    X, y = X.astype(dtype), y.astype(dtype)
    return TableSet(name, X[:rows], y[:rows], X[rows:], y[rows:])


def _field(name: str, generator: str, noise: float, sizes: tuple[int, int], dtype: Any, seed: int) -> FieldSet:
    rng = np.random.default_rng(seed)
    time_, place = np.linspace(0.0, 1.0, sizes[0]), np.linspace(0.0, 1.0, sizes[1])
    X = np.stack(np.meshgrid(time_, place, indexing="ij"), -1).reshape(-1, 2)
    if generator == "friedman":
        X = np.concatenate([X, np.full((len(X), 8), 0.5)], 1)
    f = _function(generator, X, rng)
    whole = (f + noise * f.std() * rng.normal(size=len(f))).reshape(sizes).astype(dtype)
    values = whole.copy()
    values[rng.random(sizes) < 0.2] = np.nan
    low = [p // 3 for p in sizes]
    values[low[0] : low[0] + sizes[0] // 4, low[1] : low[1] + sizes[1] // 4] = np.nan
    return FieldSet(name, {"time": 10.0 * time_, "place": 100.0 * place}, values, whole)


def _function(generator: str, X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Values (n,) of a function at X (n, d) in the unit cube."""
    if generator == "smooth":
        return np.sin(6.0 * X[:, 0]) + X[:, 1] ** 2
    if generator == "matern":
        d = X.shape[1]
        part = Part("matern-3/2", tuple(range(d)), torch.full((d,), 0.4 * d**0.5, dtype=torch.float64), 1.0)
        K = part.covariance(torch.from_numpy(X), torch.from_numpy(X))
        K.diagonal().add_(1e-12)
        return (torch.linalg.cholesky(K) @ torch.from_numpy(rng.normal(size=len(X)))).numpy()
    if generator == "friedman":
        first = 10.0 * np.sin(math.pi * X[:, 0] * X[:, 1]) + 20.0 * (X[:, 2] - 0.5) ** 2
        return first + 10.0 * X[:, 3] + 5.0 * X[:, 4]
    # Steps, a kink and a fast wave.
    return np.floor(3.0 * X[:, 0]) + np.abs(X[:, 1] - 0.4) + 0.3 * np.sin(40.0 * X[:, -1])


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
    """Of a Matern-5/2 model with ``standardise=True`` on its data; None for more than `DENSE_ROWS`."""
    if len(y) > DENSE_ROWS[y.device.type]:
        return None
    X, y = X.to(torch.float64), y.to(torch.float64)
    scaled = model.kernel
    assert isinstance(scaled, pathgp.kernels.Scale)
    lengthscale = scaled.kernel.lengthscale.detach().cpu()
    part = Part("matern-5/2", tuple(range(X.shape[1])), lengthscale, float(scaled.signal.detach()))
    standardised = (X - X.mean(0)) / deviation_of(X)
    targets = (y - y.mean()) / deviation_of(y.unsqueeze(1))
    return dense_log_likelihood(part.covariance(standardised, standardised), targets, float(model.noise.detach()))


def new_model(columns: int) -> pathgp.GP:
    return pathgp.GP(kernel_of_columns("matern-5/2", columns), noise=0.1, standardise=True)


@dataclass(frozen=True)
class Reference:
    """A table whose start and Adam's end are computed once, for all doors that get it in this dtype."""

    X: Tensor
    y: Tensor

    def compare(self, learned: pathgp.GP) -> tuple[float | None, float | None, float | None]:
        """Likelihoods at the start, at the end and after Adam's steps."""
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


def predict(posterior: Any, data: TableSet) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the held-out values."""
    found = posterior.mean(data.new), posterior.variance(data.new, noise=True)
    mean, variance = (part.cpu().numpy() for part in found)
    return mean, variance


def fit_gp(data: TableSet, generator: int) -> Fitted:
    return _fit_gp(data, generator, **THESIS_FIT | {"initialise": "data"})


def fit_default(data: TableSet, generator: int) -> Fitted:
    return replace(_fit_gp(data, generator), adam=lambda: data.given.model_of_adam)


def _fit_gp(data: TableSet, generator: int, **options: Any) -> Fitted:
    gp = new_model(data.X.shape[1])
    report = gp.fit(data.given.X, data.given.y, generator=torch.Generator().manual_seed(generator), **options)
    mean, variance = predict(gp.posterior, data)
    return Fitted(
        data.y_test,
        mean,
        variance,
        gp.posterior.report,
        lambda: data.given.compare(gp),
        steps=len(report.history),
        noise=float(gp.noise.detach()),
    )


def fit_sklearn(data: TableSet, generator: int) -> Fitted:
    from pathgp.sklearn import GPRegressor

    model = GPRegressor(random_state=generator).fit(data.X, data.y)
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

    from pathgp.xarray import fill

    field = xr.DataArray(data.values, coords=data.coordinates, dims=list(data.coordinates))
    fits: list[tuple[Any, tuple[Any, ...], Any, Any]] = []
    fit = Model.fit

    def record(model: Any, *arguments: Any, **options: Any) -> Any:
        before = copy.deepcopy(model)
        report = fit(model, *arguments, **options)
        fits.append((before, arguments, model, report))
        return report

    with mock.patch.object(Model, "fit", record):
        filled = fill(field, generator=torch.Generator().manual_seed(generator), progress=False)
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


FITS: dict[str, Callable[[Any, int], Fitted]] = {
    "GP": fit_gp,
    "GPRegressor": fit_sklearn,
    "cli": fit_cli,
    "default": fit_default,
    "fill": fit_fill,
}


def measure(data: TableSet | FieldSet, door: str, generator: int) -> dict[str, Any]:
    """One fit, its numbers and its verdict."""
    row: dict[str, Any] = {"set": data.name, "door": door, "generator": generator, "rows": data.rows}
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fitted = FITS[door](data, generator)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            return row | {"verdict": "failed", "error": told[-240:], "seconds": time.perf_counter() - began}
    said = sorted({" ".join(str(w.message).split())[:160] for w in caught if not issubclass(w.category, FutureWarning)})
    row["seconds"] = time.perf_counter() - began
    start, end, adam = fitted.likelihoods()
    spread = float(np.std(fitted.y.astype(np.float64)))
    valid = bool(np.isfinite(fitted.mean).all() and np.isfinite(fitted.variance).all() and (fitted.variance > 0).all())
    row |= {
        "rmse/std": rmse(fitted.y, fitted.mean) / spread if valid else math.nan,
        "nll": nll(fitted.y / spread, fitted.mean / spread, fitted.variance / spread**2) if valid else math.nan,
        "coverage": coverage(fitted.y, fitted.mean, fitted.variance) if valid else math.nan,
        "status": fitted.report.status.name,
        "residual": fitted.report.worst_residual,
        "steps": fitted.steps,
        "noise": fitted.noise,
        "start": start,
        "end": end,
        "adam": adam,
        "said": len(said),
        "warnings": said,
    }
    if fitted.adam is not None and isinstance(data, TableSet):
        mean, variance = predict(fitted.adam().posterior, data)
        row["adam nll"] = nll(fitted.y / spread, mean / spread, variance / spread**2)
    return row | {"verdict": verdict(row)}


def measure_all(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A set through its doors."""
    data = next(make for each, _, make in sets(True, options.free_rows) if each == name)()
    if isinstance(data, TableSet):
        data = replace(data, device=options.device)
    doors, seeds = [door for door in data.doors if door in options.doors], range(options.generators)
    return [measure(data, door, seed) for door in doors for seed in seeds]


def scatter(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Test log-likelihoods of sets that ran with several generators, their range, and that of Adam."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if "nll" in row:
            found.setdefault((row["set"], row["door"]), []).append(row)
    summaries = []
    for (name, door), runs in found.items():
        values = [-run["nll"] for run in runs]
        adam = -runs[0]["adam nll"] if "adam nll" in runs[0] else None
        summary = {"least": min(values), "largest": max(values), "scatter": max(values) - min(values), "adam": adam}
        summaries += [{"set": name, "door": door, **summary}] if len(runs) > 1 else []
    return summaries


def verdict(row: dict[str, Any]) -> str:
    """The problems of a fit, or ok."""

    def below(other: str, margin: float) -> bool:
        return None not in (row["end"], row[other]) and not row["end"] >= row[other] - margin

    found = {
        "below start": below("start", START_MARGIN),
        "below Adam": below("adam", MARGIN * max(1.0, (row["adam"] or 0.0) - (row["start"] or 0.0))),
        "not converged": row["status"] != "CONVERGED",
        "coverage": not row["coverage"] >= LEAST_COVERAGE,
    }
    return ", ".join(name for name, is_so in found.items() if is_so) or "ok"


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many fits of every door are ok, how many have each problem, and how many of these said nothing."""
    found = []
    for door in (*DOORS, "all"):
        chosen = [row for row in rows if door in (row["door"], "all")]
        counts = {problem: sum(problem in row["verdict"] for row in chosen) for problem in PROBLEMS}
        silent = sum(row["verdict"] not in ("ok", "failed") and not row["said"] for row in chosen)
        fine = sum(row["verdict"] == "ok" for row in chosen)
        found.append({"door": door, "fits": len(chosen), "ok": fine, **counts, "without a word": silent})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", default=[""], help="words that the name of a set must contain one of")
    parser.add_argument("--doors", nargs="*", choices=DOORS, default=DOORS)
    parser.add_argument("--generators", type=int, default=1, help="fits of every set, each with its own seed")
    parser.add_argument("--rows-max", type=int, default=5000, help="leave larger sets out")
    parser.add_argument("--free-rows", type=int, nargs="*", default=[], help="rows of further sets without noise")
    parser.add_argument("--device", default="cpu", help="of GP.fit")
    parser.add_argument("--hard", action="store_true", help="only sets that were hard for earlier versions: minutes")
    parser.add_argument("--all-rows", action="store_true", help="also bike with all its rows")
    parser.add_argument("--processes", type=int, default=1, help="sets at a time")
    parser.add_argument("--list", action="store_true", help="only list the sets")
    parser.add_argument("--name", default="low_noise", help="of the file of results")
    options = parse(parser, sets=["smooth-0e+00-200"], doors=["GPRegressor"])
    words = HARD if options.hard else options.sets
    chosen = [
        (rows, name)
        for name, rows, _ in sets(options.all_rows, options.free_rows)
        if rows <= options.rows_max and any(word in name for word in words)
    ]
    if options.list:
        print("\n".join(name for _, name in chosen))
        return
    # The longest first.
    chosen.sort(key=lambda each: each[0] or math.inf, reverse=options.processes > 1)
    rows = []
    keys = (
        "set",
        "door",
        "generator",
        "seconds",
        "rmse/std",
        "nll",
        "coverage",
        "status",
        "residual",
        "steps",
        "noise",
    )
    keys += ("start", "end", "adam", "said", "verdict")
    threads = torch.get_num_threads() if options.processes == 1 else 1
    # CUDA does not work in forked processes.
    context = multiprocessing.get_context(None if options.device == "cpu" else "spawn")
    with ProcessPoolExecutor(options.processes, context, torch.set_num_threads, (threads,)) as pool:
        running = [pool.submit(measure_all, name, options) for _, name in chosen]
        for i, done in enumerate(as_completed(running)):
            for row in done.result():
                found = f"{row['verdict']}, {row['seconds']:.0f} s"
                print(f"[{i + 1}/{len(chosen)}] {row['set']}, {row['door']}: {found}", file=sys.stderr, flush=True)
                rows.append(row)
            lines = [*read(options.name), *rows]
            merged = list({(each["set"], each["door"], each.get("generator", 0)): each for each in lines}.values())
            write(options.name, merged, counts=summarise(merged), scatter=scatter(merged))
    print(table([{key: row.get(key) for key in keys} for row in rows]))
    print("\n" + table(summarise(rows)))
    print("\n" + table(scatter(rows)))
    print("written to", results_file(options.name))


if __name__ == "__main__":
    main()
