"""The solve behind a posterior in plain words, and how to repeat it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from pathgp.html.charts import Axis, Chart
from pathgp.html.markup import Html, Section, Verdict, chart_grid, figure, paragraph, table
from pathgp.html.numbers import count, number, seconds
from pathgp.learning.report import FitReport
from pathgp.models import InducingGP, LatentKroneckerGP
from pathgp.models.base import Model
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.report import ConditionReport
from pathgp.posterior.table import Posterior
from pathgp.solvers import Auto


def solver_section(post: Posterior | GridPosterior, fit: FitReport | None, variances: str) -> Section:
    """The linear systems, their solution and how to repeat it. variances: where they come from, in a sentence."""
    report, solution = post.report, post.report.solution
    size = len(post.weights)
    samples = f" and one for each of {count(report.samples, 'sample')}" if report.samples else ""
    words = (
        f"{count(1 + report.samples, 'linear system')} with a matrix of {size:,} × {size:,} entries, one "
        f"for the mean{samples}, took {seconds(report.seconds)} and {number(solution.epochs)} epochs (one epoch is one "
        f"product with the matrix). {variances}"
    )
    body = [paragraph(words), paragraph(describe_error(post))]
    if len(solution.history) >= 3:
        body.append(chart_grid([_residuals(report)]))
    # The sentences above describe the error; its bound may be much larger than any error.
    left_out = ("data", "seconds", "error bound", "error at data")
    items = [item for item in report.summary_items() if item[0] not in left_out]
    body += [table(["Solve", "Value"], items), Html("<h3>Hyperparameters</h3>"), _hyperparameters(post.model)]
    return Section("solver", "How it was computed", [*body, Html("<h3>To reproduce</h3>"), *_recipe(post, fit)])


def solve_verdict(report: ConditionReport) -> Verdict:
    """Judge whether the systems were solved, with a remedy if not."""
    residual = f"worst relative residual {number(report.worst_residual, 2)}, tolerance {report.tol:g}"
    if report.solution.converged:
        return Verdict(True, f"The linear systems behind all numbers of this page were solved ({residual}).")
    status = f"{report.status.name} ({residual}): {report.solution.explain(report.tol)}"
    return Verdict(False, f"The solver ended {status}. Predictions may be inaccurate.")


def describe_error(post: Posterior | GridPosterior) -> str:
    """The error of the solver, in a sentence; with its bound if that is smaller than the noise."""
    report = post.report
    if math.isnan(report.resolution):
        return "The error of the iterative solver at the data is not known."
    words = f"At the data the solver's error is about {number(report.resolution, 2)}"
    words += f" ({number(report.relative_resolution, 2)} posterior standard deviations)"
    if not report.error_bound < post.noise_std:
        return f"{words}."
    bound = f"The computed mean differs from the exact one by at most {number(report.error_bound, 2)}"
    trend = ", and the trend no less certain," if report.basis else ""
    return f"{words}. {bound} wherever the prior variance is no larger{trend} than at the data."


def residual_chart(
    key: str, title: str, finding: str, x_axis: Axis, x: Sequence[Any], curves: dict[str, Any], tol: float
) -> Html:
    """Residuals by name on a logarithmic axis, with the tolerance; the curve "mean" is highlighted."""
    y_axis = Axis.around(*curves.values(), [tol] if tol > 0 else [], log=True, label="relative residual", pad=0.08)
    chart = Chart(key, title, finding, x_axis, y_axis, right=78.0)
    labels = [(float(curve[-1]), name, "t-accent" if name == "mean" else "") for name, curve in curves.items()]
    if tol > 0:
        chart.line([x_axis.low, x_axis.high], [tol, tol], "dashed")
        labels.append((tol, "tolerance", ""))
    for name, curve in sorted(curves.items(), key=lambda item: item[0] == "mean"):
        chart.line(x, curve, "accent" if name == "mean" else "plain")
    chart.end_labels(labels)
    return chart.svg()


def _residuals(report: ConditionReport) -> Html:
    history, title = report.solution.history, "Residuals of the solve"
    epochs = np.array([record.epochs for record in history])
    worst, mean = np.array([(float(record.residual.max()), float(record.residual[0])) for record in history]).T
    finding = (
        f"The worst residual went from {number(float(worst[0]), 2)} to {number(report.worst_residual, 2)} in "
        f"{number(report.epochs)} epochs; the tolerance is {report.tol:g}."
    )
    x_axis, curves = Axis.around(epochs, zero=True, label="epochs"), {"worst": worst, "mean": mean}
    chart = residual_chart("solve", title, finding, x_axis, list(epochs), curves, report.tol)
    return figure(title, "Of the mean, and the worst of all systems.", chart)


def _hyperparameters(model: Model[Any]) -> Html:
    units = "In units of standard deviations" if model.standardise else "In the units of the data"
    rows = [("model", repr(model))]
    for name, value in model.hyperparameters().items():
        rows.append((name, ", ".join(number(float(v), 4) for v in value.flatten())))
    return table([units, "Value"], rows)


def _recipe(post: Posterior | GridPosterior, fit: FitReport | None) -> list[Html]:
    """The calls that repeat the result, as far as they are known."""
    model, report, settings = post.model, post.report, post.settings
    kernels, data = ("kernels", "factors, Y") if isinstance(model, LatentKroneckerGP) else ("kernel", "X, y")
    options = [f"samples={report.samples}", f"tol={report.tol:g}"]
    if report.features not in (0, 512):
        options.append(f"features={report.features}")
    if not isinstance(settings.solver, Auto):
        options.append(f"solver=solvers.{settings.solver!r}")
    if settings.max_epochs is not None:
        options.append(f"max_epochs={settings.max_epochs:g}")
    seed = report.seed if fit is None else fit.seed
    if seed is not None:
        options.append(f"generator=torch.Generator().manual_seed({seed})")
    start, call = "those above", f"post = gp.condition({data}, {', '.join(options)})"
    if fit is not None:
        start = "the start values of the fit"
        call = f"gp.fit({data}, steps={len(fit.history)}, {', '.join(options)})\npost = gp.posterior"
    lead = "With the same data and versions, on the same kind of device; other options as named above:"
    if seed is None:
        lead = "The generator had been used before, so that no seed repeats the draws; otherwise:"
    sparse = f", inducing={model.inducing_in_words}, method={model.method!r}" if isinstance(model, InducingGP) else ""
    constructor = f"gp = pathgp.{type(model).__name__}({kernels}{sparse}, standardise={model.standardise!r})"
    calls = escape(f"# {kernels} and noise: {start}\n{constructor}\n{call}")
    return [
        paragraph(lead),
        Html(f"<pre>{calls}</pre>"),
        paragraph("To keep a result, save it to a file: post.save(path), pathgp.load(path).", "quiet"),
    ]
