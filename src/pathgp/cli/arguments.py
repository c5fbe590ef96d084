"""What can be asked for: commands and their options, and how errors are told."""

from __future__ import annotations

import argparse
import csv
import os
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pathgp._version import __version__
from pathgp.cli.output import Refused, say
from pathgp.data.tabular import KERNELS
from pathgp.posterior.report import ConvergenceWarning

_COMMANDS = """\
  fit       learn a model from a CSV or Parquet file
  predict   mean and standard deviation for the rows of a file
  sample    posterior samples, functions evaluated at the rows of a file
  info      what is in a model file
  plan      what a posterior will cost, before anything is run
  example   write the made-up table that the examples use
  demo      two Gaussian processes on 10,000 points, a table and a picture
"""
_EPILOG = """\
`pathgp COMMAND --help` tells the options of a command. `pathgp fit` without a
file takes made-up data, to see what it does.
"""


def run(arguments: list[str]) -> int:
    """Parse and run; every error that data, files or models can cause is one line on standard error."""
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 2
    # The demo has options of its own.
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "demo":
        parser.error(f"{options.command} does not know {' '.join(rest)}: see pathgp {options.command} --help")
    options.rest = rest
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=ConvergenceWarning)
        warnings.showwarning = lambda message, *_: say(f"warning: {message}")
        try:
            return options.function(options)
        except Refused as refusal:
            say(f"error: {refusal}")
            return 2
        except KeyboardInterrupt as interruption:
            say(str(interruption) or "interrupted: no file was written")
            return 130
        except BrokenPipeError:
            # The reader has seen enough, as `head` does. What is still in the buffer has no place to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except (ValueError, TypeError, OSError, NotImplementedError, RuntimeError, MemoryError) as error:
            say(f"error: {_told(error)}")
            return 1


def _told(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory: fit fewer rows or samples, or see `pathgp plan` for what it takes"
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
        _run_fit,
        "Learn a Gaussian process from a table: hyperparameters, noise and posterior. Text columns become categories, "
        "one column of 0 and 1 for each. Inputs and target are standardised inside the model. Without FILE the "
        "example data is taken (see pathgp example).",
    )
    command.add_argument("file", metavar="FILE", nargs="?", type=Path, help="a CSV or Parquet file")
    columns = command.add_argument_group("columns")
    columns.add_argument("--target", metavar="COL", help="the column to predict")
    columns.add_argument("--inputs", metavar="A,B", type=_names, help="the inputs (default: all other columns)")
    columns.add_argument("--ignore", metavar="C,D", type=_names, default=[], help="columns to leave out")
    columns.add_argument(
        "--categorical", metavar="E,F", type=_names, default=[], help="columns of numbers to read as categories"
    )
    _reading(columns, "leave out rows without a value in an input or in the target, and say how many")
    model = command.add_argument_group("model and learning")
    names = ", ".join(KERNELS)
    model.add_argument(
        "--kernel", metavar="NAME", choices=list(KERNELS), default="matern-5/2", help=f"{names} (default: matern-5/2)"
    )
    model.add_argument(
        "--noise", metavar="STD", type=_positive, help="fix the noise to this standard deviation, in the target's units"
    )
    model.add_argument("--steps", metavar="N", type=_count, default=100, help="steps of the optimiser, at most (100)")
    model.add_argument(
        "--samples", metavar="N", type=_whole, default=64, help="posterior samples, and probes of the gradient (64)"
    )
    model.add_argument("--holdout", metavar="SHARE", type=_share, default=0.1, help=_HOLDOUT)
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
    _telling(result)


def _predict(commands: Any) -> None:
    command = _command(
        commands,
        "predict",
        _run_predict,
        "Mean and standard deviation for every row of a file, in its order. The file is read and the predictions are "
        "written a block at a time, however long it is. Where the file has the target, errors are reported.",
    )
    _model_and_file(command)
    command.add_argument(
        "--variance",
        choices=["default", "samples", "solve", "none"],
        default="default",
        help="how std is found: from the samples and the 32 nearest observations (default), from the samples alone "
        "(faster), by exact solves (slow for many rows), or not at all",
    )
    command.add_argument(
        "--interval", metavar="P", type=_level, help="add columns lower and upper that hold P, such as 0.95"
    )
    command.add_argument("--noise", action="store_true", help="std and interval of a new measurement, noise included")
    _results(command)


