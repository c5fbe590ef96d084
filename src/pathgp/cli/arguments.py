"""The commands and their options, and the exit code and message of every error."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pathgp._version import __version__
from pathgp.cli.commands import EXAMPLES
from pathgp.cli.option_types import column_names, count, finite, level, memory_size, positive, share, spacing, whole
from pathgp.cli.output import UsageError, print_note
from pathgp.data.tabular import DEFAULT_KERNEL, KERNELS
from pathgp.learning.progress import LongFitWarning
from pathgp.posterior.convergence import ConvergenceWarning

_COMMANDS = """\
  fit       learn a model from a CSV or Parquet file
  predict   mean and standard deviation for the rows of a file
  sample    posterior samples, functions evaluated at the rows of a file
  krige     a map of a field from values at points, with uncertainty
  info      describe a model file
  plan      estimate the cost of a posterior and of a fit
  example   write a generated table to try things on
  demo      two Gaussian processes on 10,000 points, a table and a picture
"""
# Imported when the command runs: the others need not be.
_MODULES = {
    "fit": "fitting",
    "predict": "predicting",
    "sample": "predicting",
    "krige": "kriging",
    "info": "summary",
    "demo": "demo",
}
# argparse would take this number for FILE.
_NOISE_WITH_NUMBER = re.compile(r"(?<!\S)--noise[= ]([+-]?[\d.]+(?:[eE][+-]?\d+)?)(?!\S)")
_EPILOG = """\
`pathgp COMMAND --help` lists the options of a command. `pathgp fit` without a
file fits generated data, to try it.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 for an error in data or model, 2 for usage, 130 after Ctrl-C.

    An error of data, files or models is one line on standard error.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 2
    if arguments[0] in ("fit", "predict") and (number := _NOISE_WITH_NUMBER.search(" ".join(arguments))):
        remedy = (
            f"--noise-std {number[1]} fixes the noise" if arguments[0] == "fit" else "its size is that of the model"
        )
        parser.error(f"--noise has no value and adds noise to predictions: {remedy}")
    options, rest = parser.parse_known_args(arguments)
    options.again = shlex.join(["pathgp", *arguments])
    if rest:
        parser.error(f"{options.command} does not know {' '.join(rest)}: see pathgp {options.command} --help")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=ConvergenceWarning)
        warnings.filterwarnings("always", category=LongFitWarning)
        warnings.showwarning = lambda message, *_: print_note(f"warning: {_name_options(message)}")
        try:
            module = importlib.import_module(f"pathgp.cli.{_MODULES.get(options.command, 'commands')}")
            return getattr(module, options.command)(options) or 0
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
        except (ValueError, TypeError, OSError, ImportError, NotImplementedError, RuntimeError, MemoryError) as error:
            print_note(f"error: {_one_line(error)}")
            return 1


