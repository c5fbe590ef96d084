"""A fitted model of a table, made once: the tests add files of their own to its folder and change none."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_cases import SMALL, table, write
from pathgp.cli import main


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table and the model of its growth column."""
    folder = tmp_path_factory.mktemp("cli")
    path = write(folder / "plants.csv", table())
    assert main(["fit", str(path), "--target", "growth", "--out", str(folder / "plants.pgp"), "--quiet", *SMALL]) == 0
    return folder
