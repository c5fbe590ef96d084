"""Numbers as text, and the ticks of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

MISSING = "–"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# (unit, suffix, smallest number that gets it): four digits of thousands read better than a suffix.
_SUFFIXES = ((1e12, "T", 1e12), (1e9, "G", 1e9), (1e6, "M", 1e6), (1e3, "k", 1e4))


def number(value: float, digits: int = 3) -> str:
    """Format a number with significant digits; very large and very small ones as powers of ten.

    >>> [number(x) for x in (0.12345, 12345.6, -3.0, 1.5e-7, 0.0, float("nan"))]
    ['0.123', '12,346', '−3', '1.5 × 10⁻⁷', '0', '–']
    """
    if not math.isfinite(value):
        return MISSING if math.isnan(value) else ("∞" if value > 0 else "−∞")
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded == 0:
        return "0"
    power = math.floor(math.log10(abs(rounded)))
    if not -4 <= power <= 6:
        text = f"{rounded / 10.0**power:.{digits}g} × {_power_of_ten(power)}"
    elif power >= digits or value == round(value):
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{digits - 1 - power}f}"
    return text.replace("-", "−")


def axis_number(value: float, span: float) -> str:
    """Format a number with the decimals that are visible on an axis of length ``span``.

    >>> axis_number(-0.0004, 6.0), axis_number(1.23456, 6.0), axis_number(12345.6, 4000.0)
    ('0.00', '1.23', '12,346')
    """
    if not 1e-4 < span < 1e7:
        return number(value)
    return f"{value:z,.{max(0, 2 - math.floor(math.log10(span)))}f}".replace("-", "−")


def percent(share: float) -> str:
    """Format a share of one in percent.

    >>> percent(0.9487)
    '94.9 %'
    """
    return MISSING if math.isnan(share) else f"{100 * share:.1f} %"


def count(size: int, noun: str) -> str:
    """Format a count with its noun.

    >>> count(1, "row"), count(12000, "row")
    ('1 row', '12,000 rows')
    """
    return f"{size:,} {noun}" + ("" if size == 1 else "s")


def seconds(time: float) -> str:
    """Format a duration in a suitable unit.

    >>> seconds(0.0421), seconds(75.0), seconds(8000.0)
    ('0.042 s', '1 min 15 s', '2 h 13 min')
    """
    if time < 59.5:
        return f"{time:.2g} s" if time < 10 else f"{time:.0f} s"
    minutes, rest = divmod(round(time), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return about ``most`` round numbers in an interval, in steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0.0, 1.0), ticks(-130.0, 270.0)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-100.0, 0.0, 100.0, 200.0])
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return powers of ten in an interval; in a short interval also 2 and 5 times these.

    >>> log_ticks(0.5, 200.0), log_ticks(1e-8, 1.0)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0], [1e-08, 1e-06, 0.0001, 0.01, 1.0])
    """
    bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((top - bottom) / most))
    factors = (1, 2, 5) if math.log10(high / low) < 3 else (1,)
    candidates = [f * 10.0**p for p in range(bottom, top + 1) if p % every == 0 for f in factors]
    return [tick for tick in candidates if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def tick_labels(values: Sequence[float], decimals: int = 0) -> list[str]:
    """Format ticks in a common unit: k, M, ... for thousands, millions; powers of ten below a thousandth.

    decimals: further decimals, for ticks that are not round.

    >>> tick_labels([0.0, 50000.0, 100000.0]), tick_labels([0.0, 0.2]), tick_labels([0.0, 2e-5])
    (['0', '50k', '100k'], ['0', '0.2'], ['0', '2 × 10⁻⁵'])
    """
    largest = max((abs(value) for value in values), default=0.0)
    unit, suffix = _unit(largest)
    if largest >= 1e16 or 0 < largest < 1e-3:
        return [number(value) for value in values]
    gaps = [abs(b - a) for a, b in pairwise(values) if a != b]
    decimals += max(0, -math.floor(math.log10(min(gaps, default=largest or 1.0) / unit) + 1e-9))
    texts = [f"{value / unit:z.{decimals}f}" for value in values]
    texts = [text.rstrip("0").rstrip(".") if "." in text else text for text in texts]
    return ["0" if text == "0" else text.replace("-", "−") + suffix for text in texts]


def log_label(value: float) -> str:
    """Format a tick of a logarithmic axis.

    >>> [log_label(value) for value in (0.01, 1.0, 20.0, 1e-8, 1e6)]
    ['0.01', '1', '20', '10⁻⁸', '1M']
    """
    if 1e-3 * (1 - 1e-9) <= value < 1e15:
        unit, suffix = _unit(value)
        return f"{value / unit:g}{suffix}"
    power = math.floor(math.log10(value) + 1e-9)
    factor = round(value / 10.0**power)
    return _power_of_ten(power) if factor == 1 else f"{factor} × {_power_of_ten(power)}"


def _unit(value: float) -> tuple[float, str]:
    return next(((unit, suffix) for unit, suffix, least in _SUFFIXES if value >= least), (1.0, ""))


def _power_of_ten(power: int) -> str:
    return "10" + str(power).translate(_SUPERSCRIPTS)
