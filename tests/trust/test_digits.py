"""Inputs and targets with an offset keep their digits: shifted in float64, and only then rounded.

Seconds since 1970 have ten digits before the point, float32 has seven in all. Every case is compared with the same
data without the offset, in float64.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pathgp
import reference
from pathgp.cli import main
from pathgp.data.snap import snap
from pathgp.kernels import Matern
from pathgp.means import Constant
from plain_fits import plain_fit

EPOCH = 1.7e9
LEVEL = 2.4e8


def series(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Times one minute apart (n, 1) in seconds, without an offset, and a signal over ten minutes (n,)."""
    t = 60.0 * np.arange(n)[:, None]
    return t, np.sin(t[:, 0] / 600.0)


def gp(**options: Any) -> pathgp.GP:
    return pathgp.GP(Matern(1.5, 0.3), noise=0.05, standardise=True, **options)


def expected(t: np.ndarray, y: np.ndarray, ts: np.ndarray) -> np.ndarray:
    """The posterior mean of `gp` in float64, of numbers without an offset."""
    z, zs = (torch.tensor((x - t.mean()) / t.std()) for x in (t, ts))
    K, cross = reference.matern(z, z, 1.5, 0.3), reference.matern(zs, z, 1.5, 0.3)
    targets = torch.tensor((y - y.mean()) / y.std())
    mean = cross @ torch.linalg.solve(K + 0.05**2 * torch.eye(len(K), dtype=torch.float64), targets)
    return (mean * y.std() + y.mean()).numpy()


@pytest.mark.parametrize("level", [0.0, LEVEL])
@pytest.mark.parametrize("epoch", [0.0, EPOCH])
@pytest.mark.parametrize("fitted", [False, True])
def test_a_model_in_float32_of_numbers_with_offsets(epoch: float, level: float, fitted: bool) -> None:
    t, y = series()
    ts = t[:-1] + 30.0
    model, options = gp(), {"dtype": torch.float32, "tol": 1e-4, "samples": 4}
    if fitted:
        plain_fit(model.constrain("noise", fixed=True), t + epoch, y + level, steps=1, learning_rate=1e-6, **options)
        post = model.posterior
    else:
        post = model.condition(t + epoch, y + level, **options)
    assert post.report.precision == "float32"
    assert post.X.dtype == torch.float64
    np.testing.assert_allclose(post.X.numpy() - epoch, t, atol=0.01)
    mean = post.mean(ts + epoch)
    assert mean.dtype == post.variance(ts + epoch).dtype == post.paths(ts + epoch).dtype == np.float64
    np.testing.assert_allclose(mean - level, expected(t, y, ts), atol=1e-3)
    assert np.abs(post.paths(ts + epoch) - mean).max() < 1.0
    # New rows are shifted before they are rounded, too.
    more = post.update(ts[:50] + epoch, np.sin(ts[:50, 0] / 600.0) + level)
    np.testing.assert_allclose(more.mean(ts[:50] + epoch) - level, np.sin(ts[:50, 0] / 600.0), atol=0.02)


@pytest.mark.parametrize("mean", [LEVEL, lambda X: X[:, 0].double() * 0 + LEVEL])
def test_targets_far_from_zero_with_float32_inputs(mean: Any) -> None:
    """The level is in y alone: predictions need float64, where it is in the standardisation and where in the mean."""
    t, y = series()
    x = (t / 600.0).astype(np.float32)
    plain = pathgp.GP(Matern(1.5, 2.0), 0.05).condition(x, y, samples=2, tol=1e-5).mean(x)
    assert plain.dtype == np.float32
    for model in (pathgp.GP(Matern(1.5, 2.0), 0.05, mean=mean), gp(), gp(mean=mean)):
        post = model.condition(x, y + LEVEL, samples=2, tol=1e-5)
        found = post.mean(x)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found - LEVEL, plain, atol=0.05)
        assert np.ptp(post.paths(x)) > 1.0
        assert np.ptp(post.sample(x[:5], 3)) > 0.0


def test_a_saved_posterior_keeps_the_digits(tmp_path: Path) -> None:
    t, y = series()
    post = gp().condition(t + EPOCH, y + LEVEL, dtype=torch.float32, samples=2)
    post.save(tmp_path / "post.pgp")
    again = pathgp.load(tmp_path / "post.pgp").mean(t + EPOCH)
    assert again.dtype == np.float64
    np.testing.assert_array_equal(again, post.mean(t + EPOCH))


