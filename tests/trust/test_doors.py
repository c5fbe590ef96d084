"""What doors make of columns: dates in any unit, missing cells, whole numbers beyond 2^53, many columns, own draws."""

from __future__ import annotations

import copy
import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pathgp
from pathgp import kernels
from pathgp.cli import main

pd = pytest.importorskip("pandas")

MOMENTS = np.datetime64("2024-01-01T00:00:00", "s") + 3600 * np.arange(120)
SIGNAL = np.sin(np.arange(120) / 12.0)
DAYS = np.array(["2024-01-01", "2024-01-03", "2024-01-05", "2024-01-07", "2024-01-09", "2024-01-11"])
UNITS = ["s", "ms", "us", "ns"]


def regressor(**options: Any) -> Any:
    pytest.importorskip("sklearn")
    from pathgp.sklearn import GPRegressor

    return GPRegressor(**({"steps": 20} | options))


@pytest.mark.parametrize("fitted", UNITS)
@pytest.mark.parametrize("asked", UNITS)
def test_the_unit_of_a_date_does_not_matter(fitted: str, asked: str) -> None:
    column = MOMENTS.astype(f"datetime64[{fitted}]")
    again = MOMENTS.astype(f"datetime64[{asked}]")
    plain = regressor(steps=3).fit(pd.DataFrame({"t": column}), SIGNAL)
    np.testing.assert_allclose(plain.predict(pd.DataFrame({"t": again})), SIGNAL, atol=0.05)
    array = regressor(steps=3).fit(column[:, None], SIGNAL)
    np.testing.assert_allclose(array.predict(again[:, None]), SIGNAL, atol=0.05)
    assert (plain.dates_, array.dates_) == (["t"], [0])


def test_dates_beside_other_columns() -> None:
    spans = (MOMENTS - MOMENTS[0]).astype("timedelta64[m]")
    frame = pd.DataFrame({"t": MOMENTS, "x": np.arange(120) % 7, "d": spans, "s": ["a", "b"] * 60})
    model = regressor().fit(frame, SIGNAL)
    assert (model.dates_, list(model.categories_)) == (["t", "d"], ["s"])
    np.testing.assert_allclose(model.predict(frame), SIGNAL, atol=0.1)
    finer = frame.assign(t=frame["t"].astype("datetime64[ns]"), d=frame["d"].astype("timedelta64[ns]"))
    np.testing.assert_allclose(model.predict(finer), model.predict(frame), atol=1e-6)
    # Days since 1970, and days: numbers by hand give the same model.
    numbers = frame.assign(t=MOMENTS.astype(float) / 86400.0, d=np.arange(120) / 24.0)
    np.testing.assert_allclose(regressor().fit(numbers, SIGNAL).predict(numbers), model.predict(frame), atol=1e-3)


