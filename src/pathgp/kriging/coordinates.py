"""Where points are: the columns of arrays and frames that hold coordinates, in a plane or on the globe.

Longitudes and latitudes are in degrees. Distances on the globe are those along great circles, in kilometres.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.compute import inputs
from pathgp.compute.inputs import as_float64
from pathgp.data.tabular import are_dates, days, is_frame

Matrix = NDArray[np.float64]

LATITUDE, LONGITUDE = ("lat", "latitude"), ("lon", "long", "lng", "longitude")
KINDS = ("plane", "lonlat")
EARTH_RADIUS_KM = 6371.0
# Degrees of longitude: both -180 to 180 and 0 to 360 are in use.
_MOST_LONGITUDE = 360.0


@dataclass(frozen=True)
class Coordinates:
    """The coordinates of points, in the order of the columns of the inputs X of the model.

    names: of the coordinates.  drift: names of further columns, which only the trend uses.
    lonlat: the numbers of the columns of longitude and latitude; None for a plane.
    dates: names of the coordinates that were dates, which are days since 1970 here.
    crs: the coordinate reference system of a GeoDataFrame, or None.
    centre: the middle of the observed longitudes; those of the model's inputs lie within 180 degrees of it.
    """

    names: tuple[str, ...]
    drift: tuple[str, ...] = ()
    lonlat: tuple[int, int] | None = None
    dates: tuple[str, ...] = ()
    crs: Any = None
    centre: float = 0.0

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns of X."""
        return self.names + self.drift

    @property
    def unit(self) -> str:
        """The unit of distances, in words."""
        return "the units of the coordinates" if self.lonlat is None else "km"

    @property
    def distance_note(self) -> str:
        """What distances leave out or mix, in words; empty if they do neither."""
        if self.lonlat is not None:
            ignored = [name for i, name in enumerate(self.names) if i not in self.lonlat]
            return f"distances on the globe ignore {', '.join(ignored)}" if ignored else ""
        if not self.dates or len(self.names) == len(self.dates):
            return ""
        others = [name for name in self.names if name not in self.dates]
        return f"distances mix days of {', '.join(self.dates)} with the units of {', '.join(others)}"

    def check(self, X: Matrix, name: str) -> Matrix:
        """X (n, d), if all its values are possible; ValueError otherwise."""
        wrong = ~np.isfinite(X)
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            number, rows = X[row, column], int(wrong.any(1).sum())
            raise ValueError(
                f"{name} has {number} in column {self.columns[column]!r}, row {row} ({rows} such rows in all): fill "
                "them in, or leave these rows out"
            )
        if self.lonlat is not None:
            lon, lat = self.lonlat
            _require_below(X[:, lat], 90.0, f"{name} has the latitude", "latitudes lie between -90 and 90 degrees")
            advice = "longitudes lie between -360 and 360 degrees"
            _require_below(X[:, lon], _MOST_LONGITUDE, f"{name} has the longitude", advice)
        return X

    def read(self, points: Any, name: str) -> Matrix:
        """The columns of further points (m, d), an array or a frame, as float64."""
        if is_geometry(points) or is_frame(points):
            if is_geometry(points) and points.crs != self.crs:
                raise ValueError(
                    f"{name} has the reference system {points.crs}, the observations {self.crs}: use to_crs"
                )
            frame = with_geometry(points, self.names)
            return self.check(columns_of(frame, self.columns, name), name)
        X = as_array(points, name)
        if X.ndim != 2 or X.shape[1] != len(self.columns):
            expected = f"(m, {len(self.columns)}), with the columns {', '.join(self.columns)}"
            raise ValueError(f"{name} must have the shape {expected}; got {X.shape}")
        return self.check(X, name)

    def unwrap(self, P: Matrix) -> Matrix:
        """Points P (n, d) with longitudes from 0 to 360, or from -180 to 180, if they span less than 180 only then."""
        if self.lonlat is None:
            return P
        lon = P[:, self.lonlat[0]]
        ranges = [lon, _turned(lon, 180.0), _turned(lon, 0.0)]
        P = P.copy()
        P[:, self.lonlat[0]] = next((found for found in ranges if np.ptp(found) < 180.0), lon)
        return P

    def around(self, P: Matrix) -> Matrix:
        """Points P (..., d) with longitudes from ``centre`` - 180 to ``centre`` + 180, as trends need them."""
        if self.lonlat is None:
            return P
        P = P.copy()
        P[..., self.lonlat[0]] = _turned(P[..., self.lonlat[0]], self.centre)
        return P

    def to_caller(self, name: str, nodes: Matrix) -> NDArray[Any]:
        """Nodes of an axis as dates, to the microsecond, if the observations had dates there."""
        if name not in self.dates:
            return nodes
        return np.datetime64(0, "us") + (nodes * 86_400e6).round().astype("timedelta64[us]")

    def distance(self, P: Matrix, Q: Matrix) -> Matrix:
        """Distances (m,) between points P and Q, both (m, d), by their coordinates."""
        d = len(self.names)
        if self.lonlat is None:
            return np.asarray(np.linalg.norm(P[:, :d] - Q[:, :d], axis=1))
        (a, b), (c, e) = ((np.deg2rad(X[:, self.lonlat[0]]), np.deg2rad(X[:, self.lonlat[1]])) for X in (P, Q))
        # The formula of haversines, which is accurate for short distances.
        half = np.sin(0.5 * (b - e)) ** 2 + np.cos(b) * np.cos(e) * np.sin(0.5 * (a - c)) ** 2
        return np.asarray(2.0 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(half, 0.0, 1.0))))

    def diagonal(self, P: Matrix) -> float:
        """The largest distance of the box around points P (n, d); on the globe at most half of its circumference."""
        P = self.unwrap(P)
        low, high = P.min(0), P.max(0)
        if self.lonlat is None:
            return float(np.linalg.norm((high - low)[: len(self.names)]))
        lon, lat = self.lonlat
        widest = math.cos(math.radians(min(abs(low[lat]), abs(high[lat])) if low[lat] * high[lat] > 0 else 0.0))
        degrees = math.hypot(min(180.0, high[lon] - low[lon]) * widest, high[lat] - low[lat])
        return math.radians(min(180.0, degrees)) * EARTH_RADIUS_KM


