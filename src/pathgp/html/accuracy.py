"""Predictions against what was observed: errors, calibration, and the charts that show them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from pathgp import metrics
from pathgp.html.charts import Axis, Chart
from pathgp.html.markup import Html, Section, Tile, Verdict, charts, figure, figures, paragraph
from pathgp.html.numbers import MISSING, count, number, percent

Vector = NDArray[np.float64]

LEVELS = np.array([*range(5, 100, 5), 99]) / 100
MOST_DOTS = 1500
# Two-sided 95 % of a normal distribution.
WIDTH_95 = 1.959964
# Coverage this close to what it should be is good in practice, however many rows show that it is not exact.
_CLOSE = 0.02
_FEW_ROWS = 20


@dataclass(frozen=True)
class Comparison:
    """Observed values with their predictive means and variances (noise included).

    what: the rows in words, for instance "held-out rows".  total: of how many rows these are a random part.
    how: how the predictions were made, in a sentence.  caveat: why they may not be those of the posterior.
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
    def rmse(self) -> float:
        return metrics.rmse(self.y, self.mean)

    @property
    def mae(self) -> float:
        return float(np.mean(np.abs(self.y - self.mean)))

    @property
    def nll(self) -> float:
        return metrics.nll(self.y, self.mean, self.variance)

    @property
    def spread(self) -> float:
        """Standard deviation of y: the error of always predicting its average."""
        return float(np.std(self.y))

    @property
    def is_constant(self) -> bool:
        return self.spread <= 1e-12 * float(np.abs(self.y).max())

    @property
    def r2(self) -> float:
        """The part of the variance of y that is explained; not a number where y is constant."""
        return math.nan if self.is_constant else 1.0 - (self.rmse / self.spread) ** 2

    @property
    def pit(self) -> Vector:
        """Where in its predictive distribution every value fell: uniform if the distributions are right."""
        found: Vector = ndtr((self.y - self.mean) / np.sqrt(self.variance))
        return found

    def coverage(self, level: float = 0.95) -> float:
        return metrics.coverage(self.y, self.mean, self.variance, level)

    def calibration(self) -> Verdict:
        """Whether intervals hold what they promise, in a sentence."""
        if self.is_constant:
            return Verdict(None, "The values are all the same, so that nothing shows whether the intervals are right.")
        if self.rows < _FEW_ROWS:
            return Verdict(None, f"Too few rows ({self.rows}) to judge whether the intervals are calibrated.")
        seen, (level, gap) = self.coverage(), self.largest_gap()
        found = f"{percent(seen)} of the {self.what} lie inside their 95 % intervals"
        if abs(seen - 0.95) <= max(_CLOSE, _chance(0.95, self.rows)):
            if abs(gap) <= max(5 * _CLOSE, _chance(level, self.rows)):
                return Verdict(True, f"{found}, as they should.")
            found += f", but {percent(level + gap)} inside their {100 * level:.0f} % intervals"
            if (gap > 0) != (seen >= 0.95):
                tails = "a sharper peak and heavier tails" if gap > 0 else "lighter tails"
                return Verdict(None, f"{found}: the errors have {tails} than the normal distribution of the model.")
            too_wide = gap > 0
        else:
            too_wide = seen > 0.95
        if too_wide:
            return Verdict(False, f"{found}: they are too wide. Learn the noise, or transform a skewed target.")
        advice = "Learn the noise on more rows, look for outliers, or transform the target."
        return Verdict(False, f"{found}: they are too narrow. {advice}")

    def largest_gap(self) -> tuple[float, float]:
        """The level at which coverage is furthest from it, and by how much."""
        gaps = np.array([self.coverage(level) for level in LEVELS]) - LEVELS
        worst = int(np.abs(gaps).argmax())
        return float(LEVELS[worst]), float(gaps[worst])

    def sentence(self, target: str) -> str:
        """Accuracy in one sentence."""
        typical = f"Predictions of {target} miss by {number(self.rmse)} (root mean square)"
        where = f"on {count(self.rows, 'row')}" if self.what == "rows" else f"on the {self.rows:,} {self.what}"
        if self.is_constant:
            return f"{typical} {where}, on which {target} is constant."
        verb = f"explain {percent(self.r2)} of its variance" if self.r2 > 0 else "explain none of its variance"
        return f"{typical} {where} and {verb}; always predicting the average would miss by {number(self.spread)}."

    def tiles(self) -> list[Tile]:
        share = "" if self.is_constant else f"average alone: {number(self.spread)}"
        return [
            Tile("RMSE", number(self.rmse), share),
            Tile("R²", number(self.r2), "explained variance" if not self.is_constant else "y is constant"),
            Tile("NLL", number(self.nll), "nats per row"),
            Tile("95 % coverage", percent(self.coverage()), "ideal: 95 %"),
        ]


