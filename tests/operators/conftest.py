"""Fixtures of the tests of fused products."""

from __future__ import annotations

import pytest

from fused_cases import FORMS
from pathgp.operators.fused import points


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All that can be done with few dimensions, done by differences or by tensor cores."""
    monkeypatch.setattr(points, "_FEW", 16 if request.param == "differences" else 0)
    if request.param == "triple":
        monkeypatch.setattr(points, "_SPLIT_RADIUS", 0.0)
    return str(request.param)
