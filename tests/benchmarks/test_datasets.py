"""Data sets by name: the example is always there, files are checked, and what is missing is said."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pathgp import datasets

FILES = Path(os.environ.get("PATHGP_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def write(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, **arrays: Any) -> None:
    """A file of these arrays under the name of a known set, and its checksum in the table."""
    path = folder / f"{name}.npz"
    np.savez(path, **arrays)
    known = datasets.KNOWN[name]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(datasets.KNOWN, name, datasets.Known(**{**vars(known), "sha256": digest}))


def test_the_example_is_the_same_everywhere() -> None:
    data = datasets.load("example")
    assert data.columns == ["temperature", "light", "water", "soil=clay", "soil=loam", "soil=sand"]
    assert data.X.shape == (600, 6)
    assert (data.X[:, 3:].sum(1) == 1).all()
    table = datasets.example_table()
    assert set(table["soil"][data.X[:, 5] == 1]) == {"sand"}
    np.testing.assert_array_equal(data.y, table["growth"])
    # A growth of at most 8 mm, with noise of 0.25.
    assert -1 < data.y.min() < data.y.max() < 9
    assert data.y[:3].tolist() == pytest.approx(datasets.load("example").y[:3].tolist())


def test_a_table_with_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, mask = np.arange(12.0).reshape(6, 2), np.eye(6, dtype=bool)[:, :2]
    write(tmp_path, "bike", monkeypatch, X=X, y=X[:, 0], test_mask=mask)
    data = datasets.load("bike", folder=tmp_path)
    assert data.columns == ["x1", "x2"]
    X_train, y_train, X_test, y_test = data.split(1)
    np.testing.assert_array_equal(X_test, X[1:2])
    np.testing.assert_array_equal(y_test, X[1:2, 0])
    np.testing.assert_array_equal(X_train, np.delete(X, 1, 0))
    np.testing.assert_array_equal(y_train, np.delete(X[:, 0], 1))
    with pytest.raises(ValueError, match="splits 0 to 1, got 2"):
        data.split(2)
    assert "X (6, 2), y (6,)" in repr(data)
    assert "CC BY 4.0" in repr(data)
    with pytest.raises(ValueError, match="no official splits"):
        datasets.load("example").split()


def test_grids_images_and_molecules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    S, T, Y = np.ones((3, 2)), np.zeros((4, 1)), np.arange(12.0).reshape(3, 4)
    write(tmp_path, "pacific_sst", monkeypatch, S=S, T=T, Y=Y, Y_more=Y + 1)
    grid = datasets.load("pacific_sst", tmp_path)
    assert grid.factors is not None
    assert [factor.shape for factor in grid.factors] == [(3, 2), (4, 1)]
    np.testing.assert_array_equal(grid.Y, Y)
    np.testing.assert_array_equal(grid.extra["Y_more"], Y + 1)
    assert grid.columns == ["latitude", "longitude", "time"]
    assert grid.X is None

    write(tmp_path, "etopo5_global", monkeypatch, lat=np.arange(3.0), lon=np.arange(4.0), Y=Y)
    image = datasets.load("etopo5_global", tmp_path)
    assert image.factors is not None
    assert [factor.shape for factor in image.factors] == [(3, 1), (4, 1)]

    counts = {"fp_data": np.array([2, 1, 3], "uint8"), "fp_indices": np.array([5, 1023, 0], "uint16")}
    write(tmp_path, "qm9", monkeypatch, y=np.zeros((2, 9)), fp_indptr=np.array([0, 2, 3], "int32"), **counts)
    molecules = datasets.load("qm9", tmp_path).X.toarray()
    assert molecules.shape == (2, 1024)
    assert (molecules[0, 5], molecules[0, 1023], molecules[1, 0], molecules.sum()) == (2, 1, 3, 6)


def test_the_folder_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "pol", monkeypatch, X=np.ones((2, 3)), y=np.ones(2))
    monkeypatch.setenv("PATHGP_DATA", str(tmp_path))
    assert datasets.load("pol").X.shape == (2, 3)


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "bike.npz", X=np.ones((2, 3)), y=np.ones(2))
    with pytest.raises(ValueError, match=r"bike\.npz has the checksum .* damaged, or another file"):
        datasets.load("bike", tmp_path)
    assert datasets.load("bike", tmp_path, check=False).X.shape == (2, 3)
    np.savez(tmp_path / "bike.npz", X=np.ones((2, 3)))
    with pytest.raises(ValueError, match="no array 'Y': expected are the arrays X and y"):
        datasets.load("bike", tmp_path, check=False)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError) as told:
        datasets.load("bike", tmp_path)
    for part in (str(tmp_path), "downloads nothing", "treforevans/uci_datasets", "17,379 x 17", "PATHGP_DATA"):
        assert part in str(told.value)
    monkeypatch.delenv("PATHGP_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="no folder to look for"):
        datasets.load("bike")
    with pytest.raises(ValueError, match="no data set is called 'bikes': there are example, pol"):
        datasets.load("bikes")


def test_the_page_runs_and_lists_every_set() -> None:
    page = (Path(__file__).parent.parent / "docs" / "datasets.md").read_text(encoding="utf-8")
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)), {})
    assert repr(datasets.load("example")) in page
    assert re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE) == datasets.names()


@pytest.mark.parametrize("name", datasets.KNOWN)
def test_the_files_are_those_that_are_described(name: str) -> None:
    if not (FILES / f"{name}.npz").exists():
        pytest.skip(f"no {name}.npz in PATHGP_DATA or ../shared/data")
    data, shape = datasets.load(name, FILES), datasets.KNOWN[name].shape
    if data.Y is None:
        assert data.X.shape == shape
        assert data.y is not None
        assert len(data.y) == shape[0]
        assert len(data.columns) == shape[1]
    else:
        assert data.Y.shape[-2:] == shape
        assert data.factors is not None
        assert tuple(len(factor) for factor in data.factors) == shape
        assert len(data.columns) == sum(factor.shape[1] for factor in data.factors)
