"""The commands and their options, and the exit code and message of every error."""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pathgp._version import __version__
from pathgp.cli.output import UsageError, print_note
from pathgp.data.tabular import KERNELS
from pathgp.posterior.report import ConvergenceWarning

_COMMANDS = """\
  fit       learn a model from a CSV or Parquet file
  predict   mean and standard deviation for the rows of a file
  sample    posterior samples, functions evaluated at the rows of a file
  info      describe a model file
  plan      estimate the cost of a posterior
  example   write the made-up table of the examples
  demo      two Gaussian processes on 10,000 points, a table and a picture
"""
_EPILOG = """\
`pathgp COMMAND --help` lists the options of a command. `pathgp fit` without a
file fits made-up data, to try it.
"""


def run(arguments: list[str]) -> int:
    """Parse and run a command; an error of data, files or models is one line on standard error."""
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 2
    # The demo has options of its own.
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "demo":
        parser.error(f"{options.command} does not know {' '.join(rest)}: see pathgp {options.command} --help")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=ConvergenceWarning)
        warnings.showwarning = lambda message, *_: print_note(f"warning: {message}")
        try:
            module, function = options.function.split(":")
            command = getattr(importlib.import_module(module), function)
            return int(command(rest if options.command == "demo" else options))
        except UsageError as error:
            print_note(f"error: {error}")
            return 2
        except KeyboardInterrupt as interruption:
            print_note(str(interruption) or "interrupted: no file was written")
            return 130
        except BrokenPipeError:
            # The reader of the pipe has gone, as `head` does: discard what is still in the buffer.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except (ValueError, TypeError, OSError, NotImplementedError, RuntimeError, MemoryError) as error:
            print_note(f"error: {_one_line(error)}")
            return 1


