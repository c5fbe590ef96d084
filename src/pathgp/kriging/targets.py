"""Where a field is predicted: given points, or the nodes of a regular grid; and the cells around them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pathgp.compute.inputs import real_number, whole_number
from pathgp.data.tabular import is_frame
from pathgp.kriging.coordinates import Coordinates, as_array, read_nodes

Matrix = NDArray[np.float64]

# Bytes of mean, standard deviation and their copies in a frame or Dataset, per target; and of a sample.
_BYTES, _BYTES_PER_SAMPLE = 48, 16


@dataclass(frozen=True, eq=False)
class Points:
    """Given points: X (m, d), and the frame that they came in, or None."""

    X: Matrix
    frame: Any = None
    spacing: tuple[float, ...] | None = None

    def __len__(self) -> int:
        return len(self.X)

    def rows(self, rows: slice) -> Matrix:
        return self.X[rows]


@dataclass(frozen=True, eq=False)
class Grid:
    """The nodes of a regular grid, in the order of an array with the axes of the coordinates reversed: (..., y, x).

    axes: the nodes along every coordinate, in their order.  drift: values of the trend's columns (m, p).
    spacing: the distance of nodes along every axis, 0 for a single node.
    """

    names: tuple[str, ...]
    axes: tuple[Matrix, ...]
    drift: Matrix | None
    spacing: tuple[float, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the dimensions of fields on the grid."""
        return self.names[::-1]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.axes[::-1])

    def __len__(self) -> int:
        return math.prod(self.shape)

    def rows(self, rows: slice) -> Matrix:
        """The inputs of numbered nodes."""
        places = np.unravel_index(np.arange(rows.start, rows.stop), self.shape)
        parts = [axis[place][:, None] for axis, place in zip(self.axes, places[::-1], strict=True)]
        return np.concatenate(parts if self.drift is None else [*parts, self.drift[rows]], 1)


Targets = Points | Grid


@dataclass(frozen=True)
class Cells:
    """Cells around targets: their sizes along the coordinates, and the number of sub-points along each axis."""

    sizes: tuple[float, ...]
    points: int

    def spread(self, X: Matrix, coordinates: Coordinates) -> tuple[Matrix, Matrix]:
        """Sub-points (m, q, d) of the cells around X (m, d), and their weights (m, q), by area on the globe."""
        steps = [
            (np.arange(self.points) + 0.5) / self.points * size - 0.5 * size if size else np.zeros(1)
            for size in self.sizes
        ]
        offsets = np.array(list(itertools.product(*steps)))
        offsets = np.concatenate([offsets, np.zeros((len(offsets), X.shape[1] - offsets.shape[1]))], 1)
        inside = X[:, None, :] + offsets
        weights = np.ones(inside.shape[:2])
        if coordinates.lonlat is not None:
            lat = coordinates.lonlat[1]
            # Nothing lies beyond the poles: sub-points there have no weight.
            weights = np.where(np.abs(inside[..., lat]) <= 90.0, np.cos(np.deg2rad(inside[..., lat])), 0.0)
            inside[..., lat] = np.clip(inside[..., lat], -90.0, 90.0)
        return inside, weights / weights.sum(1, keepdims=True)


def read_targets(targets: Any, grid: Any, coordinates: Coordinates, X: Matrix, budget: int) -> Targets:
    """Check the arguments ``targets`` and ``grid``, of which one is given."""
    if (targets is None) == (grid is None):
        raise TypeError("give targets or grid, where to predict" + ("" if targets is None else ", and not both"))
    return read_points(targets, coordinates) if grid is None else read_grid(grid, coordinates, X, budget)


def read_points(targets: Any, coordinates: Coordinates) -> Points:
    """Check given targets: an array (m, d) or a frame with the columns of the coordinates."""
    X = coordinates.read(targets, "targets")
    if not len(X):
        raise ValueError("targets has no rows: there is nothing to predict")
    return Points(X, targets if is_frame(targets) else None)


