"""The content of the page of a posterior of rows: how relevant its inputs are, and the function along each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.compute.inputs import Array, read_matrix, read_vector
from pathgp.html.accuracy import Comparison, Content
from pathgp.html.charts import Axis, Chart, ranking
from pathgp.html.facts import (
    Facts,
    join_names,
    kernel_in_words,
    noise_in_words,
    random_subset,
    read_names,
    signal_unit,
    to_numpy,
)
from pathgp.html.markup import Html, Section, chart_grid, figure, paragraph
from pathgp.html.numbers import axis_number, count, number
from pathgp.kernels import Periodic
from pathgp.kernels.expression import leaves
from pathgp.kernels.stationary import Stationary
from pathgp.plots import WIDTH_95, relevance
from pathgp.posterior.table import Posterior

# Held-out rows that are predicted: more would change no digit on the page. Fewer when each needs a solve.
_MOST_ROWS, _MOST_SOLVES = 10_000, 300
_MOST_BARS, _MOST_EFFECTS, _MOST_SCREENED = 20, 6, 100
# Of the chart of an effect: points of the curve, sample paths, observations, and marks on the axis.
_POINTS, _PATHS, _MOST_DOTS, _MOST_MARKS = 61, 8, 600, 250

Vector = NDArray[np.float64]
Ranking = list[tuple[int, str, float]]


def table_content(
    post: Posterior, X_test: Array | None, y_test: Array | None, names: Sequence[str] | None, target: str
) -> Content:
    """Predict held-out rows, or every row from the others, and show the function along its inputs."""
    facts = Facts(post, read_names(names, post.report.columns, "input", "x"), target)
    comparison, reason = compare(facts, X_test, y_test)
    ranking = _rank_inputs(facts)
    sections = [*_relevance_section(facts, ranking), _effects_section(facts, ranking)]
    size = f"{count(post.report.rows, 'row')}, {count(facts.columns, 'input')}"
    return Content(size, _sentences(facts), comparison, reason, sections, describe_variances(facts), facts.names)


def _sentences(facts: Facts) -> list[str]:
    """The problem, the prior, the noise and the units."""
    post, target, kernel = facts.post, facts.target, facts.post.model.kernel
    unit = signal_unit([kernel], float(post.scaling.target_scale))
    inputs = f"from {join_names(facts.names)}" if facts.columns <= 12 else f"from {facts.columns} inputs"
    units = ""
    if post.model.standardise:
        units = " The model standardises the inputs: length scales are in standard deviations of an input."
    return [
        f"A Gaussian process predicts {target} {inputs}, given {count(post.report.rows, 'row')} of data.",
        f"Its prior: {kernel_in_words(kernel, facts.names, unit)}. {noise_in_words(post, target, unit)}{units}",
    ]


def compare(facts: Facts, X_test: Array | None = None, y_test: Array | None = None) -> tuple[Comparison | None, str]:
    """Predict held-out rows, or every row from the others; otherwise return the reason why not."""
    if (X_test is None) != (y_test is None):
        missing, given = ("X_test", "y_test") if X_test is None else ("y_test", "X_test")
        raise ValueError(f"{given} comes without {missing}: give both, or neither for leave-one-out")
    if X_test is not None:
        return _held_out(facts.post, X_test, y_test), ""
    if not facts.has_targets:
        return None, "the posterior was saved without its targets (data=False). Give X_test and y_test."
    try:
        loo = facts.post.leave_one_out()
    except ValueError as error:
        return None, f"{error}; or give X_test, y_test."
    how = (
        "No held-out data were given: every row is predicted from all the others (leave-one-out; variances "
        f"{loo.method}). The hyperparameters were chosen with all rows, so that new data may be harder to predict."
    )
    caveat = ""
    if facts.post.has_factor and not facts.post.report.solution.converged:
        caveat = "Accuracy is shown for an exact solution (leave-one-out), which this posterior has not reached."
    y, rows = facts.targets(), "rows left out one by one"
    return Comparison(y, to_numpy(loo.means), to_numpy(loo.variances), rows, len(y), how, caveat), ""


def _held_out(post: Posterior, X_test: Array, y_test: Array) -> Comparison:
    X = read_matrix(X_test, "X_test", columns=post.report.columns, like=post.system.X).X
    y = read_vector(y_test, len(X), "y_test", like=post.system.X)
    if not len(y):
        raise ValueError("X_test has no rows: leave X_test and y_test out for leave-one-out")
    most = _MOST_ROWS if post.has_paths or post.has_factor else _MOST_SOLVES
    rows = torch.from_numpy(random_subset(len(y), most)).to(X.device)
    with torch.no_grad():
        mean, variance = post.mean(X[rows]), post.variance(X[rows], noise=True)
    how = "The model has not seen these rows; predictive variances include the noise."
    if post.system.deviation.ndim:
        how = "The model has not seen these rows; variances include its own noise, not the known noise of single rows."
    return Comparison(to_numpy(y[rows]), to_numpy(mean), to_numpy(variance), "held-out rows", len(y), how)


def describe_variances(facts: Facts) -> str:
    """Where the variances of predictions come from, in a sentence."""
    report = facts.post.report
    if not facts.post.has_paths:
        reason = f" ({report.no_paths})" if report.no_paths else ""
        return f"Variances are exact, from further solves: there are no sample paths{reason}."
    accuracy = f"the relative error of a standard deviation is about {100 * report.std_error:.0f} % or less"
    match facts.post.variance_method:
        case "solve":
            exact = "those of the sparse method" if report.approximation else "exact"
            return f"Variances are {exact}, from a Cholesky factor of the matrix."
        case "neighbours":
            return f"Variances come from {report.samples} paths, corrected by the nearest observations: {accuracy}."
    return f"Variances come from {report.samples} paths alone, as the targets are not in the file: {accuracy}."


@dataclass(frozen=True)
class _Effect:
    """f along one input, others at their medians: values, mean, half of the 95 % band (m,), draws (s, m) or None."""

    column: int
    values: Vector
    is_discrete: bool
    mean: Vector
    half: Vector
    draws: Vector | None


def _rank_inputs(facts: Facts) -> Ranking:
    """(column, name, standard deviation / length scale), largest first; empty if no input has its own length scale.

    An input of several kernels has the shortest of their length scales; a periodic kernel has period x lengthscale /
    2 pi, that of small distances. A length scale shared by several inputs ranks none of them.
    """
    columns = facts.columns
    scales = np.full(columns, math.inf)
    is_ranked = np.zeros(columns, dtype=bool)
    for kernel, inputs in leaves(facts.post.model.kernel, range(columns)):
        if not isinstance(kernel, (Stationary, Periodic)) or (kernel.lengthscale.ndim == 0 and len(inputs) > 1):
            continue
        lengthscale = to_numpy(kernel.lengthscale)
        if isinstance(kernel, Periodic):
            lengthscale = lengthscale * to_numpy(kernel.period) / (2 * math.pi)
        index = list(inputs)
        scales[index], is_ranked[index] = np.minimum(scales[index], lengthscale), True
    if columns == 1 or not is_ranked.any():
        return []
    with np.errstate(divide="ignore"):
        relative = scales / (facts.X.std(0) / to_numpy(facts.post.scaling.scale))
    ranked = [int(j) for j in np.flatnonzero(is_ranked)]
    order = relevance(relative[ranked], [facts.names[j] for j in ranked])
    return [(ranked[i], name, value) for i, name, value in order]


def _relevance_section(facts: Facts, inputs: Ranking) -> list[Section]:
    """Bars, the most relevant input first; no section for a single input."""
    if facts.columns == 1:
        return []
    title = "Relevance of the inputs"
    if not inputs:
        words = "The kernel has no length scale of its own for any input, so that it does not rank them."
        words += " A kernel with one length scale per input would."
        return [Section("relevance", title, [paragraph(words)])]
    shown = inputs[:_MOST_BARS]
    words = (
        "The standard deviation of an input in units of its length scale: the larger, the faster the function "
        "changes direction along it. Along an input near zero it is nearly a straight line, steep or flat."
    )
    if len(inputs) > len(shown):
        words += f" Left out: the {count(len(inputs) - len(shown), 'input')} with the smallest values."
    unranked = [name for j, name in enumerate(facts.names) if j not in {column for column, _, _ in inputs}]
    if unranked:
        words += f" Not ranked, as they have no length scale of their own: {join_names(unranked)}."
    largest = "; ".join(f"{name} {number(value)}" for _, name, value in shown[:5])
    finding = f"Standard deviation over length scale, the largest first: {largest}."
    entries = [(name, value, axis_number(value, shown[0][2])) for _, name, value in shown]
    bars = ranking("relevance-chart", title, finding, entries)
    return [Section("relevance", title, [paragraph(words), figure("Standard deviation / length scale", "", bars)])]


def _effects_section(facts: Facts, inputs: Ranking) -> Section:
    """The function along the most relevant inputs."""
    title = "The function along each input" if facts.columns > 1 else "The function"
    if not inputs and facts.columns > _MOST_SCREENED:
        words = f"Left out: the kernel does not tell which of {facts.columns} inputs matter."
        return Section("effects", title, [paragraph(words)], flows=True)
    first = [column for column, _, _ in inputs] or _columns_by_span(facts)
    columns = [*first, *(j for j in range(facts.columns) if j not in first)]
    effects = [_effect(facts, column) for column in columns[:_MOST_EFFECTS]]
    ends = [end for effect in effects for end in (effect.mean - effect.half, effect.mean + effect.half)]
    data = None
    if facts.columns == 1 and facts.has_targets:
        dots = random_subset(len(facts.X), _MOST_DOTS)
        data = facts.X[dots, 0], facts.targets()[facts.rows][dots]
        ends.append(data[1])
    axis = Axis.around(*ends, label=facts.target)
    drawn = chart_grid([_draw(facts, effect, axis, data) for effect in effects])
    body = [paragraph(_explanation(facts, effects, is_ranked=bool(inputs))), drawn]
    return Section("effects", title, body, flows=len(inputs) <= 8)


def _explanation(facts: Facts, effects: list[_Effect], is_ranked: bool) -> str:
    words, post = "The posterior of the function without noise: mean and 95 % band", facts.post
    if effects[0].draws is None:
        words += f". No sample paths: {post.report.no_paths or 'this posterior was conditioned with samples=0'}."
    elif post.has_paths:
        words += f", with {len(effects[0].draws)} of {post.num_samples} sample paths as thin lines."
    else:
        words += f", with {len(effects[0].draws)} joint samples as thin lines (the model has no paths)."
    if facts.columns > 1:
        words += " Along each input all others stay at their medians; the vertical axis is the same in all charts."
    if len(effects) < facts.columns:
        order = "that are most relevant" if is_ranked else "along which the mean changes most"
        words += f" Shown are the {len(effects)} of {facts.columns} inputs {order}."
    if any(not effect.is_discrete for effect in effects):
        words += " Curves cover the central 99 % of the data, whose values are marked on the axis."
    if any(effect.is_discrete for effect in effects):
        words += " Inputs with few distinct values are shown at these values, with 95 % intervals."
    return words


def _columns_by_span(facts: Facts) -> list[int]:
    """Columns by the change of the mean between a few values of each, the largest first."""
    steps = []
    for j in range(facts.columns):
        levels = facts.levels(j)
        quantiles = np.quantile(facts.X[:, j], np.linspace(0.02, 0.98, 7), method="nearest")
        steps.append(quantiles if levels is None else levels)
    with torch.no_grad():
        mean = np.asarray(facts.post.mean(np.concatenate([facts.inputs_along(j, v) for j, v in enumerate(steps)])))
    spans = [float(np.ptp(part)) for part in np.split(mean, np.cumsum([len(v) for v in steps])[:-1])]
    return [int(j) for j in np.argsort(-np.array(spans), kind="stable")]


def _effect(facts: Facts, column: int) -> _Effect:
    levels, post = facts.levels(column), facts.post
    values = levels
    if values is None:
        low, high = np.quantile(facts.X[:, column], [0.005, 0.995])
        values = np.linspace(low, high, _POINTS)
    Xs = facts.inputs_along(column, values)
    draws = None
    with torch.no_grad():
        mean, half = to_numpy(post.mean(Xs)), WIDTH_95 * np.sqrt(to_numpy(post.variance(Xs, method="smooth")))
        if post.has_paths:
            draws = to_numpy(post.paths(Xs)[:_PATHS])
        elif post.has_factor:
            draws = to_numpy(post.sample(Xs, _PATHS, torch.Generator().manual_seed(0)))
    return _Effect(column, values, levels is not None, mean, half, draws)


def _draw(facts: Facts, effect: _Effect, y: Axis, data: tuple[Vector, Vector] | None) -> Html:
    """The chart of an effect, with the observations (inputs, targets) of a single input."""
    x, mean, half, name = effect.values, effect.mean, effect.half, facts.names[effect.column]
    top, bottom = int(mean.argmax()), int(mean.argmin())
    finding = (
        f"Mean of {facts.target} from {number(mean[bottom])} at {name} = {number(x[bottom])} to {number(mean[top])} at "
        f"{name} = {number(x[top])}; 95 % band of ±{number(half.min())} to ±{number(half.max())}."
    )
    axis = Axis.around(x, pad=0.02)
    if effect.is_discrete:
        room = 0.5 * float(np.diff(x).mean()) if len(x) > 1 else 1.0
        axis = Axis(float(x[0]) - room, float(x[-1]) + room, ticks=tuple(x))
    chart = Chart(f"effect-{effect.column}", f"{facts.target} along {name}", finding, axis, y)
    if data is not None:
        chart.dots(*data, "data")
    draws = () if effect.draws is None else effect.draws
    if effect.is_discrete:
        for i, draw in enumerate(draws):
            chart.dots(x + 0.012 * (axis.high - axis.low) * (1 + i % 3), draw, "accent faint")
        chart.whiskers(x, mean - half, mean + half)
        chart.dots(x, mean, "accent large")
    else:
        chart.curve_with_band(x, mean, half, draws)
        marked = facts.X[:, effect.column]
        chart.rug(marked[random_subset(len(marked), _MOST_MARKS)])
    caption = ""
    if facts.columns > 1:
        low, high = (axis_number(mean[i], y.high - y.low) for i in (bottom, top))
        caption = f"mean from {low} to {high}"
    return figure(name, caption, chart.svg())
