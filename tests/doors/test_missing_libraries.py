"""A door whose library is not installed says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("door", "library", "extra"),
    [
        ("botorch", "botorch.models.model", "botorch"),
        ("gpytorch", "gpytorch", "botorch"),
        ("sklearn", "sklearn.base", "sklearn"),
        ("xarray", "xarray", "xarray"),
    ],
)
def test_the_hint(door: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"pathgp.{door}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'pathgp\[{extra}\]'"):
        importlib.import_module(f"pathgp.{door}")
