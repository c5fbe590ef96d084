"""When a stage of a fit ends before it has taken all its steps: its objective no longer changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathgp.learning.optimisers import LBFGS
from pathgp.learning.vecchia import VecchiaLikelihood

if TYPE_CHECKING:
    from pathgp.learning.loop import Fit

# A stage ends early if the objective changed by less than the minimum gain over this number of steps.
WINDOW = 10
# A shorter window, if L-BFGS predicts that further steps gain less than the minimum as well. The minimum gain is then
# multiplied by WINDOW_LBFGS / WINDOW, except in the last stage of a table, whose steps cost most unless they use
# Vecchia's likelihood: with that factor a fit of elevators took ten more of them, and its test log-likelihood was
# -0.386 instead of -0.383. Stages that start from initial values use the longer window, because on a plateau the
# predicted gain is small. Test log-likelihoods of a fit of 30,000 rows of the flights data: -1.331 with four steps,
# -1.357 with two steps, -1.41 with two steps in all stages.
WINDOW_LBFGS = 4
# The same for a grid that begins at the optimum of sub-grids: its steps are few, and most of the gain is that of the
# first ones. The stations of colorado_monthly_met gained 412 nats in three steps, and 3 in the next four.
WINDOW_SUBGRIDS = 2


def stopping_reason(fit: Fit) -> str:
    """Return the reason to end the stage: the objective no longer changes. Empty if it still does."""
    gains, least = [step.gain for step in fit.history[fit.stage_began :]], _least_gain(fit)
    begins_on_subgrids = fit.options.begins_on_subgrids
    may_gain_more = not isinstance(fit.optimiser, LBFGS) or fit.optimiser.predicted_gain >= least
    resets_hyperparameters = fit.stage == 0 or fit.stages[fit.stage].noise_factor is not None
    starts_from_initial = resets_hyperparameters and not begins_on_subgrids
    is_last = fit.stage + 1 == len(fit.stages)
    if may_gain_more or starts_from_initial:
        window, limit = WINDOW, least
    elif begins_on_subgrids:
        window, limit = WINDOW_SUBGRIDS, least * WINDOW_SUBGRIDS / WINDOW
    elif is_last and not isinstance(fit.estimator, VecchiaLikelihood):
        window, limit = WINDOW_LBFGS, least
    else:
        window, limit = WINDOW_LBFGS, least * WINDOW_LBFGS / WINDOW
    recent = gains[-1 - window :]
    if len(gains) <= window or max(recent) - min(recent) >= limit * len(fit.data.y):
        return ""
    return f"{window} steps changed the objective by less than {limit:g} nats per row"


def _least_gain(fit: Fit) -> float:
    """The minimum gain of the current stage, in nats per row.

    If p hyperparameters are learned from m rows, the likelihood of other rows is about p / (2 m) nats per row below
    its maximum. A stage on a subset of the rows needs no higher accuracy.
    """
    rows = fit.stages[fit.stage].rows
    if rows == len(fit.data.y) or not fit.options.min_gain:
        return fit.options.min_gain
    return max(fit.options.min_gain, 0.5 * len(fit.coordinates.position()) / rows)
