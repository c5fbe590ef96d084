"""Decide by exact likelihoods of a subset of the rows whether a step of a fit, and its end, are accepted.

The guard has 1,000 rows. Before it rejects, it is enlarged to 4,000 rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pathgp.learning.guard import Guard

if TYPE_CHECKING:
    from pathgp.learning.loop import Fit


def check_step(fit: Fit) -> float:
    """Return the likelihood of the guard's rows, NaN without a guard; raise NumericalFailure if it is rejected.

    ``fit.guard`` keeps the rows of an enlarged guard that accepts the step.
    """
    if (guard := fit.guard) is None:
        return math.nan
    value = _evaluate(fit, guard)
    if not guard.accepts(value) and not guard.is_large:
        guard = _enlarge(fit, guard)
        value = _evaluate(fit, guard)
    guard.check(value)
    fit.guard = guard
    return value


def accepts_final(fit: Fit, guard: Guard) -> bool:
    """Whether a fit may end with its current hyperparameters; a loss of ``min_gain`` is tolerated."""
    if guard.accepts_final(_evaluate(fit, guard) + fit.options.min_gain):
        return True
    return not guard.is_large and accepts_final(fit, _enlarge(fit, guard))


def _enlarge(fit: Fit, guard: Guard) -> Guard:
    """Return a guard with more rows that knows its value at the best parameters of a guard."""
    larger, state = guard.enlarge(fit.data), guard.state
    assert state is not None
    value = fit.compute.on_main_process(lambda: larger.value_at(state, fit.model, fit.data))
    return larger.update(value, state)


def _evaluate(fit: Fit, guard: Guard) -> float:
    return fit.compute.on_main_process(lambda: guard.value(fit.model, fit.data))
