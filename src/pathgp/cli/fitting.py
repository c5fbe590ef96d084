"""``pathgp fit``: learn a model from a table, measure its errors on held-out rows, save and report it."""

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
from pathgp.cli.commands import example_table
from pathgp.cli.output import UsageError, finite, print_json, print_note, require_writable, showing_progress
from pathgp.cli.predicting import find_device, write_predictions
from pathgp.cli.summary import describe, format_summary
from pathgp.cli.tables import Table, join_names, open_table, read_blocks
from pathgp.data.standardise import Standardisation, blurred_column
from pathgp.data.tabular import Columns, distinct, find_categories, kernel_of_columns
from pathgp.html.numbers import count
from pathgp.learning.policy import choose_dtype
from pathgp.models import GP
from pathgp.posterior.table import Posterior


@dataclass(frozen=True)
class _Data:
    """A table as a regression problem."""

    name: str
    columns: Columns
    target: str
    X: NDArray[np.float64]
    y: NDArray[np.float64]
    skipped: int


def fit(options: argparse.Namespace) -> None:
    """Learn a model, measure it, save and report it."""
    began = time.perf_counter()
    device = _check(options)
    data = _read_example(options) if options.file is None else _read_file(options)
    columns = data.columns
    if options.predict is not None:
        open_table(options.predict, not options.no_header).require_columns(columns.names)
    test = _choose_test_rows(data, options)
    # Inputs and targets stay in float64: the model shifts and scales them before it rounds.
    X, y = (torch.tensor(values[~test], device=device) for values in (data.X, data.y))
    dtype, why = _precision(options.precision, X, y, columns.inputs)
    noise = 0.1 if options.noise is None else options.noise / float(y.std(correction=0))
    gp = GP(kernel_of_columns(options.kernel, X.shape[1]), noise=noise, standardise=True)
    if options.noise is not None:
        gp.constrain("noise", fixed=True)
    about: dict[str, Any] = {
        "target": data.target,
        "columns": list(columns.names),
        "categories": columns.categories,
        "dates": list(columns.dates),
        "kernel": options.kernel,
        "file": data.name,
        "skipped_rows": data.skipped,
        "held_out_rows": int(test.sum()),
        "noise_fixed": options.noise is not None,
        "seed": options.seed,
    }
    generator, progress = torch.Generator().manual_seed(options.seed), showing_progress(options.quiet)
    limits = {"steps": options.steps, "samples": options.samples}
    try:
        # Estimator, optimiser, stages and start are chosen by learning/policy.py.
        report = gp.fit(X, y, **limits, progress=progress, generator=generator, dtype=dtype)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_save_interrupted(gp, options.out, about)) from None
    posterior = gp.posterior
    posterior.about = about | {
        "steps": len(report.history),
        "stopped": report.stopped,
        "fit_epochs": report.epochs,
        "fit_seconds": report.seconds,
    }
    X_test, y_test = (data.X[test], data.y[test]) if test.any() else (None, None)
    if X_test is not None and y_test is not None:
        posterior.about["held_out"] = _errors(posterior, torch.tensor(X_test, device=device), y_test)
    if options.out is not None:
        posterior.save(options.out, about=finite(posterior.about))
    if options.report is not None:
        names, title = columns.inputs, f"{data.target} from {data.name}"
        posterior.to_html(
            options.report, X_test=X_test, y_test=y_test, names=names, target=data.target, fit=report, title=title
        )
    result = describe(posterior) | {"precision_note": why, "seconds": time.perf_counter() - began}
    for name, path in (("model", options.out), ("report", options.report), ("predictions", options.predictions)):
        result[name] = None if path is None else str(path)
    if not (options.quiet or options.json):
        print(format_summary(result))
    if options.predict is not None:
        asked = {"file": options.predict, "out": options.predictions, "model": options.out, "command": "predict"}
        defaults = {"inputs": None, "variance": "default", "interval": None, "noise": False}
        result["predicted"] = write_predictions(posterior, argparse.Namespace(**vars(options) | asked | defaults))
    if options.json:
        print_json(result)


def _check(options: argparse.Namespace) -> torch.device | None:
    """Complete the options and refuse what cannot work, before anything is computed; returns the device."""
    if options.predictions is not None and options.predict is None:
        raise UsageError("--predictions needs --predict, the file whose rows to predict")
    if options.predict is not None and options.predictions is None:
        options.predictions = options.predict.with_name(f"{options.predict.stem}_predictions.csv")
    for path in (options.out, options.report, options.predictions):
        if path is not None:
            require_writable(path, options.file, options.predict)
    return find_device(options.device)