@dataclass(frozen=True, eq=False)
class Field:
    """Observed values of a field: inputs X (n, d), coordinates and drift columns, and values y (n,), float64."""

    coordinates: Coordinates
    X: Matrix
    y: Matrix
    name: str

    @property
    def note(self) -> str:
        """What is odd about the points, in words; empty if nothing is."""
        names = self.coordinates.names
        first = self.X[0, : len(names)]
        constant = (self.X[:, : len(names)] == first).all(0) & (len(self.y) > 1)
        words = [
            f"all points have {name} = {value:g}: how the field changes along {name} is not known"
            for name, value, is_constant in zip(names, first, constant, strict=True)
            if is_constant and self.coordinates.lonlat is None
        ]
        return "; ".join(words)


def read_field(
    points: Any,
    values: Any,
    columns: Sequence[str] | None = None,
    coordinates: str | None = None,
    drift: Sequence[str] = (),
    noise: str | None = None,
) -> Field:
    """Check observations: arrays, or a frame whose ``columns`` are the coordinates and ``drift`` further inputs.

    values: (n,), or the name of a column of the frame. Without ``columns`` all other columns of a frame but ``noise``
    are the coordinates; of a GeoDataFrame its points, and ``columns`` are further ones. A coordinate in ``drift`` stays
    a coordinate if it is named in ``columns``, or if it is the longitude or latitude. coordinates: "plane" or "lonlat";
    None is "lonlat" if columns have such names, or if the reference system of a GeoDataFrame is in degrees.
    """
    if coordinates not in (*KINDS, None):
        raise ValueError(f"coordinates must be 'plane', 'lonlat' or None, got {coordinates!r}")
    target = values if isinstance(values, str) else None
    if is_geometry(points) or is_frame(points):
        names = _coordinate_names(points, columns, drift, (target, noise))
        drift = [name for name in drift if name not in names]
        frame = with_geometry(points, names)
        X = columns_of(frame, (*names, *drift), "points")
        dates = tuple(name for name in names if _holds_dates(np.asarray(frame[name])))
        y = columns_of(frame, (target,), "points")[:, 0] if target is not None else as_array(values, "values")
    else:
        if target is not None or columns is not None or drift:
            what = f"values={target!r} names a column" if target is not None else "columns are named"
            raise TypeError(f"{what}, and points is an array without names: give a DataFrame")
        X, y, dates = as_array(points, "points"), as_array(values, "values"), ()
        if X.ndim != 2 or not X.shape[1]:
            hint = "; points on a line are points[:, None]" if X.ndim == 1 else ""
            raise ValueError(f"points must have two dimensions (points, coordinates), got shape {X.shape}{hint}")
        names = ("lon", "lat", *(f"x{i}" for i in range(2, X.shape[1])))[: X.shape[1]]
        if coordinates != "lonlat":
            names = tuple(f"x{i}" for i in range(X.shape[1]))
    lonlat = _find_lonlat(points, names, coordinates)
    found = Coordinates(names, tuple(drift), lonlat, dates, points.crs if is_geometry(points) else None)
    if y.shape != (len(X),):
        raise ValueError(f"values must have shape ({len(X)},), one for each point; got {y.shape}")
    if not len(y):
        raise ValueError("there are no points: at least two are needed")
    if not np.isfinite(y).all():
        row = int(np.argmin(np.isfinite(y)))
        advice = "leave these rows out, as by points[isfinite(values)], values[isfinite(values)]"
        raise ValueError(
            f"{'values' if target is None else f'column {target!r}'} has {y[row]} in row {row} "
            f"({int((~np.isfinite(y)).sum())} such rows in all): {advice}"
        )
    X = found.check(X, "points")
    if lonlat is not None:
        # A trend in the longitude needs one range of longitudes for all points and targets.
        X = found.unwrap(X)
        found = replace(found, centre=0.5 * float(X[:, lonlat[0]].min() + X[:, lonlat[0]].max()))
    return Field(found, found.around(X), y, target or "value")


