"""Bad input: a right answer, or an error that names the culprit and a remedy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pathgp import kernels
from pathgp.kriging import krige

pd = pytest.importorskip("pandas")

POINTS = np.random.default_rng(0).uniform(0, 10, (30, 2))
VALUES = POINTS.sum(1)
FIXED: dict[str, Any] = {"kernel": kernels.Matern(1.5, 2.0), "nugget": 0.1, "steps": 0}
LONLAT = np.c_[np.linspace(-170, 170, 30), np.linspace(-80, 80, 30)]


def refused(words: str, *arguments: Any, error: type[Exception] = ValueError, **options: Any) -> None:
    with pytest.raises(error, match=words):
        krige(*arguments, **FIXED | options)


def test_points_on_a_line() -> None:
    """With a constant coordinate the answer is that of the other coordinate alone."""
    line = np.c_[np.linspace(0, 10, 30), np.full(30, 4.0)]
    values = np.sin(line[:, 0])
    flat = krige(line, values, grid={"x0": [2.5], "x1": [4.0]}, **FIXED)
    alone = krige(line[:, :1], values, np.array([[2.5]]), **FIXED)
    np.testing.assert_allclose(flat.mean, alone.mean)
    np.testing.assert_allclose(flat.std, alone.std, rtol=1e-6)
    learned = krige(line, values, grid=1.0, kernel="matern-5/2", steps=5)
    assert np.isfinite(learned.mean).all()
    assert "all points have x1 = 4: how the field changes along x1 is not known" in repr(learned)
    refused("do not determine the trend", line, values, line, trend="linear")


def test_repeated_rows() -> None:
    """Copies of rows are used as given, and a note says what they do to the nugget."""
    twice = krige(np.r_[POINTS, POINTS], np.r_[VALUES, VALUES], POINTS, **FIXED)
    assert "30 of 60 rows repeat another one, inputs and target" in dict(twice.summary_items())["note"]
    several = krige(np.r_[POINTS, POINTS], np.r_[VALUES, VALUES + 0.1], POINTS, **FIXED)
    assert "note" not in dict(several.summary_items())


def test_too_few_or_constant() -> None:
    refused("one point, from which nothing can be learned", POINTS[:1], VALUES[:1], POINTS, steps=None)
    refused("all values are 3", POINTS, np.full(30, 3.0), POINTS, steps=None)
    refused("all points coincide", np.ones((30, 2)), VALUES, POINTS, steps=None)
    refused("there are no points", POINTS[:0], VALUES[:0], POINTS)


def test_missing_values() -> None:
    holes = np.where(np.arange(30) % 10 == 4, np.nan, VALUES)
    refused(r"values has nan in row 4 \(3 such rows in all\): leave these rows out", POINTS, holes, POINTS)
    places = POINTS.copy()
    places[7, 1] = np.inf
    refused("points has inf in column 'x1', row 7", places, VALUES, POINTS)
    refused("targets has inf in column 'x1', row 7", POINTS, VALUES, places)
    frame = pd.DataFrame({"x": POINTS[:, 0], "y": POINTS[:, 1], "v": holes})
    refused("column 'v' has nan in row 4", frame, "v", frame)


def test_masked_arrays() -> None:
    """Masks are not dropped: the masked numbers are no observations."""
    masked = np.ma.masked_array(VALUES, mask=np.arange(30) == 4)
    refused("values has masked values", POINTS, masked, POINTS)
    refused("points has masked values", np.ma.masked_greater(POINTS, 9.0), VALUES, POINTS)
    refused("targets has masked values", POINTS, VALUES, np.ma.masked_greater(POINTS, 9.0))
    refused("noise has masked values", POINTS, VALUES, POINTS, noise=masked)


def test_latitudes_and_longitudes() -> None:
    wrong = LONLAT.copy()
    wrong[3, 1] = 91.0
    refused("latitude 91 in row 3", wrong, VALUES, LONLAT, coordinates="lonlat")
    refused("targets has the latitude 91", LONLAT, VALUES, wrong, coordinates="lonlat")
    refused("longitude 500000 in row 0.*metres", LONLAT * [0, 1] + [5e5, 0], VALUES, LONLAT, coordinates="lonlat")
    refused(
        "anisotropy=True is for a plane",
        LONLAT,
        VALUES,
        LONLAT,
        coordinates="lonlat",
        kernel="matern-3/2",
        anisotropy=True,
    )
    refused("latitude 95", LONLAT, VALUES, grid={"lon": 10.0, "lat": [0.0, 95.0]}, coordinates="lonlat")


def test_columns() -> None:
    frame = pd.DataFrame({"x": POINTS[:, 0], "y": POINTS[:, 1], "soil": ["clay", "sand"] * 15, "v": VALUES})
    refused("column 'soil' of points holds .* such as 'clay'", frame, "v", frame, error=TypeError)
    refused("points has no column 'z'; it has 'x', 'y'", frame, "v", frame, columns=["x", "z"])
    refused("points has no column 'w'", frame, "w", frame, columns=["x", "y"])
    refused("targets has no column 'y'", frame, "v", frame[["x"]], columns=["x", "y"])
    refused("must be a list", frame, "v", frame, columns="xy", error=TypeError)
    refused("no names that are texts", pd.DataFrame(POINTS), VALUES, POINTS, error=TypeError)
    refused("names a column twice", frame, "v", frame, columns=["x", "x"])
    refused("array without names", POINTS, "v", POINTS, error=TypeError)
    refused("trend must be 'constant'", POINTS, VALUES, POINTS, trend="cubic")
    result = krige(frame[["x", "y"]], VALUES, frame[["x", "y"]].assign(mean=1.0), **FIXED)
    with pytest.raises(ValueError, match="column 'mean', which the result would replace"):
        result.to_frame()


def test_dates_are_coordinates() -> None:
    frame = pd.DataFrame({"x": POINTS[:, 0], "day": pd.date_range("2024-01-01", periods=30)})
    result = krige(frame, VALUES, frame, **FIXED)
    days = (frame["day"].to_numpy() - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
    np.testing.assert_allclose(
        result.mean, krige(np.c_[POINTS[:, 0], days], VALUES, np.c_[POINTS[:, 0], days], **FIXED).mean
    )


def test_dates_are_nodes_of_a_grid() -> None:
    """A grid over time has the dates of the observations, whether it is given by dates or by a spacing in days."""
    xr = pytest.importorskip("xarray")
    dates = pd.date_range("2024-01-01", periods=30)
    frame = pd.DataFrame({"x": POINTS[:, 0], "time": dates, "v": VALUES})
    later = pd.date_range("2024-01-05T06:00", periods=4, freq="12h")
    nodes = {"x": np.arange(3.0), "time": later}
    options = FIXED | {"columns": ["x", "time"]}
    found = krige(frame, "v", grid=nodes, **options)
    assert found.to_dataset().indexes["time"].equals(later)
    at = pd.DataFrame({"x": np.tile(np.arange(3.0), 4), "time": np.repeat(later, 3)})
    np.testing.assert_allclose(found.mean, krige(frame, "v", at, **options).mean)
    np.testing.assert_allclose(found.mean, krige(frame, "v", grid=xr.Dataset(coords=nodes), **options).mean)
    texts = frame.assign(time=dates.strftime("%Y-%m-%d"))
    np.testing.assert_allclose(found.mean, krige(texts, "v", grid=nodes, **options).mean)
    weekly = krige(frame, "v", grid=[5.0, 7.0], **options).to_dataset()
    assert weekly["time"].dtype.kind == "M"
    assert np.datetime64("2023-12-28") == weekly["time"].to_numpy()[0]
    with pytest.raises(ValueError, match="finite"):
        krige(frame, "v", grid=nodes | {"time": [np.datetime64("NaT")]}, **options)


def test_shapes_and_options() -> None:
    refused("values must have shape", POINTS, VALUES[:5], POINTS)
    refused("two dimensions", POINTS[:, 0], VALUES, POINTS)
    refused(r"targets must have the shape \(m, 2\)", POINTS, VALUES, POINTS[:, :1])
    refused("targets or grid", POINTS, VALUES, error=TypeError)
    refused("not both", POINTS, VALUES, POINTS, grid=1.0, error=TypeError)
    refused("nugget must be positive", POINTS, VALUES, POINTS, nugget=0.0)
    refused("kernel must be a pathgp kernel or one of", POINTS, VALUES, POINTS, kernel="spherical")
    refused("noise must have shape", POINTS, VALUES, POINTS, noise=np.ones(4))
    refused("one number for all is the nugget", POINTS, VALUES, POINTS, noise=0.2)
    refused("noise has -1", POINTS, VALUES, POINTS, noise=np.full(30, -1.0))
    refused("cells=True is for a grid", POINTS, VALUES, POINTS, cells=True)
    refused("cells must be one size", POINTS, VALUES, POINTS, cells=(1.0, 2.0, 3.0))
    refused("coordinates must be 'plane', 'lonlat'", POINTS, VALUES, POINTS, coordinates="utm")
    result = krige(POINTS, VALUES, POINTS, **FIXED)
    with pytest.raises(ValueError, match="not a grid"):
        result.to_dataset()


def test_grids() -> None:
    refused("spacing of 'x0' must be positive", POINTS, VALUES, grid=-1.0)
    refused("grid has 3 entries", POINTS, VALUES, grid=(1.0, 1.0, 1.0))
    refused("grid lacks 'x1'", POINTS, VALUES, grid={"x0": 1.0})
    refused("grid names 'z'", POINTS, VALUES, grid={"x0": 1.0, "x1": 1.0, "z": 2.0})


def test_a_grid_larger_than_memory() -> None:
    """Refused before anything is computed; the spacing that the error names fits."""
    with pytest.raises(ValueError, match=r"memory budget is .* GB: use a spacing of") as caught:
        krige(POINTS, VALUES, grid=1e-4, memory="2MB", **FIXED)
    spacing = float(str(caught.value).split("a spacing of ")[1].split(",")[0])
    assert len(krige(POINTS, VALUES, grid=spacing, memory="2MB", **FIXED).mean) > 10_000
    refused("nodes", POINTS, VALUES, grid=1e-7)
    result = krige(POINTS, VALUES, grid=0.1, memory="4MB", **FIXED)
    with pytest.raises(ValueError, match=r"enough for .* samples"):
        _ = result.samples


def test_geo_data_frames() -> None:
    """The parts of geopandas that are read, without geopandas."""

    class Points:
        name = "geometry"
        x, y = LONLAT[:, 0], LONLAT[:, 1]
        geom_type = pd.Series(["Point"] * 30)

    class GeoFrame(pd.DataFrame):
        geometry = Points()
        crs = SimpleNamespace(is_geographic=True)

    frame = GeoFrame({"v": VALUES})
    kernel = kernels.Sphere(kernels.Matern(1.5, 1.0), active_dims=[1, 0])
    result = krige(frame, "v", frame, **FIXED | {"kernel": kernel})
    assert result.coordinates.lonlat == (0, 1)
    expected = krige(LONLAT, VALUES, LONLAT, coordinates="lonlat", **FIXED | {"kernel": kernel})
    np.testing.assert_allclose(result.mean, expected.mean)
    other = GeoFrame({"v": VALUES})
    other.__dict__["crs"] = SimpleNamespace(is_geographic=False)
    refused("the observations .*: use to_crs", frame, "v", other)
    Points.geom_type = pd.Series(["Point"] * 29 + ["Polygon"])
    refused("has a Polygon: kriging needs points", frame, "v", frame)


def test_nodes_of_a_spacing_may_pass_360_degrees() -> None:
    places = np.c_[np.linspace(300.0, 359.5, 30), np.linspace(-20, 20, 30)]
    options = FIXED | {"kernel": kernels.Sphere(kernels.Matern(1.5, 0.5), active_dims=[1, 0])}
    result = krige(places, VALUES, grid=7.0, coordinates="lonlat", **options)
    assert result.to_dataset()["lon"].to_numpy()[-1] == 364.0
    refused("longitude 364", places, VALUES, grid={"lon": [364.0], "lat": 5.0}, coordinates="lonlat")


def test_drift_on_a_grid_with_dates() -> None:
    """A column of the trend on the nodes, with and without the dimension of time."""
    xr = pytest.importorskip("xarray")
    frame = pd.DataFrame({"x": POINTS[:, 0], "time": pd.date_range("2024-01-01", periods=30), "h": POINTS[:, 1]})
    times = pd.date_range("2024-01-03", periods=2)
    height = xr.DataArray([1.0, 2.0, 4.0], {"x": [0.0, 1.0, 2.0]}, ("x",))
    grid = xr.Dataset({"h": height}, {"time": times})
    options = FIXED | {"columns": ["x", "time"], "trend": ["h"]}
    at = pd.DataFrame({"x": [0.0, 1.0, 2.0] * 2, "time": times.repeat(3), "h": [1.0, 2.0, 4.0] * 2})
    found = krige(frame, VALUES, grid=grid, **options)
    np.testing.assert_allclose(found.mean, krige(frame, VALUES, at, **options).mean)


def test_a_frame_of_a_grid_has_its_dates() -> None:
    times = pd.date_range("2024-01-01", periods=30)
    frame = pd.DataFrame({"x": POINTS[:, 0], "time": times})
    result = krige(frame, VALUES, grid={"x": [0.0, 1.0], "time": times[:2]}, **FIXED)
    table = result.to_frame()
    assert table["time"].tolist() == times[[0, 0, 1, 1]].tolist()
    np.testing.assert_allclose(result.at(table[["x", "time"]]).mean, result.mean)
