"""Every benchmark runs on tiny sizes, or says in one line what it needs."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PROGRAMS = sorted(
    ".".join(path.relative_to(BENCHMARKS.parent).with_suffix("").parts)
    for path in BENCHMARKS.glob("*/*.py")
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
)
# Arguments beside --quick; FOLDER is an empty one.
ARGUMENTS = {"benchmarks.thesis.figures": ["--out", "FOLDER"], "benchmarks.trust.same_numbers": ["record", "FOLDER"]}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS)
def test_runs(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [str(tmp_path) if word == "FOLDER" else word for word in ARGUMENTS.get(program, [])]
    recorded = sorted((path, path.stat().st_mtime_ns) for path in (BENCHMARKS / "results").iterdir())
    monkeypatch.chdir(BENCHMARKS.parent)
    monkeypatch.setenv("PATHGP_RESULTS", str(tmp_path))
    monkeypatch.setattr("sys.argv", [program, *arguments, "--quick"])
    try:
        importlib.import_module(program).main()
    except SystemExit as ended:
        # A number is a verdict, for instance on errors; a line says what is missing here.
        assert isinstance(ended.code, str)
        assert "\n" not in ended.code
        pytest.skip(ended.code)
    assert list(tmp_path.iterdir())
    assert sorted((path, path.stat().st_mtime_ns) for path in (BENCHMARKS / "results").iterdir()) == recorded


def test_a_benchmark_that_needs_data_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHGP_DATA", str(tmp_path))
    monkeypatch.setenv("PATHGP_RESULTS", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["solver_race", "--quick"])
    with pytest.raises(SystemExit, match=r"pol\.npz is not in|uci_hyperparameters\.json is not in"):
        importlib.import_module("benchmarks.solvers.solver_race").main()