def _one_line(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory: fit fewer rows or samples; `pathgp plan` estimates the memory"
    return " ".join(str(error).split()) or type(error).__name__


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pathgp",
        usage="pathgp COMMAND [options]",
        description="Exact Gaussian processes from the command line.\n\ncommands:\n" + _COMMANDS,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pathgp {__version__}")
    commands = parser.add_subparsers(
        dest="command", prog="pathgp", metavar="COMMAND", help=argparse.SUPPRESS, required=True
    )
    for add in (_fit, _predict, _sample, _info, _plan, _example, _demo):
        add(commands)
    return parser


def _fit(commands: Any) -> None:
    command = _command(
        commands,
        "fit",
        "pathgp.cli.fitting:fit",
        "Learn a Gaussian process from a table: hyperparameters, noise and posterior. Text columns become categories, "
        "one column of 0 and 1 for each. Inputs and target are standardised inside the model. Without FILE the "
        "example data is fitted (see pathgp example).",
    )
    command.add_argument("file", metavar="FILE", nargs="?", type=Path, help="a CSV or Parquet file")
    columns = command.add_argument_group("columns")
    columns.add_argument("--target", metavar="COL", help="the column to predict")
    columns.add_argument("--inputs", metavar="A,B", type=_names, help="the inputs (default: all other columns)")
    columns.add_argument("--ignore", metavar="C,D", type=_names, default=[], help="columns to leave out")
    columns.add_argument(
        "--categorical", metavar="E,F", type=_names, default=[], help="columns of numbers to read as categories"
    )
    _add_reading_options(columns, "leave out rows without a value in an input or in the target, and say how many")
    model = command.add_argument_group("model and learning")
    names = ", ".join(KERNELS)
    model.add_argument(
        "--kernel", metavar="NAME", choices=list(KERNELS), default="matern-5/2", help=f"{names} (default: matern-5/2)"
    )
    model.add_argument(
        "--noise", metavar="STD", type=_positive, help="fix the noise to this standard deviation, in the target's units"
    )
    model.add_argument("--steps", metavar="N", type=_count, help="steps of the optimiser, at most (100)")
    model.add_argument(
        "--samples", metavar="N", type=_whole, default=64, help="posterior samples, and probes of the gradient (64)"
    )
    holdout = "share of the rows kept apart to measure errors on; 0 learns from all (default: 0.1)"
    model.add_argument("--holdout", metavar="SHARE", type=_share, default=0.1, help=holdout)
    model.add_argument("--precision", choices=["float32", "float64"], help="default: float32 for more than 10,000 rows")
    model.add_argument("--seed", metavar="N", type=_count, default=0, help="of held-out rows and samples (default: 0)")
    model.add_argument("--device", default="cpu", help="such as cuda (default: cpu)")
    result = command.add_argument_group("results")
    result.add_argument("--out", metavar="MODEL", type=Path, help="save the model, for predict, sample and info")
    result.add_argument("--report", metavar="HTML", type=Path, help="write a report to look at in a browser")
    result.add_argument(
        "--predict", metavar="NEW", type=Path, help="then predict the rows of this file, as predict does"
    )
    result.add_argument(
        "--predictions", metavar="CSV", type=Path, help="where to write them (default: NEW_predictions.csv)"
    )
    _add_output_options(result)


def _predict(commands: Any) -> None:
    command = _command(
        commands,
        "predict",
        "pathgp.cli.predicting:predict",
        "Mean and standard deviation for every row of a file, in its order. The file is read and the predictions are "
        "written in blocks of rows, so that it may be long. If the file has the target, errors are reported.",
    )
    _add_model_and_file(command)
    command.add_argument(
        "--variance",
        choices=["default", "samples", "solve", "none"],
        default="default",
        help="source of std: the samples and the 32 nearest observations (default), the samples alone "
        "(faster), exact solves (slow for many rows), or none",
    )
    command.add_argument(
        "--interval",
        metavar="P",
        type=_level,
        help="add columns lower and upper of an interval with probability P, such as 0.95",
    )
    command.add_argument("--noise", action="store_true", help="std and interval of a new measurement, noise included")
    _add_result_options(command)


def _sample(commands: Any) -> None:
    command = _command(
        commands,
        "sample",
        "pathgp.cli.predicting:sample",
        "Posterior samples at the rows of a file, one column for each. They are functions: a sample is the same "
        "function at every call and in every file.",
    )
    _add_model_and_file(command)
    command.add_argument("--num", metavar="K", type=_whole, default=10, help="number of samples (default: 10)")
    _add_result_options(command)


def _info(commands: Any) -> None:
    command = _command(commands, "info", "pathgp.cli.summary:info", "Describe a model file.")
    command.add_argument("model", metavar="MODEL", type=Path, help="a file of pathgp fit --out or of post.save")
    command.add_argument("--json", action="store_true", help="one JSON object in place of the table")


def _plan(commands: Any) -> None:
    command = _command(
        commands,
        "plan",
        "pathgp.cli.commands:plan",
        "Estimate the cost of products and of a posterior in seconds and memory, without computing them.",
    )
    command.add_argument("rows", metavar="ROWS", type=_whole, help="rows of the data")
    command.add_argument("columns", metavar="COLUMNS", type=_whole, help="columns of the inputs")
    command.add_argument("--samples", metavar="N", type=_count, default=64, help="posterior samples (default: 64)")
    command.add_argument("--device", default="cpu", help="cpu, cuda, or h200 from anywhere (default: cpu)")
    command.add_argument("--precision", choices=["float32", "float64"], default="float32", help="default: float32")
    command.add_argument(
        "--memory", metavar="BYTES", type=_positive, help="for K, say 8e9 (default: half of what is free)"
    )
    command.add_argument(
        "--members", metavar="N", type=_whole, default=1, help="processes or devices that share the work"
    )
    command.add_argument("--measure", action="store_true", help="measure this machine first, a second or two")
    command.add_argument("--json", action="store_true", help="one JSON object in place of the table")


def _example(commands: Any) -> None:
    command = _command(
        commands,
        "example",
        "pathgp.cli.commands:example",
        "Write the example table as CSV: how fast 600 plants grew, by temperature, light, water and soil, made up.",
    )
    command.add_argument("--out", metavar="CSV", type=Path, help="default: standard output")


def _demo(commands: Any) -> None:
    commands.add_parser("demo", add_help=False).set_defaults(function="pathgp.cli.demo:main")


def _command(commands: Any, name: str, function: str, description: str) -> argparse.ArgumentParser:
    """Add a command. function: "module:name", imported when the command runs, so that others need not be."""
    command: argparse.ArgumentParser = commands.add_parser(name, description=textwrap.fill(description, 78))
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.allow_abbrev = False
    command.set_defaults(function=function)
    return command


def _add_model_and_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL", type=Path, help="a file of pathgp fit --out or of post.save")
    command.add_argument("file", metavar="FILE", type=Path, help="a CSV or Parquet file with the model's columns")
    command.add_argument(
        "--inputs", metavar="A,B", type=_names, help="the inputs in order, for a model that knows no column names"
    )
    _add_reading_options(command, "rows without a value in an input get empty predictions, and are counted")


def _add_reading_options(command: Any, skipping: str) -> None:
    command.add_argument("--no-header", action="store_true", help="the file has no names: columns are 1, 2, ...")
    command.add_argument("--skip-missing", action="store_true", help=skipping)


def _add_result_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", metavar="CSV", type=Path, help="where to write (default: standard output)")
    command.add_argument("--device", help="default: that of the model, if it is available")
    _add_output_options(command)


def _add_output_options(command: Any) -> None:
    command.add_argument("--json", action="store_true", help="one JSON object on standard output, nothing else there")
    command.add_argument("--quiet", action="store_true", help="no progress and no notes; warnings and errors only")


def _names(text: str) -> list[str]:
    # As a line of CSV, so that a name with a comma can be quoted.
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not names or not all(names):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got {text!r}")
    return names


def _number(kind: type, holds: Callable[[Any], bool], expected: str) -> Callable[[str], Any]:
    """A parser of numbers that refuses text and values for which ``holds`` is false."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not holds(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return parse


_count = _number(int, lambda value: value >= 0, "a whole number, 0 or more")
_whole = _number(int, lambda value: value >= 1, "a whole number, 1 or more")
_positive = _number(float, lambda value: 0 < value < float("inf"), "a positive number")
_share = _number(float, lambda value: 0 <= value < 1, "a share between 0 and 1")
_level = _number(float, lambda value: 0 < value < 1, "a share between 0 and 1, such as 0.95")
