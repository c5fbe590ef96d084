"""The command line at work: a table to fit, files written and read, and what a command says when it fails."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pathgp.cli import main
from pathgp.cli.commands import example_table
from pathgp.data.tabular import Columns

Capture = pytest.CaptureFixture[str]
ROWS = 150
SMALL = ["--steps", "15", "--samples", "8"]


def table(rows: int = ROWS) -> dict[str, list[Any]]:
    return {name: column[:rows].tolist() for name, column in example_table().items()}


def write(path: Path, columns: dict[str, list[Any]], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def read(text: str | Path) -> dict[str, list[str]]:
    text = text.read_text() if isinstance(text, Path) else text
    titles, *rows = csv.reader(io.StringIO(text))
    return dict(zip(titles, map(list, zip(*rows, strict=True)), strict=True))


def numbers(columns: dict[str, list[str]], name: str) -> Any:
    return np.array(columns[name], dtype=float)


def matrix(columns: dict[str, list[Any]]) -> Any:
    named = Columns(["temperature", "light", "water", "soil"], {"soil": ["clay", "loam", "sand"]})
    return named.matrix(lambda name: np.array(columns[name]))


def fails(capsys: Capture, *arguments: Any, code: int = 1) -> str:
    """The one line that a command leaves on standard error when it fails."""
    assert main([str(argument) for argument in arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err
