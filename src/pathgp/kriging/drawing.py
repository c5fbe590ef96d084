"""Pictures of a predicted field with matplotlib: maps of its mean, standard deviation and probabilities, variograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pathgp.kriging.targets import Grid
from pathgp.plots import COLOURS, INK, MEAN, new_figure, tidy

if TYPE_CHECKING:
    from pathgp.kriging.empirical_variogram import Variogram
    from pathgp.kriging.result import Kriging

# Colour maps: values, spread, probability. The central share of the values that uses the colours.
_MAPS = {"mean": "viridis", "std": "magma", "exceedance": "RdBu_r"}
_CENTRAL = (0.001, 0.999)
# Observed points are marked up to this number.
_MOST_MARKS = 2000


def draw_variogram(variogram: Variogram, axes: Any = None) -> Any:
    """Draw an empirical variogram as dots, larger for more pairs, and that of the model as lines; returns the axes."""
    axes = new_figure((5.2, 3.6)).subplots() if axes is None else axes
    lags, values, pairs = (np.atleast_2d(part) for part in (variogram.lags, variogram.values, variogram.pairs))
    for number, (lag, value, count) in enumerate(zip(lags, values, pairs, strict=True)):
        label = "empirical" if variogram.directions is None else f"{variogram.directions[number]:g}°"
        colour = INK if variogram.directions is None else COLOURS[number % len(COLOURS)]
        axes.scatter(lag, value, s=10 + 40 * count / max(1, count.max()), color=colour, label=label, zorder=3)
    if variogram.model is not None and variogram.model_lags is not None:
        for number, (curve, name) in enumerate(zip(variogram.model, variogram.model_names, strict=True)):
            style = {"color": MEAN if number == 0 else COLOURS[(number + 1) % len(COLOURS)], "lw": 1.6}
            axes.plot(variogram.model_lags, curve, label=name, **style)
    axes.set_xlim(left=0.0)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel(f"distance, {variogram.unit}", fontsize=8)
    axes.set_title(f"semivariance, {variogram.estimator}", fontsize=9, loc="left")
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)
    return axes


def draw_maps(result: Kriging, threshold: float | None = None, figure: Any = None) -> Any:
    """Draw maps side by side: mean with the observed points, standard deviation, and a probability; the figure."""
    names = result.coordinates.names
    shown = [i for i in range(len(names)) if not isinstance(result.targets, Grid) or len(result.targets.axes[i]) > 1]
    if len(shown) != 2:
        given = ", ".join(names[i] for i in shown) or "none"
        raise ValueError(f"a map has two axes, and the targets vary along {given}: use to_dataset or to_frame")
    fields = {"mean": (f"mean of {result.field.name}", result.mean), "std": ("standard deviation", result.std)}
    if threshold is not None:
        fields["exceedance"] = (f"probability above {threshold:g}", result.exceedance(threshold))
    figure = new_figure((4.4 * len(fields) + 0.4, 3.8)) if figure is None else figure
    panels = figure.subplots(1, len(fields), squeeze=False)[0]
    x, y = shown
    for axes, (key, (title, values)) in zip(panels, fields.items(), strict=True):
        low, high = (0.0, 1.0) if key == "exceedance" else np.nanquantile(values, _CENTRAL)
        style = {"cmap": _MAPS[key], "vmin": low, "vmax": high}
        image = _draw_field(axes, result, values, x, y, style)
        if key == "mean" and len(result.field.X) <= _MOST_MARKS:
            limits = axes.axis()
            X = _points_near(limits, x, y, result)
            axes.plot(X[:, x], X[:, y], ".", color=INK, ms=2.0, mew=0, alpha=0.7)
            axes.axis(limits)
        bar = figure.colorbar(image, ax=axes, orientation="horizontal", shrink=0.85, aspect=30, pad=0.03)
        bar.ax.tick_params(labelsize=8)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel(names[x], fontsize=8)
        axes.set_ylabel(names[y] if key == "mean" else "", fontsize=8)
        axes.set_aspect(_aspect(result, x, y))
        tidy(axes)
    return figure


def _draw_field(axes: Any, result: Kriging, values: NDArray[Any], x: int, y: int, style: dict[str, Any]) -> Any:
    """An image of a grid, or coloured dots at points."""
    targets = result.targets
    if not isinstance(targets, Grid):
        X = targets.rows(slice(0, len(targets)))
        return axes.scatter(X[:, x], X[:, y], c=values, s=6, linewidths=0, **style)
    field = values.reshape(targets.shape).squeeze()
    # The axes of a field are reversed: the later coordinate comes first.
    field = field if x < y else field.T
    return axes.pcolormesh(targets.axes[x], targets.axes[y], field, shading="nearest", rasterized=True, **style)


def _points_near(limits: Sequence[float], x: int, y: int, result: Kriging) -> NDArray[Any]:
    """The observed points (n, d), with the longitudes that are nearest to the middle of a map (x0, x1, y0, y1)."""
    X, lonlat = result.field.X.copy(), result.coordinates.lonlat
    if lonlat is not None and lonlat[0] in (x, y):
        low, high = limits[:2] if lonlat[0] == x else limits[2:]
        X[:, lonlat[0]] += 360.0 * np.round((0.5 * (low + high) - X[:, lonlat[0]]) / 360.0)
    return X


def _aspect(result: Kriging, x: int, y: int) -> float | str:
    """Equal units along both axes; degrees by their length at the middle latitude; free for other units."""
    X, lonlat = result.field.X, result.coordinates.lonlat
    if lonlat is not None and {x, y} == set(lonlat):
        middle = 0.5 * (X[:, lonlat[1]].min() + X[:, lonlat[1]].max())
        shrinks = float(np.cos(np.deg2rad(middle)))
        return 1.0 / shrinks if shrinks > 0.2 else 1.0
    spans = np.ptp(X[:, [x, y]], axis=0)
    return "equal" if spans.min() > 0 and spans.max() < 5 * spans.min() else "auto"
