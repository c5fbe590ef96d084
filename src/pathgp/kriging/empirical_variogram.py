"""The empirical variogram: half the mean squared difference of two values, by the distance between their points.

    classical   gamma(h) = 1/2 mean |y_i - y_j|^2                                          Matheron (1962)
    robust      gamma(h) = 1/2 (mean |y_i - y_j|^(1/2))^4 / (0.457 + 0.494 / N)            Cressie and Hawkins (1980)

over the N pairs whose distance falls into a bin around h. A stationary model with nugget s has the variogram
s^2 + k(0) - k(h), which can be drawn beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pathgp.compute.inputs import real_number, whole_number
from pathgp.compute.memory import spans
from pathgp.kriging.coordinates import Coordinates, read_field

Vector = NDArray[np.float64]

ESTIMATORS = ("classical", "robust")
# Pairs of points that are used at most, and evaluated at once.
_MOST_PAIRS, _PAIRS_AT_ONCE = 10_000_000, 1_000_000
# Angle within which a pair belongs to a direction, in degrees: eight of them cover the plane.
_TOLERANCE = 22.5
# The largest lag by default, as a share of the diagonal of the box around the points.
_SHARE_OF_DIAGONAL = 1 / 3


@dataclass(frozen=True, eq=False)
class Variogram:
    """An empirical variogram, and beside it that of a fitted model.

    lags: mean distance of the pairs in every bin (bins,); NaN in a bin without pairs. Kilometres for longitude and
        latitude, otherwise the units of the coordinates.
    values: the semivariance (bins,), in squared units of the values; with directions (directions, bins), as are lags
        and pairs.
    pairs: the number of pairs in every bin.
    estimator: "classical" or "robust".
    directions: angles in degrees, counterclockwise from the first axis; None for all directions together.
    unit: the unit of the lags, in words.
    used: points that were paired with all others; a random subset for many points.
    note: what the distances ignore or mix, in words; empty if they do neither.
    model_lags, model: the variogram of the fitted model (curves, m), or None.  model_names: one name for each curve.
    """

    lags: Vector
    values: Vector
    pairs: NDArray[np.int64]
    estimator: str
    directions: tuple[float, ...] | None
    unit: str
    used: int
    model_lags: Vector | None = None
    model: Vector | None = None
    model_names: tuple[str, ...] = ()
    note: str = ""

    def with_model(self, lags: Vector, curves: Vector, names: Sequence[str]) -> Variogram:
        """The same with the curves (curves, m) of a fitted model at lags (m,)."""
        return replace(self, model_lags=lags, model=curves, model_names=tuple(names))

    def plot(self, axes: Any = None) -> Any:
        """Draw the variogram into matplotlib axes, new ones by default; returns the axes."""
        from pathgp.kriging.drawing import draw_variogram

        return draw_variogram(self, axes)

    def __repr__(self) -> str:
        shown = self.values if self.values.ndim == 1 else self.values[0]
        lags, pairs = (part if part.ndim == 1 else part[0] for part in (self.lags, self.pairs))
        table = zip(lags, shown, pairs, strict=True)
        rows = [f"{lag:>12.4g}  {value:>12.4g}  {count:>12,}" for lag, value, count in table]
        direction = "" if self.directions is None else f", direction {self.directions[0]:g}°"
        title = f"{self.estimator} variogram{direction}, lags in {self.unit}"
        notes = [f"note: {self.note}"] if self.note else []
        return "\n".join([title, *notes, f"{'lag':>12}  {'semivariance':>12}  {'pairs':>12}", *rows])


def variogram(
    points: Any,
    values: Any,
    *,
    bins: int | Sequence[float] | NDArray[Any] = 15,
    cutoff: float | None = None,
    estimator: str = "classical",
    directions: Sequence[float] | None = None,
    tolerance: float = _TOLERANCE,
    coordinates: str | None = None,
    columns: Sequence[str] | None = None,
    seed: int = 0,
) -> Variogram:
    """Return the empirical variogram of values at points.

    All pairs are used up to about 4,500 points; of more points a random subset is paired with all of them, about ten
    million pairs. Time O(pairs), memory a million pairs at a time.

    Args:
        points: coordinates (n, d), or a frame with ``columns``; see `krige`.
        values: (n,), or the name of a column of the frame.
        bins: the number of bins of equal width from 0 to the cutoff, or their edges, increasing.
        cutoff: the largest distance; by default a third of the diagonal of the box around the points.
        estimator: "classical", or "robust" against outliers.
        directions: angles in degrees, counterclockwise from the first axis, for points in a plane: one curve each.
        tolerance: pairs within this angle of a direction belong to it, in degrees.
        coordinates: "plane" or "lonlat", as in `krige`; distances are then great-circle distances in kilometres.
        columns: the coordinates of a frame.
        seed: of the random subset.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator must be 'classical' or 'robust', got {estimator!r}")
    field = read_field(points, values, columns, coordinates)
    P, y = field.X, field.y
    if directions is not None:
        directions = [real_number(angle, "directions") for angle in directions]
        if P.shape[1] != 2 or field.coordinates.lonlat is not None:
            raise ValueError("directions are for points in a plane, with two coordinates")
        if not directions:
            raise ValueError("directions is empty: leave it out for one curve of all directions")
    edges = _edges(P, bins, cutoff, field.coordinates)
    return binned(P, y, edges, estimator, directions, tolerance, field.coordinates, seed)