def accuracy_section(found: Comparison, target: str) -> Section:
    """Numbers and three charts."""
    thinned = ""
    if found.total > found.rows:
        thinned = f"Of {found.total:,} rows a random {found.rows:,} were predicted."
    body = [paragraph(" ".join(filter(None, [found.how, thinned, found.caveat]))), _numbers(found)]
    drawn = [_scatter(found, target)]
    if found.rows >= _FEW_ROWS:
        drawn += [_coverage_curve(found), _histogram(found)]
    body.append(charts(drawn))
    if found.rows < _FEW_ROWS:
        body.append(paragraph(f"Calibration needs at least {_FEW_ROWS} rows; here are {found.rows}.", "quiet"))
    return Section("accuracy", "Accuracy and calibration", body)


def _numbers(found: Comparison) -> Html:
    """The measures beside those of a prediction that knows only the average and the spread of y."""
    flat = np.full(found.rows, found.y.mean())
    if found.is_constant:
        mae = nll = MISSING
        inside = [MISSING, MISSING]
    else:
        mae = number(float(np.mean(np.abs(found.y - flat))))
        wide = np.full(found.rows, found.spread**2)
        nll = number(metrics.nll(found.y, flat, wide))
        inside = [percent(metrics.coverage(found.y, flat, wide, level)) for level in (0.5, 0.95)]
    rows = [
        ("RMSE, root mean square error", number(found.rmse), number(found.spread)),
        ("MAE, mean absolute error", number(found.mae), mae),
        ("NLL, negative log density, nats per row", number(found.nll), nll),
        ("R², explained variance", number(found.r2), "0" if not found.is_constant else MISSING),
        ("Inside 50 % intervals", percent(found.coverage(0.5)), inside[0]),
        ("Inside 95 % intervals", percent(found.coverage()), inside[1]),
    ]
    return figures([f"On {found.rows:,} {found.what}", "Model", "Average of y alone"], rows)


def _scatter(found: Comparison, target: str) -> Html:
    chosen = some(found.rows, MOST_DOTS)
    y, mean, half = found.y[chosen], found.mean[chosen], WIDTH_95 * np.sqrt(found.variance[chosen])
    outside = np.abs(y - mean) > half
    drawn = f"{len(chosen):,} of {found.rows:,} rows are drawn. " if len(chosen) < found.rows else ""
    finding = (
        f"R² {number(found.r2)}, root mean square error {number(found.rmse)}; "
        f"{percent(1 - found.coverage())} of the values lie outside their 95 % intervals."
    )
    x_axis = Axis.around(mean, label=f"predicted {target}")
    chart = Chart("scatter", "Predicted against observed", finding, x_axis, Axis.around(y, label=f"observed {target}"))
    at, width = _typical(found.mean, WIDTH_95 * np.sqrt(found.variance))
    if len(at) > 1:
        chart.band(at, at - width, at + width)
    chart.dots(mean[~outside], y[~outside], "data")
    chart.dots(mean[outside], y[outside], "warn")
    ends = np.array([max(x_axis.low, chart.y.low), min(x_axis.high, chart.y.high)])
    if ends[0] < ends[1]:
        chart.line(ends, ends, "dashed")
    caption = drawn + "Band: a typical 95 % interval at each prediction; red: values outside their own interval."
    return figure("Predicted against observed", caption, chart.svg())


