"""Every file in examples/ runs to its end, without a warning, from an empty folder, with the data that it generates."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("matplotlib").use("Agg")

# tests/operators/test_sharded.py runs several_processes, alone and under torchrun.
FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem != "several_processes")

if EXAMPLES:  # an empty parameter list would count as a skipped test

    @pytest.mark.usefixtures("plain_layout")
    @pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
    def test_example_runs(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """In this process: a new one would spend seconds on importing torch. Warnings are errors in all tests."""
        monkeypatch.chdir(tmp_path)
        # Without real data the examples generate small tables.
        monkeypatch.setenv("PATHGP_DATA", str(tmp_path))
        monkeypatch.setattr("sys.argv", [str(example)])
        runpy.run_path(str(example), run_name="__main__")
