"""What the model learned about its inputs: how relevant they are, and what the function does along them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.html.accuracy import WIDTH_95, some
from pathgp.html.charts import Axis, Chart, ranking
from pathgp.html.markup import Html, Section, charts, figure, paragraph
from pathgp.html.numbers import count, number, within
from pathgp.html.subject import Subject
from pathgp.html.words import listed
from pathgp.kernels import Periodic
from pathgp.kernels.expression import leaves
from pathgp.kernels.stationary import Stationary
from pathgp.plots import relevance

MOST_BARS = 20
MOST_EFFECTS = 6
_POINTS = 61
_PATHS = 8
_MOST_MARKS = 250
_MOST_SCREENED = 100


@dataclass(frozen=True)
class _Effect:
    """f along one input, others at their medians: values, mean, half of the 95 % band (m,), draws (s, m) or None."""

    column: int
    name: str
    values: NDArray[np.float64]
    is_discrete: bool
    mean: NDArray[np.float64]
    half: NDArray[np.float64]
    draws: NDArray[np.float64] | None


def ranked(subject: Subject) -> list[tuple[int, str, float]]:
    """(column, name, standard deviation / length scale), the largest first; empty where the kernel cannot tell.

    An input that several parts of a kernel see has its shortest length scale; a periodic kernel has that of small
    distances, period x lengthscale / 2 pi. One length scale for several inputs says nothing about any of them.
    """
    post, columns = subject.post, subject.columns
    scales = np.full(columns, math.inf)
    known = np.zeros(columns, dtype=bool)
    for kernel, seen in leaves(post.model.kernel, range(columns)):
        if not isinstance(kernel, (Stationary, Periodic)):
            continue
        own = kernel.lengthscale.detach().cpu().numpy()
        if own.ndim == 0 and len(seen) > 1:
            continue
        if isinstance(kernel, Periodic):
            own = own * kernel.period.detach().cpu().numpy() / (2 * math.pi)
        places = list(seen)
        scales[places], known[places] = np.minimum(scales[places], own), True
    if columns == 1 or not known.any():
        return []
    spread = subject.X.std(0) / post.scaling.scale.cpu().numpy()
    with np.errstate(divide="ignore"):
        relative = scales / spread
    own_scale = [int(j) for j in np.flatnonzero(known)]
    order = relevance(relative[own_scale], [subject.names[j] for j in own_scale])
    return [(own_scale[i], name, value) for i, name, value in order]


def relevance_section(subject: Subject, entries: list[tuple[int, str, float]]) -> Section | None:
    """Bars, the most relevant input first; None where there is one input only."""
    if subject.columns == 1:
        return None
    title = "Relevance of the inputs"
    if not entries:
        words = (
            "The kernel has no length scale of its own for any input, so that it does not rank them. "
            "A kernel with one length scale per input would."
        )
        return Section("relevance", title, [paragraph(words)])
    shown = entries[:MOST_BARS]
    others = ""
    if len(entries) > len(shown):
        others += f" Left out: the {count(len(entries) - len(shown), 'input')} with the smallest values."
    silent = [name for j, name in enumerate(subject.names) if j not in {column for column, _, _ in entries}]
    if silent:
        others += f" Not ranked, as they have no length scale of their own: {listed(silent)}."
    finding = "; ".join(f"{name} {number(value)}" for _, name, value in shown[:5])
    words = (
        "How many length scales fit into the standard deviation of an input: the larger, the faster the function "
        f"changes along it. Near zero, the input hardly matters.{others}"
    )
    drawing = ranking(
        "relevance-chart",
        "Relevance of the inputs",
        f"Standard deviation over length scale, the largest first: {finding}.",
        [(name, value) for _, name, value in shown],
        [within(value, shown[0][2]) for _, _, value in shown],
    )
    return Section("relevance", title, [paragraph(words), figure("Standard deviation / length scale", "", drawing)])


def effects_section(subject: Subject, entries: list[tuple[int, str, float]]) -> Section:
    """The function along the most relevant inputs."""
    title = "The function along each input" if subject.columns > 1 else "The function"
    by_span = not entries
    if by_span and subject.columns > _MOST_SCREENED:
        words = f"Left out: the kernel does not say which of {subject.columns} inputs matter."
        return Section("effects", title, [paragraph(words)], flows=True)
    first = _by_span(subject) if by_span else [column for column, _, _ in entries]
    columns = [*first, *(j for j in range(subject.columns) if j not in first)]
    effects = [_effect(subject, column) for column in columns[:MOST_EFFECTS]]
    body = [paragraph(_explained(subject, effects, by_span, len(columns)))]
    y, dots = None, None
    if subject.columns == 1 and subject.has_targets:
        dots = some(len(subject.X), 600)
        y = subject.targets()[subject.chosen][dots]
    axis = Axis.around(
        *[e.mean - e.half for e in effects],
        *[e.mean + e.half for e in effects],
        *([] if y is None else [y]),
        label=subject.target,
    )
    body.append(charts([_drawn(subject, effect, axis, dots, y) for effect in effects]))
    return Section("effects", title, body, flows=len(entries) <= 8)


def _explained(subject: Subject, effects: list[_Effect], by_span: bool, candidates: int) -> str:
    words = "The posterior of the function behind the data, without noise: mean and 95 % band"
    if effects[0].draws is None:
        reason = subject.post.report.no_paths or "this posterior was conditioned with samples=0"
        words += f". No sample paths: {reason}."
    elif subject.has_paths:
        words += f", with {len(effects[0].draws)} of {subject.post.num_samples} sample paths as thin lines."
    else:
        words += f", with {len(effects[0].draws)} joint samples as thin lines (the model has no paths)."
    if subject.columns > 1:
        words += " Along each input all others stay at their medians; the vertical axis is the same in all charts."
        order = "whose mean moves furthest" if by_span else "that are most relevant"
        if len(effects) < candidates:
            words += f" Shown are the {len(effects)} of {candidates} inputs {order}."
    if any(not effect.is_discrete for effect in effects):
        words += " Curves run over the central 99 % of the data, whose values are marked on the axis."
    if any(effect.is_discrete for effect in effects):
        words += " Inputs with few different values are shown at these values, with 95 % intervals."
    return words


def _by_span(subject: Subject) -> list[int]:
    """Columns by how far the mean moves between a few values of each, the furthest first."""
    values = [subject.levels(j) for j in range(subject.columns)]
    steps = [
        np.quantile(subject.X[:, j], np.linspace(0.02, 0.98, 7), method="nearest") if v is None else v
        for j, v in enumerate(values)
    ]
    Xs = np.concatenate([subject.along(j, v) for j, v in enumerate(steps)])
    with torch.no_grad():
        mean = np.asarray(subject.post.mean(Xs))
    parts = np.split(mean, np.cumsum([len(v) for v in steps])[:-1])
    return [int(j) for j in np.argsort([-float(np.ptp(part)) for part in parts], kind="stable")]


def _effect(subject: Subject, column: int) -> _Effect:
    levels = subject.levels(column)
    if levels is None:
        low, high = np.quantile(subject.X[:, column], [0.005, 0.995])
        values = np.linspace(low, high, _POINTS)
    else:
        values = levels
    Xs = subject.along(column, values)
    post = subject.post
    with torch.no_grad():
        mean = np.asarray(post.mean(Xs), dtype=np.float64)
        half = WIDTH_95 * np.sqrt(np.asarray(post.variance(Xs), dtype=np.float64))
        draws: Any = None
        if subject.has_paths:
            draws = np.asarray(post.paths(Xs)[:_PATHS], dtype=np.float64)
        elif subject.has_factor:
            draws = np.asarray(post.sample(Xs, _PATHS, torch.Generator().manual_seed(0)), dtype=np.float64)
    return _Effect(column, subject.names[column], values, levels is not None, mean, half, draws)


def _drawn(subject: Subject, effect: _Effect, y: Axis, dots: Any, targets: Any) -> Html:
    x, mean, half = effect.values, effect.mean, effect.half
    data = subject.X[:, effect.column]
    top, bottom = int(mean.argmax()), int(mean.argmin())
    finding = (
        f"Mean of {subject.target} from {number(mean[bottom])} at {effect.name} = {number(x[bottom])} "
        f"to {number(mean[top])} at {effect.name} = {number(x[top])}; 95 % band of ±{number(half.min())} to "
        f"±{number(half.max())}."
    )
    axis = Axis.around(x, pad=0.02)
    if effect.is_discrete:
        axis = Axis(*_widened(x), ticks=tuple(x))
    chart = Chart(f"effect-{effect.column}", f"{subject.target} along {effect.name}", finding, axis, y)
    if dots is not None and targets is not None:
        chart.dots(data[dots], targets, "data")
    if effect.is_discrete:
        if effect.draws is not None:
            shift = 0.012 * (axis.high - axis.low)
            for i, draw in enumerate(effect.draws):
                chart.dots(x + shift * (1 + i % 3), draw, "accent faint")
        chart.whiskers(x, mean - half, mean + half)
        chart.dots(x, mean, "accent large")
    else:
        chart.band(x, mean - half, mean + half)
        for draw in () if effect.draws is None else effect.draws:
            chart.line(x, draw, "path")
        chart.line(x, mean)
        chart.rug(data[some(len(data), _MOST_MARKS)])
    span = y.high - y.low
    where = "" if subject.columns == 1 else f"mean from {within(mean[bottom], span)} to {within(mean[top], span)}"
    return figure(effect.name, where, chart.svg())


def _widened(x: NDArray[np.float64]) -> tuple[float, float]:
    """Room for half a step on both sides of the levels."""
    room = 0.5 * float(np.diff(x).mean()) if len(x) > 1 else 1.0
    return float(x[0]) - room, float(x[-1]) + room
