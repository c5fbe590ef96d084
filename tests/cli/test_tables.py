"""Files of every kind are read, and one helpful line is said about those that cannot be."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pathgp
from cli_cases import ROWS, SMALL, Capture, fails, matrix, numbers, read, table, write
from pathgp.cli import main, tables


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_kinds_of_csv(delimiter: str, encoding: str, tmp_path: Path) -> None:
    columns = {"a b": ["1.5", " -2e3 ", ""], "text, \nlong": ['x "1"', "y\nz", "w; , |"]}
    found = tables.open_table(write(tmp_path / "a.csv", columns, delimiter, encoding))
    assert found.names == ["a b", "text, \nlong"]
    (block,) = found.blocks(found.names, [])
    np.testing.assert_array_equal(block.numbers("a b"), [1.5, -2000.0, np.nan])
    assert block.texts("text, \nlong").tolist() == columns["text, \nlong"]
    # Two lines of names, a cell of two lines.
    assert [block.name_row(row) for row in range(3)] == ["line 3", "line 4", "line 6"]
    assert block.progress == 1.0


def test_blank_lines_and_unnamed_columns(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n,x,y\n0,1,2\n\n1,3,4\n\n")
    found = tables.open_table(path)
    assert found.names == ["#1", "x", "y"]
    (block,) = found.blocks(["y", "x"], [])
    assert list(block.cells) == ["y", "x"]
    np.testing.assert_array_equal(block.numbers("x"), [1.0, 3.0])
    assert [block.name_row(row) for row in range(2)] == ["line 3", "line 5"]
    assert "column 1 of a.csv has no name" in fails(capsys, "fit", path, "--target", "y")


def test_identifiers_with_underscores_are_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"month": ["2021_03", "2021_04", "2021_05"], "x": ["1", "2", ""]})
    (block,) = tables.open_table(path).blocks(["month", "x"], [])
    assert (block.kind("month"), block.kind("x")) == ("text", "number")
    with pytest.raises(ValueError, match="column 'month' holds numbers, but '2021_03' in line 2: correct it"):
        block.numbers("month")
    # A first line of identifiers is no line of numbers.
    assert tables.open_table(write(tmp_path / "b.csv", {"1_2": ["1"], "2_2": ["3"]})).names == ["1_2", "2_2"]


def test_decimal_commas(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x;text;day\n-1,5;a,b;31.12.2024\n 2,5e3 ;1;1.1.2025\n7;c;\n")
    (block,) = tables.open_table(path, decimal_comma=True).blocks(["x", "text", "day"], ["x"])
    np.testing.assert_array_equal(block.numbers("x"), [-1.5, 2500.0, 7.0])
    assert block.texts("text").tolist() == ["a,b", "1", "c"]
    assert block.copied == [("-1,5", " 2,5e3 ", "7")]
    for ambiguous in ("1.234", "1.234,5"):
        path.write_text(f"x;y\n1,5;2\n{ambiguous};3\n")
        with pytest.raises(ValueError, match=f"column 'x' has '{ambiguous}' in line 3: with --decimal-comma write"):
            list(tables.open_table(path, decimal_comma=True).blocks(["x"], []))


@pytest.mark.parametrize("compression", ["gzip", "zstd", "pipe", "-"])
def test_compressed_tables_and_pipes(
    compression: str, folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (folder / "plants.csv").read_bytes()
    path = tmp_path / "plants.csv.gz"
    if compression == "gzip":
        path.write_bytes(gzip.compress(content))
    elif compression == "zstd":
        pa = pytest.importorskip("pyarrow", reason="zstd needs pyarrow")
        path.write_bytes(pa.compress(content, "zstd", asbytes=True))
    elif compression == "pipe":
        os.mkfifo(path)
        threading.Thread(target=path.write_bytes, args=(content,), daemon=True).start()
    else:
        path = Path("-")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert main(["predict", str(folder / "plants.pgp"), str(path), "--quiet"]) == 0
    expected = pathgp.load(folder / "plants.pgp").mean(matrix(table()))
    np.testing.assert_allclose(numbers(read(capsys.readouterr().out), "mean"), expected, rtol=1e-8)
    if compression in ("gzip", "zstd"):
        path.write_bytes(path.read_bytes()[:-200])
        told = fails(capsys, "predict", folder / "plants.pgp", path, "--out", tmp_path / "p.csv")
        assert "plants.csv.gz cannot be decompressed" in told


def test_parquet(folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    from pyarrow import parquet

    columns = {**table(), "flag": [None, True] * (ROWS // 2), "code": [2**60 + i for i in range(ROWS)]}
    path = tmp_path / "plants.parquet"
    parquet.write_table(pa.table(columns), path)
    model = folder / "plants.pgp"
    monkeypatch.setattr(tables, "ROWS", 64)
    assert main(["predict", str(model), str(path), "--quiet", "--id", "code,flag,light"]) == 0
    expected, found = pathgp.load(model).mean(matrix(table())), read(capsys.readouterr().out)
    np.testing.assert_allclose(numbers(found, "mean"), expected, rtol=1e-8)
    assert found["code"] == [str(code) for code in columns["code"]]
    assert found["flag"][:2] == ["", "True"]
    np.testing.assert_array_equal(numbers(found, "light"), columns["light"])
    told = fails(capsys, "fit", path, "--target", "growth", "--ignore", "code")
    assert "column 'flag' has no value in row 1, and 75 rows in all" in told
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'pathgp[parquet]'" in fails(capsys, "predict", model, path)


def test_categories_of_csv_are_those_of_parquet(tmp_path: Path, capsys: Capture) -> None:
    pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    from pyarrow import parquet

    columns = {"site": [1, 2, 3] * 10, "wet": [True, False] * 15, "code": [2**60, 2**60 + 1] * 15}
    path = write(tmp_path / "a.csv", {**columns, "y": [i % 7 for i in range(30)]})
    types = {"site": pa.int8(), "wet": pa.bool_(), "code": pa.int64()}
    again = tmp_path / "a.parquet"
    parquet.write_table(pa.table({name: pa.array(columns[name], types[name]) for name in columns}), again)
    fit = ["fit", str(path), "--target", "y", "--out", str(tmp_path / "m.pgp"), "--quiet", *SMALL]
    assert main([*fit, "--categorical", "site,wet,code"]) == 0
    results = []
    for file in (path, again):
        capsys.readouterr()
        assert main(["predict", str(tmp_path / "m.pgp"), str(file), "--quiet"]) == 0
        results.append(capsys.readouterr().out)
    assert results[0] == results[1]


BAD: dict[str, tuple[Callable[[], str], str]] = {
    "empty": (lambda: "", "is empty"),
    "no rows": (lambda: "x,y\n", "has no rows"),
    "ragged": (lambda: "x,y\n1,2\n3\n", "line 3 of"),
    "twice": (lambda: "x,x,y\n1,2,3\n", "has 2 columns called 'x'"),
    "no header": (lambda: "1,2\n3,4\n", "--no-header"),
    "a typo": (lambda: "x,y\n1,2\n1.x,3\n2,4\n", "column 'x' holds numbers, but '1.x' in line 3"),
    "an underscore": (lambda: "x,y\n1,2\n1_2,3\n2,4\n", "column 'x' holds numbers, but '1_2' in line 3"),
    "a target typo": (lambda: "x,y\n1,2\n1,3\n2,a\n", "column 'y' holds numbers, but 'a' in line 4"),
    "decimal commas": (
        lambda: "x;y\n1,5;2\n2,5;3\n",
        "column 'x' has '1,5' in line 2: write thousands without a comma and decimals with a point",
    ),
    "infinite": (lambda: "x,y\n1,2\n-inf,3\n", "column 'x' is infinite in line 3"),
    "text target": (lambda: "x,y\n1,a\n2,b\n", "the target 'y' holds text"),
    "constant target": (lambda: "x,y\n1,2\n2,2\n3,2\n", "'y' is 2 in every row"),
    "one row": (lambda: "x,y\n1,2\n", "at least two are needed"),
    "a quotation mark": (lambda: 'x,y\n"1,2\n3,4\n', "line 2 of a.csv has 1 cell, the first line has 2: is a quot"),
    "spaces": (lambda: "x y\n1 2\n", "Its columns are x y. Commas, semicolons, tabs or bars separate columns"),
    "a unit": (
        lambda: "x,y\n" + "".join(f"{i} %,{i}\n" for i in range(30)),
        "column 'x' holds text, 30 different values such as '0 %'",
    ),
    "names": (lambda: "x,y\n" + "".join(f"n{i},{i}\n" for i in range(150)), "--ignore x"),
    "no such column": (lambda: "x,z\n1,2\n", "--target: a.csv has no column 'y'. Its columns are x, z"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case: str, tmp_path: Path, capsys: Capture) -> None:
    content, told = BAD[case]
    path = tmp_path / "a.csv"
    path.write_text(content())
    assert told in fails(capsys, "fit", path, "--target", "y", "--out", tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_files_that_are_no_tables(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "latin.csv").write_bytes("höhe,y\n1,2\n".encode("latin-1"))
    assert "not text in UTF-8" in fails(capsys, "fit", tmp_path / "latin.csv", "--target", "y")
    assert "No such file" in fails(capsys, "fit", tmp_path / "absent.csv", "--target", "y")
    assert "is a folder" in fails(capsys, "fit", tmp_path, "--target", "y")
    assert "is not a file that pathgp has saved" in fails(capsys, "info", folder / "plants.csv")
    assert "No such file" in fails(capsys, "predict", tmp_path / "absent.pgp", folder / "plants.csv")
    damaged = bytearray((folder / "plants.pgp").read_bytes())
    damaged[-9] ^= 1
    (tmp_path / "damaged.pgp").write_bytes(damaged)
    assert "is damaged" in fails(capsys, "predict", tmp_path / "damaged.pgp", folder / "plants.csv")
