"""Every file in examples/ runs to its end, without a warning, from an empty folder, with the data that it generates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# tests/operators/test_sharded.py runs several_processes, alone and under torchrun.
FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem != "several_processes")
SECONDS = 300

if EXAMPLES:  # an empty parameter list would count as a skipped test

    @pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
    def test_example_runs(example: Path, tmp_path: Path) -> None:
        result = subprocess.run(
            [sys.executable, "-W", "error::UserWarning", "-W", "error::RuntimeWarning", str(example)],
            cwd=tmp_path,
            # Without real data the examples generate small tables.
            env={**os.environ, "MPLBACKEND": "Agg", "PATHGP_DATA": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert result.returncode == 0, f"{example.name} failed\n{result.stdout}\n{result.stderr}"
