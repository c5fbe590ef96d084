"""Repeat a fit from large noise if its leave-one-out predictions are worse than the average of y.

The likelihood assumes normal errors. If errors have heavy tails, it may be largest at short length scales and small
noise, which correlate a few outliers. Every outlier then changes the predictions around it. The likelihood of such a
fit is tens of nats higher, all of them from a few rows, but its predictions have a larger mean squared error than the
average of y. A fit that starts from large noise and a small signal finds the trend of most rows. If no repetition
helps, the report of the fit says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pathgp.kernels.parameters import positive
from pathgp.learning.guard import Guard
from pathgp.learning.loop import ALL_STEPS, Fit
from pathgp.learning.policy import FitOptions

# The note of the report on a fit that was repeated.
RESTARTED = "started again from large noise: predictions were worse than the average"
# A fit is repeated if the mean squared error of its leave-one-out predictions is larger than this, relative to that of
# the average of y. At the true hyperparameters it is at most one, up to sampling error.
_LARGEST_ERROR = 1.005
# A warning needs this number of rows: the errors of fewer rows vary too much.
_LEAST_ROWS = 20


def restart_if_worse_than_average(fit: Fit, run_again: Callable[[FitOptions], Fit]) -> tuple[Fit, str]:
    """Return the fit if it predicts at least as well as the average of y, otherwise the best of three; and a warning.

    The other two are the same fit from large noise and, if that is worse than the average as well, its initial values
    without a step. ``run_again`` runs the fit with other options. The warning is empty unless all three are worse,
    and for fewer than 20 rows.
    """
    if not (fit.history and _may_restart(fit)):
        return fit, ""
    from_noise = replace(fit.options, initialise="noise", explores=False)
    best, smallest_error = fit, _relative_error(fit)
    for options in (from_noise, replace(from_noise, steps=0)):
        if not smallest_error > _LARGEST_ERROR:
            break
        repeated = run_again(options)
        error = _relative_error(repeated)
        if error < smallest_error:
            best, smallest_error = repeated, error
    is_worse = smallest_error > _LARGEST_ERROR and len(fit.data.y) >= _LEAST_ROWS
    return best, _describe(smallest_error, fit) if is_worse else ""


def _describe(error: float, fit: Fit) -> str:
    """The warning about a fit that is worse than the average of y, from every start."""
    steps = "take more steps, " if fit.stop_reason == ALL_STEPS else ""
    return (
        "predictions of left-out rows are worse than the average of y, from large noise too: their mean squared error "
        f"is {error:.3g} times as large; {steps}transform y or remove its outliers, try another kernel, or set "
        "mean=pathgp.means.Constant() or standardise=True if y is far from the mean of the model"
    )


def _may_restart(fit: Fit) -> bool:
    """Whether this is a fit of a table from initial values of the data, with a learned noise and without a trend."""
    is_table = not (fit.model.is_grid or fit.model.num_inducing)
    has_average = len(fit.data.y) > 1 and fit.data.basis is None
    starts_from_data = fit.options.initialise in ("data", "best")
    return is_table and has_average and starts_from_data and positive(fit.model, "noise").raw.requires_grad


def _relative_error(fit: Fit) -> float:
    """Mean squared error of leave-one-out predictions, relative to that of the average of y."""
    guard = Guard.draw(fit.data)
    return fit.compute.on_main_process(lambda: guard.relative_error(fit.model, fit.data))