def _name_options(message: Warning | str) -> str:
    """A warning whose remedies are options of the command line in place of arguments of `GP.fit`."""
    text = str(message)
    if isinstance(message, LongFitWarning):
        return f"{text.rpartition('; ')[0]}; limit it with --minutes, or use a GPU with --device cuda"
    return text.replace("use float64", "use --precision float64")


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory: fit fewer rows or samples; `pathgp plan` estimates the memory"
    return " ".join(str(error).split()) or type(error).__name__


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: the usage of a command fills half a screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
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
    for add_options in (_fit, _predict, _sample, _krige, _info, _plan, _example, _demo):
        command = commands.add_parser(
            add_options.__name__[1:],
            description=textwrap.fill(" ".join((add_options.__doc__ or "").split()), 78),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add_options(command)
    return parser


_FILE = "a CSV or Parquet file, also compressed CSV (gzip, zstd), or - for standard input"

# The docstring of each of these functions is the description that --help prints.


def _fit(command: argparse.ArgumentParser) -> None:
    """Learn a Gaussian process from a table: hyperparameters, noise and posterior. Text columns become categories, one
    column of 0 and 1 for each. Inputs and target are standardised inside the model. Without FILE the example data is
    fitted (see pathgp example).
    """
    command.add_argument("file", metavar="FILE", nargs="?", type=Path, help=_FILE)
    columns = command.add_argument_group("columns")
    _add(columns, "--target", "COL", "the column to predict")
    _add(columns, "--inputs", "A,B", "the inputs (default: all other columns)", column_names)
    _add(columns, "--ignore", "C,D", "columns to leave out", column_names, [])
    _add(columns, "--categorical", "E,F", "columns of numbers to read as categories", column_names, [])
    _add_reading_options(columns, "leave out rows without a value in an input or in the target, and say how many")
    _add(columns, "--id", "COL", "a column to copy into the predictions, and no input", column_names, [])
    molecules = command.add_argument_group("molecules", "with the extra chem, which needs RDKit")
    smiles = "a column of SMILES: the inputs are its Morgan fingerprints, and the kernel is their Tanimoto similarity"
    _add(molecules, "--smiles", "COL", smiles)
    kinds = "count the groups of atoms, or mark which occur (default: counts)"
    molecules.add_argument("--fingerprint", choices=["counts", "bits"], help=kinds)
    _add(molecules, "--radius", "N", "of a group around its central atom, in bonds (default: 2)", count)
    _add(molecules, "--size", "N", "columns of a fingerprint (default: 2048)", whole)
    model = command.add_argument_group("model and learning")
    kernel = f"{', '.join(KERNELS)} (default: {DEFAULT_KERNEL})"
    model.add_argument("--kernel", metavar="NAME", choices=list(KERNELS), help=kernel)
    _add_learning_options(model, "100; 125 for more than 1,000 rows of more than three inputs")
    holdout = "share of the rows kept apart to measure errors on; 0 learns from all (default: 0.1)"
    _add(model, "--holdout", "SHARE", holdout, share, 0.1)
    model.add_argument("--precision", choices=["float32", "float64"], help="default: float32 for more than 10,000 rows")
    _add(model, "--seed", "N", "of held-out rows and samples (default: 0)", count, 0)
    model.add_argument("--device", default="cpu", help="such as cuda (default: cpu)")
    result = command.add_argument_group("results")
    _add(result, "--out", "MODEL", "save the model, for predict, sample and info", Path)
    _add(result, "--report", "HTML", "write a report to look at in a browser", Path)
    checkpoint = "save the fit here while it runs; the same command continues an interrupted fit"
    _add(result, "--checkpoint", "FILE", checkpoint, Path)
    _add_output_options(result)
    predictions = command.add_argument_group("predictions")
    _add(predictions, "--predict", "NEW", "then predict the rows of this file, as predict does", Path)
    place = "where to write them (default: NEW_predictions.csv in the working folder)"
    _add(predictions, "--predictions", "CSV", place, Path)
    _add_prediction_options(predictions)


def _predict(command: argparse.ArgumentParser) -> None:
    """Mean and standard deviation for every row of a file, in its order. The file is read and the predictions are
    written in blocks of rows, so that it may be long. If the file has the target, errors are reported.
    """
    _add_model_and_file(command)
    _add_prediction_options(command)
    _add_result_options(command)


def _sample(command: argparse.ArgumentParser) -> None:
    """Posterior samples at the rows of a file, one column for each. They are functions: a sample is the same function
    at every call and in every file.
    """
    _add_model_and_file(command)
    _add(command, "--num", "K", "number of samples (default: 10)", whole, 10)
    _add_result_options(command)


def _krige(command: argparse.ArgumentParser) -> None:
    """Map a field from values at scattered points (kriging): mean and standard deviation on a grid, or at the
    rows of another file. Kernel, nugget and trend are learned. Longitudes and latitudes are positions on the globe.
    """
    command.add_argument("file", metavar="FILE", type=Path, help=_FILE)
    columns = command.add_argument_group("columns")
    _add(columns, "--x", "COL", "column of the first coordinate, such as the longitude")
    _add(columns, "--y", "COL", "column of the second coordinate, such as the latitude")
    _add(columns, "--target", "COL", "column of the values")
    _add(columns, "--noise-column", "COL", "column of known standard deviations, one for each value")
    places = "default: lonlat for columns called lon and lat, or longitude and latitude; otherwise plane"
    columns.add_argument("--coordinates", choices=["plane", "lonlat"], help=places)
    _add_reading_options(columns, "leave out rows with a missing value, and say how many")
    where = command.add_argument_group("where to predict")
    _add(where, "--grid", "STEP", "distance between the nodes of a grid over all points, or STEP_X,STEP_Y", spacing)
    _add(where, "--predict", "NEW", "predict at the rows of this file instead of a grid", Path)
    where.add_argument("--cells", action="store_true", help="predict averages over cells of the grid (block kriging)")
    _add(where, "--threshold", "T", "add the probability that the field is above T", finite)
    _add(where, "--simulations", "K", "add K conditional simulations to the result (default: 0)", count, 0)
    model = command.add_argument_group("model and learning")
    kernel = f"{', '.join(KERNELS)} (default: the likelihood chooses a matern kernel)"
    model.add_argument("--kernel", metavar="NAME", choices=list(KERNELS), help=kernel)
    trend = "constant, linear, quadratic, or columns A,B of the file (default: constant)"
    _add(model, "--trend", "NAME", trend, str, "constant")
    isotropic = "use one length scale for both coordinates of a plane (default: one for each)"
    model.add_argument("--isotropic", action="store_true", help=isotropic)
    _add_learning_options(model, "100")
    _add(model, "--seed", "N", "seed of the samples (default: 0)", count, 0)
    model.add_argument("--device", default="cpu", help="such as cuda (default: cpu)")
    result = command.add_argument_group("results")
    _add(result, "--out", "FILE", "where to write: map.nc (NetCDF, for a grid) or map.csv", Path)
    page = "write a page with the map, to look at in a browser"
    result.add_argument("--report", "--html", metavar="HTML", type=Path, help=page)
    _add_output_options(result)


def _info(command: argparse.ArgumentParser) -> None:
    """Describe a model file."""
    command.add_argument("model", metavar="MODEL", type=Path, help="a file of pathgp fit --out or of post.save")
    command.add_argument("--json", action="store_true", help="one JSON object in place of the table")


def _plan(command: argparse.ArgumentParser) -> None:
    """Estimate the cost of products, of a posterior and of a fit in seconds and memory, without computing them."""
    _add(command, "rows", "ROWS", "rows of the data", whole)
    _add(command, "columns", "COLUMNS", "columns of the inputs", whole)
    _add(command, "--samples", "N", "posterior samples (default: 64)", count, 64)
    command.add_argument("--device", default="cpu", help="cpu, cuda, or h200 on any machine (default: cpu)")
    command.add_argument("--precision", choices=["float32", "float64"], default="float32", help="default: float32")
    _add(command, "--memory", "SIZE", "for K, such as 8GB, 8GiB or 8e9 (default: half of what is free)", memory_size)
    _add(command, "--members", "N", "processes or devices that share the work", whole, 1)
    command.add_argument("--measure", action="store_true", help="measure this machine first, a second or two")
    command.add_argument("--json", action="store_true", help="one JSON object in place of the table")


def _example(command: argparse.ArgumentParser) -> None:
    """Write an example table as CSV, generated data. plants: growth of 600 plants by temperature, light, water and
    soil, for pathgp fit. stations: temperatures at 250 places, for pathgp krige."""
    command.add_argument("name", nargs="?", choices=list(EXAMPLES), default="plants", help="default: plants")
    _add(command, "--out", "CSV", "default: standard output", Path)


def _demo(command: argparse.ArgumentParser) -> None:
    """A Gaussian process from data to posterior samples: ``pathgp demo``."""
    command.add_argument("--out", type=Path, default=Path("demo.png"), help="the picture (default: demo.png)")
    _add(command, "--seed", "N", "seed of data, paths and solver (default: 0)", count, 0)
    _add(command, "--points", "N", "training points per case (default: 10000)", whole, 10_000)


def _add(
    group: Any, name: str, metavar: str, words: str, kind: Callable[[str], Any] = str, default: Any = None
) -> None:
    group.add_argument(name, metavar=metavar, help=words, type=kind, default=default)


def _add_model_and_file(command: argparse.ArgumentParser) -> None:
    _add(command, "model", "MODEL", "a file of pathgp fit --out or of post.save", Path)
    _add(command, "file", "FILE", f"{_FILE}; it needs the model's columns", Path)
    _add(command, "--id", "COL", "a column of the file to copy into the output", column_names, [])
    _add(command, "--inputs", "A,B", "the inputs in order, for a model without column names", column_names)
    _add_reading_options(command, "rows without a value in an input get empty predictions, and are counted")


def _add_learning_options(group: Any, steps: str) -> None:
    _add(group, "--noise-std", "STD", "fix the noise to this standard deviation, in the target's units", positive)
    _add(group, "--minutes", "M", "time limit of learning; long fits then use fewer steps and rows", positive)
    _add(group, "--steps", "N", f"steps of the optimiser, at most (default: {steps})", count)
    _add(group, "--samples", "N", "posterior samples, and probes of the gradient (default: 64)", whole)


def _add_prediction_options(group: Any) -> None:
    variance = (
        "source of std: the samples and the 32 nearest observations (default), the samples alone "
        "(faster), exact solves (slow for many rows), or none"
    )
    choices = ["default", "samples", "solve", "none"]
    group.add_argument("--variance", choices=choices, default="default", help=variance)
    interval = "add columns lower and upper of an interval with probability P, such as 0.95"
    _add(group, "--interval", "P", interval, level)
    group.add_argument("--noise", action="store_true", help="std and interval of a new measurement, noise included")


def _add_reading_options(group: Any, skipping: str) -> None:
    group.add_argument("--no-header", action="store_true", help="the file has no names: columns are 1, 2, ...")
    group.add_argument("--decimal-comma", action="store_true", help="numbers in CSV files are written as 1,5")
    group.add_argument("--skip-missing", action="store_true", help=skipping)


def _add_result_options(command: argparse.ArgumentParser) -> None:
    _add(command, "--out", "CSV", "where to write (default: standard output)", Path)
    command.add_argument("--device", help="default: that of the model, if it is available")
    _add_output_options(command)


def _add_output_options(group: Any) -> None:
    group.add_argument("--json", action="store_true", help="print one JSON object on standard output, and nothing else")
    group.add_argument("--quiet", action="store_true", help="no progress and no notes; warnings and errors only")