def read_grid(grid: Any, coordinates: Coordinates, X: Matrix, budget: int) -> Grid:
    """Check a grid: spacings, a dict of spacings and nodes by name, or a Dataset of xarray with the coordinates.

    X: the observed points, whose box the grid covers where only a spacing is given.  budget: bytes that the results may
    take.
    """
    names = coordinates.names
    if hasattr(grid, "dims") and hasattr(grid, "coords"):
        return _from_dataset(grid, coordinates, budget)
    if isinstance(grid, Mapping):
        unknown = [name for name in grid if name not in names]
        absent = [name for name in names if name not in grid]
        if unknown or absent:
            wrong = f"names {unknown[0]!r}" if unknown else f"lacks {absent[0]!r}"
            raise ValueError(f"grid {wrong}: the coordinates are {', '.join(map(repr, names))}")
        given = [grid[name] for name in names]
    else:
        given = [grid] * len(names) if np.ndim(grid) == 0 else list(grid)
        if len(given) != len(names):
            advice = f"one for each of {', '.join(names)}"
            raise ValueError(f"grid has {len(given)} entries: give one spacing for all axes, or {advice}")
    if coordinates.drift:
        columns = ", ".join(map(repr, coordinates.drift))
        raise ValueError(f"the trend needs {columns} at every node: give the grid as a Dataset of xarray with them")
    X = coordinates.unwrap(X)
    sizes = [_count(entry, X[:, i], names[i]) for i, entry in enumerate(given)]
    _require_room(sizes, given, budget)
    axes = [_nodes(entry, X[:, i], i, coordinates) for i, entry in enumerate(given)]
    return Grid(names, tuple(axes), None, tuple(map(_spacing, axes)))


def read_cells(cells: Any, points: int, targets: Targets, coordinates: Coordinates) -> Cells | None:
    """Check the sizes of cells: True for those of a grid, one number, or one for each coordinate; None for points."""
    if cells is None or cells is False:
        return None
    if cells is True:
        if targets.spacing is None:
            raise ValueError("cells=True is for a grid, whose spacing it takes: give the size of the cells")
        sizes = targets.spacing
    else:
        sizes = (float(cells),) * len(coordinates.names) if np.ndim(cells) == 0 else tuple(map(float, cells))
    if len(sizes) != len(coordinates.names) or not all(0 <= size < math.inf for size in sizes):
        raise ValueError(f"cells must be one size, or one for each of {', '.join(coordinates.names)}, got {cells!r}")
    if not any(sizes):
        raise ValueError("cells has the size 0: leave it out for predictions at points")
    return Cells(sizes, whole_number(points, "cell_points", 1))


def require_samples(samples: int, m: int, budget: int) -> None:
    """Raise ValueError if samples (s, m) do not fit the memory budget."""
    if (needed := _BYTES_PER_SAMPLE * samples * m) > budget:
        raise ValueError(
            f"{samples} samples at {m:,} targets need {needed / 1e9:,.1f} GB, and the memory budget is "
            f"{budget / 1e9:,.1f} GB, enough for {budget // (_BYTES_PER_SAMPLE * m)} samples: evaluate "
            "result.posterior.paths at a part of the targets, or raise memory"
        )


def _from_dataset(grid: Any, coordinates: Coordinates, budget: int) -> Grid:
    """The grid of a Dataset or DataArray of xarray, with the trend's columns as variables."""
    names = coordinates.names
    absent = [name for name in names if name not in grid.coords]
    if absent:
        known = ", ".join(map(repr, grid.coords))
        raise ValueError(f"the grid has no coordinate {absent[0]!r}; it has {known or 'none'}")
    axes = tuple(np.atleast_1d(read_nodes(grid[name].values, f"coordinate {name!r}")) for name in names)
    for name, axis in zip(names, axes, strict=True):
        if axis.ndim != 1:
            raise ValueError(f"coordinate {name!r} has {axis.ndim} dimensions: the grid must be regular")
    _require_room([len(axis) for axis in axes], [], budget)
    drift = []
    for name in coordinates.drift:
        if name not in getattr(grid, "data_vars", {}):
            raise ValueError(f"the grid has no variable {name!r}, which the trend needs at every node")
        field = grid[name]
        for other in names:
            # Constant along axes that it does not have.
            field = field.broadcast_like(grid[other])
        drift.append(as_array(field.transpose(*names[::-1]).values, name).ravel())
    found = Grid(names, axes, np.stack(drift, 1) if drift else None, tuple(map(_spacing, axes)))
    coordinates.check(found.rows(slice(0, len(found))), "the grid")
    return found


