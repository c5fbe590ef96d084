"""The steps of a fit: hyperparameters, likelihood, residuals and costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pathgp.html.charts import LETTER, Axis, Chart, truncate
from pathgp.html.facts import join_names
from pathgp.html.markup import Html, Section, Verdict, chart_grid, figure, paragraph, table
from pathgp.html.numbers import count, number, seconds
from pathgp.html.solver import residual_chart
from pathgp.learning.report import FitReport

_MOST_CURVES = 40
_LABELLED = 3
_CHARACTERS = 15
# A fit whose last tenth of the steps gains more than this, in nats per row and step, has not ended at an optimum.
_RISING = 0.001


def learning_section(fit: FitReport, names: Sequence[str]) -> Section:
    """Charts of all steps and the table of the fit."""
    # The learned values stand in the next section, with their units.
    elsewhere = {"data", "estimator", "optimiser", *fit.values}
    items = table(["Fit", "Value"], [item for item in fit.summary_items() if item[0] not in elsewhere])
    if not fit.history:
        return Section("learning", "Learning", [paragraph("The fit took no steps: there are no curves."), items])
    has_solves = any(step.solver for step in fit.history)
    epochs = f" and {number(fit.epochs)} epochs (one epoch is one product with the kernel matrix)" if has_solves else ""
    words = (
        f"{count(len(fit.history), 'step')} took {seconds(fit.seconds)}{epochs}. Optimiser: {fit.optimiser}. "
        f"Gradients: {fit.estimator}. Why it ended: {fit.stopped}."
    )
    drawn = [_gain(fit), _hyperparameters(fit, names)]
    if has_solves:
        drawn += [_residuals(fit), _costs(fit)]
    return Section("learning", "Learning", [paragraph(words), chart_grid(drawn), items])


def fit_verdict(fit: FitReport) -> Verdict:
    """Judge whether learning converged."""
    steps = fit.history
    words = f"Hyperparameters were learned in {count(len(steps), 'step')} ({fit.stopped})"
    if fit.warning:
        return Verdict(False, f"{words}; {fit.warning}.")
    unconverged = sum(step.status not in ("CONVERGED", "") for step in steps)
    if unconverged:
        advice = "Their gradients are less accurate; raise max_epochs if the curves fluctuate."
        return Verdict(False, f"{words}; in {unconverged} of them the solver stopped above its tolerance. {advice}")
    tail = max(1, len(steps) // 10)
    if len(steps) > tail and steps[-1].gain - steps[-1 - tail].gain > _RISING * tail * fit.rows:
        return Verdict(False, f"{words}; the likelihood was still rising at the last one: take more steps.")
    return Verdict(True, f"{words}.")


def _gain(fit: FitReport) -> Html:
    steps, title = _steps(fit), "Log marginal likelihood"
    gains = _values(fit, "gain") / fit.rows
    finding = f"It ended {number(float(gains[-1]))} nats per row above the start, in {count(len(steps), 'step')}."
    chart = Chart("gain", title, finding, _step_axis(fit), Axis.around(gains, label="nats per row above the start"))
    chart.line(steps, gains)
    if len(steps) == 1:
        chart.dots(steps, gains, "accent")
    source = f", {fit.approximation}" if fit.approximation else ""
    if not fit.gain_is_exact:
        is_unknown = all(step.log_likelihood is None for step in fit.history) and not source
        source += ", estimated from its gradients" if is_unknown else ", estimated where steps use a subset of the rows"
    return figure(title, f"How much better the model explains the data{source}.", chart.svg())


def _hyperparameters(fit: FitReport, names: Sequence[str]) -> Html:
    """Curves on a logarithmic axis; scalars have labels, and so have the three smallest entries of every vector."""
    curves: list[tuple[str, np.ndarray, str]] = []
    vectors: dict[str, int] = {}
    for name in fit.history[0].values:
        values = np.array([step.values[name] for step in fit.history])
        if not (values > 0).all():
            continue
        if values.shape[1] == 1:
            curves.append((name, values[:, 0], "accent" if name.split(".")[-1] == "noise" else "strong"))
            continue
        vectors[name] = values.shape[1]
        per_input = values.shape[1] == len(names) and name.endswith("lengthscale")
        for rank, i in enumerate(np.argsort(values[-1])[:_MOST_CURVES]):
            label = names[i] if per_input else f"{name}[{i}]"
            curves.append((label if rank < _LABELLED else "", values[:, i], "plain"))
    labels = [(float(curve[-1]), truncate(name, _CHARACTERS), kind) for name, curve, kind in curves if name]
    last = ", ".join(f"{name} {number(value)}" for value, name, _ in labels)
    axis = Axis.around(*[curve for _, curve, _ in curves], log=True, label="value in the model's units")
    room = 14.0 + LETTER * max(len(name) for _, name, _ in labels)
    chart = Chart("hyperparameters", "Hyperparameters", f"They ended at {last}.", _step_axis(fit), axis, right=room)
    for _, curve, kind in sorted(curves, key=lambda entry: entry[2] != "plain"):
        chart.line(_steps(fit), curve, kind)
    text_kinds = {"plain": "", "accent": "t-accent", "strong": "name"}
    chart.end_labels((value, name, text_kinds[kind]) for value, name, kind in labels)
    caption = ""
    if vectors:
        shown = "all" if max(vectors.values()) <= _MOST_CURVES else f"the {_MOST_CURVES} smallest"
        caption = f"Grey: {shown} entries of {join_names(list(vectors))}; the smallest have labels."
    return figure("Hyperparameters", caption, chart.svg())


def _residuals(fit: FitReport) -> Html:
    curves = {"mean": _values(fit, "residual"), "probes": _values(fit, "probe_residual")}
    mean, probes = (number(float(curve[-1]), 2) for curve in curves.values())
    finding = f"At the last step {mean} for the mean and {probes} for probes."
    axis, tol = _step_axis(fit), fit.condition.tol
    chart = residual_chart("fit-residuals", "Residuals", finding, axis, _steps(fit), curves, tol)
    return figure("Residual of each step's solve", "Below the tolerance gradients are reliable.", chart)


def _costs(fit: FitReport) -> Html:
    epochs, title = _values(fit, "epochs"), "Cost of each step"
    average = f"{number(float(epochs.mean()))} epochs and {seconds(float(_values(fit, 'seconds').mean()))}"
    finding = f"{average} a step on average, {seconds(fit.seconds)} in all."
    chart = Chart("costs", title, finding, _step_axis(fit), Axis.around(epochs, zero=True, label="epochs"))
    chart.line(_steps(fit), epochs)
    return figure(title, finding, chart.svg())


def _values(fit: FitReport, name: str) -> np.ndarray:
    return np.array([getattr(step, name) for step in fit.history])


def _steps(fit: FitReport) -> list[int]:
    return [step.step for step in fit.history]


def _step_axis(fit: FitReport) -> Axis:
    first, last = fit.history[0].step, fit.history[-1].step
    return Axis(first, last if last > first else first + 1, "step")
