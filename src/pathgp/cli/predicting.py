"""``pathgp predict`` and ``pathgp sample``: a file in, a file out, a block of rows at a time."""

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
from pathgp.cli.fitting import available
from pathgp.cli.output import Refused, counted, print_json, say, writing
from pathgp.cli.progress import reading
from pathgp.cli.tables import Block, Table, dates, is_missing, numbers, open_table, require_columns, texts
from pathgp.data.tabular import Columns
from pathgp.posterior.table import Posterior

_LEVEL = 0.95


@dataclass(frozen=True)
class Request:
    """A posterior, the file whose rows it is asked about, and where the answers go; None for standard output.

    about: what `pathgp fit` remembers of the columns.  model: the file of the posterior, if there is one.  quiet: no
    progress.  tells: whether to say at the end what was done.
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
    tells: bool = True
    command: str = "predict"

    @classmethod
    def of(cls, options: argparse.Namespace) -> Request:
        """What was asked for on the command line."""
        if options.json and options.out is None:
            raise Refused("--json needs --out, for the predictions are no part of the JSON object")
        posterior = pathgp.load(options.model, device=available(options.device))
        if not isinstance(posterior, Posterior):
            raise ValueError(f"{options.model} is the model of a grid: use pathgp.load and its mean in Python")
        return cls(
            posterior,
            posterior.about or {},
            options.file,
            options.out,
            options.model,
            not options.no_header,
            options.inputs,
            options.skip_missing,
            options.quiet,
            not (options.quiet or options.json),
            options.command,
        )


def predict(options: argparse.Namespace) -> int:
    """Columns mean and std, with an interval also lower and upper."""
    result = predicted(Request.of(options), options.variance, options.interval, options.noise)
    if options.json:
        print_json(result)
    return 0


def predicted(
    request: Request, variance: str = "default", interval: float | None = None, noise: bool = False
) -> dict[str, Any]:
    """Write them, and say what was done."""
    work = _Work(request)
    posterior = request.posterior
    method = None if variance == "default" else variance
    if interval is not None and method == "none":
        raise Refused("--interval needs a variance: leave out --variance none")
    titles = ["mean"] if method == "none" else ["mean", "std"]
    titles += ["lower", "upper"] if interval is not None else []
    factor = 0.0 if interval is None else NormalDist().inv_cdf(0.5 + 0.5 * interval)
    noise_std = posterior.noise_std
    errors = _Errors()

    def columns(X: torch.Tensor, y: NDArray[np.float64] | None) -> list[NDArray[Any]]:
        mean = posterior.mean(X).cpu().numpy()
        if method == "none":
            errors.add(y, mean, None)
            return [mean]
        of_function = posterior.variance(X, method=method).cpu().numpy()
        with_noise = of_function + noise_std**2
        errors.add(y, mean, with_noise)
        std = np.sqrt(with_noise if noise else of_function)
        ends = [mean - factor * std, mean + factor * std] if interval is not None else []
        return [mean, std, *ends]

    note = (
        ""
        if method == "none" or noise
        else f"std is that of the function; a measurement adds {noise_std:.3g}: pathgp predict --noise"
    )
    return work.run(titles, columns, errors, note)


def sample(options: argparse.Namespace) -> int:
    """Columns sample_1, sample_2, ..."""
    request = Request.of(options)
    work = _Work(request)
    found = request.posterior.num_samples
    if options.num > found:
        advice = f"fit it with --samples {options.num}" if found else "it was made without samples"
        raise ValueError(f"{options.model} holds {found} samples, --num {options.num} asks for more: {advice}")

    def columns(X: torch.Tensor, y: NDArray[np.float64] | None) -> list[NDArray[Any]]:
        return list(request.posterior.paths(X)[: options.num].cpu().numpy())

    result = work.run([f"sample_{i + 1}" for i in range(options.num)], columns, _Errors())
    if options.json:
        print_json(result)
    return 0


@dataclass
class _Errors:
    """Sums over the rows whose target is known."""

    rows: int = 0
    squares: float = 0.0
    densities: float = 0.0
    inside: int = 0
    with_variance: bool = False

    def add(self, y: NDArray[np.float64] | None, mean: NDArray[Any], variance: NDArray[Any] | None) -> None:
        if y is None:
            return
        known = ~np.isnan(y)
        squares = (y[known] - mean[known]) ** 2
        self.rows += int(known.sum())
        self.squares += float(squares.sum())
        if variance is not None:
            v = variance[known].astype(np.float64)
            self.with_variance = True
            self.densities += float((0.5 * np.log(2 * math.pi * v) + 0.5 * squares / v).sum())
            self.inside += int((squares <= NormalDist().inv_cdf(0.5 + 0.5 * _LEVEL) ** 2 * v).sum())

    def result(self) -> dict[str, float] | None:
        if not self.rows:
            return None
        result = {"rows": self.rows, "rmse": math.sqrt(self.squares / self.rows)}
        if self.with_variance:
            result |= {"nll": self.densities / self.rows, "coverage_95": self.inside / self.rows}
        return result


class _Work:
    """A model and a file that fit together, and the loop over the blocks of the file."""

    def __init__(self, request: Request) -> None:
        self.began = time.perf_counter()
        self.request = request
        if request.out is not None and request.out.suffix == ".parquet":
            raise Refused("results are written as CSV: give --out a name that ends in .csv")
        self.table = open_table(request.file, request.has_header)
        self.columns = _columns(request, self.table)
        target = request.about.get("target")
        self.target = target if target in self.table.names and target not in self.columns.names else None

    def run(
        self,
        titles: list[str],
        columns: Callable[[torch.Tensor, NDArray[np.float64] | None], list[NDArray[Any]]],
        errors: _Errors,
        note: str = "",
    ) -> dict[str, Any]:
        """Write a line of ``columns`` for every row of the file, under these titles; then say what was done."""
        request, rows, skipped = self.request, 0, 0
        digits = _digits(request.posterior)
        form = ",".join([f"%.{digits}g"] * len(titles)) + "\n"
        empty = "," * (len(titles) - 1) + "\n"
        with writing(request.out, request.file, request.model) as file:
            file.write((",".join(titles) + "\n").encode())
            for X, y, missing in self._blocks():
                results = columns(X, None if y is None else y[~missing]) if len(X) else [np.empty(0)] * len(titles)
                lines = map(form.__mod__, zip(*(part.tolist() for part in results), strict=True))
                file.write("".join(empty if absent else next(lines) for absent in missing).encode())
                rows, skipped = rows + len(missing), skipped + int(missing.sum())
        if not rows:
            say(f"warning: {request.file} has no rows")
        result = {
            "rows": rows,
            "skipped_rows": skipped,
            "errors": errors.result(),
            "seconds": time.perf_counter() - self.began,
            "out": None if request.out is None else str(request.out),
        }
        if request.tells:
            for line in [*_told(result, self.target), *filter(None, [note])]:
                say(line)
        return result

    def _blocks(self) -> Iterator[tuple[torch.Tensor, NDArray[np.float64] | None, NDArray[np.bool_]]]:
        """Inputs of the rows that are complete, targets where there are any, and which rows are not."""
        known = self.request.posterior.system.X
        names = [*self.columns.names, *([] if self.target is None else [self.target])]
        for block in reading(self.table, names, self.request.quiet, self.request.command):
            values = {name: self._read(block, name) for name in self.columns.names}
            missing = np.zeros(len(block), dtype=bool)
            for name, column in values.items():
                absent = is_missing(column)
                if absent.any() and not self.request.skip_missing:
                    raise ValueError(
                        f"column {name!r} has no value in {block.place(int(np.argmax(absent)))}: fill it in, or leave "
                        "the predictions of such rows empty with --skip-missing"
                    )
                missing |= absent
            matrix = self._matrix(values, missing, block)
            y = None if self.target is None else numbers(block, self.target)
            yield torch.tensor(matrix, device=known.device), y, missing

    def _read(self, block: Block, name: str) -> NDArray[Any]:
        if name in self.columns.categories:
            return texts(block, name)
        return dates(block, name) if name in self.columns.dates else numbers(block, name)

    def _matrix(self, values: dict[str, NDArray[Any]], missing: NDArray[np.bool_], block: Block) -> NDArray[np.float64]:
        kept = np.flatnonzero(~missing)
        return self.columns.matrix(lambda name: values[name][kept], lambda row: block.place(int(kept[row])))


def _digits(posterior: Posterior) -> int:
    """Significant digits of predictions: more where targets vary little about a level that is far from zero."""
    digits = 7 if posterior.report.precision == "float32" else 9
    level, unit = (abs(float(number)) for number in (posterior.scaling.target_shift, posterior.scaling.target_scale))
    return min(17, digits + max(0, math.ceil(math.log10(level / unit)) if level else 0))


def _columns(request: Request, table: Table) -> Columns:
    """The model's columns in a table: by name where `pathgp fit` remembers them, by their order otherwise."""
    about, inputs = request.about, request.inputs
    if "columns" in about:
        if inputs is not None:
            raise Refused("the model knows its columns by name: leave out --inputs")
        require_columns(about["columns"], table)
        return Columns(about["columns"], about.get("categories", {}), about.get("dates", []))
    count = request.posterior.report.columns
    names = table.names if inputs is None else [table.require(name, "--inputs") for name in inputs]
    if len(names) != count:
        given = f"{table.path.name} has {len(names)} columns" if inputs is None else f"--inputs has {len(names)}"
        raise ValueError(
            f"{request.model} was saved from Python without the names of its {count} columns, and {given}: "
            f"choose {count} of them, in the order of the fit, with --inputs"
        )
    return Columns(names)


def _told(result: dict[str, Any], target: str | None) -> list[str]:
    written = f", written to {result['out']}" if result["out"] else ""
    lines = [f"{counted(result['rows'], 'row')} in {result['seconds']:.1f} s{written}"]
    if result["skipped_rows"]:
        lines.append(f"{counted(result['skipped_rows'], 'row')} with missing inputs, their predictions are empty")
    if (errors := result["errors"]) is not None:
        told = f"against {target!r} in the file: RMSE {errors['rmse']:.4g}"
        if "nll" in errors:
            told += f", NLL {errors['nll']:.4g}, {100 * errors['coverage_95']:.1f} % in their 95 % intervals"
        lines.append(told)
    return lines