def _count(entry: Any, values: Matrix, name: str) -> float:
    """The number of nodes along an axis, before they exist."""
    if np.ndim(entry):
        return len(entry)
    spacing = real_number(entry, f"the spacing of {name!r}")
    if spacing <= 0:
        raise ValueError(f"the spacing of {name!r} must be positive, got {spacing:g}")
    return float(np.ptp(values)) / spacing + 2.0


def _require_room(sizes: Sequence[float], given: Sequence[Any], budget: int) -> None:
    """Raise ValueError if the results of a grid with these numbers of nodes exceed the budget."""
    m, fits = math.prod(sizes), budget // _BYTES
    if m <= fits:
        return
    is_spacing = [not np.ndim(entry) for entry in given]
    advice, factor = f"use at most {fits:,} nodes", 1.0
    while any(is_spacing) and factor < 1e9:
        factor *= 1.05
        spacings = [_round_up(factor * float(e)) for e, free in zip(given, is_spacing, strict=True) if free]
        widths = [(size - 2.0) * float(e) for e, size, free in zip(given, sizes, is_spacing, strict=True) if free]
        others = math.prod(size for size, free in zip(sizes, is_spacing, strict=True) if not free)
        if others * math.prod(w / float(s) + 2.0 for w, s in zip(widths, spacings, strict=True)) <= fits:
            advice = f"use a spacing of {' and '.join(dict.fromkeys(spacings))}"
            break
    raise ValueError(
        f"the grid has {m:,.0f} nodes, whose results need {_BYTES * m / 1e9:,.2g} GB, and the memory budget is "
        f"{budget / 1e9:,.2g} GB: {advice}, or predict parts of it one by one"
    )


def _round_up(value: float) -> str:
    """A number with two digits, not smaller."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit) * unit:.3g}"


def _nodes(entry: Any, values: Matrix, axis: int, coordinates: Coordinates) -> Matrix:
    """The nodes along an axis: given ones, or multiples of a spacing that cover the values."""
    name = coordinates.names[axis]
    if np.ndim(entry):
        nodes = read_nodes(entry, f"the nodes of {name!r}")
        if nodes.ndim != 1 or not len(nodes) or not np.isfinite(nodes).all():
            raise ValueError(f"the nodes of {name!r} must be a vector of finite numbers, got shape {nodes.shape}")
        # Those of a spacing are right, and may lie a little beyond 360 degrees.
        row = np.zeros((len(nodes), len(coordinates.names)))
        row[:, axis] = nodes
        coordinates.check(row, "the grid")
    else:
        spacing = float(entry)
        # The tolerance keeps rounding errors of 0.1 from adding a node.
        first, last = math.floor(values.min() / spacing + 1e-9), math.ceil(values.max() / spacing - 1e-9)
        # A product with the inverse, where that is whole, gives 0.3 in place of 0.30000000000000004.
        inverse = round(1.0 / spacing)
        nodes = np.arange(first, last + 1, dtype=np.float64)
        is_whole = inverse > 0 and abs(inverse * spacing - 1.0) < 1e-12
        nodes = nodes / inverse if is_whole else nodes * spacing
        if coordinates.lonlat is not None and axis == coordinates.lonlat[1]:
            nodes = nodes[np.abs(nodes) <= 90.0]
        elif coordinates.lonlat is not None and axis == coordinates.lonlat[0] and nodes[-1] - nodes[0] >= 360.0:
            # The last node would be the first once more.
            nodes = nodes[nodes < nodes[0] + 360.0]
    return nodes


def _spacing(nodes: Matrix) -> float:
    """The distance of the nodes of an axis, 0 for a single one."""
    return float(np.median(np.abs(np.diff(nodes)))) if len(nodes) > 1 else 0.0