def _choose_test_rows(data: _Data, options: argparse.Namespace) -> NDArray[np.bool_]:
    """The mask of the held-out rows."""
    n = len(data.y)
    test = np.zeros(n, dtype=bool)
    test[np.random.default_rng(options.seed).permutation(n)[: int(options.holdout * n)]] = True
    if n - test.sum() < 2:
        raise ValueError(f"{data.name} has {count(n, 'usable row')}: at least two are needed to learn from")
    if np.ptp(data.y[~test]) == 0:
        raise ValueError(f"the target {data.target!r} is {data.y[0]:g} in every row: there is nothing to learn")
    return test


def _read_file(options: argparse.Namespace) -> _Data:
    """Read the whole file. The first block decides which columns hold text or dates."""
    table = open_table(options.file, not options.no_header)
    if options.target is None:
        raise UsageError(f"name the column to predict with --target: there are {join_names(table.names)}")
    target = table.require(options.target, "--target")
    names, categorical = _inputs(table, target, options)
    kinds: dict[str, str] = {}
    parts: list[dict[str, NDArray[Any]]] = []
    first, skipped = "", 0
    for block in read_blocks(table, [*names, target], options.quiet):
        if not parts:
            kinds = {name: "text" if name in categorical else block.kind(name) for name in names}
            if target not in categorical and block.kind(target) != "number":
                raise ValueError(f"the target {target!r} holds text: pathgp learns numbers, not classes")
            kinds[target] = "number"
        values, missing, message = block.convert(kinds)
        first, skipped = first or message, skipped + int(missing.sum())
        parts.append({name: column[~missing] for name, column in values.items()})
    if first and not options.skip_missing:
        raise ValueError(
            f"{first}, and {count(skipped, 'row')} in all lack a value: fill them in, "
            "leave the rows out with --skip-missing, or columns with --ignore"
        )
    if not sum(len(part[target]) for part in parts):
        raise ValueError(f"{options.file} has no rows" + (" without missing values" if skipped else ""))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in kinds}
    categories = {}
    for name in [name for name in names if kinds[name] == "text"]:
        advice = f"leave it out with --ignore {name}, or insist with --categorical {name}"
        categories[name] = find_categories(name, whole[name].tolist(), name in categorical, advice)
    columns = Columns(names, categories, [name for name in names if kinds[name] == "date"])
    return _Data(options.file.name, columns, target, columns.matrix(whole.__getitem__), whole[target], skipped)


def _inputs(table: Table, target: str, options: argparse.Namespace) -> tuple[list[str], set[str]]:
    """The names of the input columns, and of those to read as categories."""
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
        raise UsageError(f"{target!r} cannot be an input and the target")
    if len(set(names)) < len(names):
        raise UsageError("--inputs names a column twice")
    if not names:
        raise UsageError("no column is left as an input")
    return names, categorical


def _read_example(options: argparse.Namespace) -> _Data:
    given = [name for name in ("target", "inputs", "ignore", "categorical") if getattr(options, name)]
    if given:
        raise UsageError(f"--{given[0]} needs a file: pathgp fit FILE --target COL")
    if not options.quiet:
        print_note("no file given: fitting the example data, made-up growth of 600 plants (see pathgp example)")
    table = example_table()
    *names, target = table
    columns = Columns(names, {"soil": distinct(table["soil"].tolist())})
    return _Data("the example", columns, target, columns.matrix(table.__getitem__), table[target], 0)


def _precision(asked: str | None, X: torch.Tensor, y: torch.Tensor, names: list[str]) -> tuple[torch.dtype, str]:
    """The precision of the work and the reason for it, where that is not the number of rows."""
    scaled = Standardisation.of(X, y).inputs(X)
    if asked is None:
        dtype, blurred = choose_dtype(scaled)
        return dtype, "" if blurred is None else f"float32 would blur {names[blurred]!r}"
    if asked == "float32" and (blurred := blurred_column(scaled, torch.float32)) is not None:
        raise ValueError(f"--precision float32 would blur or merge distinct values of {names[blurred]!r}: use float64")
    return getattr(torch, asked), "as asked"


def _save_interrupted(gp: GP, path: Path | None, about: dict[str, Any]) -> str:
    """Save the last whole step of an interrupted fit, and return a message about it."""
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
