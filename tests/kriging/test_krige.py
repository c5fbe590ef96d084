"""Kriging against the textbook: the kriging system of dense matrices, and every form of points and targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from pathgp import kernels, metrics
from pathgp.kriging import Kriging, krige
from reference import matern

pd, xr = pytest.importorskip("pandas"), pytest.importorskip("xarray")

RNG = np.random.default_rng(3)
POINTS = RNG.uniform(0.0, 4.0, (60, 2))
HEIGHT = RNG.uniform(0.0, 1.0, 60)
VALUES = np.sin(POINTS[:, 0]) + 0.5 * POINTS[:, 1] + 2.0 * HEIGHT + 10.0
TARGETS = RNG.uniform(0.0, 5.0, (25, 2))
NUGGET = 0.1
FRAME = pd.DataFrame({"x": POINTS[:, 0], "y": POINTS[:, 1], "h": HEIGHT, "v": VALUES})
# Nothing is learned: the numbers can be compared.
FIXED: dict[str, Any] = {"kernel": kernels.Scale(kernels.Matern(1.5, 0.8), 1.3), "nugget": NUGGET, "steps": 0}


def covariance(A: Any, B: Any) -> Any:
    return 1.3**2 * matern(torch.as_tensor(A), torch.as_tensor(B), 1.5, 0.8).numpy()


def kriging_system(
    targets: Any, basis: Any, target_basis: Any, noise: Any = NUGGET, points: Any = POINTS, values: Any = VALUES
) -> tuple[Any, Any]:
    """Mean and variance of the universal kriging predictor, from its system with Lagrange multipliers."""
    n, p = basis.shape
    H = covariance(points, points) + np.diag(np.broadcast_to(noise, n) ** 2)
    whole = np.block([[H, basis], [basis.T, np.zeros((p, p))]])
    right = np.concatenate([covariance(points, targets), target_basis.T])
    weights = np.linalg.solve(whole, right)
    return weights[:n].T @ values, 1.3**2 - (weights * right).sum(0)


def agrees(result: Kriging, mean: Any, variance: Any) -> None:
    np.testing.assert_allclose(result.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(result.std, np.sqrt(variance), rtol=1e-5)


ONES, TARGET_ONES = np.ones((60, 1)), np.ones((25, 1))


def test_ordinary_kriging() -> None:
    result = krige(POINTS, VALUES, TARGETS, **FIXED)
    agrees(result, *kriging_system(TARGETS, ONES, TARGET_ONES))
    assert result.nugget == pytest.approx(NUGGET)
    assert result.samples.shape == (64, 25)
    # The simulations are functions: the same at other targets.
    np.testing.assert_allclose(result.at(TARGETS[::-1]).samples, result.samples[:, ::-1], rtol=1e-9)


def test_universal_kriging() -> None:
    linear = krige(POINTS, VALUES, TARGETS, trend="linear", **FIXED)
    agrees(linear, *kriging_system(TARGETS, np.hstack([ONES, POINTS]), np.hstack([TARGET_ONES, TARGETS])))
    assert "x0:" in dict(linear.summary_items())["trend"]


def test_simple_kriging_and_one_point() -> None:
    result = krige(POINTS[:1], VALUES[:1], TARGETS, trend=12.0, **FIXED)
    k = covariance(TARGETS, POINTS[:1])[:, 0]
    H = 1.3**2 + NUGGET**2
    agrees(result, 12.0 + k * (VALUES[0] - 12.0) / H, 1.3**2 - k**2 / H)


def test_noise_of_single_values() -> None:
    known = np.linspace(0.05, 0.5, 60)
    expected = kriging_system(TARGETS, ONES, TARGET_ONES, np.hypot(NUGGET, known))
    agrees(krige(POINTS, VALUES, TARGETS, noise=known, **FIXED), *expected)
    named = krige(FRAME.assign(s=known), "v", FRAME.iloc[:3], columns=["x", "y"], noise="s", **FIXED)
    agrees(named, *kriging_system(POINTS[:3], ONES, TARGET_ONES[:3], np.hypot(NUGGET, known)))


def test_duplicate_points() -> None:
    twice = np.concatenate([POINTS, POINTS[:10]])
    values = np.concatenate([VALUES, VALUES[:10] + 0.3])
    result = krige(twice, values, TARGETS, **FIXED)
    agrees(result, *kriging_system(TARGETS, np.ones((70, 1)), TARGET_ONES, points=twice, values=values))


def test_frame_with_external_drift() -> None:
    targets = pd.DataFrame({"name": list("abcde"), "y": TARGETS[:5, 1], "h": HEIGHT[:5], "x": TARGETS[:5, 0]})
    result = krige(FRAME, "v", targets, trend=["h"], **FIXED | {"kernel": _on_the_plane()})
    agrees(
        result,
        *kriging_system(TARGETS[:5], np.c_[ONES, HEIGHT], np.c_[TARGET_ONES[:5], HEIGHT[:5]]),
    )
    frame = result.to_frame(threshold=12.0)
    assert list(frame.columns) == ["name", "y", "h", "x", "mean", "std", "exceedance"]
    np.testing.assert_array_equal(frame["mean"], result.mean)


def _on_the_plane() -> kernels.Kernel:
    return kernels.Scale(kernels.Matern(1.5, 0.8, active_dims=[0, 1]), 1.3)


def test_grid_to_dataset_and_file(tmp_path: Any) -> None:
    result = krige(FRAME[["x", "y"]], VALUES, grid=(0.5, 1.0), samples=5, **FIXED)
    field = result.to_dataset(threshold=11.0, samples=2)
    assert field["mean"].dims == ("y", "x")
    assert field["samples"].shape == (2, 5, 9)
    np.testing.assert_allclose(field["x"], np.arange(9) / 2)
    place = field.sel(x=1.5, y=2.0)
    mean, variance = kriging_system(np.array([[1.5, 2.0]]), ONES, TARGET_ONES[:1])
    assert float(place["mean"]) == pytest.approx(mean[0])
    assert float(place["std"]) == pytest.approx(np.sqrt(variance[0]), rel=1e-5)
    assert float(place["exceedance"]) == pytest.approx(norm.sf(11.0, mean[0], np.sqrt(variance[0])), rel=1e-4)
    field.to_netcdf(tmp_path / "map.nc", engine="scipy")
    xr.testing.assert_allclose(xr.load_dataset(tmp_path / "map.nc", engine="scipy"), field)
    assert len(result.to_frame()) == 45


def test_grid_of_a_dataset_with_drift() -> None:
    x, y = np.linspace(0, 4, 4), np.linspace(1, 3, 3)
    height = xr.DataArray(RNG.uniform(0, 1, (4, 3)), coords={"x": x, "y": y}, dims=("x", "y"))
    result = krige(FRAME, "v", grid=height.to_dataset(name="h"), trend=["h"], **FIXED | {"kernel": _on_the_plane()})
    field = result.to_dataset()
    X = np.array([[x[2], y[1]]])
    drift = np.array([[1.0, float(height[2, 1])]])
    mean, variance = kriging_system(X, np.c_[ONES, HEIGHT], drift)
    assert float(field["mean"].sel(x=x[2], y=y[1])) == pytest.approx(mean[0])
    assert float(field["std"].sel(x=x[2], y=y[1])) == pytest.approx(np.sqrt(variance[0]), rel=1e-5)


def test_block_kriging() -> None:
    result = krige(POINTS, VALUES, TARGETS[:4], cells=(1.0, 0.5), cell_points=3, **FIXED)
    dx, dy = np.meshgrid([-1 / 3, 0, 1 / 3], [-1 / 6, 0, 1 / 6], indexing="ij")
    for i in range(4):
        inside = TARGETS[i] + np.c_[dx.ravel(), dy.ravel()]
        H = covariance(POINTS, POINTS) + NUGGET**2 * np.eye(60)
        whole = np.block([[H, ONES], [ONES.T, np.zeros((1, 1))]])
        right = np.append(covariance(POINTS, inside).mean(1), 1.0)
        weights = np.linalg.solve(whole, right)
        assert result.mean[i] == pytest.approx(weights[:60] @ VALUES)
        expected = covariance(inside, inside).mean() - weights @ right
        assert result.std[i] == pytest.approx(np.sqrt(expected), rel=1e-5)
    assert result.samples.shape == (64, 4)
    whole_grid = result.at(grid=1.0, cells=True)
    assert whole_grid.cells is not None
    assert whole_grid.cells.sizes == (1.0, 1.0)


def test_longitudes_wrap_and_poles_are_points() -> None:
    lonlat = np.c_[RNG.uniform(-180, 180, 50), RNG.uniform(-80, 80, 50)]
    values = np.sin(np.deg2rad(lonlat[:, 1]))
    given = {"kernel": kernels.Sphere(kernels.Matern(1.5, 0.8), active_dims=[1, 0]), "nugget": 0.1, "steps": 0}
    targets = [[180.0, 20.0], [-180.0, 20.0], [200.0, 5.0], [-160.0, 5.0], [0.0, 90.0], [77.0, 90.0]]
    result = krige(lonlat, values, targets, coordinates="lonlat", **given)
    for a, b in ((0, 1), (2, 3), (4, 5)):
        assert result.mean[a] == pytest.approx(result.mean[b])
        assert result.std[a] == pytest.approx(result.std[b])
    # Names of columns tell the same, in any order.
    frame = pd.DataFrame({"lat": lonlat[:, 1], "Longitude": lonlat[:, 0]})
    by_name = krige(
        frame,
        values,
        pd.DataFrame(targets, columns=["Longitude", "lat"]),
        **given | {"kernel": kernels.Sphere(kernels.Matern(1.5, 0.8), active_dims=[0, 1])},
    )
    np.testing.assert_allclose(by_name.mean, result.mean)
    grid = result.at(grid=30.0)
    assert grid.to_dataset()["lon"].attrs["units"] == "degrees_east"
    assert len(grid.to_dataset()["lon"]) == 12


def test_learned_model() -> None:
    """The default: kernel, anisotropy and nugget learned, scores of cross-validation from leave-one-out."""
    X = RNG.uniform(0, 1, (120, 2)) * [1000.0, 10.0]
    noise = 0.2 * RNG.standard_normal(120)
    y = 5 * np.sin(X[:, 0] / 150) + np.cos(X[:, 1] / 2) + 100 + noise
    result = krige(X[:90], y[:90], X[90:], steps=10, generator=torch.Generator().manual_seed(0))
    assert 0.1 < result.nugget < 0.4
    variance = result.std**2 + result.nugget**2
    assert metrics.rmse(y[90:], result.mean) < 0.5
    assert metrics.coverage(y[90:], result.mean, variance) > 0.8
    items = dict(result.summary_items())
    assert "Matern(" in items["kernel"]
    assert "by the log likelihood of groups of neighbours: matern-3/2" in items["note"]
    scores = result.cross_validation
    loo = result.posterior.leave_one_out()
    np.testing.assert_allclose(scores.errors, y[:90] - loo.means.numpy())
    assert scores.crps == pytest.approx(metrics.crps(y[:90], loo.means, loo.variances))
    assert scores.standardised.std() == pytest.approx(1.0, abs=0.2)
    assert "RMSE" in repr(scores)
    # The model's variogram starts at the squared nugget, and rises to nugget and signal.
    curve = result.variogram.model
    assert curve is not None
    assert curve[0, 0] == pytest.approx(result.nugget**2)


def test_isotropy_is_one_length_scale_in_the_units_of_the_map() -> None:
    X = POINTS * [10.0, 1.0]
    result = krige(X, VALUES, TARGETS, kernel="matern-3/2", anisotropy=False, nugget=0.3, steps=3)
    scale = result.posterior.scaling.scale
    assert float(scale[0]) == float(scale[1])
    assert result.posterior.model.kernel.kernel.lengthscale.numel() == 1
    assert result.nugget == pytest.approx(0.3)
    assert result.posterior.trend is not None


@pytest.mark.parametrize(("centre", "first"), [(180.0, 150.0), (0.0, -30.0)])
def test_a_grid_does_not_go_around_the_earth_for_points_on_one_side(centre: float, first: float) -> None:
    """Longitudes on both sides of 180 or of 0: the same grid, whether they are written from -180 or from 0."""
    pytest.importorskip("xarray")
    lat, values = RNG.uniform(-20, 20, 40), RNG.normal(size=40)
    lon = centre + np.r_[-29.5, 29.5, RNG.uniform(-29, 29, 38)]
    options: dict[str, Any] = {"coordinates": "lonlat", "nugget": 0.1, "steps": 0}
    options["kernel"] = kernels.Sphere(kernels.Matern(1.5, 0.2), active_dims=[1, 0])
    maps = []
    for written in ((lon + 180.0) % 360.0 - 180.0, lon % 360.0):
        result = krige(np.c_[written, lat], values, grid=5.0, **options)
        maps.append(result.to_dataset())
        marks = result.plot().axes[0].lines[0].get_xdata()
        assert np.abs(marks - centre).max() < 30.0
    for found in maps:
        np.testing.assert_allclose(found["lon"], np.arange(first, first + 61.0, 5.0))
        np.testing.assert_allclose(found["mean"], maps[0]["mean"], atol=1e-8)


@pytest.mark.parametrize("turn", [0.0, -360.0])
def test_a_trend_in_the_longitude_is_the_same_for_every_way_to_write_it(turn: float) -> None:
    """Longitudes across 180 degrees: targets, nodes and sub-points of cells are seen where the observations are."""
    lon, lat = RNG.uniform(170, 230, 40), RNG.uniform(-20, 20, 40)
    truth = 5 + 0.3 * lon + 0.1 * lat
    options: dict[str, Any] = {"coordinates": "lonlat", "trend": "linear", "nugget": 0.01, "steps": 0, "samples": 2}
    options["kernel"] = kernels.Scale(kernels.Sphere(kernels.Matern(1.5, 0.2), active_dims=[1, 0]), 0.1)
    written = np.where(lon > 190.0, lon + turn, lon)
    places = np.c_[written, lat]
    result = krige(places, truth, places, **options)
    np.testing.assert_allclose(result.mean, truth, atol=0.1)
    np.testing.assert_allclose(result.at(np.c_[(lon + 180.0) % 360.0 - 180.0, lat]).mean, result.mean, atol=1e-8)
    np.testing.assert_allclose(result.simulate(places), result.simulate(np.c_[lon, lat]), atol=1e-8)
    for name, found in (("cells", result.at(grid=10.0, cells=True)), ("nodes", result.at(grid=10.0))):
        field = found.to_dataset()["mean"]
        expected = 5 + 0.3 * (field["lon"] % 360.0) + 0.1 * field["lat"]
        assert float(abs(field - expected).max()) < 1.0, name


def test_columns_of_the_noise_and_of_the_trend() -> None:
    """By default the column of the noise is no coordinate; longitude and latitude are, also if the trend uses them."""
    named = krige(FRAME[["x", "y", "v"]].assign(s=0.1), "v", FRAME, noise="s", **FIXED)
    assert named.coordinates.names == ("x", "y")
    frame = pd.DataFrame({"lon": POINTS[:, 0], "lat": POINTS[:, 1], "v": VALUES})
    sphere = kernels.Sphere(kernels.Matern(1.5, 0.5), active_dims=[1, 0])
    options = FIXED | {"kernel": sphere, "trend": ["lat"]}
    result = krige(frame, "v", frame, **options)
    assert result.coordinates.columns == ("lon", "lat")
    assert result.coordinates.lonlat == (0, 1)
    assert dict(result.summary_items())["trend"].split("lat")[1].startswith(": 0.")
    np.testing.assert_allclose(result.mean, krige(frame, "v", frame, columns=["lon", "lat"], **options).mean)


def test_a_given_kernel_sees_the_coordinates_only() -> None:
    """Columns of the trend are no coordinates, unless the kernel names them."""
    targets = pd.DataFrame({"x": TARGETS[:5, 0], "y": TARGETS[:5, 1], "h": HEIGHT[:5]})
    options = FIXED | {"trend": ["h"]}
    basis, target_basis = np.c_[ONES, HEIGHT], np.c_[TARGET_ONES[:5], HEIGHT[:5]]
    result = krige(FRAME, "v", targets, **options)
    agrees(result, *kriging_system(TARGETS[:5], basis, target_basis))
    assert dict(result.summary_items())["signal"].startswith("1.3:")
    named = kernels.Matern(1.5, 0.8, active_dims=[0, 2])
    assert repr(krige(FRAME, "v", targets, **options | {"kernel": named}).posterior.model.kernel) == repr(named)


def test_a_given_kernel_of_longitude_and_latitude_is_on_the_sphere() -> None:
    """Its length scale is in Earth radii, and the summary says kilometres for it alone."""
    places = np.c_[RNG.uniform(-180, 180, 60), RNG.uniform(-80, 80, 60)]
    options: dict[str, Any] = {"coordinates": "lonlat", "nugget": 0.1, "steps": 0, "samples": 2}
    given = kernels.Scale(kernels.Matern(1.5, 0.5), 1.3)
    result = krige(places, VALUES, [[180.0, 20.0], [-180.0, 20.0]], kernel=given, **options)
    sphere = kernels.Scale(kernels.Sphere(kernels.Matern(1.5, 0.5), active_dims=[1, 0]), 1.3)
    np.testing.assert_allclose(result.mean, result.mean[::-1])
    np.testing.assert_allclose(result.mean, krige(places, VALUES, [[180.0, 20.0]] * 2, kernel=sphere, **options).mean)
    assert dict(result.summary_items())["length scale"] == "3186 km"
    learned = krige(places, VALUES, places, kernel=given, **options | {"steps": 2})
    assert "active_dims=[1, 0]" in dict(learned.summary_items())["kernel"]
    assert learned.posterior.model.kernel.kernel.kernel.lengthscale.item() != 0.5
    bands = kernels.Matern(1.5, 12.0, active_dims=[1])
    assert dict(krige(places, VALUES, places, kernel=bands, **options).summary_items())["length scale"] == "lat 12"
    with pytest.raises(ValueError, match=r"one length scale, in Earth radii.* active_dims=\[1, 0\]"):
        krige(places, VALUES, places, kernel=kernels.Matern(1.5, [0.1, 0.2]), **options)
    with pytest.raises(ValueError, match=r"latitude, then longitude, which are the columns \[1, 0\]"):
        krige(places / 2, VALUES, places, kernel=kernels.Sphere(kernels.Matern(1.5, 0.5)), **options)
    timed = np.c_[places, RNG.uniform(0, 9, 60)]
    both = kernels.Matern(1.5, 2.0, active_dims=[2]) * kernels.Matern(1.5, 0.5, active_dims=[0, 1])
    summary = dict(krige(timed, VALUES, timed, kernel=both, **options).summary_items())
    assert summary["length scale"] == "x2 2, 3186 km"
