"""The solve behind a posterior in plain words, and what is needed to repeat it."""

from __future__ import annotations

import platform
from datetime import datetime
from typing import Any

import numpy as np
import torch

from pathgp._version import __version__
from pathgp.html.charts import Axis, Chart
from pathgp.html.markup import Html, Section, Verdict, charts, code, facts, figure, heading, paragraph
from pathgp.html.numbers import count, number, seconds
from pathgp.learning.report import FitReport
from pathgp.models import LatentKroneckerGP
from pathgp.models.base import Model
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.report import ConditionReport
from pathgp.posterior.table import Posterior
from pathgp.solvers import Auto


def solver_section(post: Posterior | GridPosterior, fit: FitReport | None, variance: str) -> Section:
    """What was solved, how, how well, and how to do it again. variance: where variances come from, in a sentence."""
    report, solution = post.report, post.report.solution
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
    body.append(facts([(name, value) for name, value in report.summary_items() if name not in told], "Solve"))
    body += [heading("Hyperparameters"), _hyperparameters(post.model), heading("To reproduce"), *_recipe(post, fit)]
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


def _hyperparameters(model: Model[Any]) -> Html:
    units = "In units of standard deviations" if model.standardise else "In the units of the data"
    values = [
        (name, ", ".join(number(float(v), 4) for v in value.flatten()))
        for name, value in model.hyperparameters().items()
    ]
    return facts([("model", repr(model)), *values], units)


def _recipe(post: Posterior | GridPosterior, fit: FitReport | None) -> list[Html]:
    """The call that repeats the result, as far as a page can know it."""
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
    start, verb = "those above", f"post = gp.condition({data}, {', '.join(options)})"
    if fit is not None:
        start = "the start values of the fit"
        verb = f"gp.fit({data}, steps={len(fit.history)}, {', '.join(options)})\npost = gp.posterior"
    lead = "With the same data and versions, on the same kind of device; other options as named above:"
    if seed is None:
        lead = "The generator had been used before, so that no seed repeats the draws; the rest is this:"
    made = f"gp = pathgp.{type(model).__name__}({kernels}, standardise={model.standardise})"
    return [
        paragraph(lead),
        code(f"# {kernels} and noise: {start}\n{made}\n{verb}"),
        paragraph("The surest way to keep a result is its file: post.save(path), pathgp.load(path).", "quiet"),
    ]
