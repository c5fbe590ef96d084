"""Every benchmark runs on tiny sizes, or says in one line what it needs."""

from __future__ import annotations

import contextlib
import importlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PROGRAMS = sorted(
    ".".join(path.relative_to(BENCHMARKS.parent).with_suffix("").parts)
    for path in BENCHMARKS.glob("*/*.py")
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
)
# Arguments beside --quick; FOLDER is an empty one.
ARGUMENTS = {
    "benchmarks.thesis.__main__": ["all", "2.1"],
    "benchmarks.thesis.diagnostics_pictures": ["--out", "FOLDER"],
    "benchmarks.trust.same_numbers": ["record", "FOLDER"],
}


def end_of(program: str) -> str | int | None:
    """Run a program; return what it exits with: a line if something is missing here, a number if it failed."""
    try:
        importlib.import_module(program).main()
    except SystemExit as end:
        return end.code
    return None


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run measurements that have a process of their own in this one: a new one would import torch for seconds."""
    start = subprocess.run

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[0] != sys.executable:
            return start(command, **options)
        with contextlib.redirect_stdout(io.StringIO()) as printed, monkeypatch.context() as patch:
            patch.setattr("sys.argv", command[2:])
            if command[1] == "-m":
                importlib.import_module(command[2]).main()
            else:
                exec(command[2], {})
        return subprocess.CompletedProcess(command, 0, printed.getvalue())

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("program", PROGRAMS)
def test_runs(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [str(tmp_path) if word == "FOLDER" else word for word in ARGUMENTS.get(program, [])]
    recorded = sorted((path, path.stat().st_mtime_ns) for path in (BENCHMARKS / "results").iterdir())
    monkeypatch.chdir(BENCHMARKS.parent)
    monkeypatch.setenv("PATHGP_RESULTS", str(tmp_path))
    monkeypatch.setattr("sys.argv", [program, *arguments, "--quick"])
    reason = end_of(program)
    if isinstance(reason, str):
        assert "\n" not in reason
        pytest.skip(reason)
    assert not reason
    assert list(tmp_path.iterdir())
    assert sorted((path, path.stat().st_mtime_ns) for path in (BENCHMARKS / "results").iterdir()) == recorded


def test_a_benchmark_that_needs_data_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHGP_DATA", str(tmp_path))
    monkeypatch.setenv("PATHGP_RESULTS", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["solver_race", "--quick"])
    assert "uci_hyperparameters.json is not in" in str(end_of("benchmarks.solvers.solver_race"))
