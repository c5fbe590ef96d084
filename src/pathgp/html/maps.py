"""Fields on grids as pictures: which two directions to look at, and the colours of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pathgp.html.charts import Axis, Chart, scale_bar
from pathgp.html.markup import Html, figure
from pathgp.html.numbers import number

Field = NDArray[Any]

# Dark to light with steadily rising luminance; uncertainty has colours of its own.
VALUES = ("#1f2a5c", "#2b5c9e", "#3f97a8", "#8cc69b", "#f3e79b")
SPREAD = ("#f6efe2", "#e8b27a", "#c4623f", "#6d1f2b")
HOLE = "#a0a0ab"
_MOST_CELLS = 220


@dataclass(frozen=True)
class View:
    """A way to see a grid (p_1, ..., p_k) as a picture.

    index: picks the cells of the picture from a grid.  lattice: where they go in it, rows and
    columns.  caption: what is fixed, in words.
    """

    index: tuple[Any, ...]
    lattice: tuple[NDArray[Any], NDArray[Any]]
    x: Axis
    y: Axis
    caption: str

    def picture(self, field: Field) -> Field:
        """The values (rows, columns); NaN where the grid has no cell."""
        part = np.asarray(field)[self.index].astype(np.float64)
        rows, columns = self.lattice
        image = np.full((rows.max() + 1, columns.max() + 1), np.nan)
        image[rows, columns] = part
        steps = [max(1, -(-size // _MOST_CELLS)) for size in image.shape]
        return image[:: steps[0], :: steps[1]]


def choose_view(sides: Sequence[Field], observed: NDArray[np.bool_], names: Sequence[str]) -> View:
    """A map where one side holds places (two columns that fill a lattice), else the first side against the last.

    Along all other sides the slice with the most holes is taken.
    """
    places = [i for i, side in enumerate(sides) if side.shape[1] == 2 and _fills_a_lattice(side)]
    shown = (places[0],) if places else (0, len(sides) - 1)
    others = [i for i in range(len(sides)) if i not in shown]
    holes = (~observed).sum(axis=shown)
    chosen = np.unravel_index(int(holes.argmax()), holes.shape) if others else ()
    fixed = dict(zip(others, chosen, strict=True))
    words = [f"{names[i]} {_described(sides[i][j])}" for i, j in fixed.items()]
    caption = f"At {' and '.join(words)}, where most is missing." if words else ""
    index = tuple(fixed.get(i, slice(None)) for i in range(len(sides)))
    if places:
        side = sides[places[0]]
        (a, rows), (b, columns) = (np.unique(side[:, c], return_inverse=True) for c in (0, 1))
        name = names[places[0]]
        across, up = _cells(b, f"{name}, second column"), _cells(a, f"{name}, first column")
        return View(index, (rows, columns), across, up, caption)
    orders = [_order(sides[i]) for i in shown]
    pairs = np.meshgrid(np.argsort(orders[0]), np.argsort(orders[1]), indexing="ij")
    axes = [_axis(sides[i], order, names[i]) for i, order in zip(shown, orders, strict=True)]
    return View(index, (pairs[0], pairs[1]), axes[1], axes[0], caption)


def heat_map(
    key: str, title: str, view: View, field: Field, limits: tuple[float, float], colours: Sequence[str]
) -> Html:
    """A picture with its scale; cells without a value are grey, what is no cell is empty."""
    image = view.picture(field)
    inside = image[np.isfinite(image)]
    finding = "There is nothing in it."
    if inside.size:
        low, middle, high = (number(float(q)) for q in np.quantile(inside, [0.0, 0.5, 1.0]))
        finding = f"From {low} to {high}, median {middle}."
    chart = Chart(key, title, finding, view.x, view.y)
    colouring = painted(image, limits, colours)
    colouring[np.isnan(view.picture(np.ones(field.shape))), 3] = 0
    chart.picture(colouring)
    bar = scale_bar(f"{key}-scale", f"Colours: {title}", *limits, painted(np.linspace(*limits, 128), limits, colours))
    return figure(title, view.caption, Html(f"<div>{chart.svg()}{bar}</div>"))


def painted(values: Field, limits: tuple[float, float], colours: Sequence[str]) -> NDArray[np.uint8]:
    """Colours (..., 4) of numbers between two limits; grey where there is none."""
    anchors = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in colours], dtype=np.float64)
    low, high = limits
    place = np.clip((values - low) / (high - low), 0.0, 1.0) * (len(anchors) - 1)
    missing = ~np.isfinite(place)
    place = np.where(missing, 0.0, place)
    left = np.minimum(place.astype(int), len(anchors) - 2)
    share = (place - left)[..., None]
    mixed = anchors[left] * (1 - share) + anchors[left + 1] * share
    mixed[missing] = [int(HOLE[i : i + 2], 16) for i in (1, 3, 5)]
    opaque = np.full((*mixed.shape[:-1], 1), 255.0)
    return np.concatenate([mixed, opaque], -1).round().astype(np.uint8)


def limits_of(*fields: Field) -> tuple[float, float]:
    """The central 99.8 % of all values, so that single ones do not take the colours from the others."""
    values = np.concatenate([np.asarray(f, dtype=np.float64).ravel() for f in fields])
    values = values[np.isfinite(values)]
    low, high = (float(q) for q in np.quantile(values, [0.001, 0.999]))
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _fills_a_lattice(side: Field) -> bool:
    sizes = [len(np.unique(side[:, c])) for c in (0, 1)]
    return min(sizes) >= 3 and len(side) >= 0.25 * sizes[0] * sizes[1]


def _order(side: Field) -> NDArray[Any]:
    """Cells of a side in the order of the picture: by value where they have one."""
    return np.argsort(side[:, 0], kind="stable") if side.shape[1] == 1 else np.arange(len(side))


def _axis(side: Field, order: NDArray[Any], name: str) -> Axis:
    """Values where they are regular, else the number of the cell."""
    if side.shape[1] == 1 and len(side) > 1:
        gaps = np.diff(side[order, 0])
        if gaps.min() > 0 and gaps.max() <= 1.5 * gaps.min():
            return _cells(side[order, 0], name)
    return Axis(-0.5, len(side) - 0.5, f"{name}, number of the cell")


def _cells(values: Field, name: str) -> Axis:
    """An axis whose ends are the outer edges of the first and the last cell."""
    half = 0.5 * float(values[-1] - values[0]) / max(1, len(values) - 1) or 0.5
    return Axis(float(values[0]) - half, float(values[-1]) + half, name)


def _described(row: Field) -> str:
    return number(float(row[0])) if len(row) == 1 else f"({', '.join(number(float(v)) for v in row)})"
