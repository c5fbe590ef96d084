"""How the hyperparameters were learned: curves over the steps of a fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pathgp.html.charts import LETTER, Axis, Chart, cut
from pathgp.html.markup import Html, Section, Verdict, charts, facts, figure, paragraph
from pathgp.html.numbers import count, number, seconds
from pathgp.html.words import listed
from pathgp.learning.report import FitReport

_MOST_CURVES = 40
_LABELLED = 3
_CHARACTERS = 15


def learning_section(fit: FitReport, names: Sequence[str]) -> Section:
    """Hyperparameters, gain, residuals and costs of every step, and the table of the fit."""
    title = "Learning"
    told = ("data", "estimator", "optimiser")
    table = facts([(name, value) for name, value in fit.summary_items() if name not in told], "Fit")
    if not fit.history:
        return Section("learning", title, [paragraph("The fit took no steps: there are no curves."), table])
    solved = sum(step.solver != "" for step in fit.history)
    words = (
        f"{count(len(fit.history), 'step')} took {seconds(fit.seconds)} and {number(fit.epochs)} epochs (one epoch is "
        f"one product with the kernel matrix). Optimiser: {fit.optimiser}. Gradients: {fit.estimator}. "
        f"Why it ended: {fit.stopped}."
    )
    drawn = [_gain(fit), _hyperparameters(fit, names)]
    if solved:
        drawn += [_residuals(fit), _costs(fit)]
    return Section("learning", title, [paragraph(words), charts(drawn), table])


def require_report(fit: FitReport | None) -> None:
    """TypeError for what is not the report of a fit."""
    if fit is not None and not isinstance(fit, FitReport):
        raise TypeError(f"fit must be the FitReport that fit() returned, got {type(fit).__name__}")


def fit_verdict(fit: FitReport) -> Verdict:
    """Whether learning ended as it should."""
    steps = fit.history
    short = sum(step.status not in ("CONVERGED", "") for step in steps)
    done = f"Hyperparameters were learned in {count(len(steps), 'step')} ({fit.stopped})"
    if short:
        advice = "Gradients were less exact there; raise max_epochs if the curves look restless."
        return Verdict(False, f"{done}, and in {short} of them the solver stopped above its tolerance. {advice}")
    if _still_rising(fit):
        return Verdict(False, f"{done}, and the likelihood was still rising at the last one: take more steps.")
    return Verdict(True, f"{done}.")


def _still_rising(fit: FitReport) -> bool:
    """Whether the last tenth of the steps gained more than a hundredth of a nat per row."""
    steps = fit.history
    tail = max(2, len(steps) // 10)
    return len(steps) > tail and (steps[-1].gain - steps[-tail].gain) / fit.rows > 0.01


def _gain(fit: FitReport) -> Html:
    steps = _steps(fit)
    gains = np.array([step.gain for step in fit.history]) / fit.rows
    known = fit.history[-1].log_likelihood is not None
    how = "" if known else ", estimated from its gradients"
    finding = f"It ended {number(float(gains[-1]))} nats per row above the start, in {count(len(steps), 'step')}."
    chart = Chart(
        "gain", "Log marginal likelihood", finding, _over(fit), Axis.around(gains, label="nats per row above the start")
    )
    chart.line(steps, gains)
    if len(steps) == 1:
        chart.dots(steps, gains, "accent")
    return figure("Log marginal likelihood", f"How much better the model explains the data{how}.", chart.svg())


def _hyperparameters(fit: FitReport, names: Sequence[str]) -> Html:
    """Single numbers by name, of lists such as the length scales the three smallest; on a logarithmic axis."""
    steps = _steps(fit)
    curves: list[tuple[str, np.ndarray, str]] = []
    lists: list[str] = []
    for name in fit.history[0].values:
        values = np.array([step.values[name] for step in fit.history])
        if not (values > 0).all():
            continue
        if values.shape[1] == 1:
            kind = "accent" if name.split(".")[-1] == "noise" else "strong"
            curves.append((name, values[:, 0], kind))
            continue
        lists.append(name)
        order = np.argsort(values[-1])[:_MOST_CURVES]
        for place, i in enumerate(order):
            own = names[i] if values.shape[1] == len(names) and name.endswith("lengthscale") else f"{name}[{i}]"
            curves.append((own if place < _LABELLED else "", values[:, i], "plain"))
    labelled = [(curve, kind, cut(name, _CHARACTERS)) for name, curve, kind in curves if name]
    room = 14.0 + LETTER * max(len(name) for _, _, name in labelled)
    ended = ", ".join(f"{name} {number(float(curve[-1]))}" for curve, _, name in labelled)
    chart = Chart(
        "hyperparameters",
        "Hyperparameters",
        f"They ended at {ended}.",
        _over(fit),
        Axis.around(*[curve for _, curve, _ in curves], log=True, label="value in the model's units"),
        right=room,
    )
    for _, curve, kind in sorted(curves, key=lambda entry: entry[2] != "plain"):
        chart.line(steps, curve, kind)
    kinds = {"plain": "", "accent": "t-accent", "strong": "name"}
    chart.end_labels((float(curve[-1]), name, kinds[kind]) for curve, kind, name in labelled)
    longest = max((len(fit.history[0].values[name]) for name in lists), default=0)
    part = "all" if longest <= _MOST_CURVES else f"the {_MOST_CURVES} smallest"
    grey = f"Grey: {part} entries of {listed(lists)}; the smallest are named." if lists else ""
    return figure("Hyperparameters", grey, chart.svg())


def _residuals(fit: FitReport) -> Html:
    steps, tol = _steps(fit), fit.condition.tol
    mean = np.array([step.residual for step in fit.history])
    probes = np.array([step.probe_residual for step in fit.history])
    finding = (
        f"At the last step {number(float(mean[-1]), 2)} for the mean and {number(float(probes[-1]), 2)} for probes."
    )
    values = [mean, probes, *([np.array([tol])] if tol > 0 else [])]
    axis = Axis.around(*values, log=True, label="relative residual", pad=0.08)
    chart = Chart("fit-residuals", "Residuals", finding, _over(fit), axis, right=78.0)
    ends = [(float(mean[-1]), "mean", "t-accent"), (float(probes[-1]), "probes", "")]
    if tol > 0:
        chart.line([steps[0], steps[-1]], [tol, tol], "dashed")
        ends.append((tol, "tolerance", ""))
    chart.line(steps, probes, "plain")
    chart.line(steps, mean)
    chart.end_labels(ends)
    return figure("Residual of each step's solve", "Below the tolerance the gradients can be relied on.", chart.svg())


def _costs(fit: FitReport) -> Html:
    steps = _steps(fit)
    epochs = np.array([step.epochs for step in fit.history])
    time = np.array([step.seconds for step in fit.history])
    finding = (
        f"{number(float(epochs.mean()))} epochs and {seconds(float(time.mean()))} a step on average, "
        f"{seconds(fit.seconds)} in all."
    )
    chart = Chart("costs", "Cost of each step", finding, _over(fit), Axis.around(epochs, zero=True, label="epochs"))
    chart.line(steps, epochs)
    return figure("Cost of each step", finding, chart.svg())


def _steps(fit: FitReport) -> list[int]:
    return [step.step for step in fit.history]


def _over(fit: FitReport) -> Axis:
    steps = _steps(fit)
    return Axis(steps[0], steps[-1] if steps[-1] > steps[0] else steps[0] + 1, "step")