def _sample(commands: Any) -> None:
    command = _command(
        commands,
        "sample",
        _run_sample,
        "Posterior samples at the rows of a file, one column for each. They are functions: a sample is the same "
        "function at every call and in every file.",
    )
    _model_and_file(command)
    command.add_argument("--num", metavar="K", type=_whole, default=10, help="number of samples (default: 10)")
    _results(command)


def _info(commands: Any) -> None:
    command = _command(commands, "info", _run_info, "What is in a model file.")
    command.add_argument("model", metavar="MODEL", type=Path, help="a file of pathgp fit --out or of post.save")
    command.add_argument("--json", action="store_true", help="one JSON object in place of the table")


def _plan(commands: Any) -> None:
    command = _command(
        commands, "plan", _run_plan, "What products and a posterior cost, in seconds and memory; nothing is run."
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
        _run_example,
        "Write the example table as CSV: how fast 600 plants grew, by temperature, light, water and soil, made up.",
    )
    command.add_argument("--out", metavar="CSV", type=Path, help="default: standard output")


def _demo(commands: Any) -> None:
    commands.add_parser("demo", add_help=False).set_defaults(function=_run_demo)


def _command(
    commands: Any, name: str, function: Callable[[argparse.Namespace], int], description: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, description=textwrap.fill(description, 78))
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.allow_abbrev = False
    command.set_defaults(function=function)
    return command


def _model_and_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL", type=Path, help="a file of pathgp fit --out or of post.save")
    command.add_argument("file", metavar="FILE", type=Path, help="a CSV or Parquet file with the model's columns")
    command.add_argument(
        "--inputs", metavar="A,B", type=_names, help="the inputs in order, for a model that knows no column names"
    )
    _reading(command, "rows without a value in an input get empty predictions, and are counted")


def _reading(command: Any, skipping: str) -> None:
    command.add_argument("--no-header", action="store_true", help="the file has no names: columns are 1, 2, ...")
    command.add_argument("--skip-missing", action="store_true", help=skipping)


def _results(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", metavar="CSV", type=Path, help="where to write (default: standard output)")
    command.add_argument("--device", help="default: that of the model, where there is one")
    _telling(command)


def _telling(command: Any) -> None:
    command.add_argument("--json", action="store_true", help="one JSON object on standard output, nothing else there")
    command.add_argument("--quiet", action="store_true", help="no progress and no notes; warnings and errors only")


# One function per command, so that a command imports what it needs and nothing else.
def _run_fit(options: argparse.Namespace) -> int:
    from pathgp.cli.fitting import fit

    return fit(options)


def _run_predict(options: argparse.Namespace) -> int:
    from pathgp.cli.predicting import predict

    return predict(options)


def _run_sample(options: argparse.Namespace) -> int:
    from pathgp.cli.predicting import sample

    return sample(options)


def _run_info(options: argparse.Namespace) -> int:
    from pathgp.cli.summary import info

    return info(options)


def _run_plan(options: argparse.Namespace) -> int:
    from pathgp.cli.commands import plan

    return plan(options)


def _run_example(options: argparse.Namespace) -> int:
    from pathgp.cli.commands import example

    return example(options)


def _run_demo(options: argparse.Namespace) -> int:
    from pathgp.cli.demo import main

    return main(options.rest)


_HOLDOUT = "share of the rows kept apart to measure errors on; 0 learns from all (default: 0.1)"


def _names(text: str) -> list[str]:
    # As a line of CSV, so that a name with a comma can be quoted.
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not names or not all(names):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got {text!r}")
    return names


def _read(text: str, kind: type, meets: Callable[[Any], bool], expected: str) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not meets(value):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value


def _count(text: str) -> int:
    return int(_read(text, int, lambda value: value >= 0, "a whole number, 0 or more"))


def _whole(text: str) -> int:
    return int(_read(text, int, lambda value: value >= 1, "a whole number, 1 or more"))


def _positive(text: str) -> float:
    return float(_read(text, float, lambda value: 0 < value < float("inf"), "a positive number"))


def _share(text: str) -> float:
    return float(_read(text, float, lambda value: 0 <= value < 1, "a share between 0 and 1"))


def _level(text: str) -> float:
    return float(_read(text, float, lambda value: 0 < value < 1, "a share between 0 and 1, such as 0.95"))
