"""A model in numbers: one dictionary, printed as a table or as JSON, by ``pathgp fit`` and ``pathgp info`` alike."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import Any

import pathgp
from pathgp._version import __version__
from pathgp.cli.output import print_json
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.table import Posterior
from pathgp.solvers import Status

# Inputs that `fit` lists with their length scales; `info` lists all.
_MOST_INPUTS = 12
_WIDEST = 100


def info(options: argparse.Namespace) -> int:
    posterior = pathgp.load(options.model, device="cpu")
    if isinstance(posterior, GridPosterior):
        result: dict[str, Any] = {"model": str(options.model), "kind": "grid", "about": posterior.about}
        table = f"a grid with holes, for pathgp.load in Python\n\n{posterior!r}"
    else:
        result = described(posterior, posterior.about or {}) | {"model": str(options.model)}
        table = printed(result, every=True)
    if options.json:
        print_json(result)
    else:
        print(table)
    return 0


def described(posterior: Posterior, about: dict[str, Any]) -> dict[str, Any]:
    """The facts of a posterior, in the units of the data; ``about`` is what `pathgp fit` remembers."""
    report, scaling = posterior.report, posterior.scaling
    values = {name: value.flatten().tolist() for name, value in posterior.model.hyperparameters().items()}
    unit, scale = float(scaling.target_scale), scaling.scale.tolist()
    inputs = input_names(posterior, about)
    result: dict[str, Any] = {
        "pathgp": __version__,
        "file": about.get("file"),
        "target": about.get("target"),
        "rows": report.rows,
        "held_out_rows": about.get("held_out_rows", 0),
        "skipped_rows": about.get("skipped_rows", 0),
        "columns": about.get("columns"),
        "categories": about.get("categories", {}),
        "dates": about.get("dates", []),
        "inputs": inputs,
        "kernel": about.get("kernel", repr(posterior.model.kernel)),
        "held_out": about.get("held_out"),
        "noise": values.pop("noise")[0] * unit,
        "noise_fixed": about.get("noise_fixed", False),
    }
    if len(values.get("signal", [])) == 1:
        result["signal"] = values.pop("signal")[0] * unit
    if len(values.get("lengthscale", [])) == len(inputs):
        relative = values.pop("lengthscale")
        result["lengthscales"] = {name: l * s for name, l, s in zip(inputs, relative, scale, strict=True)}
        result["relative_lengthscales"] = dict(zip(inputs, relative, strict=True))
        varies = (posterior.system.X[:1] != posterior.system.X).any(0).tolist()
        result["constant_inputs"] = [name for name, changes in zip(inputs, varies, strict=True) if not changes]
    solution = report.solution
    return result | {
        "other_hyperparameters": values,
        "steps": about.get("steps"),
        "stopped": about.get("stopped"),
        "fit_epochs": about.get("fit_epochs"),
        "fit_seconds": about.get("fit_seconds"),
        "solver": solution.solver,
        "method": solution.method,
        "status": report.status.name,
        "converged": report.status is Status.CONVERGED,
        "epochs": report.epochs,
        "residual": report.worst_residual,
        "tol": report.tol,
        "error_bound": report.error_bound,
        "samples": posterior.num_samples,
        "seed": about.get("seed"),
        "precision": report.precision,
        "device": report.device,
    }


def input_names(posterior: Posterior, about: dict[str, Any]) -> list[str]:
    """The names of the columns of X: those that `pathgp fit` remembers, numbers otherwise."""
    from pathgp.data.tabular import Columns

    if "columns" in about:
        return Columns(about["columns"], about.get("categories", {}), about.get("dates", [])).inputs
    return [str(i + 1) for i in range(posterior.report.columns)]


def printed(result: dict[str, Any], every: bool = False) -> str:
    """The facts as a table, as wide as the terminal."""
    width = min(_WIDEST, max(60, shutil.get_terminal_size().columns))
    lines: list[str] = []
    for name, value in _pairs(result):
        wrapped = textwrap.wrap(value, width - 15, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"{'' if i else name:<13}  {part}".rstrip() for i, part in enumerate(wrapped)]
    if "lengthscales" in result:
        lines += ["", *_lengthscales(result, width, every)]
    saved = [
        f"{what} in {result[name]}" for what, name in (("model", "model"), ("report", "report")) if result.get(name)
    ]
    if saved and not every:
        lines += ["", *saved]
    return "\n".join(lines)


def _pairs(result: dict[str, Any]) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if result["target"] is not None:
        lines.append(("target", f"{result['target']}, from {result['file']}"))
    rows = f"{result['rows']:,} learned from"
    if result["held_out_rows"]:
        rows += f", {result['held_out_rows']:,} held out"
    if result["skipped_rows"]:
        rows += f", {result['skipped_rows']:,} skipped, with missing values"
    lines.append(("rows", rows))
    for name, known in result["categories"].items():
        shown = known if len(known) <= 8 else [*known[:6], "..."]
        lines.append(("categories", f"{name}: {', '.join(map(str, shown))} ({len(known)}, each a column of 0 and 1)"))
    if result["dates"]:
        lines.append(("dates", f"{', '.join(map(str, result['dates']))} (in days since 1970)"))
    if (errors := result["held_out"]) is not None:
        share = errors["rmse"] / errors["target_std"] if errors["target_std"] else float("nan")
        lines.append(("held-out RMSE", f"{errors['rmse']:.4g}, which is {100 * share:.3g} % of the target's std"))
        lines.append(("held-out NLL", f"{errors['nll']:.4g} nats a row"))
        lines.append(("95 % coverage", f"{100 * errors['coverage_95']:.1f} % of the held-out rows in their intervals"))
    lines.append(("kernel", result["kernel"]))
    lines.append(("noise", f"{result['noise']:.4g}" + (", fixed" if result["noise_fixed"] else "")))
    if "signal" in result:
        lines.append(("signal", f"{result['signal']:.4g}"))
    for name, values in result["other_hyperparameters"].items():
        lines.append((name, ", ".join(f"{value:.4g}" for value in values)))
    if result["stopped"] is not None:
        steps = "" if result["steps"] is None else f"{result['steps']} steps: "
        more = "; more --steps may find a better model" if result["stopped"] == "all steps done" else ""
        lines.append(("learning", f"{steps}{result['stopped']}{more}"))
    solver = result["method"]
    told = "" if result["converged"] else f", {result['status']}"
    lines.append(("solver", f"{solver}{told}; worst residual {result['residual']:.1e}, tol {result['tol']:.0e}"))
    more = (result["fit_epochs"] or 0.0) - result["epochs"]
    lines.append(("epochs", f"{result['epochs']:.1f}" + (f", and {more:,.1f} to learn" if more > 0 else "")))
    lines.append(("samples", f"{result['samples']} functions" if result["samples"] else "none"))
    note = f" ({result['precision_note']})" if result.get("precision_note") else ""
    seed = "" if result["seed"] is None else f", seed {result['seed']}"
    lines.append(("computed in", f"{result['precision']}{note} on {result['device']}{seed}"))
    seconds = result.get("seconds", result["fit_seconds"])
    if seconds is not None:
        lines.append(("seconds", f"{seconds:.1f}"))
    return lines


def _lengthscales(result: dict[str, Any], width: int, every: bool) -> list[str]:
    """Inputs by their length scale in standard deviations, shortest first: along it the function varies most."""
    relative, constant = result["relative_lengthscales"], result["constant_inputs"]
    order = sorted(relative, key=lambda name: (name in constant, relative[name]))
    shown = order if every or len(order) <= _MOST_INPUTS else order[: _MOST_INPUTS - 1]
    name_width = min(max(len(name) for name in [*shown, "input"]), width - 32)
    lines = [f"{'input':<{name_width}}  {'length scale':>12}  {'in std of input':>15}"]
    for name in shown:
        title = name if len(name) <= name_width else f"{name[: name_width - 3]}..."
        if name in constant:
            lines.append(f"{title:<{name_width}}  {'':>12}  {'is constant':>15}")
        else:
            lines.append(f"{title:<{name_width}}  {result['lengthscales'][name]:>12.4g}  {relative[name]:>15.4g}")
    if len(shown) < len(order):
        lines.append(f"and {len(order) - len(shown)} more with longer ones; pathgp info lists all")
    return lines
