"""Charts in SVG, written by hand: axes with round ticks, lines, bands, dots, bars, pictures, labels beside the things.

Colours and strokes are classes of the style sheet, so that a chart follows light, dark and print. A chart is 360 units
wide, about the width of a phone, and is scaled to its place: text stays readable everywhere.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pathgp.html.markup import Html
from pathgp.html.numbers import log_labels, log_ticks, tick_labels, ticks

Vector = NDArray[Any]

WIDTH, HEIGHT = 360.0, 250.0
_TOP, _RIGHT = 24.0, 10.0
# Below the axis: ticks with their labels, and the name of the axis where it has one.
_TICKS, _NAME = 22.0, 16.0
# The width of an average character at 12 units, in one of the wider fonts.
LETTER = 7.4
_LINE = 13.0


@dataclass(frozen=True)
class Axis:
    """An interval of numbers along one side of a chart."""

    low: float
    high: float
    label: str = ""
    log: bool = False
    ticks: tuple[float, ...] | None = None

    @classmethod
    def around(cls, *values: Any, label: str = "", log: bool = False, zero: bool = False, pad: float = 0.04) -> Axis:
        """An axis that holds all finite values, with a little room at the ends; ``zero``: and begins there."""
        numbers = np.concatenate([np.asarray(v, dtype=np.float64).ravel() for v in values])
        numbers = numbers[np.isfinite(numbers) & ((numbers > 0) | (not log))]
        low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (1.0, 1.0)
        if log:
            grow = max((high / low) ** pad, 1.5 if high / low < 1.5 else 1.0)
            return cls(low / grow, high * grow, label, True)
        if zero:
            low = min(low, 0.0)
        room = pad * (high - low)
        # A constant has no extent: the interval around it is a choice, not more than that.
        room = room if high - low > 1e-12 * max(abs(low), abs(high)) else 0.5 * abs(high) or 1.0
        return cls(low if zero and low == 0.0 else low - room, high + room, label)

    def places(self, values: Any) -> Vector:
        """Where numbers lie: 0 at the low end, 1 at the high end."""
        numbers = np.asarray(values, dtype=np.float64)
        if not self.log:
            return (numbers - self.low) / (self.high - self.low)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(numbers / self.low) / math.log(self.high / self.low)

    def marks(self, most: int) -> list[tuple[float, str]]:
        """Ticks and their labels."""
        if self.log:
            found = log_ticks(self.low, self.high, most)
            return list(zip(found, log_labels(found), strict=True))
        if self.ticks is not None:
            return list(zip(self.ticks, tick_labels(self.ticks, more=1), strict=True))
        found = ticks(self.low, self.high, most)
        return list(zip(found, tick_labels(found), strict=True))


class Chart:
    """A drawing area with two axes. What is drawn first lies below.

    key: unique on the page.  title, finding: what a reader who does not see the chart is told; the finding in numbers.
    right: room for labels beside the lines.
    """

    def __init__(
        self, key: str, title: str, finding: str, x: Axis, y: Axis, right: float = _RIGHT, height: float = HEIGHT
    ) -> None:
        self.key, self.title, self.finding, self.x, self.y, self.height = key, title, finding, x, y, height
        self._x_marks, self._y_marks = x.marks(5), y.marks(5)
        widest = max((len(label) for _, label in self._y_marks), default=1)
        self.left = 10.0 + LETTER * widest
        self.right, self.top = WIDTH - right, _TOP
        self.bottom = height - _TICKS - (_NAME if x.label else 0.0)
        self._inside: list[str] = []
        self._labels: list[str] = []

    def line(self, x: Any, y: Any, kind: str = "accent") -> None:
        """A curve; it breaks where a value is missing."""
        self._inside.append(f'<path class="{kind}" d="{self._curve(x, y)}"/>')

    def band(self, x: Any, low: Any, high: Any, kind: str = "band") -> None:
        """The area between two curves."""
        xs, ys = np.concatenate([x, np.flip(x)]), np.concatenate([low, np.flip(high)])
        self._inside.append(f'<path class="{kind}" d="{self._curve(xs, ys)}Z"/>')

    def dots(self, x: Any, y: Any, kind: str = "data") -> None:
        """Points: strokes of no length with round ends, twelve bytes each."""
        px, py = self._pixels(x, y)
        d = "".join(f"M{_short(a)} {_short(b)}h0" for a, b in zip(px, py, strict=True) if np.isfinite(a + b))
        self._inside.append(f'<path class="dots {kind}" d="{d}"/>')

    def whiskers(self, x: Any, low: Any, high: Any, kind: str = "accent") -> None:
        """Vertical intervals."""
        px, bottom = self._pixels(x, low)
        _, top = self._pixels(x, high)
        parts = zip(px, bottom, top, strict=True)
        d = "".join(f"M{_short(a)} {_short(b)}V{_short(c)}" for a, b, c in parts)
        self._inside.append(f'<path class="{kind}" d="{d}"/>')

    def columns(self, edges: Vector, heights: Vector, kind: str = "bar") -> None:
        """Bars of a histogram, from the lower axis."""
        left, top = self._pixels(edges[:-1], heights)
        right, _ = self._pixels(edges[1:], heights)
        for a, b, y in zip(left, right, top, strict=True):
            tall = max(0.0, self.bottom - y)
            self._inside.append(
                f'<rect class="{kind}" x="{_short(a + 0.5)}" y="{_short(y)}" width="{_short(max(0.5, b - a - 1))}" '
                f'height="{_short(tall)}"/>'
            )

    def rug(self, x: Any) -> None:
        """A small stroke on the lower axis for every value."""
        px, _ = self._pixels(x, np.full(len(x), self.y.low))
        d = "".join(f"M{_short(a)} {_short(self.bottom)}v-5" for a in np.unique(np.round(px, 1)))
        self._inside.append(f'<path class="rug" d="{d}"/>')

    def picture(self, colours: NDArray[np.uint8]) -> None:
        """A table of colours (rows, columns, 4) over the whole area; the first row is at the bottom."""
        data = base64.b64encode(png(np.flipud(colours))).decode()
        self._inside.append(
            f'<image x="{_short(self.left)}" y="{_short(self.top)}" width="{_short(self.right - self.left)}" '
            f'height="{_short(self.bottom - self.top)}" preserveAspectRatio="none" '
            f'href="data:image/png;base64,{data}"/>'
        )

    def label(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start", dy: float = 0.0) -> None:
        """Words at a place of the chart, with a halo that keeps them readable on lines."""
        px, py = self._pixels([x], [y])
        self._labels.append(_text(float(px[0]), float(py[0]) + dy, words, f"halo {kind}".strip(), anchor))

    def end_labels(self, entries: Iterable[tuple[float, str, str]]) -> None:
        """(value, words, kind) beside the right ends of curves, moved apart where they would overlap."""
        known = [entry for entry in entries if math.isfinite(entry[0])]
        _, py = self._pixels([self.x.high] * len(known), [value for value, _, _ in known])
        for place, i in zip(_spread(sorted(py), self.top, self.bottom), np.argsort(py), strict=True):
            self._labels.append(_text(self.right + 6, place + 4, known[i][1], known[i][2], "start"))

    def svg(self) -> Html:
        """The chart as an element of a page."""
        frame = self._frame()
        clip = (
            f'<clipPath id="{self.key}-clip"><rect x="{_short(self.left)}" y="{_short(self.top - 4)}" '
            f'width="{_short(self.right - self.left + 4)}" height="{_short(self.bottom - self.top + 4)}"/></clipPath>'
        )
        inside = f'<g clip-path="url(#{self.key}-clip)">{"".join(self._inside)}</g>'
        return _svg(self.key, self.title, self.finding, self.height, clip + frame + inside + "".join(self._labels))

    def _frame(self) -> str:
        parts = []
        for value, label in self._y_marks:
            y = self.bottom - (self.bottom - self.top) * float(self.y.places(value))
            parts.append(f'<path class="grid" d="M{_short(self.left)} {_short(y)}H{_short(self.right)}"/>')
            parts.append(_text(self.left - 6, y + 4, label, "", "end"))
        end = -math.inf
        for value, label in self._x_marks:
            x = self.left + (self.right - self.left) * float(self.x.places(value))
            half = 0.5 * LETTER * len(label)
            if x - half < end + 6:  # it would touch the one before
                continue
            end = x + half
            parts.append(f'<path class="axis" d="M{_short(x)} {_short(self.bottom)}v4"/>')
            parts.append(_text(x, self.bottom + 16, label, "", "middle"))
        parts.append(f'<path class="axis" d="M{_short(self.left)} {_short(self.bottom)}H{_short(self.right)}"/>')
        parts.append(_text((self.left + self.right) / 2, self.height - 5, cut(self.x.label, 40), "", "middle"))
        parts.append(_text(0, 11, cut(self.y.label, 46), "", "start"))
        return "".join(parts)

    def _pixels(self, x: Any, y: Any) -> tuple[Vector, Vector]:
        across = self.left + (self.right - self.left) * self.x.places(x)
        up = self.bottom - (self.bottom - self.top) * self.y.places(y)
        # Far outside is outside: browsers draw nothing right at coordinates of a million.
        return np.clip(across, -1e4, 1e4), np.clip(up, -1e4, 1e4)

    def _curve(self, x: Any, y: Any) -> str:
        d, pen = [], "M"
        for a, b in zip(*self._pixels(x, y), strict=True):
            if not np.isfinite(a + b):
                pen = "M"
                continue
            d.append(f"{pen}{_short(a)} {_short(b)}")
            pen = "L"
        return "".join(d)


def ranking(key: str, title: str, finding: str, entries: Sequence[tuple[str, float]], words: Sequence[str]) -> Html:
    """Horizontal bars with their names and numbers, from a common zero; no axis is needed."""
    pitch, names = 22.0, [cut(name, 24) for name, _ in entries]
    left = 8.0 + LETTER * max(len(name) for name in names)
    right = WIDTH - 10.0 - LETTER * max(len(word) for word in words)
    largest = max(value for _, value in entries) or 1.0
    parts = []
    for i, ((_, value), name, word) in enumerate(zip(entries, names, words, strict=True)):
        middle, long = pitch * (i + 0.5), max(0.5, (right - left) * value / largest)
        parts.append(_text(left - 8, middle + 4, name, "name", "end"))
        parts.append(
            f'<rect class="bar" x="{_short(left)}" y="{_short(middle - 7)}" width="{_short(long)}" height="14" rx="2"/>'
        )
        parts.append(_text(left + long + 6, middle + 4, word, "", "start"))
    return _svg(key, title, finding, pitch * len(entries), "".join(parts), "tall")


def scale_bar(key: str, title: str, low: float, high: float, colours: NDArray[np.uint8]) -> Html:
    """The colours of a picture and the numbers they stand for."""
    axis = Axis(low, high)
    image = base64.b64encode(png(colours[None])).decode()
    place = f'x="10" y="2" width="{_short(WIDTH - 20)}" height="10" preserveAspectRatio="none"'
    parts = [f'<image {place} href="data:image/png;base64,{image}"/>']
    for value, label in axis.marks(5):
        parts.append(_text(10 + (WIDTH - 20) * float(axis.places(value)), 26, label, "", "middle"))
    finding = f"Colours from {tick_labels([low])[0]} to {tick_labels([high])[0]}."
    return _svg(key, title, finding, 30.0, "".join(parts))


def png(colours: NDArray[np.uint8]) -> bytes:
    """A picture (rows, columns, 4), red, green, blue and opacity, as a PNG file."""
    rows, columns, _ = colours.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), colours.reshape(rows, -1)], 1)  # filter 0 before every row

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _svg(key: str, title: str, finding: str, height: float, inside: str, kind: str = "") -> Html:
    shown = f' class="{kind}"' if kind else ""
    return Html(
        f'<svg{shown} viewBox="0 0 {_short(WIDTH)} {_short(height)}" role="img" '
        f'aria-labelledby="{key}-title {key}-desc">'
        f'<title id="{key}-title">{escape(title)}</title><desc id="{key}-desc">{escape(finding)}</desc>{inside}</svg>'
    )


def _text(x: float, y: float, words: str, kind: str, anchor: str) -> str:
    if not words:
        return ""
    shown = f' class="{kind}"' if kind else ""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{_short(x)}" y="{_short(y)}"{shown}{where}>{escape(words)}</text>'


def _spread(places: Sequence[float], top: float, bottom: float) -> list[float]:
    """Increasing places, at least a line apart and inside where they all fit."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + _LINE) if found else max(place, top))
    excess = found[-1] - bottom if found else 0.0
    for i in reversed(range(len(found))):
        if excess <= 0:
            break
        found[i] = min(found[i], bottom - _LINE * (len(found) - 1 - i))
    return found


def cut(words: str, most: int) -> str:
    """Words of at most this many characters."""
    return words if len(words) <= most else words[: most - 1] + "…"


def _short(value: float) -> str:
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
