"""Predictions against observations: errors, calibration and their charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from pathgp import metrics
from pathgp.html.charts import Axis, Chart
from pathgp.html.facts import random_subset
from pathgp.html.markup import Html, Section, Verdict, chart_grid, figure, paragraph, table
from pathgp.html.numbers import MISSING, number, percent
from pathgp.plots import WIDTH_95

Vector = NDArray[np.float64]

LEVELS = np.array([*range(5, 100, 5), 99]) / 100
MOST_DOTS = 1500
# A coverage this close to its level is good in practice, even when many rows show a difference.
_CLOSE = 0.02
_FEW_ROWS = 20
# Errors whose 95 % width is this much larger than their 50 % width (as a logarithm) have heavy tails.
_LARGE_RATIO = 0.15
_THAN_NORMAL = "than the normal distribution of the model."
_MEASURES = (
    "RMSE, root mean square error",
    "MAE, mean absolute error",
    "NLL, negative log density, nats per row",
    "R², explained variance",
    "Inside 50 % intervals",
    "Inside 95 % intervals",
)


def _advise(is_wide: bool, noise_was_learned: bool | None) -> str:
    """What may help against intervals that are too wide or too narrow."""
    others = "transform a skewed target" if is_wide else "look for outliers, or transform the target"
    if noise_was_learned:
        return f"{others[0].upper()}{others[1:]}, or learn from more rows."
    if noise_was_learned is None:
        return f"If the noise was not learned from data, learn it; otherwise {others}."
    return f"The noise was given: learn it, or {others}."


@dataclass(frozen=True)
class Comparison:
    """Observed values with their predictive means and variances (noise included).

    what: the rows in words, for instance "held-out rows".  total: number of rows from which these are a random subset.
    how: how the predictions were made, in a sentence.  caveat: why they may differ from those of the posterior.
    """

    y: Vector
    mean: Vector
    variance: Vector
    what: str
    total: int
    how: str
    caveat: str = ""

    @property
    def rows(self) -> int:
        return len(self.y)

    @property
    def has_enough_rows(self) -> bool:
        """Whether there are enough rows to judge the predictions."""
        return self.rows >= _FEW_ROWS

    @property
    def rmse(self) -> float:
        return metrics.rmse(self.y, self.mean)

    @property
    def nll(self) -> float:
        return metrics.nll(self.y, self.mean, self.variance)

    @property
    def spread(self) -> float:
        """Standard deviation of y: the error of a constant prediction of its average."""
        return float(np.std(self.y))

    @property
    def is_constant(self) -> bool:
        return self.spread <= 1e-12 * float(np.abs(self.y).max())

    @property
    def r2(self) -> float:
        """The explained share of the variance of y; NaN for a constant y."""
        return math.nan if self.is_constant else 1.0 - (self.rmse / self.spread) ** 2

    @property
    def pit(self) -> Vector:
        """Probability integral transform: predictive distribution functions at y, uniform for a calibrated model."""
        probabilities: Vector = ndtr((self.y - self.mean) / np.sqrt(self.variance))
        return probabilities

    def coverage(self, level: float = 0.95) -> float:
        return metrics.coverage(self.y, self.mean, self.variance, level)

    @cached_property
    def coverages(self) -> Vector:
        """Coverage at `LEVELS`."""
        return np.array([self.coverage(level) for level in LEVELS])

    def largest_gap(self) -> tuple[float, float]:
        """The level whose coverage differs most from it, and the difference."""
        return max(zip(LEVELS, self.coverages - LEVELS, strict=True), key=lambda entry: abs(entry[1]))

    def _allowance(self, level: float, close: float = _CLOSE) -> float:
        """How far a good coverage may be from its level: ``close``, or three standard errors for few rows."""
        return max(close, 3.0 * math.sqrt(level * (1 - level) / self.rows))

    def calibration(self, noise_was_learned: bool | None = None) -> Verdict:
        """Judge whether intervals contain the share of observations that they should.

        ``noise_was_learned``: None if that is not known.
        """
        if self.is_constant:
            return Verdict(None, "All values are equal, so that the intervals cannot be judged.")
        if not self.has_enough_rows:
            return Verdict(None, f"Too few rows ({self.rows}) to judge whether the intervals are calibrated.")
        tail_gap, (level, gap) = self.coverage() - 0.95, self.largest_gap()
        words = f"{percent(self.coverage())} of the {self.what} lie inside their 95 % intervals"
        is_tail_right = abs(tail_gap) <= self._allowance(0.95)
        if is_tail_right and abs(gap) <= self._allowance(level, 5 * _CLOSE):
            return Verdict(True, f"{words}, as they should.")
        good = None if is_tail_right else False
        heaviness = self._tail_heaviness()
        if abs(heaviness) > max(_LARGE_RATIO, 4.5 / math.sqrt(self.rows)):
            words += f" and {percent(self.coverage(0.5))} inside their 50 % intervals"
            if heaviness < 0:
                return Verdict(good, f"{words}: the errors have lighter tails {_THAN_NORMAL}")
            shape = "the errors have a sharper peak and heavier tails"
            if not is_tail_right and self.coverage(0.5) - 0.5 < -self._allowance(0.5):
                shape = "they are too narrow, and the errors have heavier tails"
            return Verdict(good, f"{words}: {shape} {_THAN_NORMAL} Look for outliers, or transform the target.")
        if is_tail_right:
            words += f", but {percent(level + gap)} inside their {100 * level:.0f} % intervals"
        is_wide = (gap if is_tail_right else tail_gap) > 0
        shape = "they are too wide" if is_wide else "they are too narrow"
        return Verdict(False, f"{words}: {shape}. {_advise(is_wide, noise_was_learned)}")

    def _tail_heaviness(self) -> float:
        """The width of the errors at 95 % relative to that at 50 %, as a logarithm: 0 for normal errors of any scale.

        Its standard error is about 1.5 / sqrt(rows).
        """
        z = np.abs(self.y - self.mean) / np.sqrt(self.variance)
        middle, tail = np.quantile(z, [0.5, 0.95]) / ndtri([0.75, 0.975])
        return float(np.log(tail / middle)) if middle > 0 else math.inf

    def sentence(self, target: str) -> str:
        """Describe the accuracy in one sentence."""
        rows = f"on the {self.rows:,} {self.what}"
        error = f"Predictions of {target} miss by {number(self.rmse)} (root mean square) {rows}"
        if self.is_constant:
            return f"{error}, on which {target} is constant."
        share = f"explain {percent(self.r2)} of its variance" if self.r2 > 0 else "explain none of its variance"
        return f"{error} and {share}; always predicting the average would miss by {number(self.spread)}."

    def tiles(self) -> list[tuple[str, str, str]]:
        """Key numbers: name, value and a short note."""
        average = "" if self.is_constant else f"average alone: {number(self.spread)}"
        return [
            ("RMSE", number(self.rmse), average),
            ("R²", number(self.r2), "y is constant" if self.is_constant else "explained variance"),
            ("NLL", number(self.nll), "nats per row"),
            ("95 % coverage", percent(self.coverage()), "ideal: 95 %"),
        ]


@dataclass(frozen=True)
class Content:
    """What the page of a table and that of a grid do not share.

    size, sentences: the data and the model in words.  reason: why there is no comparison with observations.
    variances: where they come from, in a sentence.  inputs: names of the inputs that may have a length scale each.
    first: sections that come before the accuracy.
    """

    size: str
    sentences: list[str]
    comparison: Comparison | None
    reason: str
    sections: list[Section]
    variances: str
    inputs: Sequence[str] = ()
    first: Sequence[Section] = ()


def accuracy_section(comparison: Comparison, target: str) -> Section:
    """A table of errors, a scatter plot, and two charts of calibration."""
    rows, words = comparison.rows, [comparison.how]
    if comparison.total > rows:
        words.append(f"A random {rows:,} of {comparison.total:,} rows were predicted.")
    if comparison.caveat:
        words.append(comparison.caveat)
    drawn = [_scatter(comparison, target)]
    if comparison.has_enough_rows:
        drawn += [_coverage_curve(comparison), _histogram(comparison)]
    body = [paragraph(" ".join(words)), _numbers(comparison), chart_grid(drawn)]
    if not comparison.has_enough_rows:
        body.append(paragraph(f"Calibration needs at least {_FEW_ROWS} rows, and there are {rows}.", "quiet"))
    return Section("accuracy", "Accuracy and calibration", body)


def _numbers(comparison: Comparison) -> Html:
    """The measures of the model beside those of a normal distribution with the mean and the spread of y."""

    def measures(c: Comparison) -> list[str]:
        mae, inside = float(np.mean(np.abs(c.y - c.mean))), [percent(c.coverage(level)) for level in (0.5, 0.95)]
        return [number(c.rmse), number(mae), number(c.nll), number(c.r2), *inside]

    average = [number(comparison.spread), *[MISSING] * 5]
    if not comparison.is_constant:
        y = comparison.y
        always = replace(comparison, mean=np.full_like(y, y.mean()), variance=np.full_like(y, comparison.spread**2))
        average = measures(always)
        average[3] = "0"  # without rounding errors
    columns = [f"On {comparison.rows:,} {comparison.what}", "Model", "Average of y alone"]
    return table(columns, zip(_MEASURES, measures(comparison), average, strict=True), "figures")


def _scatter(comparison: Comparison, target: str) -> Html:
    drawn = random_subset(comparison.rows, MOST_DOTS)
    half = WIDTH_95 * np.sqrt(comparison.variance)
    y, mean = comparison.y[drawn], comparison.mean[drawn]
    outside = np.abs(y - mean) > half[drawn]
    finding = (
        f"R² {number(comparison.r2)}, root mean square error {number(comparison.rmse)}; "
        f"{percent(1 - comparison.coverage())} of the values lie outside their 95 % intervals."
    )
    x_axis, y_axis = Axis.around(mean, label=f"predicted {target}"), Axis.around(y, label=f"observed {target}")
    chart = Chart("scatter", "Predicted against observed", finding, x_axis, y_axis)
    at, width = _typical(comparison.mean, half)
    has_band = len(at) > 1
    if has_band:
        chart.band(at, at - width, at + width)
    chart.dots(mean[~outside], y[~outside], "data")
    chart.dots(mean[outside], y[outside], "warn")
    ends = np.array([max(x_axis.low, y_axis.low), min(x_axis.high, y_axis.high)])
    if ends[0] < ends[1]:
        chart.line(ends, ends, "dashed")
    caption = "Band: a typical 95 % interval at each prediction; red: values outside their own interval."
    if not has_band:
        caption = "Dashed: predictions equal to the observations; red: values outside their own 95 % interval."
    if len(drawn) < comparison.rows:
        caption = f"{len(drawn):,} of {comparison.rows:,} rows are drawn. {caption}"
    return figure("Predicted against observed", caption, chart.svg())


def _coverage_curve(comparison: Comparison) -> Html:
    level, gap = comparison.largest_gap()
    finding = (
        f"{percent(comparison.coverage(0.5))} of the values lie inside their 50 % intervals and "
        f"{percent(comparison.coverage())} inside their 95 % intervals. The largest gap is {100 * gap:+.1f} points, at "
        f"{100 * level:.0f} %."
    )
    ends = (0.0, 25.0, 50.0, 75.0, 100.0)
    x_axis = Axis(0.0, 100.0, "nominal coverage of the intervals, %", ticks=ends)
    chart = Chart("coverage", "Coverage of intervals", finding, x_axis, Axis(0.0, 100.0, "observed, %", ticks=ends))
    fine = np.linspace(0.0, 1.0, 51)
    chance = WIDTH_95 * np.sqrt(fine * (1 - fine) / comparison.rows)
    chart.band(100 * fine, 100 * (fine - chance), 100 * (fine + chance), "expected")
    chart.line([0, 100], [0, 100], "dashed")
    chart.line(100 * LEVELS, 100 * comparison.coverages)
    chart.dots(100 * LEVELS, 100 * comparison.coverages, "accent")
    chart.label(97, 8, "too narrow", "end")
    chart.label(3, 92, "too wide")
    caption = "On the diagonal intervals are calibrated; grey: sampling error for this number of rows."
    return figure("Coverage of intervals", caption, chart.svg())


def _histogram(comparison: Comparison) -> Html:
    rows = comparison.rows
    bins = 20 if rows >= 400 else 10 if rows >= 50 else 5
    counts, edges = np.histogram(comparison.pit, bins, (0.0, 1.0))
    heights = counts * (bins / rows)
    chance = WIDTH_95 * math.sqrt((bins - 1) / rows)
    inside = int(np.sum(np.abs(heights - 1) <= chance))
    finding = f"{inside} of {bins} bars lie inside the band that contains 95 % of them for a perfect model."
    chart = Chart(
        "pit",
        "Where observations fall in their predictions",
        finding,
        Axis(0.0, 1.0, "predicted probability of a smaller value", ticks=(0.0, 0.25, 0.5, 0.75, 1.0)),
        Axis(0.0, 1.15 * max(float(heights.max()), 1 + chance), "share of rows, 1 = uniform"),
    )
    chart.columns(edges, heights)
    chart.band(np.array([0.0, 1.0]), np.full(2, 1 - chance), np.full(2, 1 + chance), "expected")
    chart.line([0, 1], [1, 1], "dashed")
    caption = (
        "Flat: calibrated. Hump: intervals too wide. Towers at both ends: too narrow. "
        "Hump and towers: heavy tails. Slope: biased."
    )
    return figure("Where observations fall (PIT)", caption, chart.svg())


def _typical(at: Vector, width: Vector) -> tuple[Vector, Vector]:
    """Medians of both in up to 24 groups of equal size along ``at``."""
    groups = np.array_split(np.argsort(at), max(1, min(24, len(at) // 10)))
    x = np.array([np.median(at[group]) for group in groups])
    x[0], x[-1] = at.min(), at.max()
    return x, np.array([np.median(width[group]) for group in groups])
