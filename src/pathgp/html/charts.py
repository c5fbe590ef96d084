"""Charts in SVG: axes with round ticks, lines, bands, dots, bars, pictures and labels.

Colours and strokes are classes of the style sheet, so that a chart follows light, dark and print. A chart is 360 units
wide, about the width of a phone, and scales with the page.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pathgp.html.markup import Html
from pathgp.html.numbers import log_label, log_ticks, tick_labels, ticks

Vector = NDArray[Any]

WIDTH, HEIGHT = 360.0, 250.0
_TOP, _RIGHT = 24.0, 10.0
# Room below the axis for the tick labels, and for the name of the axis.
_TICKS, _NAME = 22.0, 16.0
# The width of an average character at 12 units, in one of the wider fonts.
LETTER = 7.4
_LINE_HEIGHT = 13.0


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
        """Return an axis that holds all finite values, with padding at the ends; ``zero``: include zero."""
        numbers = np.concatenate([np.asarray(v, dtype=np.float64).ravel() for v in values])
        numbers = numbers[np.isfinite(numbers) & ((numbers > 0) | (not log))]
        low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (1.0, 1.0)
        if log:
            grow = max((high / low) ** pad, 1.5 if high / low < 1.5 else 1.0)
            return cls(low / grow, high * grow, label, True)
        if zero:
            low = min(low, 0.0)
        room = pad * (high - low)
        # A constant has no extent: any interval around it will do.
        room = room if high - low > 1e-12 * max(abs(low), abs(high)) else 0.5 * abs(high) or 1.0
        return cls(low if zero and low == 0.0 else low - room, high + room, label)

    def fractions(self, values: Any) -> Vector:
        """Positions of numbers along the axis: 0 at the low end, 1 at the high end."""
        numbers = np.asarray(values, dtype=np.float64)
        if not self.log:
            return (numbers - self.low) / (self.high - self.low)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(numbers / self.low) / math.log(self.high / self.low)

    def labelled_ticks(self, most: int) -> list[tuple[float, str]]:
        """Ticks with their labels."""
        if self.log:
            return [(tick, log_label(tick)) for tick in log_ticks(self.low, self.high, most)]
        if self.ticks is not None:
            return list(zip(self.ticks, tick_labels(self.ticks, decimals=1), strict=True))
        values = ticks(self.low, self.high, most)
        return list(zip(values, tick_labels(values), strict=True))


class Chart:
    """A drawing area with two axes. Later drawings lie on top.

    key: unique on the page.  title, finding: text for readers who cannot see the chart; the finding has numbers.
    right: room for labels to the right of the lines.
    """

    def __init__(self, key: str, title: str, finding: str, x: Axis, y: Axis, right: float = _RIGHT) -> None:
        self.key, self.title, self.finding, self.x, self.y = key, title, finding, x, y
        self._y_ticks = y.labelled_ticks(5)
        self.left = 10.0 + LETTER * max((len(label) for _, label in self._y_ticks), default=1)
        self.right, self.top = WIDTH - right, _TOP
        self.bottom = HEIGHT - _TICKS - (_NAME if x.label else 0.0)
        self._inside: list[str] = []
        self._labels: list[str] = []

    def line(self, x: Any, y: Any, kind: str = "accent") -> None:
        """Draw a curve with gaps at missing values."""
        self._add_path(kind, self._curve(x, y))

    def band(self, x: Any, low: Any, high: Any, kind: str = "band") -> None:
        """Fill the area between two curves."""
        self._add_path(kind, self._curve(np.concatenate([x, np.flip(x)]), np.concatenate([low, np.flip(high)])) + "Z")

    def curve_with_band(self, x: Any, mean: Any, half: Any, draws: Iterable[Any]) -> None:
        """Draw a mean, the band mean +- half, and samples as thin lines."""
        self.band(x, mean - half, mean + half)
        for draw in draws:
            self.line(x, draw, "path")
        self.line(x, mean)

    def dots(self, x: Any, y: Any, kind: str = "data") -> None:
        """Draw points, as strokes of length zero with round ends: twelve bytes each."""
        points = [(a, b) for a, b in zip(*self._pixels(x, y), strict=True) if np.isfinite(a + b)]
        self._add_path(f"dots {kind}", "".join(f"M{_round(a)} {_round(b)}h0" for a, b in points))

    def whiskers(self, x: Any, low: Any, high: Any) -> None:
        """Draw vertical intervals."""
        strokes = zip(*self._pixels(x, low), self._pixels(x, high)[1], strict=True)
        self._add_path("accent", "".join(f"M{_round(a)} {_round(b)}V{_round(c)}" for a, b, c in strokes))

    def columns(self, edges: Vector, heights: Vector) -> None:
        """Draw the bars of a histogram."""
        sides, tops = self._pixels(edges, np.append(heights, 0.0))
        for (a, b), y in zip(pairwise(sides), tops, strict=False):
            size = {"width": max(0.5, b - a - 1), "height": max(0.0, self.bottom - y)}
            self._inside.append(_element("rect", class_="bar", x=a + 0.5, y=y, **size))

    def rug(self, x: Any) -> None:
        """Mark every value by a short stroke on the lower axis."""
        px, _ = self._pixels(x, self.y.low)
        self._add_path("rug", "".join(f"M{_round(a)} {_round(self.bottom)}v-5" for a in np.unique(np.round(px, 1))))

    def picture(self, colours: NDArray[np.uint8]) -> None:
        """Fill the area with an image (rows, columns, 4) whose first row is at the bottom."""
        size = {"width": self.right - self.left, "height": self.bottom - self.top}
        self._inside.append(_image(np.flipud(colours), x=self.left, y=self.top, **size))

    def label(self, x: float, y: float, words: str, anchor: str = "start") -> None:
        """Write words at a point of the chart, with a halo that keeps them readable on lines."""
        px, py = self._pixels(x, y)
        self._labels.append(_text(float(px), float(py), words, "halo", anchor))

    def end_labels(self, entries: Iterable[tuple[float, str, str]]) -> None:
        """Write (value, words, kind) to the right of the curves, moved apart where they would overlap."""
        finite = [entry for entry in entries if math.isfinite(entry[0])]
        _, py = self._pixels(self.x.high, [value for value, _, _ in finite])
        for height, i in zip(_spread(sorted(py), self.top, self.bottom), np.argsort(py), strict=True):
            self._labels.append(_text(self.right + 6, height + 4, finite[i][1], finite[i][2], "start"))

    def svg(self) -> Html:
        """Return the chart as an element of a page."""
        size: dict[str, Any] = {"width": self.right - self.left + 4, "height": self.bottom - self.top + 4}
        clip = _element("clipPath", _element("rect", x=self.left, y=self.top - 4, **size), id=f"{self.key}-clip")
        inside = f'<g clip-path="url(#{self.key}-clip)">{"".join(self._inside)}</g>'
        content = clip + self._frame() + inside + "".join(self._labels)
        return _svg(self.key, self.title, self.finding, HEIGHT, content)

    def _frame(self) -> str:
        parts = []
        for value, label in self._y_ticks:
            y = float(self._pixels(self.x.low, value)[1])
            parts.append(_path("grid", f"M{_round(self.left)} {_round(y)}H{_round(self.right)}"))
            parts.append(_text(self.left - 6, y + 4, label, "", "end"))
        end = -math.inf
        for value, label in self.x.labelled_ticks(5):
            x = float(self._pixels(value, self.y.low)[0])
            half = 0.5 * LETTER * len(label)
            if x - half < end + 6:  # it would touch the previous label
                continue
            end = x + half
            parts.append(_path("axis", f"M{_round(x)} {_round(self.bottom)}v4"))
            parts.append(_text(x, self.bottom + 16, label, "", "middle"))
        parts.append(_path("axis", f"M{_round(self.left)} {_round(self.bottom)}H{_round(self.right)}"))
        parts.append(_text((self.left + self.right) / 2, HEIGHT - 5, truncate(self.x.label, 40), "", "middle"))
        parts.append(_text(0, 11, truncate(self.y.label, 46), "", "start"))
        return "".join(parts)

    def _add_path(self, kind: str, d: str) -> None:
        self._inside.append(_path(kind, d))

    def _pixels(self, x: Any, y: Any) -> tuple[Vector, Vector]:
        across = self.left + (self.right - self.left) * self.x.fractions(x)
        up = self.bottom - (self.bottom - self.top) * self.y.fractions(y)
        # Browsers draw coordinates of a million wrongly, and 10,000 is outside the chart, too.
        return np.clip(across, -1e4, 1e4), np.clip(up, -1e4, 1e4)

    def _curve(self, x: Any, y: Any) -> str:
        d, pen = "", "M"
        for a, b in zip(*self._pixels(x, y), strict=True):
            is_point = np.isfinite(a + b)
            d += f"{pen}{_round(a)} {_round(b)}" if is_point else ""
            pen = "L" if is_point else "M"
        return d


def ranking(key: str, title: str, finding: str, entries: Sequence[tuple[str, float, str]]) -> Html:
    """Horizontal bars: name, value and the value in words of each."""
    names, values, words = zip(*((truncate(name, 24), value, word) for name, value, word in entries), strict=True)
    left = 8.0 + LETTER * max(map(len, names))
    right = WIDTH - 10.0 - LETTER * max(map(len, words))
    pitch, largest, parts = 22.0, max(values) or 1.0, []
    for i, (name, value, word) in enumerate(zip(names, values, words, strict=True)):
        middle, width = pitch * (i + 0.5), max(0.5, (right - left) * value / largest)
        parts.append(_text(left - 8, middle + 4, name, "name", "end"))
        parts.append(_element("rect", class_="bar", x=left, y=middle - 7, width=width, height=14, rx=2))
        parts.append(_text(left + width + 6, middle + 4, word, "", "start"))
    return _svg(key, title, finding, pitch * len(entries), "".join(parts), "tall")


def scale_bar(key: str, title: str, low: float, high: float, colours: NDArray[np.uint8]) -> Html:
    """The colours of a picture with their numbers."""
    axis = Axis(low, high)
    parts = [_image(colours[None], x=10, y=2, width=WIDTH - 20, height=10)]
    for value, label in axis.labelled_ticks(5):
        parts.append(_text(10 + (WIDTH - 20) * float(axis.fractions(value)), 26, label, "", "middle"))
    finding = f"Colours from {tick_labels([low])[0]} to {tick_labels([high])[0]}."
    return _svg(key, title, finding, 30.0, "".join(parts))


def png(colours: NDArray[np.uint8]) -> bytes:
    """Encode an image (rows, columns, 4) of red, green, blue and opacity as a PNG file."""
    rows, columns, _ = colours.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), colours.reshape(rows, -1)], 1)  # filter 0 before every row

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def truncate(words: str, most: int) -> str:
    """Shorten words to at most this number of characters."""
    return words if len(words) <= most else words[: most - 1] + "…"


def _element(tag: str, content: str = "", **attributes: Any) -> str:
    """An SVG element with its attributes, the empty ones left out; ``class_`` is class."""
    texts = {name.rstrip("_"): v if isinstance(v, str) else _round(v) for name, v in attributes.items()}
    written = "".join(f' {name}="{text}"' for name, text in texts.items() if text)
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def _path(kind: str, d: str) -> str:
    return f'<path class="{kind}" d="{d}"/>'


def _image(colours: NDArray[np.uint8], **box: Any) -> str:
    data = base64.b64encode(png(colours)).decode()
    return _element("image", **box, preserveAspectRatio="none", href=f"data:image/png;base64,{data}")


def _svg(key: str, title: str, finding: str, height: float, content: str, kind: str = "") -> Html:
    text = _element("title", escape(title), id=f"{key}-title") + _element("desc", escape(finding), id=f"{key}-desc")
    box, names = f"0 0 {_round(WIDTH)} {_round(height)}", {"aria-labelledby": f"{key}-title {key}-desc"}
    return Html(_element("svg", text + content, class_=kind, viewBox=box, role="img", **names))


def _text(x: float, y: float, words: str, kind: str, anchor: str) -> str:
    where = {"text-anchor": "" if anchor == "start" else anchor}
    return _element("text", escape(words), x=x, y=y, class_=kind, **where) if words else ""


def _spread(heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """Move increasing heights at least a line apart, and inside the chart if they all fit."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + _LINE_HEIGHT) if moved else max(height, top))
    if moved and moved[-1] > bottom:
        moved = [min(height, bottom - _LINE_HEIGHT * (len(moved) - 1 - i)) for i, height in enumerate(moved)]
    return moved


def _round(value: float) -> str:
    return f"{round(float(value), 1):g}"
