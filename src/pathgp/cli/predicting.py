"""``pathgp predict`` and ``pathgp sample``: predict the rows of a file, one block at a time."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import pathgp
from pathgp.cli.output import UsageError, print_json, print_note, writing
from pathgp.cli.tables import Table, open_table, read_blocks
from pathgp.data.tabular import Columns
from pathgp.html.numbers import count
from pathgp.posterior.table import Posterior

# Predicted columns for inputs (m, d) and targets (m,) if there are any.
_Predict = Callable[[torch.Tensor, NDArray[np.float64] | None], list[NDArray[Any]]]


@dataclass(frozen=True)
class Request:
    """A posterior, the file whose rows to predict, and the file to write; None for standard output.

    about: the columns as `pathgp fit` saved them.  model: the file of the posterior, if there is one.  quiet: no
    progress bar.  prints_summary: end with a summary on standard error.
    """

    posterior: Posterior
    about: dict[str, Any]
    file: Path
    out: Path | None
    model: Path | None = None
    has_header: bool = True
    inputs: list[str] | None = None
    skip_missing: bool = False
    quiet: bool = False
    prints_summary: bool = True
    command: str = "predict"

    @classmethod
    def of(cls, options: argparse.Namespace) -> Request:
        """Build the request of a command line."""
        if options.json and options.out is None:
            raise UsageError("--json needs --out, because the predictions are no part of the JSON object")
        posterior = pathgp.load(options.model, device=find_device(options.device))
        if not isinstance(posterior, Posterior):
            raise ValueError(f"{options.model} is the model of a grid: use pathgp.load and its mean in Python")
        return cls(
            posterior,
            posterior.about or {},
            options.file,
            options.out,
            options.model,
            has_header=not options.no_header,
            inputs=options.inputs,
            skip_missing=options.skip_missing,
            quiet=options.quiet,
            prints_summary=not (options.quiet or options.json),
            command=options.command,
        )


def find_device(name: str | None) -> torch.device | None:
    """Return a device by name; ValueError if it is not available."""
    if name is None:
        return None
    try:
        return torch.empty(0, device=name).device
    except Exception as error:
        raise ValueError(f"--device {name} is not available here: {str(error).splitlines()[0]}") from None


def predict(options: argparse.Namespace) -> int:
    """Write columns mean and std, and lower and upper for an interval."""
    result = write_predictions(Request.of(options), options.variance, options.interval, options.noise)
    if options.json:
        print_json(result)
    return 0


def write_predictions(
    request: Request, variance: str = "default", interval: float | None = None, noise: bool = False
) -> dict[str, Any]:
    """Write predictions and return a summary. variance, interval, noise: the options of `pathgp predict`."""
    posterior, noise_std, errors = request.posterior, request.posterior.noise_std, _Errors()
    method = None if variance == "default" else variance
    if interval is not None and method == "none":
        raise UsageError("--interval needs a variance: leave out --variance none")
    titles = ["mean"] if method == "none" else ["mean", "std"]
    titles += ["lower", "upper"] if interval is not None else []

    def columns(X: torch.Tensor, y: NDArray[np.float64] | None) -> list[NDArray[Any]]:
        mean = posterior.mean(X).cpu().numpy()
        if method == "none":
            errors.add(y, mean, None)
            return [mean]
        of_function = posterior.variance(X, method=method).cpu().numpy()
        with_noise = of_function + noise_std**2
        errors.add(y, mean, with_noise)
        std = np.sqrt(with_noise if noise else of_function)
        if interval is None:
            return [mean, std]
        half = NormalDist().inv_cdf(0.5 + 0.5 * interval) * std
        return [mean, std, mean - half, mean + half]

    note = f"std is that of the function; a measurement adds {noise_std:.3g}: pathgp predict --noise"
    return _write(request, titles, columns, errors, "" if method == "none" or noise else note)


def sample(options: argparse.Namespace) -> int:
    """Write columns sample_1, sample_2, ..."""
    request = Request.of(options)
    available = request.posterior.num_samples
    if options.num > available:
        advice = f"fit it with --samples {options.num}" if available else "it was made without samples"
        raise ValueError(f"{options.model} holds {available} samples, --num {options.num} asks for more: {advice}")

    def columns(X: torch.Tensor, y: NDArray[np.float64] | None) -> list[NDArray[Any]]:
        return list(request.posterior.paths(X)[: options.num].cpu().numpy())

    result = _write(request, [f"sample_{i + 1}" for i in range(options.num)], columns, _Errors())
    if options.json:
        print_json(result)
    return 0


@dataclass
class _Errors:
    """Sums over the rows with a known target."""

    rows: int = 0
    squares: float = 0.0
    neg_log_density: float = 0.0
    inside: int = 0
    has_variance: bool = False

    def add(self, y: NDArray[np.float64] | None, mean: NDArray[Any], variance: NDArray[Any] | None) -> None:
        if y is None:
            return
        known = ~np.isnan(y)
        squares = (y[known] - mean[known]) ** 2
        self.rows += int(known.sum())
        self.squares += float(squares.sum())
        if variance is not None:
            v = variance[known].astype(np.float64)
            self.has_variance = True
            self.neg_log_density += float((0.5 * np.log(2 * math.pi * v) + 0.5 * squares / v).sum())
            self.inside += int((squares <= NormalDist().inv_cdf(0.975) ** 2 * v).sum())

    def result(self) -> dict[str, float] | None:
        if not self.rows:
            return None
        result = {"rows": self.rows, "rmse": math.sqrt(self.squares / self.rows)}
        if self.has_variance:
            result |= {"nll": self.neg_log_density / self.rows, "coverage_95": self.inside / self.rows}
        return result


def _write(request: Request, titles: list[str], predict: _Predict, errors: _Errors, note: str = "") -> dict[str, Any]:
    """Write one line per row of the file, empty for rows with missing inputs; returns a summary."""
    began, rows, skipped = time.perf_counter(), 0, 0
    if request.out is not None and request.out.suffix == ".parquet":
        raise UsageError("results are written as CSV: give --out a name that ends in .csv")
    table = open_table(request.file, request.has_header)
    columns = _find_columns(request, table)
    target = request.about.get("target")
    target = target if target in table.names and target not in columns.names else None
    line = ",".join([f"%.{_digits(request.posterior)}g"] * len(titles)) + "\n"
    empty_line = "," * (len(titles) - 1) + "\n"
    with writing(request.out, request.file, request.model) as file:
        file.write((",".join(titles) + "\n").encode())
        for X, y, missing in _read(request, table, columns, target):
            results = predict(X, None if y is None else y[~missing]) if len(X) else [np.empty(0)] * len(titles)
            lines = map(line.__mod__, zip(*(part.tolist() for part in results), strict=True))
            file.write("".join(empty_line if is_missing else next(lines) for is_missing in missing).encode())
            rows, skipped = rows + len(missing), skipped + int(missing.sum())
    if not rows:
        print_note(f"warning: {request.file} has no rows")
    result = {
        "rows": rows,
        "skipped_rows": skipped,
        "errors": errors.result(),
        "seconds": time.perf_counter() - began,
        "out": None if request.out is None else str(request.out),
    }
    if request.prints_summary:
        _print_summary(result, target, note)
    return result


def _read(
    request: Request, table: Table, columns: Columns, target: str | None
) -> Iterator[tuple[torch.Tensor, NDArray[np.float64] | None, NDArray[np.bool_]]]:
    """Read blocks: inputs of the complete rows, targets of all rows if there are any, and the mask of other rows."""
    kinds = {name: "text" if name in columns.categories else "number" for name in columns.names}
    kinds |= dict.fromkeys(columns.dates, "date")
    names = [*columns.names, *([] if target is None else [target])]
    for block in read_blocks(table, names, request.quiet, request.command):
        values, missing, message = block.convert(kinds)
        if message and not request.skip_missing:
            raise ValueError(f"{message}: fill it in, or leave the predictions of such rows empty with --skip-missing")
        rows = np.flatnonzero(~missing)
        complete = {name: column[rows] for name, column in values.items()}
        X = columns.matrix(complete.__getitem__, block.row_names(rows))
        y = None if target is None else block.numbers(target)
        yield torch.tensor(X, device=request.posterior.system.X.device), y, missing


def _digits(posterior: Posterior) -> int:
    """Significant digits of predictions: more if targets vary little about a level far from zero."""
    digits = 7 if posterior.report.precision == "float32" else 9
    level, unit = (abs(float(number)) for number in (posterior.scaling.target_shift, posterior.scaling.target_scale))
    return min(17, digits + max(0, math.ceil(math.log10(level / unit)) if level else 0))


def _find_columns(request: Request, table: Table) -> Columns:
    """The model's columns in a table: by name if `pathgp fit` saved the names, by their order otherwise."""
    about, inputs = request.about, request.inputs
    if "columns" in about:
        if inputs is not None:
            raise UsageError("the model knows its columns by name: leave out --inputs")
        table.require_columns(about["columns"])
        return Columns(about["columns"], about.get("categories", {}), about.get("dates", []))
    size = request.posterior.report.columns
    names = table.names if inputs is None else [table.require(name, "--inputs") for name in inputs]
    if len(names) != size:
        given = f"{table.path.name} has {len(names)} columns" if inputs is None else f"--inputs has {len(names)}"
        raise ValueError(
            f"{request.model} was saved from Python without the names of its {size} columns, and {given}: "
            f"choose {size} of them, in the order of the fit, with --inputs"
        )
    return Columns(names)


def _print_summary(result: dict[str, Any], target: str | None, note: str) -> None:
    written = f", written to {result['out']}" if result["out"] else ""
    print_note(f"{count(result['rows'], 'row')} in {result['seconds']:.1f} s{written}")
    if result["skipped_rows"]:
        print_note(f"{count(result['skipped_rows'], 'row')} with missing inputs, their predictions are empty")
    if (errors := result["errors"]) is not None:
        accuracy = f"against {target!r} in the file: RMSE {errors['rmse']:.4g}"
        if "nll" in errors:
            accuracy += f", NLL {errors['nll']:.4g}, {100 * errors['coverage_95']:.1f} % in their 95 % intervals"
        print_note(accuracy)
    if note:
        print_note(note)
