"""Fits as in the thesis: Adam, pathwise gradients and all rows in every step, from the values of the model."""

from __future__ import annotations

from typing import Any

from pathgp.learning.report import FitReport
from pathgp.models.base import Model

PLAIN = {"optimiser": "adam", "estimator": "pathwise", "stages": "full", "initialise": "model"}


def plain_fit(gp: Model, X: Any, y: Any, noise: Any = None, **options: Any) -> FitReport:
    """``gp.fit`` with these choices in place of the automatic ones, unless the options say otherwise."""
    return gp.fit(X, y, noise, **(PLAIN | {"steps": 100} | options))