def is_geometry(points: Any) -> bool:
    """Whether points is a GeoDataFrame or a GeoSeries of geopandas."""
    return hasattr(points, "geometry") and hasattr(points, "crs")


def with_geometry(points: Any, names: Sequence[str]) -> Any:
    """A frame with columns for the points of a GeoDataFrame, called by the first two names; other frames as given."""
    if not is_geometry(points):
        return points
    geometry = points.geometry
    if not (geometry.geom_type == "Point").all():
        kind = next(kind for kind in geometry.geom_type if kind != "Point")
        raise ValueError(f"the geometry has a {kind}: kriging needs points, such as .representative_point()")
    others = {name: points[name] for name in points.columns if name != geometry.name} if is_frame(points) else {}
    import pandas as pd

    return pd.DataFrame({**others, names[0]: np.asarray(geometry.x), names[1]: np.asarray(geometry.y)})


def columns_of(frame: Any, names: Sequence[str], what: str) -> Matrix:
    """Columns of a frame as float64 (n, columns), dates as days since 1970; ValueError for missing or text columns."""
    parts = []
    for name in names:
        if name not in list(frame.columns):
            known = ", ".join(map(repr, frame.columns))
            raise ValueError(f"{what} has no column {name!r}; it has {known}")
        values = np.asarray(frame[name])
        if values.dtype.kind == "m" or _holds_dates(values):
            parts.append(days(name, values))
            continue
        try:
            parts.append(as_float64(values, f"column {name!r}"))
        except (TypeError, ValueError) as error:
            if "2^53" in str(error):
                raise
            raise TypeError(
                f"column {name!r} of {what} holds {values.dtype.name} such as {values[0]!r}: numbers or dates are "
                "needed, leave it out or convert it"
            ) from None
    return np.stack(parts, 1)


