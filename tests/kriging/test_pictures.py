"""Pictures and pages of a field: what is on them, for grids and for points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pathgp import kernels
from pathgp.html.field import _predict_map
from pathgp.kriging import Kriging, krige, variogram
from pathgp.kriging.targets import Grid

pytest.importorskip("matplotlib").use("Agg")

RNG = np.random.default_rng(0)
POINTS = RNG.uniform(0, 5, (40, 2))
VALUES = np.sin(POINTS[:, 0])


@pytest.fixture(scope="module")
def field() -> Kriging:
    return krige(POINTS, VALUES, grid=0.5, kernel=kernels.Matern(1.5, [1.0, 2.0]), nugget=0.1, steps=0)


def titles(figure: Any) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


def test_maps(field: Kriging) -> None:
    figure = field.plot(threshold=0.5)
    assert titles(figure) == ["mean of value", "standard deviation", "probability above 0.5"]
    image = figure.axes[0].collections[0].get_array()
    np.testing.assert_array_equal(np.asarray(image).ravel(), field.mean)
    points = field.at(POINTS[:7])
    assert titles(points.plot()) == ["mean of value", "standard deviation"]
    with pytest.raises(ValueError, match="a map has two axes, and the targets vary along x0"):
        field.at(grid={"x0": [1.0, 2.0], "x1": [1.0]}).plot()


def test_variograms(field: Kriging) -> None:
    axes = field.variogram.plot()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    # The kernel has two length scales: one curve along each axis.
    assert labels == ["empirical", "model along x0", "model along x1"]
    axes = variogram(POINTS, VALUES, directions=[0, 90]).plot()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0°", "90°"]


def test_pages(field: Kriging, tmp_path: Path) -> None:
    path = tmp_path / "field.html"
    field.to_html(path, threshold=0.5)
    text = path.read_text()
    for words in ("A map of value", "The map", "One simulation", "Probability above 0.5", "along x0", "Accuracy"):
        assert words in text
    # Points have a map of the box around the data.
    field.at(POINTS[:3]).to_html(path, title="Three points")
    assert "Three points" in path.read_text()
    assert "Mean of value" in path.read_text()
    # Points on a line have none.
    line = krige(POINTS[:, :1], VALUES, POINTS[:3, :1], kernel=kernels.Matern(1.5), nugget=0.1, steps=0)
    line.to_html(path)
    assert "The map" not in path.read_text()


def test_page_of_two_points(tmp_path: Path) -> None:
    """They have no pairs in any class of distances."""
    path = tmp_path / "two.html"
    krige([[0.1, 0.2], [0.7, 0.4]], [1.0, 2.0], grid=0.2, steps=3).to_html(path)
    assert path.stat().st_size > 1000


def test_the_map_of_points_across_180_degrees_is_that_of_their_box() -> None:
    lon, lat = RNG.uniform(170, 190, 30), RNG.uniform(-20, 20, 30)
    kernel = kernels.Sphere(kernels.Matern(1.5, 0.2), active_dims=[1, 0])
    places = np.c_[(lon + 180.0) % 360.0 - 180.0, lat]
    result = krige(places, VALUES[:30], places, coordinates="lonlat", kernel=kernel, nugget=0.1, steps=0)
    shown = _predict_map(result)
    assert shown is not None
    assert isinstance(shown.targets, Grid)
    assert np.ptp(shown.targets.axes[0]) < 21.0