def binned(
    P: Vector,
    y: Vector,
    edges: Vector,
    estimator: str,
    directions: Sequence[float] | None,
    tolerance: float,
    coordinates: Coordinates,
    seed: int,
) -> Variogram:
    """Average over the pairs of points P (n, d) with values y (n,) in bins with these edges."""
    n, bins, curves = len(y), len(edges) - 1, 1 if directions is None else len(directions)
    used = min(n, max(1, _MOST_PAIRS // n)) if n * (n - 1) // 2 > _MOST_PAIRS else n
    first = np.sort(np.random.default_rng(seed).choice(n, used, replace=False)) if used < n else np.arange(n)
    sums, distances = np.zeros((curves, bins)), np.zeros((curves, bins))
    pairs = np.zeros((curves, bins), dtype=np.int64)
    for rows in spans(used, max(1, _PAIRS_AT_ONCE // n)):
        i, j = np.meshgrid(first[rows], np.arange(n), indexing="ij")
        # Every pair once; with a subset a pair inside of it counts twice, which changes no expectation.
        chosen = j > i if used == n else j != i
        i, j = i[chosen], j[chosen]
        lag = coordinates.distance(P[i], P[j])
        difference = np.abs(y[i] - y[j])
        power = difference**2 if estimator == "classical" else np.sqrt(difference)
        bin_of = np.searchsorted(edges, lag, side="left") - 1
        bin_of[lag == edges[0]] = 0
        inside = (bin_of >= 0) & (bin_of < bins)
        for curve in range(curves):
            here = inside if directions is None else inside & _is_along(P[j] - P[i], directions[curve], tolerance)
            pairs[curve] += np.bincount(bin_of[here], minlength=bins)
            sums[curve] += np.bincount(bin_of[here], power[here], bins)
            distances[curve] += np.bincount(bin_of[here], lag[here], bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean, lags = sums / pairs, distances / pairs
        semivariance = 0.5 * mean if estimator == "classical" else 0.5 * mean**4 / (0.457 + 0.494 / pairs)
    if directions is None:
        lags, semivariance, pairs = lags[0], semivariance[0], pairs[0]
    angles = None if directions is None else tuple(directions)
    note = coordinates.distance_note
    return Variogram(lags, semivariance, pairs, estimator, angles, coordinates.unit, used, note=note)


def _edges(
    P: Vector, bins: int | Sequence[float] | NDArray[Any], cutoff: float | None, coordinates: Coordinates
) -> Vector:
    """The edges of the bins (bins + 1,)."""
    if not np.isscalar(bins):
        edges = np.asarray(bins, dtype=np.float64)
        if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all() or edges[0] < 0:
            raise ValueError(f"bins must be a number or increasing edges from 0 on, got {bins!r}")
        return edges
    if cutoff is None:
        cutoff = _SHARE_OF_DIAGONAL * coordinates.diagonal(P)
        if cutoff == 0:
            raise ValueError("all points coincide: a variogram needs points at different places")
    elif real_number(cutoff, "cutoff") <= 0:
        raise ValueError(f"cutoff must be positive, got {cutoff}")
    return np.linspace(0.0, float(cutoff), whole_number(bins, "bins", 1) + 1)


def _is_along(difference: Vector, angle: float, tolerance: float) -> NDArray[np.bool_]:
    """Whether differences (pairs, 2) lie within the tolerance of a direction or of its opposite."""
    direction = np.array([math.cos(math.radians(angle)), math.sin(math.radians(angle))])
    along = np.abs(difference @ direction)
    length = np.linalg.norm(difference, axis=1)
    return along >= math.cos(math.radians(real_number(tolerance, "tolerance"))) * length - 1e-12 * length
