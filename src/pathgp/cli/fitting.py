"""``pathgp fit``: learn a model from a table, measure its errors on held-out rows, save and report it."""

from __future__ import annotations

import argparse
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp import kernels, metrics
from pathgp.cli.molecules import Molecules
from pathgp.cli.output import UsageError, finite, print_json, print_note, require_writable, showing_progress
from pathgp.cli.predicting import (
    as_tensor,
    check_options,
    check_output,
    find_device,
    find_target,
    open_file,
    read_inputs,
    write_predictions,
)
from pathgp.cli.sources import STANDARD_INPUT, name_predictions
from pathgp.cli.summary import describe, format_summary
from pathgp.cli.tables import Table
from pathgp.cli.training import Data, choose_test_rows, read_example, read_file
from pathgp.data.tabular import DEFAULT_KERNEL, kernel_of_columns
from pathgp.learning.report import FitReport
from pathgp.models import GP
from pathgp.posterior.table import Posterior


def fit(options: argparse.Namespace) -> None:
    """Learn a model, measure it, save and report it."""
    began = time.perf_counter()
    device = _check(options)
    data = read_example(options) if options.file is None else read_file(options)
    new = None if options.predict is None else _check_new_rows(data, options)
    test = choose_test_rows(data, options)
    # Inputs and targets stay in float64: the model shifts and scales them before it rounds.
    X, y = as_tensor(data.X[~test], device), torch.tensor(data.y[~test], device=device)
    gp = _make_model(y, X.shape[1], options)
    about = _describe_data(data, options) | {"held_out_rows": int(test.sum())}
    try:
        report = _learn(gp, X, y, options)
    except (KeyboardInterrupt, SystemExit) as stop:
        message = _save_interrupted(gp, options, about)
        if isinstance(stop, KeyboardInterrupt):
            raise KeyboardInterrupt(message) from None
        print_note(message)
        raise
    except ValueError as error:
        raise ValueError(_name_columns(str(error), data)) from error
    posterior = gp.posterior
    if posterior.report.subset and not options.quiet:
        print_note(posterior.report.subset)
    if report.warning:
        problem = report.warning.partition("; ")[0]
        print_note(f"warning: {problem}; transform {data.target} or remove its outliers, or try another --kernel")
    posterior.about = about | {
        "steps": len(report.history),
        "stopped": report.stopped,
        "note": _name_columns(report.note, data),
        "fit_epochs": report.epochs,
        "fit_seconds": report.seconds,
    }
    X_test, y_test = (data.X[test], data.y[test]) if test.any() else (None, None)
    if X_test is not None and y_test is not None:
        posterior.about["held_out"] = _errors(posterior, as_tensor(X_test, device), y_test)
    if options.out is not None:
        posterior.save(options.out, about=finite(posterior.about))
    try:
        if options.report is not None:
            names, title = data.columns.inputs, f"{data.target} from {data.name}"
            posterior.to_html(
                options.report, X_test=X_test, y_test=y_test, names=names, target=data.target, fit=report, title=title
            )
        _print_results(posterior, new, options, began)
    except KeyboardInterrupt:
        kept = "no file was written" if options.out is None else f"the model is complete, in {options.out}"
        raise KeyboardInterrupt(f"interrupted: {kept}") from None


def _print_results(posterior: Posterior, new: Table | None, options: argparse.Namespace, began: float) -> None:
    """Print the summary, and predict the rows of another table if there is one."""
    result = describe(posterior) | {"seconds": time.perf_counter() - began}
    for name, path in _results(options).items():
        result[name] = None if path is None else str(path)
    if not (options.quiet or options.json):
        print(format_summary(result), flush=True)
    if new is not None:
        asked: dict[str, Any] = {"file": options.predict, "out": options.predictions, "model": options.out}
        asked |= {"command": "predict", "inputs": None}
        result["predicted"] = write_predictions(posterior, new, argparse.Namespace(**vars(options) | asked))
    if options.json:
        print_json(result)


def _check(options: argparse.Namespace) -> torch.device | None:
    """Complete the options and refuse what cannot work, before anything is computed; returns the device."""
    if options.predict is None:
        for name, default in (("predictions", None), ("interval", None), ("noise", False), ("variance", "default")):
            if getattr(options, name) != default:
                raise UsageError(f"--{name} needs --predict, the file whose rows to predict")
    elif options.predict == options.file == STANDARD_INPUT:
        raise UsageError("standard input is read once: give a file to fit or to --predict")
    elif options.predictions is None:
        options.predictions = name_predictions(options.predict)
    check_options(options)
    check_output(options.predictions, options.file, options.predict)
    paths = [path for path in _results(options).values() if path is not None]
    for path in paths:
        require_writable(path, options.file, options.predict)
    if len(set(map(Path.resolve, paths))) < len(paths):
        raise UsageError("two results have the same name: give each a file of its own")
    return find_device(options.device)


