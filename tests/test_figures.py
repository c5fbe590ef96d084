"""The figures that need no data draw."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("name", ["squared_exponential", "matern", "periodic"])
def test_priors_draw(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    priors = importlib.import_module("figures_priors")
    path = getattr(priors, name)(tmp_path / "deep" / f"{name}.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert 10_000 < path.stat().st_size < 300_000