def test_a_learned_mean_far_from_zero() -> None:
    t, y = series()
    model = gp(mean=Constant(0.0))
    plain_fit(model, t + EPOCH, y + LEVEL, dtype=torch.float32, steps=3, samples=4, initialise="data")
    np.testing.assert_allclose(model.posterior.mean(t + EPOCH) - LEVEL, y, atol=0.1)


def test_what_float32_cannot_hold_is_refused() -> None:
    t, y = series(60)
    plain = pathgp.GP(Matern(1.5, 600.0), 0.05)
    with pytest.raises(ValueError, match="float32 would blur or merge distinct values of column 0 of X: use standard"):
        plain.condition(t + EPOCH, y, dtype=torch.float32)
    plain.condition(t, y, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"y varies by 0\.7 about 2\.4e\+08, digits that float32 lacks: use"):
        plain.condition(t.astype(np.float32), y + LEVEL)
    # Two bursts, ten years apart: no shift leaves room for seconds.
    burst = np.concatenate([np.arange(60.0), 3e8 + np.arange(60.0)])[:, None]
    with pytest.raises(ValueError, match="column 0 of X: use float64"):
        gp().condition(burst, np.sin(burst[:, 0]), dtype=torch.float32)
    with pytest.raises(ValueError, match="column 0 of X: use a mean function of shifted inputs"):
        gp(mean=lambda X: 1e-3 * (X[:, 0] - EPOCH)).condition(t + EPOCH, y, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"dtype must be torch\.float32, torch\.float64, 'auto' or None"):
        plain.condition(t, y, dtype=torch.float16)
    with pytest.raises(ValueError, match="'auto' or None, got 'float'"):
        plain.condition(t, y, dtype="float")
    for whole in (np.array([[2**62 + 1], [2**62 + 2]]), torch.tensor([[2**62 + 1], [2**62 + 2]])):
        with pytest.raises(ValueError, match=r"X has whole numbers beyond 2\^53"):
            plain.condition(whole, np.zeros(2))
    plain.condition(np.array([[2**60], [2**61]]), np.zeros(2))


def test_ordinary_columns_are_not_blurred() -> None:
    """Coordinates, categories, constants and a hundred thousand random numbers have room in float32."""
    from pathgp.data.standardise import blurred_column

    source = torch.Generator().manual_seed(0)
    n = 100_000
    columns = [
        torch.rand(n, generator=source, dtype=torch.float64),
        torch.randint(3, (n,), generator=source).double(),
        torch.full((n,), 0.1, dtype=torch.float64),
        273.15 + 10 * torch.randn(n, generator=source, dtype=torch.float64).round(decimals=2),
    ]
    assert blurred_column(torch.stack(columns, 1), torch.float32) is None
    columns.append(EPOCH + 60.0 * torch.arange(n, dtype=torch.float64))
    assert blurred_column(torch.stack(columns, 1), torch.float32) == 4


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("unit", [1.0, 3600.0])
def test_a_float32_grid_at_float64_coordinates(unit: float, standardise: bool) -> None:
    """60 times one minute apart, in seconds or hours since 1970: 29 different numbers in float32, or one."""
    t = 60.0 * np.arange(60) / unit
    y = np.sin(60.0 * np.arange(60) / 600.0)
    Y = np.stack([y, 2 * y, -y], 1).astype(np.float32)
    Y[::7, 0] = np.nan
    kernel = Matern(1.5, 0.5 if standardise else 900.0 / unit)
    model = pathgp.LatentKroneckerGP([kernel, Matern(1.5, 0.5)], noise=0.02, standardise=standardise)
    generator = torch.Generator().manual_seed(0)
    post = model.condition([t + EPOCH / unit, None], Y, tol=1e-4, samples=4, generator=generator)
    truth = model.condition([t, None], Y.astype(np.float64), tol=1e-4, samples=4).mean()
    found = post.mean()
    assert found.dtype == np.float32
    assert post.report.precision == ("float32" if standardise else "float64")
    np.testing.assert_allclose(found, truth, atol=5e-3)
    assert np.sqrt(np.nanmean((found - np.stack([y, 2 * y, -y], 1)) ** 2)) < 0.02
    between = post.mean(t[:-1] + EPOCH / unit + 30.0 / unit, None)[:, 0]
    np.testing.assert_allclose(between, np.sin((60.0 * np.arange(59) + 30.0) / 600.0), atol=0.05)
    points = np.stack([t + EPOCH / unit, np.zeros(60)], 1)
    np.testing.assert_allclose(post.at(points, generator).mean, found[:, 0], atol=1e-3)
    again = post.update(Y)
    np.testing.assert_allclose(again.mean(), found, atol=5e-3)


