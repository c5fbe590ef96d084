"""The facts of a model: one dictionary, printed as a table or as JSON by ``pathgp fit`` and ``pathgp info``."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterator
from itertools import compress
from typing import Any

import pathgp
from pathgp._version import __version__
from pathgp.cli.output import print_json
from pathgp.data.tabular import Columns
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.table import Posterior

# `fit` lists this number of inputs with their length scales; `info` lists all.
_MOST_INPUTS = 12
_WIDEST = 100
# What `pathgp fit` saves with a posterior, and the values for one that was saved from Python.
_NOT_KNOWN = (
    "file",
    "target",
    "columns",
    "molecules",
    "held_out",
    "steps",
    "stopped",
    "fit_epochs",
    "fit_seconds",
    "seed",
)
_SAVED: dict[str, Any] = dict.fromkeys(_NOT_KNOWN)
_SAVED |= {"held_out_rows": 0, "skipped_rows": 0, "noise_fixed": False, "categories": {}, "dates": [], "note": ""}


def info(options: argparse.Namespace) -> None:
    """Print the facts of a model file."""
    posterior = pathgp.load(options.model, device="cpu")
    if isinstance(posterior, GridPosterior):
        result: dict[str, Any] = {"model": str(options.model), "kind": "grid", "about": posterior.about}
        table = f"a grid with holes, for pathgp.load in Python\n\n{posterior!r}"
    else:
        result = describe(posterior) | {"model": str(options.model)}
        table = format_summary(result, every=True)
    if options.json:
        print_json(result)
    else:
        print(table)


def describe(posterior: Posterior) -> dict[str, Any]:
    """The facts of a posterior in the units of the data, and what `pathgp fit` saved with it."""
    report, scaling, about = posterior.report, posterior.scaling, posterior.about or {}
    saved = {name: about.get(name, default) for name, default in _SAVED.items()}
    values = {name: value.flatten().tolist() for name, value in posterior.model.hyperparameters().items()}
    unit = float(scaling.target_scale)
    inputs = [str(i + 1) for i in range(report.columns)]
    if saved["molecules"] is not None:
        inputs = saved["columns"]
    elif saved["columns"] is not None:
        inputs = Columns(saved["columns"], saved["categories"], saved["dates"]).inputs
    result: dict[str, Any] = {
        "pathgp": __version__,
        "rows": report.rows,
        "inputs": inputs,
        "kernel": about.get("kernel", repr(posterior.model.kernel)),
        **saved,
        "noise": values.pop("noise")[0] * unit,
    }
    if len(values.get("signal", [])) == 1:
        result["signal"] = values.pop("signal")[0] * unit
    if len(values.get("lengthscale", [])) == len(inputs):
        relative, is_constant = values.pop("lengthscale"), (posterior.system.X[:1] == posterior.system.X).all(0)
        scales = [value * scale for value, scale in zip(relative, scaling.scale.tolist(), strict=True)]
        result["lengthscales"] = dict(zip(inputs, scales, strict=True))
        result["relative_lengthscales"] = dict(zip(inputs, relative, strict=True))
        result["constant_inputs"] = list(compress(inputs, is_constant))
    return result | {
        "other_hyperparameters": values,
        "solver": report.solution.solver,
        "method": report.solution.method,
        "status": report.status.name,
        "converged": report.solution.converged,
        "iterations": report.solution.iterations,
        "epochs": report.epochs,
        "residual": report.worst_residual,
        "tol": report.tol,
        "error_bound": report.error_bound,
        "samples": posterior.num_samples,
        "precision": report.precision,
        "device": report.device,
    }


def format_summary(result: dict[str, Any], every: bool = False) -> str:
    """Format the facts as a table as wide as the terminal. every: list all length scales, and no files."""
    width = min(_WIDEST, max(60, shutil.get_terminal_size().columns))
    lines: list[str] = []
    for name, value in _items(result):
        wrapped = textwrap.wrap(value, width - 15, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"{'' if i else name:<13}  {part}".rstrip() for i, part in enumerate(wrapped)]
    if "lengthscales" in result:
        lines += ["", *_lengthscales(result, width, every)]
    saved = [f"{name} in {result[name]}" for name in ("model", "report", "checkpoint") if result.get(name)]
    return "\n".join([*lines, "", *saved] if saved and not every else lines)


def _items(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values: of the data, the errors, the model and the solve."""
    if result["target"] is not None:
        yield "target", f"{result['target']}, from {result['file']}"
    held_out = f", {result['held_out_rows']:,} held out" if result["held_out_rows"] else ""
    skipped = f", {result['skipped_rows']:,} skipped, with missing values" if result["skipped_rows"] else ""
    yield "rows", f"{result['rows']:,} learned from{held_out}{skipped}"
    for name, known in result["categories"].items():
        shown = known if len(known) <= 8 else [*known[:6], "..."]
        yield "categories", f"{name}: {', '.join(map(str, shown))} ({len(known)}, each a column of 0 and 1)"
    if result["dates"]:
        yield "dates", f"{', '.join(map(str, result['dates']))} (in days since 1970)"
    if (given := result["molecules"]) is not None:
        kind = "counts" if given["counts"] else "bits"
        yield "molecules", f"{given['column']}, Morgan {kind} of radius {given['radius']} in {given['size']} columns"
    if (errors := result["held_out"]) is not None:
        share = errors["rmse"] / errors["target_std"] if errors["target_std"] else float("nan")
        yield "held-out RMSE", f"{errors['rmse']:.4g}, which is {100 * share:.3g} % of the target's std"
        yield "held-out NLL", f"{errors['nll']:.4g} nats per row"
        yield "95 % coverage", f"{100 * errors['coverage_95']:.1f} % of the held-out rows in their intervals"
    yield "kernel", result["kernel"]
    fixed = ", fixed" if result["noise_fixed"] else ""
    yield "noise", f"{result['noise']:.4g}{fixed}: std of a measurement, in the units of {result['target'] or 'y'}"
    if "signal" in result:
        yield "signal", f"{result['signal']:.4g}: prior std of the function, in the same units"
    for name, values in result["other_hyperparameters"].items():
        yield name, ", ".join(f"{value:.4g}" for value in values)
    if result["stopped"] is not None:
        steps = "" if result["steps"] is None else f"{result['steps']} steps: "
        more = "; more --steps may find a better model" if result["stopped"] == "all steps done" else ""
        yield "learning", f"{steps}{result['stopped']}{more}"
    solver = result["method"] + ("" if result["converged"] else f", {result['status']}")
    if result["converged"] and not result["iterations"]:
        solver = "none needed, the solutions of learning met tol"
    yield "solver", f"{solver}; worst residual {result['residual']:.1e}, tol {result['tol']:.0e}"
    learning = (result["fit_epochs"] or 0.0) - result["epochs"]
    yield "epochs", f"{result['epochs']:.1f}" + (f", and {learning:,.1f} to learn" if learning > 0 else "")
    yield "samples", f"{result['samples']} functions" if result["samples"] else "none"
    seed = "" if result["seed"] is None else f", seed {result['seed']}"
    yield "computed in", f"{result['precision']} on {result['device']}{seed}"
    if result["note"]:
        yield "note", result["note"]
    if (seconds := result.get("seconds", result["fit_seconds"])) is not None:
        yield "seconds", f"{seconds:.1f}"


def _lengthscales(result: dict[str, Any], width: int, every: bool) -> list[str]:
    """Inputs by length scale in standard deviations, the shortest first: along it the function varies most."""
    relative, constant = result["relative_lengthscales"], result["constant_inputs"]
    order = sorted(relative, key=lambda name: (name in constant, relative[name]))
    shown = order if every or len(order) <= _MOST_INPUTS else order[: _MOST_INPUTS - 1]
    name_width = min(max(len(name) for name in [*shown, "input"]), width - 32)
    rows = [("input", "length scale", "in std of input")]
    for name in shown:
        title = name if len(name) <= name_width else f"{name[: name_width - 3]}..."
        scales = f"{result['lengthscales'][name]:.4g}", f"{relative[name]:.4g}"
        rows.append((title, *(("", "is constant") if name in constant else scales)))
    lines = [f"{title:<{name_width}}  {scale:>12}  {in_std:>15}" for title, scale, in_std in rows]
    if len(shown) < len(order):
        lines.append(f"and {len(order) - len(shown)} more with longer ones; pathgp info lists all")
    return lines
