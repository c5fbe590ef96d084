"""Pictures of fields on grids: which two directions to show, and the colours of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pathgp.html.charts import Axis, Chart, scale_bar
from pathgp.html.markup import Html, figure
from pathgp.html.numbers import number

Grid = NDArray[Any]

# Dark to light with steadily rising luminance; standard deviations have colours of their own.
VALUES = ("#1f2a5c", "#2b5c9e", "#3f97a8", "#8cc69b", "#f3e79b")
SPREAD = ("#f6efe2", "#e8b27a", "#c4623f", "#6d1f2b")
HOLE = "#a0a0ab"
_MOST_CELLS = 220


@dataclass(frozen=True)
class View:
    """A two-dimensional picture of a grid (p_1, ..., p_k).

    index: selects the cells of the picture from a grid.  lattice: their rows and columns in the picture.
    caption: the values of the other sides.
    """

    index: tuple[Any, ...]
    lattice: Sequence[Grid]
    x: Axis
    y: Axis
    caption: str

    def picture(self, grid: Grid) -> Grid:
        """The values (rows, columns); NaN where the grid has no cell."""
        rows, columns = self.lattice
        image = np.full((rows.max() + 1, columns.max() + 1), np.nan)
        image[rows, columns] = np.asarray(grid)[self.index]
        steps = [max(1, -(-size // _MOST_CELLS)) for size in image.shape]
        return image[:: steps[0], :: steps[1]]


def choose_view(sides: Sequence[Grid], observed: NDArray[np.bool_], names: Sequence[str]) -> View:
    """Choose a map if one side holds points of a plane lattice, else the first side against the last.

    Along all other sides it is the slice with the most holes.
    """
    plane = next((i for i, side in enumerate(sides) if _is_lattice(side)), None)
    shown = (0, len(sides) - 1) if plane is None else (plane,)
    others = [i for i in range(len(sides)) if i not in shown]
    holes = (~observed).sum(axis=shown)
    fixed = dict(zip(others, np.unravel_index(int(holes.argmax()), holes.shape), strict=True)) if others else {}
    places = []
    for i, j in fixed.items():
        values = ", ".join(number(float(v)) for v in sides[i][j])
        places.append(f"{names[i]} {values}" if sides[i].shape[1] == 1 else f"{names[i]} ({values})")
    caption = f"At {' and '.join(places)}, where most is missing." if places else ""
    index = tuple(fixed.get(i, slice(None)) for i in range(len(sides)))
    if plane is not None:
        (a, rows), (b, columns) = (np.unique(sides[plane][:, c], return_inverse=True) for c in (0, 1))
        x, y = cell_axis(b, f"{names[plane]}, second column"), cell_axis(a, f"{names[plane]}, first column")
        return View(index, (rows, columns), x, y, caption)
    (rows, y), (columns, x) = (_place_side(sides[i], names[i]) for i in shown)
    return View(index, np.meshgrid(rows, columns, indexing="ij"), x, y, caption)


def heat_map(key: str, title: str, view: View, grid: Grid, limits: tuple[float, float], colours: Sequence[str]) -> Html:
    """A picture with its colour scale; cells without a value are grey, other places are empty."""
    image = view.picture(grid)
    values = image[np.isfinite(image)]
    finding = "There is nothing in it."
    if values.size:
        low, middle, high = (number(float(q)) for q in np.quantile(values, [0.0, 0.5, 1.0]))
        finding = f"From {low} to {high}, median {middle}."
    chart = Chart(key, title, finding, view.x, view.y)
    pixels = colour(image, limits, colours)
    pixels[np.isnan(view.picture(np.ones(grid.shape))), 3] = 0
    chart.picture(pixels)
    bar = scale_bar(f"{key}-scale", f"Colours: {title}", *limits, colour(np.linspace(*limits, 128), limits, colours))
    return figure(title, view.caption, Html(f"<div>{chart.svg()}{bar}</div>"))


def colour(values: Grid, limits: tuple[float, float], colours: Sequence[str]) -> NDArray[np.uint8]:
    """Colours (..., 4) of numbers between two limits; grey for NaN."""
    low, high = limits
    anchors = np.array([list(bytes.fromhex(c[1:])) for c in colours], dtype=np.float64)
    at = np.linspace(0.0, 1.0, len(anchors))
    scaled = (values - low) / (high - low)
    channels = [np.interp(scaled, at, channel) for channel in anchors.T]
    mixed = np.stack([*channels, np.full(scaled.shape, 255.0)], -1)
    mixed[np.isnan(scaled), :3] = list(bytes.fromhex(HOLE[1:]))
    return mixed.round().astype(np.uint8)


def colour_limits(*grids: Grid) -> tuple[float, float]:
    """The central 99.8 % of all values, so that single extremes do not use up the colours."""
    values = np.concatenate([np.asarray(grid, dtype=np.float64).ravel() for grid in grids])
    low, high = (float(q) for q in np.nanquantile(values, [0.001, 0.999]))
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _is_lattice(side: Grid) -> bool:
    """Whether two columns fill at least a quarter of the lattice of their values."""
    if side.shape[1] != 2:
        return False
    sizes = [len(np.unique(side[:, c])) for c in (0, 1)]
    return min(sizes) >= 3 and len(side) >= 0.25 * sizes[0] * sizes[1]


def _place_side(side: Grid, name: str) -> tuple[Grid, Axis]:
    """Places of the cells in the picture, by value if they have one, and an axis of regular values or of places."""
    places, axis = np.arange(len(side)), Axis(-0.5, len(side) - 0.5, f"{name}, number of the cell")
    if side.shape[1] > 1:
        return places, axis
    values = np.sort(side[:, 0])
    gaps = np.diff(values)
    if gaps.size and gaps.min() > 0 and gaps.max() <= 1.5 * gaps.min():
        axis = cell_axis(values, name)
    return np.argsort(np.argsort(side[:, 0], kind="stable")), axis


def cell_axis(values: Grid, name: str) -> Axis:
    """An axis whose ends are the outer edges of the first and the last cell."""
    half = 0.5 * float(values[-1] - values[0]) / max(1, len(values) - 1) or 0.5
    return Axis(float(values[0]) - half, float(values[-1]) + half, name)
