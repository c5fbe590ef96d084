"""The optimum that fits are compared with, found once."""

from __future__ import annotations

import pytest

from fit_cases import likelihood, model, optimum
from learning_cases import Values


@pytest.fixture(scope="session")
def best() -> Values:
    """The optimum of the reference's likelihood."""
    return optimum(likelihood, model().hyperparameters())
