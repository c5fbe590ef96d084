"""The benchmarks of fused products: the check of their accuracy fails where it should, and symmetric ones are right."""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", minversion="3.6")


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark with two cases of few rows, in this process."""
    whole, module = (importlib.import_module(f"benchmarks.hardware.{name}") for name in ("fused", "fused_check"))
    every = module.cases

    def serial(action: Callable[[Any], Any], items: Iterable[Any], processes: int) -> list[Any]:
        return [action(item) for item in items]

    monkeypatch.setattr(whole, "DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(module, "CHECKED", 60)
    monkeypatch.setattr(module, "cases", lambda: itertools.islice(every(), 2))
    monkeypatch.setattr(module, "in_parallel", serial)
    monkeypatch.setenv("PATHGP_RESULTS", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["fused.py", "--check", "--rows", "120"])
    return module


@pytest.mark.parametrize("fails", ["nothing", "a bound", "a case"])
def test_check(
    fails: str,
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if fails == "a bound":
        monkeypatch.setitem(checks.BOUNDS, "medium", 1e-9)
    elif fails == "a case":
        monkeypatch.setattr(checks, "errors", None)
    with pytest.raises(SystemExit) as ended:
        checks.fused.main()
    wrong = {"nothing": 0, "a bound": 2, "a case": 2}[fails]
    assert int(ended.value.code or 0) == (wrong > 0)
    assert capsys.readouterr().out.splitlines()[-1] == f"8 cases, {wrong} above their bound"
    record = json.loads((tmp_path / "fused_check.json").read_text())
    assert record["versions"]["triton"] == triton.__version__
    assert record["repeats"]
    assert record["above"] == wrong
    assert {row["bound"] for row in record["rows"]} == {checks.BOUNDS[p] for p in checks.PRECISIONS}
    above = {row["above"] for row in record["rows"]}
    assert above == {"nothing": {""}, "a bound": {"", "product"}, "a case": {"", "everything"}}[fails]


def test_symmetric_products(checks: ModuleType) -> None:
    """Six blocks of rows, of which the opposite ones meet, and three."""
    module = importlib.import_module("benchmarks.hardware.symmetry")
    H, V = checks.operator(330, 16), checks.normal(330, 3, 1)
    expected = (H @ V - H.noise * V).double()
    for tile, way in itertools.product(module.TILES, module.WAYS):
        found = module.product(H, V, tile, way).double()
        # Powers of two, one for every column.
        ratio = expected.norm(dim=0) / found.norm(dim=0)
        assert checks.relative(found * ratio, expected) < 1e-6, way
