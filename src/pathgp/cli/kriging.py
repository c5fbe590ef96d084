"""``pathgp krige``: a map of a field from a table of values at points."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.cli.blocks import Block
from pathgp.cli.output import UsageError, print_json, print_note, require_writable, showing_progress, writing
from pathgp.cli.predicting import find_device
from pathgp.cli.tables import Table, open_table
from pathgp.cli.training import read_columns
from pathgp.kriging import Kriging
from pathgp.kriging import krige as krige_field
from pathgp.kriging.model import TRENDS

# The words of `pathgp.kriging` for arguments, and the options of the command line.
_OPTIONS = {
    "coordinates='plane'": "--coordinates plane",
    "coordinates='lonlat'": "--coordinates lonlat",
    "give kernel, nugget and steps=0": "at least two are needed",
    "noise has": "--noise-column has",
    "points has": "the file has",
}
_ADVICE = "fill in what is missing, or leave such rows out with --skip-missing"
# Lines of a CSV file that are made at once.
_LINES = 100_000


def krige(options: argparse.Namespace) -> None:
    """Predict a field, write it, and print its facts."""
    began = time.perf_counter()
    device = _check(options)
    table = open_table(options.file, not options.no_header, options.decimal_comma)
    columns, skipped = _read(table, options, _columns(table, options))
    new, new_skipped = None, 0
    if options.predict is not None:
        other = open_table(options.predict, not options.no_header, options.decimal_comma)
        names = [options.x, options.y, *_drift(options)]
        for name in names:
            other.require(name, "--predict")
        new, new_skipped = _read(other, options, names)
    try:
        result = _predict(columns, new, options, device)
    except (ValueError, TypeError) as error:
        raise type(error)(_name_options(str(error))) from error
    if options.out is not None:
        _write(result, options)
    if options.report is not None:
        title = f"{options.target} from {table.name}"
        result.to_html(options.report, title=title, threshold=options.threshold)
    facts = _describe(result, options, time.perf_counter() - began)
    facts |= {"skipped_rows": skipped, "skipped_targets": new_skipped}
    if options.json:
        print_json(facts)
    elif not options.quiet:
        print("\n".join(f"{name:<13}  {value}" for name, value in _items(result, facts)), flush=True)


def _predict(
    columns: dict[str, NDArray[Any]],
    new: dict[str, NDArray[Any]] | None,
    options: argparse.Namespace,
    device: torch.device | None,
) -> Kriging:
    """Call `krige` with the options of the command line; the core chooses the others."""
    drift = _drift(options)
    given: dict[str, Any] = {} if options.samples is None else {"samples": options.samples}
    if options.isotropic:
        given["anisotropy"] = False
    return krige_field(
        Frame(columns),
        options.target,
        None if new is None else Frame(new),
        grid=None if options.grid is None else options.grid[0] if len(options.grid) == 1 else options.grid,
        columns=[options.x, options.y],
        coordinates=options.coordinates,
        kernel=options.kernel,
        nugget=options.noise_std,
        noise=None if options.noise_column is None else columns[options.noise_column],
        trend=drift or options.trend,
        cells=True if options.cells else None,
        steps=options.steps,
        time_limit=None if options.minutes is None else 60.0 * options.minutes,
        progress=showing_progress(options.quiet),
        device=device,
        generator=torch.Generator().manual_seed(options.seed),
        **given,
    )


class Frame(dict[str, NDArray[Any]]):
    """Columns by name, as `krige` reads them from a frame."""

    @property
    def columns(self) -> list[str]:
        return list(self)

    @property
    def dtypes(self) -> list[Any]:
        return [column.dtype for column in self.values()]

    def __len__(self) -> int:
        return len(next(iter(self.values())))


def _check(options: argparse.Namespace) -> torch.device | None:
    """Refuse what cannot work, before anything is read; returns the device."""
    for name in ("x", "y", "target"):
        if getattr(options, name) is None:
            raise UsageError(f"--{name} is missing: name the columns, as in --x lon --y lat --target t")
    names = [options.x, options.y, options.target, *_drift(options)]
    names += [] if options.noise_column is None else [options.noise_column]
    if len(set(names)) < len(names):
        raise UsageError("a column has two roles: --x, --y, --target, --noise-column and --trend name different ones")
    if (options.grid is None) == (options.predict is None):
        raise UsageError(
            "give --grid STEP, or --predict FILE with the points to predict"
            if options.grid is None
            else "--grid and --predict exclude each other: run the command twice"
        )
    if options.grid is not None and len(options.grid) > 2:
        raise UsageError("--grid takes one distance, or two as in 0.25,0.5")
    if options.grid is not None and _drift(options):
        raise UsageError("--trend with columns needs their values at every target: use --predict, or Python's krige")
    if options.cells and options.grid is None:
        raise UsageError("--cells needs --grid, whose cells it averages over")
    for path in (options.out, options.report):
        if path is not None:
            require_writable(path, options.file, options.predict)
    if options.out is not None and options.out == options.report:
        raise UsageError("two results have the same name: give each a file of its own")
    if options.out is not None:
        _check_format(options.out, options.grid is not None)
    return find_device(options.device)


def _check_format(path: Path, is_grid: bool) -> None:
    if path.suffix not in (".nc", ".csv"):
        raise UsageError(f"{path}: results are written as NetCDF or CSV, give it a name that ends in .nc or .csv")
    if path.suffix == ".nc":
        if not is_grid:
            raise UsageError(f"{path}: NetCDF files hold grids, give the result of --predict a name that ends in .csv")
        try:
            import xarray  # noqa: F401
        except ImportError:
            raise UsageError("NetCDF files need xarray: pip install 'pathgp[xarray]', or write a .csv") from None


def _drift(options: argparse.Namespace) -> list[str]:
    """The columns of the trend; none for a trend with a name."""
    return [] if options.trend in TRENDS else [name.strip() for name in options.trend.split(",")]


def _columns(table: Table, options: argparse.Namespace) -> list[str]:
    """The columns to read, if the table has them all."""
    roles = {"--x": [options.x], "--y": [options.y], "--target": [options.target], "--trend": _drift(options)}
    roles["--noise-column"] = [] if options.noise_column is None else [options.noise_column]
    return [table.require(name, option) for option, names in roles.items() for name in names]


def _read(table: Table, options: argparse.Namespace, names: list[str]) -> tuple[dict[str, NDArray[Any]], int]:
    """Columns of numbers by name, and the number of rows left out."""

    def find_kinds(block: Block) -> dict[str, str]:
        kinds = {name: block.kind(name) for name in names}
        text = [name for name, kind in kinds.items() if kind == "text"]
        if text:
            raise ValueError(f"column {text[0]!r} of {table.name} holds text: coordinates and values are numbers")
        return kinds

    values, _, skipped = read_columns(table, names, find_kinds, options, _ADVICE)
    if skipped and not options.quiet:
        print_note(f"{skipped:,} rows of {table.name} with missing values were left out")
    return values, skipped


def _write(result: Kriging, options: argparse.Namespace) -> None:
    """Write a grid as NetCDF, or any result as CSV."""
    with writing(options.out, options.file, options.predict) as file:
        if options.out.suffix == ".nc":
            # Through SciPy: NetCDF 3, without further libraries.
            file.write(bytes(result.to_dataset(options.threshold, options.simulations).to_netcdf(engine="scipy")))
            return
        fields = {"mean": result.mean, "std": result.std}
        if options.threshold is not None:
            fields["exceedance"] = result.exceedance(options.threshold)
        if options.simulations:
            drawn = result.samples[: options.simulations]
            fields |= {f"sample_{i + 1}": sample for i, sample in enumerate(drawn)}
        titles = [*result.coordinates.columns, *fields]
        file.write((",".join(titles) + "\n").encode())
        for start in range(0, len(result.targets), _LINES):
            rows = slice(start, min(start + _LINES, len(result.targets)))
            numbers = np.column_stack([result.targets.rows(rows), *(field[rows] for field in fields.values())])
            line = ",".join(["%.10g"] * numbers.shape[1]) + "\n"
            file.write("".join(line % tuple(row) for row in numbers.tolist()).encode())


def _describe(result: Kriging, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """The facts of a predicted field."""
    scores = result.cross_validation
    return {
        "target": options.target,
        "rows": len(result.field.y),
        "targets": len(result.targets),
        "model": dict(result.summary_items()[2:-3]),
        "nugget": result.nugget,
        "cross_validation": {
            "rmse": scores.rmse,
            "crps": scores.crps,
            "coverage_95": scores.coverage,
            "standardised_mean": float(scores.standardised.mean()),
            "standardised_std": float(scores.standardised.std()),
            "method": scores.method,
        },
        "converged": result.report.condition.solution.converged,
        "seconds": seconds,
        "out": None if options.out is None else str(options.out),
        "report": None if options.report is None else str(options.report),
    }


def _items(result: Kriging, facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values of the final table: the model, the errors of cross-validation, and the files."""
    yield from result.summary_items()[:-1]
    for name, value in result.cross_validation.summary_items()[1:]:
        yield ("left-out RMSE" if name == "RMSE" else "left-out CRPS" if name == "CRPS" else name), value
    yield "seconds", f"{facts['seconds']:.1f}"
    if facts["out"]:
        yield "written to", facts["out"]
    if facts["report"]:
        yield "report", facts["report"]


def _name_options(message: str) -> str:
    """A message of `krige` with options of the command line in place of its arguments."""
    for words, option in _OPTIONS.items():
        message = message.replace(words, option)
    return message