def as_array(values: Any, name: str) -> Matrix:
    """An array or tensor of real numbers, as float64."""
    found = values.detach().cpu() if isinstance(values, torch.Tensor) else values
    return as_float64(inputs.as_array(found, name), name)


def read_nodes(values: Any, name: str) -> Matrix:
    """The nodes of an axis of a grid as float64, dates as days since 1970."""
    nodes = np.asarray(values)
    return days(name, nodes) if nodes.ndim == 1 and _holds_dates(nodes) else as_array(values, name)


def _holds_dates(values: NDArray[Any]) -> bool:
    """Whether a column holds dates, as numbers of NumPy or as texts in ISO 8601."""
    return values.dtype.kind == "M" or (values.dtype.kind in "OUT" and are_dates(values))


def _coordinate_names(
    points: Any, columns: Sequence[str] | None, drift: Sequence[str], others: Sequence[str | None]
) -> tuple[str, ...]:
    """The names of the coordinates in a frame; ``others`` are columns that are none."""
    if isinstance(columns, str) or isinstance(drift, str):
        raise TypeError(f"column names must be a list, such as ['x', 'y'], got {columns or drift!r}")
    if is_geometry(points):
        is_degrees = points.crs is not None and points.crs.is_geographic
        return (*(("lon", "lat") if is_degrees else ("x", "y")), *(columns or ()))
    names = tuple(columns or _default_names(points, drift, others))
    if not all(isinstance(name, str) for name in names):
        raise TypeError("the columns have no names that are texts: rename them, as to 'x' and 'y'")
    if not names:
        raise ValueError("no column is left for the coordinates: name them by columns=['x', 'y']")
    if len(set(names)) < len(names):
        raise ValueError(f"columns names a column twice: {', '.join(names)}")
    return names


def _default_names(points: Any, drift: Sequence[str], others: Sequence[str | None]) -> list[str]:
    """All columns but those in ``drift`` and ``others``; longitude and latitude also if they are in ``drift``."""
    names = [name for name in points.columns if name not in others]
    positions = _find_lonlat(points, [str(name) for name in names], None) or ()
    return [name for i, name in enumerate(names) if name not in drift or i in positions]


def _find_lonlat(points: Any, names: Sequence[str], coordinates: str | None) -> tuple[int, int] | None:
    """The numbers of the columns of longitude and latitude, or None."""
    if coordinates == "plane":
        return None
    lower = [name.lower() for name in names]
    lon, lat = (next((i for i, name in enumerate(lower) if name in known), None) for known in (LONGITUDE, LATITUDE))
    if lon is not None and lat is not None:
        return lon, lat
    if coordinates is None:
        return None
    if len(names) < 2:
        raise ValueError(f"coordinates='lonlat' needs two columns, longitude and latitude; got {', '.join(names)}")
    return 0, 1


def _turned(lon: Matrix, centre: float) -> Matrix:
    """Longitudes from centre - 180 to centre + 180; those inside do not change, not even by rounding."""
    return np.asarray(lon - 360.0 * np.floor((lon - centre + 180.0) / 360.0))


def _require_below(values: Matrix, limit: float, what: str, rule: str) -> None:
    if len(values) and (worst := int(np.argmax(np.abs(values)))) is not None and abs(values[worst]) > limit:
        advice = "the columns may be exchanged, or hold metres: use coordinates='plane' for these"
        raise ValueError(f"{what} {values[worst]:g} in row {worst}, and {rule}: {advice}")
