"""Figure 6.5: two fields over space and time, snapshots and time series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.datasets import load
from benchmarks.common.drawing import COLOURS, grid, save
from benchmarks.thesis.size import Size
from benchmarks.thesis.table_6_2 import precipitation

TITLE = "Fields over space and time"
TEXT = """\
Snapshots of a single time (left and right), and time series of a few places (middle). Top: air temperature of the
United Kingdom by the hour. Bottom: anomalies of the precipitation by the year. They stand in for the Nordic
Gridded Climate Dataset of the thesis, which could not be obtained."""
PLACES = 4


def draw(path: Path, size: Size) -> dict[str, Any]:
    figure, axes = grid(2, 3, width=12, height=3.0, width_ratios=[1, 1.6, 1])
    air = load("era5_uk_t2m")
    assert air.factors is not None
    assert air.Y is not None
    S, Y = air.factors[0], air.Y - 273.15
    hours = (Y.shape[1] // 4, 3 * Y.shape[1] // 4)
    for panel, hour in zip((axes[0, 0], axes[0, 2]), hours, strict=True):
        image = panel.scatter(S[:, 1], S[:, 0], c=Y[:, hour], s=7, marker="s", cmap="RdYlBu_r", lw=0)
        panel.set_title(f"temperature, hour {hour}", fontsize=9, loc="left")
        figure.colorbar(image, ax=panel, shrink=0.8, label="°C")
    _series(axes[0, 1], np.arange(Y.shape[1]) / 24.0, Y[:: len(Y) // PLACES][:PLACES], "days", hours[0] / 24)
    rain = precipitation()
    maps = rain.Y.numpy()
    years = (2, len(maps) - 3)
    (west, east), (south, north) = ((side.min(), side.max()) for side in load("precip_ciq").X[:, 1:].T)
    extent = (float(west), float(east), float(south), float(north))
    for panel, year in zip((axes[1, 0], axes[1, 2]), years, strict=True):
        image = panel.imshow(maps[year].T, origin="lower", extent=extent, cmap="BrBG", vmin=-2, vmax=2)
        panel.set_title(f"precipitation, year {year + 1}", fontsize=9, loc="left")
        panel.set_aspect("auto")
        figure.colorbar(image, ax=panel, shrink=0.8, label="anomaly")
    flat = maps.reshape(len(maps), -1).T
    whole = flat[~np.isnan(flat).any(1)]
    series = whole[:: len(whole) // PLACES][:PLACES]
    _series(axes[1, 1], np.arange(1, 1 + len(maps)), series, "years", years[0] + 1)
    save(figure, path)
    return {"places of the temperature": len(Y), "hours": Y.shape[1], "cells of the precipitation": int(maps.size)}


def _series(panel: Any, times: NDArray[Any], series: NDArray[Any], unit: str, marked: float) -> None:
    for values, colour in zip(series, COLOURS, strict=False):
        panel.plot(times, values, color=colour, lw=1.0)
    panel.axvline(marked, color="#8a8a94", lw=0.9, ls=":")
    panel.set_xlabel(unit, fontsize=9)
    panel.set_title(f"{PLACES} places", fontsize=9, loc="left")
