"""Fields with holes as DataArrays, and long tables."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import pathgp
from pathgp import kernels

pd = pytest.importorskip("pandas")
xr = pytest.importorskip("xarray", reason="the door to xarray needs xarray")

from pathgp.xarray import fill, fill_table  # noqa: E402


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def field(dtype: Any = np.float64) -> Any:
    """A smooth field over latitude and days with a third of its values missing."""
    draw = np.random.default_rng(0)
    lat, day = np.linspace(-30, 30, 13), pd.date_range("2020-01-01", periods=20, freq="2D")
    truth = 280 + 5 * np.cos(np.deg2rad(3 * lat))[:, None] + np.sin(np.arange(20) / 3)
    values = truth + 0.05 * draw.standard_normal(truth.shape)
    values[draw.random(values.shape) < 0.33] = np.nan
    attrs = {"units": "K", "long_name": "temperature"}
    return xr.DataArray(values.astype(dtype), {"lat": lat, "day": day}, ("lat", "day"), attrs=attrs, name="t"), truth


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_field_is_filled(dtype: Any) -> None:
    da, truth = field(dtype)
    before = da.copy(deep=True)
    ds = fill(da, steps=15, samples=16, generator=seeded())
    xr.testing.assert_identical(da, before)
    assert ds["mean"].dims == ds["std"].dims == ("lat", "day")
    assert ds["samples"].dims == ("sample", "lat", "day")
    assert ds["samples"].shape == (16, 13, 20)
    assert list(ds.data_vars) == ["mean", "std", "samples"]
    assert all(ds[name].dtype == dtype for name in ("mean", "std", "samples"))
    xr.testing.assert_identical(ds["lat"], da["lat"])
    assert ds["mean"].attrs == {"units": "K", "long_name": "temperature, posterior mean"}
    assert 0 < ds.attrs["noise"] < 1
    assert "residual" in ds.attrs["report"]
    missing = np.isnan(da.values)
    error = ds["mean"].values - truth
    assert np.sqrt((error[missing] ** 2).mean()) < 0.3
    assert (np.abs(error) < 3 * ds["std"].values).mean() > 0.9
    assert not np.isnan(ds["samples"].values).any()


def test_it_is_the_posterior_of_the_grid() -> None:
    da, _ = field()
    k1, k2 = kernels.Scale(kernels.Matern(2.5, 20.0), 3.0), kernels.SquaredExponential(4.0)
    ds = fill(da, {"lat": k1, "day": k2}, noise=0.1, steps=0, samples=8, tol=1e-8, generator=seeded())
    days = 2.0 * np.arange(20)[:, None]
    gp = pathgp.LatentKroneckerGP([k1, k2], noise=0.1, mean=float(np.nanmean(da.values)))
    post = gp.condition([da["lat"].values[:, None], days], da.values, samples=8, tol=1e-8, generator=seeded())
    np.testing.assert_allclose(ds["mean"], post.mean(), atol=1e-9)
    np.testing.assert_allclose(ds["std"] ** 2, post.variance(), atol=1e-9)
    np.testing.assert_allclose(ds["samples"], post.sample(), atol=1e-9)


def test_three_dimensions_names_and_no_coordinates() -> None:
    draw = np.random.default_rng(1)
    values = draw.standard_normal((3, 6, 5))
    values[draw.random(values.shape) < 0.3] = np.nan
    da = xr.DataArray(values, {"kind": ["max", "mean", "min"]}, ("kind", "x", "step"))
    ds = fill(da, steps=2, samples=4, generator=seeded())
    assert ds["mean"].shape == (3, 6, 5)
    assert list(ds["kind"].values) == ["max", "mean", "min"]
    assert "x" not in ds.coords


def test_longitudes_around_the_earth_meet() -> None:
    lon = np.arange(0.0, 360.0, 10.0)
    values = np.cos(np.deg2rad(lon))
    values[[0, 1, 34, 35]] = np.nan
    da = xr.DataArray(values, {"lon": lon}, ("lon",))
    kernel = kernels.Scale(kernels.SquaredExponential(0.5), 1.0)
    ds = fill(da, {"lon": kernel}, noise=0.01, steps=0, samples=8, tol=1e-6, generator=seeded())
    np.testing.assert_allclose(ds["mean"][[0, 1, 34, 35]], np.cos(np.deg2rad(lon[[0, 1, 34, 35]])), atol=0.02)


def test_stations_lie_on_the_sphere() -> None:
    draw = np.random.default_rng(2)
    lat, lon = draw.uniform(-60, 60, 12), draw.uniform(-180, 180, 12)
    values = np.sin(np.deg2rad(lat))[:, None] + 0.01 * draw.standard_normal((12, 4))
    values[3, 1] = np.nan
    coords = {"station": [f"s{i}" for i in range(12)], "lat": ("station", lat), "lon": ("station", lon)}
    da = xr.DataArray(values, coords, ("station", "year"))
    ds = fill(da, steps=5, samples=4, generator=seeded())
    assert ds["mean"].shape == (12, 4)
    assert float(abs(ds["mean"][3, 1] - np.sin(np.deg2rad(lat[3])))) < 0.2


def test_a_reversed_field_is_the_same_field() -> None:
    da, _ = field()
    kernel = {"lat": kernels.Scale(kernels.Matern(2.5, 20.0), 3.0), "day": kernels.SquaredExponential(4.0)}
    options: dict[str, Any] = {"noise": 0.1, "steps": 0, "samples": 2, "tol": 1e-10, "progress": False}
    turned = fill(da[::-1, ::-1], kernel, generator=seeded(), **options)
    np.testing.assert_allclose(turned["mean"][::-1, ::-1], fill(da, kernel, **options)["mean"], atol=1e-6)


def test_bad_options_are_named() -> None:
    da, _ = field()
    with pytest.raises(TypeError, match=r"kernels must be a dict of kernels by dimension, .* got Matern"):
        fill(da, kernels.Matern(1.5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the kernel of 'lat' must be a pathgp kernel .* got 'matern'"):
        fill(da, {"lat": "matern"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="noise must be positive"):
        fill(da, noise=0)
    with pytest.raises(TypeError, match="noise must be a number"):
        fill(da, noise=np.ones(da.shape))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"device must be .* got 'tpu'"):
        fill(da, device="tpu")


def test_bad_fields_are_named() -> None:
    da, _ = field()
    with pytest.raises(TypeError, match="choose one of its variables"):
        fill(da.to_dataset(name="t"))
    with pytest.raises(TypeError, match=r"got ndarray: wrap it by xarray\.DataArray"):
        fill(da.values)
    with pytest.raises(ValueError, match="one observation, from which nothing can be learned"):
        fill(da.where(da == da.max()))
    with pytest.raises(ValueError, match="range of float64: use another unit"):
        fill(da * 1e200)
    with pytest.raises(ValueError, match="the result has a 'std' of its own: rename"):
        fill(da.rename(lat="std"))
    with pytest.raises(ValueError, match="kernels are given for 'lon', but the dimensions are 'lat', 'day'"):
        fill(da, {"lon": kernels.Matern(1.5)})
    with pytest.raises(ValueError, match="every value of the field is missing"):
        fill(da * np.nan)
    with pytest.raises(TypeError, match="dtype"):
        fill(da.astype(str))
    with pytest.raises(ValueError, match="no dimension"):
        fill(da[0, 0])
    with pytest.raises(ValueError, match=r"infinite|inf"):
        fill(da.where(da["lat"] < 20, np.inf), steps=0)
    with pytest.raises(ValueError, match=r"no kernel carries the signal: wrap one of them in kernels\.Scale"):
        fill(da, {"lat": kernels.Matern(1.5), "day": kernels.Matern(1.5)})
    many = xr.DataArray(np.zeros(101), {"name": [f"n{i}" for i in range(101)]}, ("name",))
    with pytest.raises(ValueError, match="'name' has 101 names"):
        fill(many)


def test_long_tables() -> None:
    da, truth = field()
    frame = da.to_dataframe().dropna().reset_index()
    filled = fill_table(frame, ["lat", "day"], "t", steps=10, samples=8, generator=seeded())
    assert list(filled.columns) == ["lat", "day", "t", "mean", "std"]
    assert len(filled) == truth.size
    assert filled["t"].notna().sum() == len(frame)
    assert np.sqrt(((filled["mean"].to_numpy() - truth.ravel()) ** 2).mean()) < 0.3
    with pytest.raises(ValueError, match="no column 'lot'; it has 'lat', 'day', 't'"):
        fill_table(frame, ["lot", "day"], "t")
    twice = pd.concat([frame, frame.iloc[:1]], ignore_index=True)
    with pytest.raises(ValueError, match=f"occurs twice, again in row {len(frame)}"):
        fill_table(twice, ["lat", "day"], "t")
    with pytest.raises(TypeError, match=r"dims must be a list of columns, .* got 'lat'"):
        fill_table(frame, "lat", "t")
    with pytest.raises(ValueError, match="'mean' is also a column of the result"):
        fill_table(frame.rename(columns={"t": "mean"}), ["lat", "day"], "mean")
    with pytest.raises(TypeError, match="takes a DataFrame of pandas, got ndarray"):
        fill_table(frame.to_numpy(), ["lat", "day"], "t")


def test_dates_as_texts_are_dates() -> None:
    """As they come from a CSV file; they are not names without an order."""
    da, _ = field()
    table = da.to_dataframe().dropna().reset_index()
    texts = table.assign(day=table["day"].dt.strftime("%Y-%m-%d"))
    options: dict[str, Any] = {"steps": 2, "samples": 8, "progress": False}
    expected = fill_table(table, ["lat", "day"], "t", generator=seeded(), **options)
    filled = fill_table(texts, ["lat", "day"], "t", generator=seeded(), **options)
    assert filled["day"].iloc[0] == "2020-01-01"
    np.testing.assert_allclose(filled["mean"], expected["mean"], rtol=1e-9)
    np.testing.assert_allclose(filled["std"], expected["std"], rtol=1e-9)
    unclear = table.assign(day=table["day"].dt.strftime("%m/%d/%Y"))
    with pytest.raises(ValueError, match=r"'day' seems to hold dates such as '01/01/2020': .* by pandas\.to_datetime"):
        fill_table(unclear, ["lat", "day"], "t")


@pytest.mark.parametrize("names", [True, False])
def test_seasons_are_found(names: bool) -> None:
    """A cycle of twelve months in six years: from a long length scale it would look like noise."""
    draw = np.random.default_rng(0)
    time = np.arange("1975-01", "1981-01", dtype="datetime64[M]").astype("datetime64[ns]")
    truth = 15 - 12 * np.cos(2 * np.pi * np.arange(72) / 12) + draw.normal(size=(5, 1))
    hole = draw.random(truth.shape) < 0.15
    values = np.where(hole, np.nan, truth + 0.5 * draw.normal(size=truth.shape))
    stations = [f"s{i}" for i in range(5)] if names else np.arange(5.0)
    field = xr.DataArray(values, {"station": stations, "time": time}, ("station", "time"))
    filled = fill(field, progress=False, device="cpu", generator=torch.Generator().manual_seed(0))
    # Found without a word about seasons, in the units of the coordinate.
    period = re.search(r"Periodic\(period=([0-9.]+)", filled.attrs["kernel_time"])
    assert period is None or float(period[1]) == pytest.approx(365.25, rel=0.02)
    assert ("Task" if names else "Matern") in filled.attrs["kernel_station"]
    error = (filled["mean"].values - truth)[hole]
    assert np.sqrt((error**2).mean()) < 0.5
    assert np.mean(np.abs(error) < 1.96 * filled["std"].values[hole]) > 0.8


def test_more_bad_coordinates() -> None:
    time = np.array(["2000-01-01", "NaT", "2000-01-03"], dtype="datetime64[ns]")
    with pytest.raises(ValueError, match="coordinate 'time' has no time at position 1"):
        fill(xr.DataArray([1.0, 2.0, 3.0], {"time": time}, ("time",)))
    with pytest.raises(ValueError, match="the result has a 'sample' of its own"):
        fill(xr.DataArray([1.0, 2.0, 3.0], dims=("sample",)))
    frame = pd.DataFrame({"a": [1, 1], "b": [2, 2], "v": [0.1, 0.2]}, index=[7, 7])
    with pytest.raises(ValueError, match="the cell a = 1, b = 2 occurs twice, again in row 1"):
        fill_table(frame, ["a", "b"], "v")


def image(kernel: Any, p: int = 18) -> tuple[Any, np.ndarray]:
    """A field on pixels, a draw of a kernel, with a third of its values and a corner missing."""
    g = torch.Generator().manual_seed(1)
    X = torch.cartesian_prod(*[torch.arange(p, dtype=torch.float64)] * 2)
    root = torch.linalg.cholesky(kernel(X).detach() + 1e-8 * torch.eye(p**2))
    truth = (root @ torch.randn(p**2, generator=g, dtype=torch.float64)).view(p, p).numpy()
    values = truth + 0.05 * torch.randn(p, p, generator=g, dtype=torch.float64).numpy()
    values[torch.rand(p, p, generator=g).numpy() < 0.3] = np.nan
    values[:5, :5] = np.nan
    return xr.DataArray(values.astype(np.float32), dims=("y", "x")), truth


def test_an_isotropic_kernel_is_chosen_by_evidence() -> None:
    da, truth = image(kernels.Matern(1.5, 5.0))
    options: dict[str, Any] = {"steps": 3, "samples": 16, "progress": False}
    ds = fill(da, generator=seeded(), **options)
    assert ds.attrs["kernel_y"] == ds.attrs["kernel_x"]
    assert "Matern(nu=" in ds.attrs["kernel_x"]
    assert "nats per cell" in ds.attrs["choice"]
    assert list(ds.data_vars) == ["mean", "std", "samples"]
    assert ds["samples"].shape == (16, 18, 18)
    assert all(ds[name].dtype == np.float32 for name in ("mean", "std", "samples"))
    missing = np.isnan(da.values)
    error = (ds["mean"].values - truth)[missing]
    assert (np.abs(error) < 3 * ds["std"].values[missing]).mean() > 0.95
    product = fill(da, generator=seeded(), isotropic=False, **options)
    assert "choice" not in product.attrs
    assert product.attrs["kernel_x"] != product.attrs["kernel_y"]


def test_a_product_is_chosen_by_evidence() -> None:
    da, _ = image(kernels.Matern(0.5, 6.0, active_dims=[0]) * kernels.Matern(0.5, 6.0, active_dims=[1]))
    ds = fill(da, steps=1, samples=4, progress=False, generator=seeded())
    assert "nats per cell" in ds.attrs["choice"]
    assert ds.attrs["kernel_x"] != ds.attrs["kernel_y"]


def test_latitude_and_longitude_are_on_the_sphere() -> None:
    lat, lon = np.linspace(-90, 90, 10), np.arange(0.0, 360.0, 24.0)
    a, b = np.deg2rad(lat)[:, None], np.deg2rad(lon)[None]
    truth = np.cos(a) * np.cos(b) + np.sin(2 * a)
    values = truth + 0.01 * np.random.default_rng(0).standard_normal(truth.shape)
    values[3:6, -2:] = np.nan
    values[-1, 5:] = np.nan
    da = xr.DataArray(values, {"lat": lat, "lon": lon}, ("lat", "lon"))
    ds = fill(da, steps=3, samples=4, progress=False, isotropic=True, generator=seeded())
    assert "Sphere" in ds.attrs["kernel_lat"]
    assert np.abs(ds["mean"].values - truth)[np.isnan(values)].max() < 0.1
    poles = ds["mean"].values[[0, -1]]
    np.testing.assert_allclose(poles, np.broadcast_to(poles[:, :1], poles.shape), atol=1e-8)
    with pytest.raises(ValueError, match="two coordinates of space"):
        fill(field()[0], isotropic=True)


def test_dimensions_called_lat_and_lon_without_coordinates_are_pixels() -> None:
    da = image(kernels.Matern(1.5, 5.0), 12)[0].rename(y="lat", x="lon")
    options: dict[str, Any] = {"steps": 1, "samples": 2, "progress": False, "isotropic": True}
    assert "Sphere" not in fill(da, generator=seeded(), **options).attrs["kernel_lat"]
    numbered = da.assign_coords(lat=np.arange(12.0), lon=np.arange(12.0))
    assert "Sphere" in fill(numbered, generator=seeded(), **options).attrs["kernel_lat"]


def test_a_periodic_kernel_of_longitudes_on_a_circle_is_refused() -> None:
    da = xr.DataArray(np.arange(36.0), {"lon": np.arange(0.0, 360.0, 10.0)}, ("lon",))
    with pytest.raises(ValueError, match="'lon' are points on a circle, whose ends meet without Periodic"):
        fill(da, {"lon": kernels.Scale(kernels.Periodic(360.0, 1.0), 1.0)}, steps=0)
