"""A function whose optional library is not installed says what to install."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

import pathgp
from pathgp import kernels
from pathgp.plots import new_figure


@pytest.mark.parametrize(
    ("door", "library", "extra"),
    [
        ("botorch", "botorch.models.model", "botorch"),
        ("chem", "rdkit", "chem"),
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


def test_figures_and_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.linspace(0.0, 1.0, 8)[:, None]
    report = pathgp.GP(kernels.Matern(nu=1.5), noise=0.1).fit(X, X[:, 0], steps=1)
    field = pathgp.kriging.krige(np.hstack([X, X**2]), X[:, 0], grid=0.5)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'pathgp\[plots\]'"):
        new_figure((1.0, 1.0))
    for result in (report, field):
        with pytest.raises(ImportError, match=r"pip install 'pathgp\[xarray\]'"):
            result.to_frame()
