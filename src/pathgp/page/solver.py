"""The solve behind a posterior in plain words, and what is needed to repeat it."""

from __future__ import annotations

import platform
from datetime import datetime

import numpy as np
import torch

from pathgp._version import __version__
from pathgp.learning.report import FitReport
from pathgp.models.base import Model
from pathgp.page.charts import Axis, Chart
from pathgp.page.markup import Html, Section, Verdict, charts, code, facts, figure, heading, paragraph
from pathgp.page.numbers import count, number, seconds
from pathgp.report import ConditionReport


def solver_section(model: Model, report: ConditionReport, fit: FitReport | None, variance: str) -> Section:
    """What was solved, how, how well, and how to do it again. variance: where variances come from, in a sentence."""
    solution = report.solution
    systems = count(1 + report.samples, "linear system")
    samples = f" and one for each of {count(report.samples, 'sample')}" if report.samples else ""
    words = (
        f"{systems} with a matrix of {report.rows:,} × {report.rows:,} entries, one for the mean{samples}, took "
        f"{seconds(report.seconds)} and {number(solution.epochs)} epochs (one epoch is one product with the matrix). "
        f"{variance}"
    )
    body = [paragraph(words), paragraph(certificate(report))]
    drawn = _curve(report)
    if drawn:
        body.append(charts([drawn]))
    told = ("data", "seconds")
    body.append(facts([(name, value) for name, value in report.rows_of_table() if name not in told], "Solve"))
    body += [heading("Hyperparameters"), _hyperparameters(model), heading("To reproduce"), *_recipe(model, report, fit)]
    return Section("solver", "How it was computed", body)


def solve_verdict(report: ConditionReport) -> Verdict:
    """Whether the systems were solved, and what to do if not."""
    reached = f"worst relative residual {number(report.worst_residual, 2)}, tolerance {report.tol:g}"
    if report.solution.converged:
        return Verdict(True, f"The linear systems behind all numbers here were solved ({reached}).")
    return Verdict(
        False, f"The solver ended {report.status.name} ({reached}): {report.status.value}. Predictions may be off."
    )


def certificate(report: ConditionReport) -> str:
    """The bound on the error of the mean."""
    return (
        f"The computed mean is within {number(report.error_bound, 2)} of the exact one, everywhere: a bound from the "
        "residual, computed anew from the solution, and usually far from being reached."
    )


def versions() -> str:
    """The programs behind the page, and the date."""
    parts = [f"pathgp {__version__}", f"torch {torch.__version__}", f"numpy {np.__version__}"]
    return f"{', '.join(parts)}, Python {platform.python_version()}; {datetime.now().astimezone():%d %B %Y, %H:%M %Z}"


def _curve(report: ConditionReport) -> Html | None:
    """Residuals over the cost, where the solver took more than one step."""
    history = report.solution.history
    if len(history) < 3:
        return None
    epochs = np.array([record.epochs for record in history])
    worst = np.array([float(record.residual.max()) for record in history])
    mean = np.array([float(record.residual[0]) for record in history])
    finding = (
        f"The worst residual went from {number(float(worst[0]), 2)} to {number(report.worst_residual, 2)} in "
        f"{number(report.epochs)} epochs; the tolerance is {report.tol:g}."
    )
    tol = [report.tol] if report.tol > 0 else []
    axis = Axis.around(worst, mean, tol, log=True, label="relative residual")
    chart = Chart(
        "solve", "Residuals of the solve", finding, Axis.around(epochs, zero=True, label="epochs"), axis, 78.0
    )
    ends = [(float(worst[-1]), "worst", ""), (float(mean[-1]), "mean", "t-accent")]
    if tol:
        chart.line([chart.x.low, chart.x.high], tol * 2, "dashed")
        ends.append((report.tol, "tolerance", ""))
    chart.line(epochs, worst, "plain")
    chart.line(epochs, mean)
    chart.end_labels(ends)
    return figure("Residuals of the solve", "Of the mean, and the worst of all systems.", chart.svg())


def _hyperparameters(model: Model) -> Html:
    units = "In units of standard deviations" if model.standardise else "In the units of the data"
    values = [
        (name, ", ".join(number(float(v), 4) for v in value.flatten()))
        for name, value in model.hyperparameters().items()
    ]
    return facts([("model", repr(model)), *values], units)


def _recipe(model: Model, report: ConditionReport, fit: FitReport | None) -> list[Html]:
    settings = f"samples={report.samples}, tol={report.tol:g}"
    seed = report.seed if fit is None else fit.seed
    if seed is None:
        lead = "The generator had been used before, so that no seed repeats the draws; the rest is this:"
        generator = ""
    else:
        lead = "With the same data and versions, on the same kind of device:"
        generator = f", generator=torch.Generator().manual_seed({seed})"
    made = f"{type(model).__name__}(kernel, standardise={model.standardise})"
    call = f"post = gp.condition(X, y, {settings}{generator})"
    if fit is not None:
        call = f"gp.fit(X, y, steps={len(fit.history)}, {settings}{generator})\npost = gp.posterior"
    start = "the start values of the fit" if fit else "those above"
    return [
        paragraph(lead),
        code(f"# kernel and noise: {start}\ngp = pathgp.{made}\n{call}"),
        paragraph("The surest way to keep a result is its file: post.save(path), pathgp.load(path).", "quiet"),
    ]
