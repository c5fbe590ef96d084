"""Maps from the command line: files, tables and what a command says when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cli_cases import Capture, fails, numbers, read, write
from pathgp.cli import main
from pathgp.kriging import krige

xr = pytest.importorskip("xarray")

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 10, (60, 2)).round(3)
Y = (np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * RNG.standard_normal(60)).round(4)
GIVEN = ["--x", "x", "--y", "y", "--target", "v"]
QUICK = ["--kernel", "matern-3/2", "--steps", "4", "--samples", "8"]


@pytest.fixture(scope="module")
def stations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("krige") / "stations.csv"
    return write(path, {"x": X[:, 0].tolist(), "y": X[:, 1].tolist(), "h": (X[:, 0] ** 2).tolist(), "v": Y.tolist()})


def expected(**options: Any) -> Any:
    given = {"kernel": "matern-3/2", "steps": 4, "samples": 8, "generator": torch.Generator().manual_seed(0)}
    return krige(X, Y, **given | options)


def test_a_map_as_netcdf_with_a_page(stations: Path, tmp_path: Path, capsys: Capture) -> None:
    out, page = tmp_path / "map.nc", tmp_path / "map.html"
    command = ["krige", str(stations), *GIVEN, *QUICK, "--grid", "1", "--out", str(out), "--html", str(page)]
    assert main([*command, "--threshold", "2", "--simulations", "3"]) == 0
    printed, notes = capsys.readouterr()
    assert notes == ""
    for words in ("60 values of v by x, y", "a grid of 11 × 11", "left-out RMSE", "left-out CRPS", str(out), str(page)):
        assert words in printed
    result = expected(grid=1.0)
    field = xr.load_dataset(out, engine="scipy")
    np.testing.assert_allclose(field["mean"].values.ravel(), result.mean)
    np.testing.assert_allclose(field["std"].values.ravel(), result.std)
    np.testing.assert_allclose(field["exceedance"].values.ravel(), result.exceedance(2.0))
    np.testing.assert_allclose(field["samples"].values.reshape(3, -1), result.samples[:3])
    text = page.read_text()
    for words in ("v from stations.csv", "The map", "Standard deviation", "Probability above 2", "Variogram"):
        assert words in text


def test_the_example_is_a_map_of_the_globe(tmp_path: Path, capsys: Capture) -> None:
    """`pathgp example stations` writes a table that krige knows by its columns."""
    table, out = tmp_path / "stations.csv", tmp_path / "map.nc"
    assert main(["example", "stations", "--out", str(table)]) == 0
    columns = ["--x", "lon", "--y", "lat", "--target", "t", "--grid", "1"]
    assert main(["krige", str(table), *columns, *QUICK, "--out", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["rows"] == 250
    assert 0.2 < facts["nugget"] < 0.5
    assert "km" in facts["model"]["length scale"]
    assert xr.load_dataset(out, engine="scipy")["mean"].dims == ("lat", "lon")


def test_rows_of_another_file_as_csv(stations: Path, tmp_path: Path, capsys: Capture) -> None:
    new = write(tmp_path / "new.csv", {"y": [1.0, 2.0, ""], "h": [0.0, 4.0, 1.0], "x": [0.5, 3.0, 2.0]})
    out = tmp_path / "new_map.csv"
    command = ["krige", str(stations), *GIVEN, *QUICK, "--predict", str(new), "--out", str(out), "--trend", "h"]
    assert main([*command, "--skip-missing", "--json", "--noise-std", "0.1"]) == 0
    printed, notes = capsys.readouterr()
    assert "1 rows of new.csv with missing values were left out" in notes
    facts = json.loads(printed)
    assert (facts["rows"], facts["targets"], facts["skipped_targets"]) == (60, 2, 1)
    assert facts["nugget"] == pytest.approx(0.1)
    assert set(facts["cross_validation"]) >= {"rmse", "crps", "coverage_95"}
    columns = read(out)
    assert list(columns) == ["x", "y", "h", "mean", "std"]
    assert numbers(columns, "x").tolist() == [0.5, 3.0]


def test_cells_and_two_distances(stations: Path, tmp_path: Path) -> None:
    out = tmp_path / "cells.csv"
    command = ["krige", str(stations), *GIVEN, *QUICK, "--quiet", "--out", str(out)]
    assert main([*command, "--grid", "5,2.5", "--cells"]) == 0
    result = expected(grid=(5.0, 2.5), cells=True)
    np.testing.assert_allclose(numbers(read(out), "mean"), result.mean, rtol=1e-8)
    np.testing.assert_allclose(numbers(read(out), "std"), result.std, rtol=1e-8)


def test_usage(stations: Path, tmp_path: Path, capsys: Capture) -> None:
    base = ["krige", stations, *GIVEN]
    assert "--y is missing" in fails(capsys, "krige", stations, "--x", "x", "--target", "v", "--grid", "1", code=2)
    assert "give --grid STEP, or --predict FILE" in fails(capsys, *base, code=2)
    assert "exclude each other" in fails(capsys, *base, "--grid", "1", "--predict", stations, code=2)
    assert "ends in .nc or .csv" in fails(capsys, *base, "--grid", "1", "--out", tmp_path / "map.tif", code=2)
    assert "hold grids" in fails(capsys, *base, "--predict", stations, "--out", tmp_path / "a.nc", code=2)
    assert "two roles" in fails(capsys, "krige", stations, *GIVEN[:4], "--target", "x", "--grid", "1", code=2)
    assert "--cells needs --grid" in fails(capsys, *base, "--predict", stations, "--cells", code=2)
    assert "use --predict" in fails(capsys, *base, "--grid", "1", "--trend", "h", code=2)
    assert "needs as many samples" in fails(
        capsys, *base, "--grid", "1", "--samples", "8", "--simulations", "9", code=2
    )
    assert "one distance, or two" in fails(capsys, *base, "--grid", "1,1,1", code=2)
    assert "same name" in fails(
        capsys, *base, "--grid", "1", "--out", tmp_path / "a.csv", "--report", tmp_path / "a.csv", code=2
    )


def test_data(stations: Path, tmp_path: Path, capsys: Capture) -> None:
    grid = ["--grid", "1"]
    assert "--x: stations.csv has no column 'lon'" in fails(
        capsys, "krige", stations, "--x", "lon", "--y", "y", "--target", "v", *grid
    )
    text = write(tmp_path / "text.csv", {"x": ["a", "b"], "y": [1, 2], "v": [1, 2]})
    assert "column 'x' of text.csv holds text" in fails(capsys, "krige", text, *GIVEN, *grid)
    holes = write(tmp_path / "holes.csv", {"x": [1, 2, 3], "y": [1, "", 2], "v": [1, 2, "NA"]})
    message = fails(capsys, "krige", holes, *GIVEN, *grid)
    assert "column 'y' has no value in line 3, and 2 rows in all" in message
    assert "--skip-missing" in message
    poles = write(tmp_path / "poles.csv", {"lon": [1, 2, 3], "lat": [1, 95, 2], "v": [1, 2, 3]})
    named = ["krige", poles, "--x", "lon", "--y", "lat", "--target", "v", *grid]
    assert "latitude 95 in row 1" in fails(capsys, *named)
    assert "--coordinates plane" in fails(capsys, *named)
    one = write(tmp_path / "one.csv", {"x": [1], "y": [1], "v": [1]})
    assert "one point, from which nothing can be learned: at least two are needed" in fails(
        capsys, "krige", one, *GIVEN, *grid
    )
    assert "use a spacing of" in fails(capsys, "krige", stations, *GIVEN, "--grid", "1e-6")