def few_days(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of days (n,) and an input that has nothing to do with them."""
    draw = np.random.default_rng(0)
    return draw.integers(len(DAYS), size=n), draw.uniform(size=n)


def test_few_dates_stay_dates() -> None:
    """Six different days are six places on a line, not six names: a day between them has a prediction."""
    which, x = few_days(60)
    written, y = DAYS[which], 2.0 * which
    kinds = {
        "texts": list(written),
        "dates": [dt.date.fromisoformat(text) for text in written],
        "moments": written.astype("datetime64[s]"),
    }
    for name, column in kinds.items():
        frame = pd.DataFrame({"day": column, "x": x})
        model = regressor().fit(frame, y)
        assert (model.categories_, model.dates_) == ({}, ["day"]), name
        new = pd.DataFrame({"day": pd.to_datetime(["2024-01-04", "2024-01-08"]), "x": [0.5, 0.5]})
        np.testing.assert_allclose(model.predict(new), [3.0, 7.0], atol=0.5, err_msg=name)
    asked = pd.DataFrame({"day": pd.Series(written, dtype="category"), "x": x})
    assert list(regressor(steps=1).fit(asked, y).categories_) == ["day"]


def test_frames_that_are_refused_by_name() -> None:
    y = np.arange(4.0)

    def refused(match: str, **columns: Any) -> None:
        with pytest.raises(ValueError, match=match):
            regressor().fit(pd.DataFrame(columns), y)

    refused("column 's' has no value in row 1", s=pd.array(["a", None, "b", "a"], dtype="string"))
    refused("column 's' has no value in row 2", s=np.array(["a", "b", None, "a"], dtype=object))
    refused("column 't' has no time in row 3", t=pd.to_datetime(["2024-01-01"] * 3 + [None]), x=y)
    refused("column 't' has no value in row 0", t=[None, *[dt.date(2024, 1, 1)] * 3])
    refused("column 't' has times with a zone", t=pd.to_datetime(["2024-01-01"] * 4).tz_localize("UTC"))
    refused("column 't' seems to hold dates such as '01/02/2024'", t=["01/02/2024"] * 4)
    refused("column 't' seems to hold dates such as '1.2.2024'", t=["1.2.2024"] * 4)
    refused(r"column 'n' has whole numbers beyond 2\^53", n=2**62 + np.arange(4))
    refused(r"column 'n' has whole numbers beyond 2\^53", n=2**62 + np.arange(4), s=["a", "b", "a", "b"])
    with pytest.raises(ValueError, match=r"X has whole numbers beyond 2\^53"):
        regressor().fit(2**62 + np.arange(4)[:, None], y)
    moments = pd.DataFrame({"t": MOMENTS[:4], "x": y})
    model = regressor(steps=1).fit(moments, y)
    with pytest.raises(ValueError, match="column 't' held dates at the fit and holds numbers now"):
        model.predict(pd.DataFrame({"t": y, "x": y}))
    with pytest.raises(ValueError, match="column 'x' holds dates and held something else"):
        model.predict(pd.DataFrame({"t": MOMENTS[:4], "x": MOMENTS[:4]}))
    with pytest.raises(ValueError, match="column 't' has no time in row 1"):
        model.predict(pd.DataFrame({"t": pd.to_datetime(["2024-01-01", None]), "x": [0.0, 1.0]}))
    with pytest.raises(ValueError, match="column 't' holds dates and held numbers at the fit"):
        regressor(steps=1).fit(pd.DataFrame({"t": y}), y).predict(pd.DataFrame({"t": MOMENTS[:4]}))
    with (
        pytest.raises(ValueError, match="give a frame with the same columns"),
        pytest.warns(UserWarning, match="feature names"),
    ):
        model.predict(np.zeros((4, 2)))
    with pytest.raises(ValueError, match="X was fitted as a frame or as times, got ndarray of float64"):
        regressor(steps=1).fit(MOMENTS[:4, None], y).predict(np.zeros((4, 1)))


def test_dates_in_all_forms() -> None:
    from pathgp.data.tabular import are_dates, days

    start = (dt.date(2024, 3, 31) - dt.date(1970, 1, 1)).days
    for text, more in {
        "2024-03-31": 0.0,
        "2024-03": -30.0,
        "2024-03-31T12:00": 0.5,
        "2024-03-31 12:00:00.5": 0.5 + 0.5 / 86400,
        "2024-03-31T12:00:00Z": 0.5,
        "2024-03-31T12:00:00+02:00": 10 / 24,
        "2024-03-31 12:00:00 -0200": 14 / 24,
    }.items():
        assert are_dates([text])
        assert days("t", np.array([text, None], dtype=object))[0] == pytest.approx(start + more, abs=1e-9)
    assert np.isnan(days("t", np.array(["2024-03", None], dtype=object))[1])
    far = np.array(["3000-01-01"], dtype="datetime64[s]")
    assert days("t", far)[0] == (dt.date(3000, 1, 1) - dt.date(1970, 1, 1)).days
    for text in ("20240331", "2024", "loam", "2024-3-31", "1.2.3"):
        assert not are_dates(["2024-03-31", text])
    assert not are_dates([])
    with pytest.raises(ValueError, match="column 't' holds dates, but '2024-13-01' in row 1"):
        days("t", np.array(["2024-03-01", "2024-13-01"], dtype=object))
    with pytest.raises(ValueError, match="column 't' has times with and without a zone"):
        days("t", np.array(["2024-03-01", "2024-03-01T00:00Z"], dtype=object))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main([*arguments])
    return code, capsys.readouterr().err


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_dates_in_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    table, new, model, out = (tmp_path / name for name in (f"t.{kind}", f"new.{kind}", "t.pgp", "out.csv"))

    def write(path: Path, day: Any, **columns: Any) -> None:
        frame = pd.DataFrame({"day": pd.to_datetime(day), **columns})
        frame.to_parquet(path) if kind == "parquet" else frame.to_csv(path, index=False)

    which, x = few_days(80)
    write(table, DAYS[which], x=x, y=2.0 * which)
    fit = ["fit", str(table), "--target", "y", "--out", str(model), "--quiet", "--holdout", "0"]
    assert run(capsys, *fit)[0] == 0
    about = pathgp.load(model).about
    assert (about["dates"], about["categories"]) == (["day"], {})
    write(new, ["2024-01-04", "2024-01-08"], x=[0.5, 0.5])
    assert run(capsys, "predict", str(model), str(new), "--out", str(out), "--quiet")[0] == 0
    np.testing.assert_allclose(np.loadtxt(out, delimiter=",", skiprows=1)[:, 0], [3.0, 7.0], atol=0.5)
    assert main(["info", str(model)]) == 0
    assert "dates          day (in days since 1970)" in capsys.readouterr().out
    assert run(capsys, *fit, "--categorical", "day")[0] == 0
    assert list(pathgp.load(model).about["categories"]) == ["day"]


def test_files_with_dates_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, model = tmp_path / "t.csv", tmp_path / "t.pgp"

    def fitted(*cells: str) -> tuple[int, str]:
        lines = [f"{cell},{i}" for i, cell in enumerate(cells)]
        table.write_text("\n".join(["day,y", *lines]) + "\n")
        return run(capsys, "fit", str(table), "--target", "y", "--out", str(model), "--quiet", "--steps", "1")

    code, error = fitted(*["01/02/2024", "03/02/2024"] * 3)
    assert code == 1
    assert "column 'day' seems to hold dates such as '01/02/2024'" in error
    assert "--categorical day" in error
    code, error = fitted(*["2024-01-01", "2024-02-31"] * 3)
    assert code == 1
    assert "column 'day' holds dates, but '2024-02-31' in line 3" in error
    code, error = fitted(*["2024-01-01", "", "2024-01-04"] * 3)
    assert code == 1
    assert "column 'day' has no value in line 3" in error
    assert fitted(*[f"2024-01-{i + 1:02}" for i in range(20)])[0] == 0
    table.write_text("day,y\n5,1\n")
    code, error = run(capsys, "predict", str(model), str(table), "--out", str(tmp_path / "o.csv"))
    assert code == 1
    assert "column 'day' holds dates, but '5' in line 2" in error


def test_parquet_names_the_column_of_too_large_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    whole = np.array([1, 2, 2**53 + 1, 4])
    pd.DataFrame({"x": np.arange(4.0), "stamp": whole, "y": np.arange(4.0)}).to_parquet(path)
    code, error = run(capsys, "fit", str(path), "--target", "y", "--quiet")
    assert code == 1
    assert "column 'stamp' has 9007199254740993 in row 3, a whole number beyond 2^53" in error
    spans = pd.to_timedelta(np.arange(30), unit="h")
    pd.DataFrame({"span": spans, "y": np.sin(np.arange(30) / 5)}).to_parquet(path)
    code, _ = run(capsys, "fit", str(path), "--target", "y", "--quiet", "--out", str(tmp_path / "t.pgp"))
    assert code == 0
    assert pathgp.load(tmp_path / "t.pgp").about["categories"] == {}


@pytest.mark.parametrize("header", [True, False])
def test_six_thousand_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str], header: bool) -> None:
    """The first line has more than 64 KiB."""
    from pathgp.cli.tables import open_table

    path = tmp_path / "wide.csv"
    names = [f"measurement_{i:05}" for i in range(6000)]
    cells = [",".join(f"{row * 10000 + i:012}" for i in range(6000)) for row in range(4)]
    path.write_text("\n".join([*([",".join(names)] if header else []), *cells]) + "\n")
    table = open_table(path, header)
    assert table.names == (names if header else [str(i + 1) for i in range(6000)])
    last = table.names[-1]
    (block,) = table.blocks([last], [])
    assert [int(cell) for cell in block.cells[last]] == [5999, 15999, 25999, 35999]


def test_a_table_without_a_place_is_refused() -> None:
    pytest.importorskip("xarray")
    from pathgp.xarray import fill_table

    frame = pd.DataFrame({"t": [0.0, 0.0, 1.0, 1.0, np.nan], "x": [0.0, 1.0, 0.0, 1.0, 0.0], "y": np.arange(5.0)})
    with pytest.raises(ValueError, match="column 't' has no value in 1 of 5 rows, first in row 4"):
        fill_table(frame, ["t", "x"], "y", steps=0)
    names = pd.DataFrame({"t": [0, 0, 1, 1], "x": ["a", None, "a", None], "y": np.arange(4.0)})
    with pytest.raises(ValueError, match="column 'x' has no value in 2 of 4 rows, first in row 1"):
        fill_table(names, ["t", "x"], "y", steps=0)
    whole = fill_table(frame.iloc[:4], ["t", "x"], "y", steps=0)
    assert len(whole) == 4


def test_coordinates_that_are_refused_by_name() -> None:
    xr = pytest.importorskip("xarray")
    from pathgp.xarray import fill

    def filled(time: Any) -> Any:
        return fill(xr.DataArray(np.arange(4.0), dims="time", coords={"time": time}), steps=0, samples=2)

    with pytest.raises(ValueError, match="coordinate 'time' is nan at position 2"):
        filled([0.0, 1.0, np.nan, 3.0])
    with pytest.raises(ValueError, match=r"coordinate 'time' has whole numbers beyond 2\^53"):
        filled(2**62 + np.arange(4))
    # Years that nanoseconds do not reach.
    far = np.array(["1000-01-01", "1000-01-02", "3000-01-01", "3000-01-02"], dtype="datetime64[s]")
    near = filled((far - far[0]) / np.timedelta64(1, "D"))
    np.testing.assert_allclose(filled(far)["mean"].values, near["mean"].values, atol=1e-6)


def test_botorch_draws_from_its_own_generator() -> None:
    pytest.importorskip("botorch")
    from botorch.sampling.pathwise import draw_matheron_paths

    from pathgp.botorch import PathwiseModel

    X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(1)
    post = pathgp.GP(kernels.Matern(2.5, 0.3), 0.1).condition(X, torch.sin(6 * X[:, 0]), samples=16)
    Xs = X[::4] + 0.01

    def draws(seed: int | None) -> list[torch.Tensor]:
        model = PathwiseModel(post, None if seed is None else torch.Generator().manual_seed(seed))
        noisy = model.posterior(Xs, observation_noise=True)
        more = model.condition_on_observations(X[:3], torch.zeros(3, 1, dtype=torch.float64))
        copied = copy.deepcopy(model)
        results = [noisy.rsample(torch.Size([5])), noisy.values, draw_matheron_paths(model, torch.Size([4]))(Xs)]
        results += [more.posterior(Xs).rsample(torch.Size([3])), copied.posterior(Xs).rsample(torch.Size([3]))]
        return [result.detach() for result in results]

    before = torch.get_rng_state()
    first, again, other, fresh = draws(0), draws(0), draws(1), draws(None)
    assert torch.equal(torch.get_rng_state(), before)
    for a, b, c, d in zip(first, again, other, fresh, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert not torch.equal(a, d)


def test_the_iterative_update_draws_from_its_own_generator() -> None:
    pytest.importorskip("botorch")
    from botorch.models import SingleTaskGP

    from pathgp.botorch import iterative_update

    X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(1)
    model = SingleTaskGP(X, torch.sin(6 * X))
    prior = torch.zeros(3, 20, dtype=torch.float64)
    before = torch.get_rng_state()
    weights = [
        iterative_update(generator=torch.Generator().manual_seed(seed))(model, prior).weight for seed in (0, 0, 1)
    ]
    iterative_update()(model, prior)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("kernel", [kernels.Matern(1.5), kernels.Linear(), kernels.Periodic(1.0), kernels.Tanimoto()])
def test_inputs_without_columns(kernel: kernels.Kernel) -> None:
    empty = torch.zeros(3, 0)
    for call in (kernel, kernel.diag, lambda X: kernel(torch.zeros(3, 1), X)):
        with pytest.raises(ValueError, match=r"(X|Z) has no columns, shape \(3, 0\): a kernel needs"):
            call(empty)
