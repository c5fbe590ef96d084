"""Data sets by name: files are checked, and a missing one is named with its source."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common import datasets

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("PATHGP_DATA", str(tmp_path))
    return tmp_path


def write(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, **arrays: Any) -> None:
    """Write a file of these arrays under the name of a known set, and put its checksum into the table."""
    path = folder / f"{name}.npz"
    np.savez(path, **arrays)
    known = datasets.KNOWN[name]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(datasets.KNOWN, name, datasets.Known(**{**vars(known), "sha256": digest}))


def test_a_table_with_splits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, mask = np.arange(12.0).reshape(6, 2), np.eye(6, dtype=bool)[:, :2]
    write(folder, "bike", monkeypatch, X=X, y=X[:, 0], test_mask=mask)
    data = datasets.load("bike")
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
    write(folder, "kin40k", monkeypatch, X=X, y=X[:, 0])
    with pytest.raises(ValueError, match="no official splits"):
        datasets.load("kin40k").split()


def test_grids_images_and_molecules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    S, T, Y = np.ones((3, 2)), np.zeros((4, 1)), np.arange(12.0).reshape(3, 4)
    write(folder, "pacific_sst", monkeypatch, S=S, T=T, Y=Y, Y_more=Y + 1)
    grid = datasets.load("pacific_sst")
    assert grid.factors is not None
    assert [factor.shape for factor in grid.factors] == [(3, 2), (4, 1)]
    np.testing.assert_array_equal(grid.Y, Y)
    np.testing.assert_array_equal(grid.extra["Y_more"], Y + 1)
    assert grid.columns == ["latitude", "longitude", "time"]
    assert grid.X is None

    write(folder, "etopo5_global", monkeypatch, lat=np.arange(3.0), lon=np.arange(4.0), Y=Y)
    image = datasets.load("etopo5_global")
    assert image.factors is not None
    assert [factor.shape for factor in image.factors] == [(3, 1), (4, 1)]

    counts = {"fp_data": np.array([2, 1, 3], "uint8"), "fp_indices": np.array([5, 1023, 0], "uint16")}
    write(folder, "qm9", monkeypatch, y=np.zeros((2, 9)), fp_indptr=np.array([0, 2, 3], "int32"), **counts)
    molecules = datasets.load("qm9").X.toarray()
    assert molecules.shape == (2, 1024)
    assert (molecules[0, 5], molecules[0, 1023], molecules[1, 0], molecules.sum()) == (2, 1, 3, 6)


def test_a_wrong_checksum_is_refused(folder: Path) -> None:
    np.savez(folder / "bike.npz", X=np.ones((2, 3)), y=np.ones(2))
    with pytest.raises(ValueError, match=r"bike\.npz has the checksum .* damaged, or another file"):
        datasets.load("bike")
    assert datasets.load("bike", check=False).X.shape == (2, 3)
    np.savez(folder / "bike.npz", X=np.ones((2, 3)))
    with pytest.raises(ValueError, match="no array 'Y': expected are the arrays X and y"):
        datasets.load("bike", check=False)


def test_a_missing_file_ends_the_program_with_its_source(folder: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        datasets.load("bike")
    for part in (str(folder), "nothing is downloaded", "treforevans/uci_datasets", "17,379 x 17", "PATHGP_DATA"):
        assert part in str(ended.value)
    assert "\n" not in str(ended.value)
    with pytest.raises(datasets.MissingData, match=r"uci_hyperparameters\.json is not in"):
        datasets.find("uci_hyperparameters.json")
    with pytest.raises(ValueError, match="no data set is called 'bikes': there are pol"):
        datasets.load("bikes")


def test_the_default_folder_is_beside_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATHGP_DATA", raising=False)
    with pytest.raises(datasets.MissingData) as ended:
        datasets.find("nothing.npz")
    assert str(ROOT.parent / "shared" / "data") in str(ended.value)


def test_the_page_lists_every_set() -> None:
    page = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE) == list(datasets.KNOWN)


@pytest.mark.parametrize("name", datasets.KNOWN)
def test_the_files_are_those_that_are_described(name: str) -> None:
    try:
        data = datasets.load(name)
    except datasets.MissingData as reason:
        pytest.skip(str(reason))
    shape = datasets.KNOWN[name].shape
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
