"""``pathgp predict`` and ``pathgp sample``: predict the rows of a file, one block at a time."""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import pathgp
from pathgp import metrics
from pathgp.cli.molecules import Molecules
from pathgp.cli.output import UsageError, print_json, print_note, require_writable, writing
from pathgp.cli.tables import Table, open_table, read_blocks
from pathgp.compute.inputs import read_matrix
from pathgp.data.tabular import Columns
from pathgp.html.numbers import count
from pathgp.posterior.table import Posterior

_SPECIAL = re.compile(r'[",\r\n]')
# Columns to write for inputs (m, d), and the variances of measurements, or None.
_Predictions = tuple[list[NDArray[Any]], NDArray[Any] | None]


def find_device(name: str | None) -> torch.device | None:
    """Return a device by name; ValueError if it is not available."""
    if name is None:
        return None
    try:
        return torch.empty(0, device=name).device
    except Exception as error:
        raise ValueError(f"--device {name} is not available here: {str(error).splitlines()[0]}") from None


def as_tensor(X: Any, device: torch.device | None = None) -> torch.Tensor:
    """Inputs of a table as a tensor; sparse fingerprints stay sparse."""
    return read_matrix(X).X.to(device or "cpu") if hasattr(X, "tocsr") else torch.tensor(X, device=device)


def predict(options: argparse.Namespace) -> None:
    """Write columns mean and std, and lower and upper for an interval."""
    result = write_predictions(_load(options), open_file(options.file, options), options)
    if options.json:
        print_json(result)


def sample(options: argparse.Namespace) -> None:
    """Write columns sample_1, sample_2, ..."""
    posterior, table = _load(options), open_file(options.file, options)
    available = posterior.num_samples
    if options.num > available:
        advice = f"fit it with --samples {options.num}" if available else "it was made without samples"
        raise ValueError(f"{options.model} holds {available} samples, --num {options.num} asks for more: {advice}")
    titles = [f"sample_{i + 1}" for i in range(options.num)]

    def paths(X: torch.Tensor) -> _Predictions:
        return list(posterior.paths(X)[: options.num].cpu().numpy()), None

    result = _write(posterior, table, options, titles, paths)
    if options.json:
        print_json(result)


def _load(options: argparse.Namespace) -> Posterior:
    if options.json and options.out is None:
        raise UsageError("--json needs --out, because the predictions are no part of the JSON object")
    check_output(options.out, options.file, options.model)
    posterior = pathgp.load(options.model, device=find_device(options.device))
    if not isinstance(posterior, Posterior):
        raise ValueError(f"{options.model} is the model of a grid: use pathgp.load and its mean in Python")
    return posterior


def check_output(path: Path | None, *sources: Path | None) -> None:
    """Refuse a place where predictions cannot be written."""
    if path is not None:
        if path.suffix == ".parquet":
            raise UsageError(f"results are written as CSV: give {path} a name that ends in .csv")
        require_writable(path, *sources)


def check_options(options: argparse.Namespace) -> None:
    """Refuse options of predictions that contradict each other."""
    if options.interval is not None and options.variance == "none":
        raise UsageError("--interval needs a variance: leave out --variance none")


def open_file(path: Path, options: argparse.Namespace) -> Table:
    """Open a table with the options for reading; --id must name columns of it."""
    table = open_table(path, not options.no_header, options.decimal_comma)
    for name in options.id:
        table.require(name, "--id")
    return table


def write_predictions(posterior: Posterior, table: Table, options: argparse.Namespace) -> dict[str, Any]:
    """Write predictions and return a summary. options: those of `pathgp predict`."""
    check_options(options)
    noise_std, method = posterior.noise_std, None if options.variance == "default" else options.variance
    titles = ["mean"] if method == "none" else ["mean", "std"]
    titles += ["lower", "upper"] if options.interval is not None else []

    def columns(X: torch.Tensor) -> _Predictions:
        mean = posterior.mean(X).cpu().numpy()
        if method == "none":
            return [mean], None
        of_function = posterior.variance(X, method=method).cpu().numpy()
        with_noise = of_function + noise_std**2
        std = np.sqrt(with_noise if options.noise else of_function)
        if options.interval is None:
            return [mean, std], with_noise
        half = NormalDist().inv_cdf(0.5 + 0.5 * options.interval) * std
        return [mean, std, mean - half, mean + half], with_noise

    note = f"std is that of the function; --noise adds the noise of a measurement, {noise_std:.3g}"
    return _write(posterior, table, options, titles, columns, "" if method == "none" or options.noise else note)