def test_a_field_at_epoch_seconds() -> None:
    xr = pytest.importorskip("xarray")
    from pathgp.xarray import fill

    t, y = series(60)
    Y = np.stack([y, 2 * y, -y], 1).astype(np.float32)
    truth = Y.copy()
    Y[::3, 0] = np.nan
    field = xr.DataArray(Y, dims=("time", "x"), coords={"time": t[:, 0] + EPOCH, "x": [0.0, 1.0, 2.0]})
    filled = fill(field, steps=30, generator=torch.Generator().manual_seed(0))
    assert float(np.sqrt(np.mean((filled["mean"].values - truth) ** 2))) < 0.02
    # A level that float32 has room for, but not in its sums.
    far = xr.DataArray((1e5 + truth).astype(np.float32), dims=("time", "x"), coords=field.coords)
    filled = fill(far, steps=30, generator=torch.Generator().manual_seed(0))
    assert float(np.sqrt(np.mean((filled["mean"].values - far.values) ** 2))) < 0.05


def test_snapped_values_keep_their_digits() -> None:
    t, y = series(60)
    found = snap((t / 60.0).astype(np.float32), y + LEVEL, [None])
    np.testing.assert_allclose(found.Y - LEVEL, y, atol=1e-6)


@pytest.mark.parametrize("related", [False, True])
def test_the_regressor_keeps_the_digits_of_targets(related: bool) -> None:
    pytest.importorskip("sklearn")
    from pathgp.sklearn import GPRegressor

    t, y = series(100)
    x = (t / 600.0).astype(np.float32)
    Y = np.stack([y, y**2], 1) + LEVEL if related else y + LEVEL
    model = GPRegressor(steps=10, outputs="related" if related else "independent").fit(x, Y)
    np.testing.assert_allclose(model.predict(x) - LEVEL, Y - LEVEL, atol=0.1)


@pytest.mark.parametrize("precision", [None, "float32", "float64"])
def test_the_command_line_keeps_the_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str | None
) -> None:
    """As many rows as are computed in float32 by default, were the limit not at 10,000."""
    monkeypatch.setattr("pathgp.learning.policy.FLOAT64_ROWS", 100)
    t, y = series()
    table, model, out = (tmp_path / name for name in ("t.csv", "t.pgp", "out.csv"))
    start = dt.datetime.fromtimestamp(EPOCH, dt.UTC)
    moments = [(start + dt.timedelta(seconds=s)).isoformat() for s in t[:, 0]]
    rows = [f"{EPOCH + s:.1f},{moment},{LEVEL + v:.9f}" for s, moment, v in zip(t[:, 0], moments, y, strict=True)]
    table.write_text("\n".join(["seconds,moment,level", *rows]) + "\n")
    asked = [] if precision is None else ["--precision", precision]
    for ignored in ("seconds", "moment"):
        fit = ["fit", str(table), "--target", "level", "--ignore", ignored, "--out", str(model), "--quiet", *asked]
        # With noise: without any the fit would go on in float64.
        assert main([*fit, "--steps", "15", "--holdout", "0", "--noise-std", "0.02"]) == 0
        assert pathgp.load(model).report.precision == (precision or "float32")
        assert main(["predict", str(model), str(table), "--out", str(out), "--quiet"]) == 0
        mean = np.loadtxt(out, delimiter=",", skiprows=1)[:, 0]
        np.testing.assert_allclose(mean - LEVEL, y, atol=0.05)


def test_a_side_with_one_value_keeps_its_digits() -> None:
    """No gap between values says what rounding may cost: new inputs lie beside the only one."""
    sides, noise = [2.3e10, 1.6e6], 0.1
    model = pathgp.LatentKroneckerGP([Matern(1.5, 50.0), Matern(2.5, 0.003)], noise=noise)
    post = model.condition([np.array([side]) for side in sides], np.array([[2.0]], dtype=np.float32))
    away = torch.tensor([[28.0], [0.001]], dtype=torch.float64)
    origin = torch.zeros(1, 1, dtype=torch.float64)
    k = reference.matern(away[:1], origin, 1.5, 50.0) * reference.matern(away[1:], origin, 2.5, 0.003)
    mean = post.mean(*(np.array([side]) + step.numpy() for side, step in zip(sides, away, strict=True)))
    assert mean.dtype == np.float32
    assert mean[0, 0] == pytest.approx(2.0 * float(k) / (1.0 + noise**2), rel=1e-4)
