"""The page of a predicted field (`pathgp.kriging`): maps of its mean and standard deviation, and its variogram."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.html.accuracy import Content
from pathgp.html.charts import Axis, Chart
from pathgp.html.facts import Facts
from pathgp.html.maps import SPREAD, VALUES, View, cell_axis, colour_limits, heat_map
from pathgp.html.markup import Section, chart_grid, figure, paragraph
from pathgp.html.numbers import count, number
from pathgp.html.page import write_content
from pathgp.html.table import compare, describe_variances
from pathgp.kriging.result import Kriging
from pathgp.kriging.targets import Grid

# Nodes of a map along each side, for targets that are no map; and of the map of a sample.
_NODES, _SAMPLE_NODES = 60, 100


def write_field(
    result: Kriging, path: str | os.PathLike[str], title: str | None = None, threshold: float | None = None
) -> None:
    """Write the page of a predicted field; with a threshold the map of the probability to exceed it."""
    post, target, names = result.posterior, result.field.name, list(result.coordinates.columns)
    facts = Facts(post, names, target)
    comparison, reason = compare(facts)
    content = Content(
        f"{count(post.report.rows, 'point')}, {count(len(result.targets), 'target')}",
        _sentences(result),
        comparison,
        reason,
        [_variogram_section(result)],
        describe_variances(facts),
        names,
        _map_section(result, threshold),
    )
    write_content(post, path, content, target, result.report, f"A map of {target}" if title is None else title)


def _sentences(result: Kriging) -> list[str]:
    values = dict(result.summary_items())
    scales = f"; length scale {values['length scale']}" if "length scale" in values else ""
    signal = f"; signal {values['signal']}" if "signal" in values else ""
    return [
        f"A Gaussian process predicts {result.field.name} from {values['points']}. Targets: {values['targets']}.",
        f"Nugget {values['nugget']}{signal}{scales}. Kernel: {values['kernel']}.",
        *([f"Note: {values['note']}."] if "note" in values else []),
    ]


def _map_section(result: Kriging, threshold: float | None) -> list[Section]:
    """Maps over two coordinates; no section for other fields."""
    shown = result if _is_map(result) else _predict_map(result)
    if shown is None:
        return []
    grid = shown.targets
    assert isinstance(grid, Grid)
    view = _view(grid)
    mean, std, sample = (_flat(grid, values) for values in (shown.mean, shown.std, _sample(shown)))
    limits = colour_limits(mean) if sample is None else colour_limits(mean, sample)
    what = "average over every cell" if shown.cells is not None else "value at every node"
    maps = [heat_map("map-mean", f"Mean of {result.field.name}", view, mean, limits, VALUES)]
    if sample is not None:
        drawn = _view(_thin(grid, _SAMPLE_NODES))
        maps.append(heat_map("map-sample", "One simulation", drawn, sample, limits, VALUES))
    highest = colour_limits(std)[1]
    maps.append(heat_map("map-std", "Standard deviation", view, std, (0.0, highest), SPREAD))
    if threshold is not None:
        probability = _flat(grid, shown.exceedance(threshold))
        maps.append(heat_map("map-above", f"Probability above {threshold:g}", view, probability, (0.0, 1.0), SPREAD))
    words = (
        f"The {what}: its mean; one conditional simulation, which is as rough as the field itself; and its standard "
        "deviation without the nugget, large far from observations."
    )
    return [Section("map", "The map", [paragraph(words), chart_grid(maps)])]


def _variogram_section(result: Kriging) -> Section:
    variogram = result.variogram
    assert variogram.model is not None
    assert variogram.model_lags is not None
    curves = variogram.model
    finding = f"The model starts at {number(curves[0, 0])} and reaches {number(float(curves[0, -1]))}."
    y = Axis.around(variogram.values, curves, label="semivariance", zero=True)
    x = Axis(0.0, float(variogram.model_lags[-1]), f"distance, {variogram.unit}")
    chart = Chart("variogram", "Variogram", finding, x, y, right=120.0 if len(curves) > 1 else 10.0)
    for curve in curves:
        chart.line(variogram.model_lags, curve)
    if len(curves) > 1:
        names = [name.removeprefix("model ") for name in variogram.model_names]
        chart.end_labels((float(curve[-1]), name, "") for curve, name in zip(curves, names, strict=True))
    chart.dots(variogram.lags, variogram.values, "data large")
    words = (
        "Half the mean squared difference of two values by their distance, from the data (dots) and from the learned "
        "model (line). They agree where the model describes how values at different distances are related. Dots at "
        "long distances come from few independent pairs and scatter."
    )
    words += f" Note: {variogram.note}." if variogram.note else ""
    drawn = figure("Variogram", f"{variogram.estimator} estimate", chart.svg())
    return Section("variogram", "Variogram", [paragraph(words), chart_grid([drawn])], flows=True)


def _is_map(result: Kriging) -> bool:
    grid = result.targets
    return isinstance(grid, Grid) and sum(len(axis) > 1 for axis in grid.axes) == 2


def _predict_map(result: Kriging) -> Kriging | None:
    """The field over the box around the points, for targets that are not a map; None if it has no two coordinates."""
    coordinates, X = result.coordinates, result.field.X
    if len(coordinates.names) != 2 or coordinates.drift or (np.ptp(X, axis=0) == 0).any():
        return None
    axes = {name: np.linspace(X[:, i].min(), X[:, i].max(), _NODES) for i, name in enumerate(coordinates.names)}
    return result.at(grid=axes)


def _thin(grid: Grid, most: int) -> Grid:
    """The grid with at most this number of nodes along each axis."""
    axes = tuple(axis[:: -(-len(axis) // most)] for axis in grid.axes)
    return Grid(grid.names, axes, None, grid.spacing)


def _sample(result: Kriging) -> NDArray[Any] | None:
    """One simulation at the nodes of a thinned grid; None without paths, for averages, and with columns of a trend."""
    grid = result.targets
    if not result.posterior.has_paths or result.cells is not None or result.coordinates.drift:
        return None
    assert isinstance(grid, Grid)
    thin = _thin(grid, _SAMPLE_NODES)
    with torch.no_grad():
        return np.asarray(result.simulate(thin.rows(slice(0, len(thin))))[0])


def _flat(grid: Grid, values: NDArray[Any] | None) -> Any:
    """A field as a picture (rows, columns), rows along the later coordinate."""
    if values is None:
        return None
    shape = grid.shape if len(values) == len(grid) else _thin(grid, _SAMPLE_NODES).shape
    return values.reshape([size for size in shape if size > 1])


def _view(grid: Grid) -> View:
    (x_name, x), (y_name, y) = [(n, a) for n, a in zip(grid.names, grid.axes, strict=True) if len(a) > 1]
    rows, columns = (np.argsort(np.argsort(axis, kind="stable")) for axis in (y, x))
    fixed = [f"{n} {number(float(a[0]))}" for n, a in zip(grid.names, grid.axes, strict=True) if len(a) == 1]
    lattice = np.meshgrid(rows, columns, indexing="ij")
    caption = f"At {', '.join(fixed)}." if fixed else ""
    x_axis, y_axis = cell_axis(np.sort(x), x_name), cell_axis(np.sort(y), y_name)
    return View((slice(None), slice(None)), lattice, x_axis, y_axis, caption)