def _write(
    posterior: Posterior,
    table: Table,
    options: argparse.Namespace,
    titles: list[str],
    predict: Callable[[torch.Tensor], _Predictions],
    note: str = "",
) -> dict[str, Any]:
    """Write one line per row of the file, empty for rows with missing inputs; returns a summary."""
    began, rows, skipped = time.perf_counter(), 0, 0
    columns = _find_columns(posterior, table, options)
    target = find_target(table, columns, (posterior.about or {}).get("target"))
    line = ",".join([f"%.{_digits(posterior)}g"] * len(titles)) + "\n"
    empty_line = "," * (len(titles) - 1) + "\n"
    totals = np.zeros(4)
    with writing(options.out, options.file, options.model) as file:
        # The titles follow the check of the first block: an error leaves standard output empty.
        unwritten = ",".join(map(_quote, [*options.id, *titles])) + "\n"
        for X, y, missing, copied in read_inputs(options, table, columns, target):
            results: list[NDArray[Any]] = [np.empty(0)] * len(titles)
            if len(X):
                results, variance = predict(X.to(posterior.system.X.device))
                if y is not None and titles[0] == "mean":
                    totals += _error_sums(y[~missing], results[0], variance)
            numbers = map(line.__mod__, zip(*(part.tolist() for part in results), strict=True))
            lines = (empty_line if is_missing else next(numbers) for is_missing in missing)
            if copied:
                lines = (",".join([*map(_quote, cells), rest]) for *cells, rest in zip(*copied, lines, strict=True))
            file.write("".join([unwritten, *lines]).encode())
            unwritten = ""
            rows, skipped = rows + len(missing), skipped + int(missing.sum())
        file.write(unwritten.encode())
    if not rows:
        print_note(f"warning: {table.name} has no rows")
    errors = None
    if known := int(totals[0]):
        mse, nll, coverage = totals[1:] / known
        errors = {"rows": known, "rmse": math.sqrt(mse)}
        errors |= {} if options.variance == "none" else {"nll": float(nll), "coverage_95": float(coverage)}
    result = {
        "rows": rows,
        "skipped_rows": skipped,
        "errors": errors,
        "seconds": time.perf_counter() - began,
        "out": None if options.out is None else str(options.out),
    }
    if not (options.quiet or options.json):
        _print_summary(result, target, note)
    return result


def find_target(table: Table, columns: Columns | Molecules, target: str | None) -> str | None:
    """The target if the table has it, and it is no input."""
    return target if target in table.names and target not in columns.names else None


def read_inputs(
    options: argparse.Namespace, table: Table, columns: Columns | Molecules, target: str | None
) -> Iterator[tuple[torch.Tensor, NDArray[np.float64] | None, NDArray[np.bool_], Sequence[Sequence[str]]]]:
    """Read blocks: inputs of the complete rows, targets of all rows if there are any, the mask of the other rows, and
    the columns of --id.
    """
    kinds = {name: "text" if name in columns.texts else "number" for name in columns.names}
    kinds |= {} if isinstance(columns, Molecules) else dict.fromkeys(columns.dates, "date")
    names = [*columns.names, *([] if target is None else [target])]
    for block in read_blocks(table, names, options.quiet, options.command, options.id):
        if isinstance(columns, Columns):
            for name in columns.date_kinds:
                columns.require_date_kind(name, block.texts(name))
        values, missing, message = block.convert(kinds)
        if message and not options.skip_missing:
            raise ValueError(f"{message}: fill it in, or leave the predictions of such rows empty with --skip-missing")
        rows = np.flatnonzero(~missing)
        complete = {name: column[rows] for name, column in values.items()}
        row_names = [block.name_row(row) for row in rows.tolist()]
        X = columns.matrix(complete.__getitem__, row_names.__getitem__)
        yield as_tensor(X), None if target is None else block.numbers(target), missing, block.copied


def _error_sums(y: NDArray[Any], mean: NDArray[Any], variance: NDArray[Any] | None) -> NDArray[np.float64]:
    """The number of rows with a known target, and sums over them: squared errors, negative log densities, coverage."""
    known = ~np.isnan(y)
    if not known.any():
        return np.zeros(4)
    pair = y[known], mean[known]
    averages = [1.0, metrics.rmse(*pair) ** 2, 0.0, 0.0]
    if variance is not None:
        averages[2:] = metrics.nll(*pair, variance[known]), metrics.coverage(*pair, variance[known])
    return known.sum() * np.array(averages)


def _quote(cell: str) -> str:
    """A cell of a CSV file."""
    return '"' + cell.replace('"', '""') + '"' if _SPECIAL.search(cell) else cell


def _digits(posterior: Posterior) -> int:
    """Significant digits of predictions: more if targets vary little about a level far from zero."""
    digits = 7 if posterior.report.precision == "float32" else 9
    level, unit = (abs(float(number)) for number in (posterior.scaling.target_shift, posterior.scaling.target_scale))
    return min(17, digits + max(0, math.ceil(math.log10(level / unit)) if level else 0))


def _find_columns(posterior: Posterior, table: Table, options: argparse.Namespace) -> Columns | Molecules:
    """The model's columns in a table: by name if `pathgp fit` saved the names, by their order otherwise."""
    about, inputs = posterior.about or {}, options.inputs
    if "columns" in about:
        if inputs is not None:
            raise UsageError("the model knows its columns by name: leave out --inputs")
        table.require_columns(about["columns"])
        if "molecules" in about:
            return Molecules(**about["molecules"])
        categories, dates = about.get("categories", {}), about.get("dates", [])
        return Columns(about["columns"], categories, dates, about.get("date_kinds", {}))
    size = posterior.report.columns
    others = [name for name in table.names if name not in options.id]
    names = others if inputs is None else [table.require(name, "--inputs") for name in inputs]
    if len(names) != size:
        given = f"{table.name} has {len(names)} columns" if inputs is None else f"--inputs has {len(names)}"
        raise ValueError(
            f"{options.model} was saved from Python without the names of its {size} columns, and {given}: "
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