def _coverage_curve(found: Comparison) -> Html:
    seen = np.array([found.coverage(level) for level in LEVELS])
    level, gap = found.largest_gap()
    finding = (
        f"Of the values {percent(found.coverage(0.5))} lie inside their 50 % intervals and "
        f"{percent(found.coverage())} inside their 95 % intervals. The largest gap is {100 * gap:+.1f} points, at "
        f"{100 * level:.0f} %."
    )
    ends = (0.0, 25.0, 50.0, 75.0, 100.0)
    chart = Chart(
        "coverage",
        "Coverage of intervals",
        finding,
        Axis(0.0, 100.0, "nominal coverage of the intervals, %", ticks=ends),
        Axis(0.0, 100.0, "do hold, %", ticks=ends),
    )
    fine = np.linspace(0.0, 1.0, 51)
    chance = WIDTH_95 * np.sqrt(fine * (1 - fine) / found.rows)
    chart.band(100 * fine, 100 * (fine - chance), 100 * (fine + chance), "expected")
    chart.line([0, 100], [0, 100], "dashed")
    chart.line(100 * LEVELS, 100 * seen)
    chart.dots(100 * LEVELS, 100 * seen, "accent")
    chart.label(97, 8, "too narrow", "", "end")
    chart.label(3, 92, "too wide", "")
    caption = "On the diagonal intervals keep their promise; grey: sampling error for this number of rows."
    return figure("Coverage of intervals", caption, chart.svg())


def _histogram(found: Comparison) -> Html:
    bins = 20 if found.rows >= 400 else 10 if found.rows >= 50 else 5
    counts, edges = np.histogram(found.pit, bins, (0.0, 1.0))
    heights = counts * (bins / found.rows)
    chance = WIDTH_95 * math.sqrt((bins - 1) / found.rows)
    inside = int(np.sum(np.abs(heights - 1) <= chance))
    finding = f"{inside} of {bins} bars lie inside the band that holds 95 % of them for a perfect model."
    chart = Chart(
        "pit",
        "Where observations fall in their predictions",
        finding,
        Axis(0.0, 1.0, "predicted probability of less", ticks=(0.0, 0.25, 0.5, 0.75, 1.0)),
        Axis(0.0, max(1.15 * float(heights.max()), 1.15 * (1 + chance)), "share of rows, 1 = uniform"),
    )
    chart.columns(edges, heights)
    chart.band(np.array([0.0, 1.0]), np.full(2, 1 - chance), np.full(2, 1 + chance), "expected")
    chart.line([0, 1], [1, 1], "dashed")
    caption = "Flat: right. Hump: intervals too wide. Towers at both ends: too narrow. Slope: biased."
    return figure("Where observations fall (PIT)", caption, chart.svg())


def _typical(at: Vector, width: Vector) -> tuple[Vector, Vector]:
    """Medians of both in up to 24 groups of equal size along ``at``."""
    groups = np.array_split(np.argsort(at), max(1, min(24, len(at) // 10)))
    x = np.array([np.median(at[group]) for group in groups])
    x[0], x[-1] = at.min(), at.max()
    return x, np.array([np.median(width[group]) for group in groups])


def some(rows: int, most: int) -> NDArray[Any]:
    """A random part of row numbers, always the same one, in order; all of them where they are few."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def _chance(level: float, rows: int) -> float:
    """How far coverage may be off by chance, at three standard errors."""
    return 3.0 * math.sqrt(level * (1 - level) / rows)