def _results(options: argparse.Namespace) -> dict[str, Path | None]:
    """The files to write, by name."""
    names = {"model": "out", "report": "report", "checkpoint": "checkpoint", "predictions": "predictions"}
    return {name: getattr(options, option) for name, option in names.items()}


def _check_new_rows(data: Data, options: argparse.Namespace) -> Table:
    """Read the rows to predict once before the fit, and refuse those that cannot be predicted."""
    new = open_file(options.predict, options)
    new.require_columns(data.columns.names)
    reading = argparse.Namespace(**vars(options) | {"command": "check"})
    for _ in read_inputs(reading, new, data.columns, find_target(new, data.columns, data.target)):
        pass
    return new


def _make_model(y: torch.Tensor, columns: int, options: argparse.Namespace) -> GP:
    if options.smiles is not None:
        kernel: kernels.Kernel = kernels.Scale(kernels.Tanimoto(), 1.0)
    else:
        kernel = kernel_of_columns(options.kernel or DEFAULT_KERNEL, columns)
    if options.noise_std is None:
        return GP(kernel, standardise=True)
    # The model measures in standard deviations of y.
    noise = options.noise_std / float(y.std(correction=0))
    return GP(kernel, noise, standardise=True).constrain("noise", fixed=True)


def _learn(gp: GP, X: torch.Tensor, y: torch.Tensor, options: argparse.Namespace) -> FitReport:
    """Fit with the options of the command line; learning/policy.py chooses the others."""
    given = {} if options.samples is None else {"samples": options.samples}
    if options.checkpoint is not None and options.checkpoint.exists() and not options.quiet:
        print_note(f"continuing the fit in {options.checkpoint}")
    return gp.fit(
        X,
        y,
        **given,
        steps=options.steps,
        time_limit=None if options.minutes is None else 60.0 * options.minutes,
        checkpoint=options.checkpoint,
        progress=showing_progress(options.quiet),
        generator=torch.Generator().manual_seed(options.seed),
        dtype=options.precision or "auto",
    )


def _describe_data(data: Data, options: argparse.Namespace) -> dict[str, Any]:
    """What a model file keeps about its table."""
    if isinstance(data.columns, Molecules):
        columns: dict[str, Any] = {"kernel": "tanimoto", "molecules": data.columns.about()}
    else:
        columns = {"categories": data.columns.categories, "dates": list(data.columns.dates)}
        columns["date_kinds"] = data.columns.date_kinds
        columns["kernel"] = options.kernel or DEFAULT_KERNEL
    return {
        "target": data.target,
        "columns": list(data.columns.names),
        **columns,
        "file": data.name,
        "skipped_rows": data.skipped,
        "noise_fixed": options.noise_std is not None,
        "seed": options.seed,
    }


def _name_columns(message: str, data: Data) -> str:
    """A message of the model with the names of the inputs in place of their numbers."""
    return re.sub(r"column (\d+) of X", lambda number: f"column {data.columns.inputs[int(number[1])]!r}", message)


def _save_interrupted(gp: GP, options: argparse.Namespace, about: dict[str, Any]) -> str:
    """Save the last whole step of an interrupted fit, and return a message about it."""
    kept = []
    with suppress(RuntimeError):  # there is no posterior
        posterior = gp.posterior
        if options.out is not None:
            posterior.save(options.out, about=about | {"stopped": "interrupted"})
            doubt = "" if posterior.report.solution.converged else ", not solved to the end: do not rely on it"
            kept.append(f"the model of the last whole step is in {options.out}{doubt}")
    if options.checkpoint is not None and options.checkpoint.exists():
        kept.append(f"the fit is in {options.checkpoint}, continue it with: {options.again}")
    elif not kept:
        kept.append("no file was written; with --checkpoint FILE the same command continues an interrupted fit")
    return f"interrupted: {'; '.join(kept)}"


def _errors(posterior: Posterior, X: torch.Tensor, y: NDArray[np.float64]) -> dict[str, float]:
    mean, variance = posterior.mean(X), posterior.variance(X, noise=True)
    return {
        "rmse": metrics.rmse(y, mean),
        "nll": metrics.nll(y, mean, variance),
        "coverage_95": metrics.coverage(y, mean, variance),
        "target_std": float(y.std()),
    }
