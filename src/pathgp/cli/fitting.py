"""``pathgp fit``: from a table to a model, its errors on held-out rows, and what to remember of the columns."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp import metrics
from pathgp.cli.example import example_table
from pathgp.cli.output import Refused, check_place, counted, finite, print_json, say, showing_progress
from pathgp.cli.progress import reading
from pathgp.cli.summary import described, printed
from pathgp.cli.tables import (
    Table,
    dates,
    holds_dates,
    holds_text,
    is_missing,
    listed,
    numbers,
    open_table,
    require_columns,
    texts,
)
from pathgp.data.standardise import Standardisation, blurred_column
from pathgp.data.tabular import EXACT_ROWS, MOST_CATEGORIES, Columns, distinct, kernel_of_columns, refuse_unclear_dates
from pathgp.learning.report import FitReport
from pathgp.models import GP
from pathgp.posterior.table import Posterior

# Above this number of rows float32 is used, which halves time and memory.
_DOUBLE_ROWS = 10_000


@dataclass(frozen=True)
class _Data:
    """A table as a regression problem."""

    name: str
    columns: Columns
    target: str
    X: NDArray[np.float64]
    y: NDArray[np.float64]
    skipped: int


def fit(options: argparse.Namespace) -> int:
    """Learn, measure, save, tell."""
    began = time.perf_counter()
    if options.predictions is not None and options.predict is None:
        raise Refused("--predictions needs --predict, the file whose rows to predict")
    if options.predict is not None and options.predictions is None:
        options.predictions = options.predict.with_name(f"{options.predict.stem}_predictions.csv")
    for path in (options.out, options.report, options.predictions):
        if path is not None:
            check_place(path, options.file, options.predict)
    device = available(options.device)
    if options.file is None:
        data = _example(options)
        if not options.quiet:
            say("no file given: fitting the example data, made-up growth of 600 plants (see pathgp example)")
    else:
        data = _collected(options)
    if options.predict is not None:
        require_columns(data.columns.names, open_table(options.predict, not options.no_header))
    n = len(data.y)
    test = np.zeros(n, dtype=bool)
    test[np.random.default_rng(options.seed).permutation(n)[: int(options.holdout * n)]] = True
    if n - test.sum() < 2:
        raise ValueError(f"{data.name} has {counted(n, 'usable row')}: at least two are needed to learn from")
    if np.ptp(data.y[~test]) == 0:
        raise ValueError(f"the target {data.target!r} is {data.y[0]:g} in every row: there is nothing to learn")
    # Inputs and targets stay in float64: the model shifts and scales them before it rounds.
    X, y = (torch.tensor(values[~test], device=device) for values in (data.X, data.y))
    dtype, why = _precision(options.precision, X, y, data.columns.inputs)
    gp = _model(options, X.shape[1], float(y.std(correction=0)))
    about: dict[str, Any] = {
        "target": data.target,
        "columns": list(data.columns.names),
        "categories": data.columns.categories,
        "dates": list(data.columns.dates),
        "kernel": options.kernel,
        "file": data.name,
        "skipped_rows": data.skipped,
        "held_out_rows": int(test.sum()),
        "noise_fixed": options.noise is not None,
        "seed": options.seed,
    }
    try:
        report = _learned(gp, X, y, dtype, options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_rescued(gp, options.out, about)) from None
    posterior = gp.posterior
    about |= {
        "steps": len(report.history),
        "stopped": report.stopped,
        "fit_epochs": report.epochs,
        "fit_seconds": report.seconds,
    }
    if test.any():
        about["held_out"] = _errors(posterior, torch.tensor(data.X[test], device=device), data.y[test])
    if options.out is not None:
        posterior.save(options.out, about=finite(about))
    if options.report is not None:
        _write_page(posterior, report, data, test, options.report)
    result = described(posterior, about) | {
        "precision_note": why,
        "seconds": time.perf_counter() - began,
        "model": None if options.out is None else str(options.out),
        "report": None if options.report is None else str(options.report),
        "predictions": None if options.predictions is None else str(options.predictions),
    }
    if not (options.json or options.quiet):
        print(printed(result))
    if options.predict is not None:
        from pathgp.cli.predicting import Request, predicted

        request = Request(
            posterior,
            finite(about),
            options.predict,
            options.predictions,
            options.out,
            has_header=not options.no_header,
            skip_missing=options.skip_missing,
            quiet=options.quiet or options.json,
            tells=not (options.quiet or options.json),
        )
        result["predicted"] = predicted(request)
    if options.json:
        print_json(result)
    return 0


def available(name: str | None) -> torch.device | None:
    """A device by name, if it is there."""
    if name is None:
        return None
    try:
        return torch.empty(0, device=name).device
    except Exception as error:
        told = str(error).splitlines()[0]
        raise ValueError(f"--device {name} is not available here: {told}") from None


def _collected(options: argparse.Namespace) -> _Data:
    """The whole file: which columns are text, their categories, rows without a value."""
    table = open_table(options.file, not options.no_header)
    if options.target is None:
        raise Refused(f"say which column to predict with --target: there are {listed(table.names)}")
    target = table.require(options.target, "--target")
    names, categorical = _inputs(table, target, options)
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in [*names, target]}
    text: set[str] = set()
    dated: set[str] = set()
    first, skipped = None, 0
    for block in reading(table, [*names, target], options.quiet):
        if not parts[target]:
            if target not in categorical and holds_text(block, target):
                raise ValueError(f"the target {target!r} holds text: pathgp learns numbers, not classes")
            dated = {name for name in names if name not in categorical and holds_dates(block, name)}
            text = {name for name in names if name not in dated and (name in categorical or holds_text(block, name))}
        values = {
            name: texts(block, name) if name in text else (dates if name in dated else numbers)(block, name)
            for name in parts
        }
        missing = np.zeros(len(block), dtype=bool)
        for name, column in values.items():
            empty = is_missing(column)
            if first is None and empty.any():
                first = f"column {name!r} has no value in {block.place(int(np.argmax(empty)))}"
            missing |= empty
        skipped += int(missing.sum())
        for name, column in values.items():
            parts[name].append(column[~missing])
    if first is not None and not options.skip_missing:
        raise ValueError(
            f"{first}, and {counted(skipped, 'row')} in all lack a value: fill them in, "
            "leave the rows out with --skip-missing, or columns with --ignore"
        )
    whole = {name: np.concatenate(part) if part else np.empty(0) for name, part in parts.items()}
    if not len(whole[target]):
        raise ValueError(f"{options.file} has no rows" + (" without missing values" if skipped else ""))
    categories = {name: distinct(whole[name].tolist()) for name in names if name in text}
    for name, known in categories.items():
        if name not in categorical:
            refuse_unclear_dates(name, known, f"leave it out with --ignore {name}, or insist with --categorical {name}")
        if len(known) > MOST_CATEGORIES and name not in categorical:
            raise ValueError(
                f"column {name!r} holds text, {len(known):,} different ones such as {known[0]!r}: leave it out with "
                f"--ignore {name} (names), turn it into numbers (dates), or insist with --categorical {name}"
            )
    columns = Columns(names, categories, [name for name in names if name in dated])
    return _Data(options.file.name, columns, target, columns.matrix(whole.__getitem__), whole[target], skipped)


def _inputs(table: Table, target: str, options: argparse.Namespace) -> tuple[list[str], set[str]]:
    """The names of the input columns, and those to be read as categories."""
    ignored = {table.require(name, "--ignore") for name in options.ignore}
    categorical = {table.require(name, "--categorical") for name in options.categorical}
    if options.inputs is None:
        names = [name for name in table.names if name != target and name not in ignored]
        unnamed = [name for name in names if name.startswith("#") and name[1:].isdigit()]
        if unnamed:
            raise ValueError(
                f"column {unnamed[0][1:]} of {table.path.name} has no name (row numbers of a data frame?): name it, "
                f"or leave it out with --ignore '{unnamed[0]}'"
            )
    else:
        names = [table.require(name, "--inputs") for name in options.inputs if name not in ignored]
    if target in names:
        raise Refused(f"{target!r} cannot be an input and the target")
    if len(set(names)) < len(names):
        raise Refused("--inputs names a column twice")
    if not names:
        raise Refused("no column is left as an input")
    return names, categorical


def _example(options: argparse.Namespace) -> _Data:
    given = [name for name in ("target", "inputs", "ignore", "categorical") if getattr(options, name)]
    if given:
        raise Refused(f"--{given[0]} needs a file: pathgp fit FILE --target COL")
    table = example_table()
    *names, target = table
    columns = Columns(names, {"soil": distinct(table["soil"].tolist())})
    return _Data("the example", columns, target, columns.matrix(table.__getitem__), table[target], 0)


def _precision(asked: str | None, X: torch.Tensor, y: torch.Tensor, names: list[str]) -> tuple[torch.dtype, str]:
    """The precision of the work and the reason for it, where that is not the number of rows."""
    if asked == "float64" or (asked is None and len(y) <= _DOUBLE_ROWS):
        return torch.float64, "as asked" if asked else ""
    blurred = blurred_column(Standardisation.of(X, y).inputs(X), torch.float32)
    if blurred is None:
        return torch.float32, "as asked" if asked else ""
    if asked is not None:
        raise ValueError(f"--precision float32 would blur or merge distinct values of {names[blurred]!r}: use float64")
    return torch.float64, f"float32 would blur {names[blurred]!r}"


def _model(options: argparse.Namespace, columns: int, spread: float) -> GP:
    """The model to learn; a given noise is in the units of the target, whose deviation is ``spread``."""
    kernel = kernel_of_columns(options.kernel, columns)
    if options.noise is None:
        return GP(kernel, noise=0.1, standardise=True)
    return GP(kernel, noise=options.noise / spread, standardise=True).constrain("noise", fixed=True)


def _learned(gp: GP, X: torch.Tensor, y: torch.Tensor, dtype: torch.dtype, options: argparse.Namespace) -> FitReport:
    """Exact gradients for few rows; beyond, estimated ones, most of them on a part of the rows."""
    exact = len(y) <= EXACT_ROWS
    return gp.fit(
        X,
        y,
        steps=options.steps,
        samples=options.samples,
        estimator="exact" if exact else "pathwise",
        optimiser="lbfgs",
        coarse=not exact,
        initialise="data",
        progress=showing_progress(options.quiet),
        generator=torch.Generator().manual_seed(options.seed),
        dtype=dtype,
    )


def _rescued(gp: GP, path: Path | None, about: dict[str, Any]) -> str:
    """Save what an interrupted fit has left, and say so."""
    try:
        posterior = gp.posterior
    except RuntimeError:
        return "interrupted: no file was written"
    if path is None:
        return "interrupted: there was no --out to save the last step to"
    posterior.save(path, about=about | {"stopped": "interrupted"})
    return f"interrupted: the model of the last whole step is in {path}"


def _errors(posterior: Posterior, X: torch.Tensor, y: NDArray[np.float64]) -> dict[str, float]:
    mean, variance = posterior.mean(X), posterior.variance(X, noise=True)
    return {
        "rmse": metrics.rmse(y, mean),
        "nll": metrics.nll(y, mean, variance),
        "coverage_95": metrics.coverage(y, mean, variance),
        "target_std": float(y.std()),
    }


def _write_page(posterior: Posterior, report: FitReport, data: _Data, test: NDArray[np.bool_], path: Path) -> None:
    some = bool(test.any())
    posterior.to_html(
        path,
        X_test=data.X[test] if some else None,
        y_test=data.y[test] if some else None,
        names=data.columns.inputs,
        target=data.target,
        fit=report,
        title=f"{data.target} from {data.name}",
    )
