"""A fit whose leave-one-out predictions are worse than the average of y starts again from large noise.

The likelihood assumes normal errors. If errors have heavy tails, it may be largest at short length scales and small
noise: those that connect a few outliers with each other. Every outlier then changes the predictions around it. Such a
fit gains tens of nats, all of them in few rows, while the mean squared error of its predictions is larger than that of
the average. From large noise and a small signal the same fit finds what most rows have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pathgp.kernels.parameters import positive
from pathgp.learning.guard import Guard
from pathgp.learning.loop import Fit
from pathgp.learning.policy import FitOptions

# Why the values of a fit are not those of its first run, for the report.
RESTARTED = "started again from large noise: predictions were worse than the average"
# Mean squared error of leave-one-out predictions, relative to that of the average, above which a fit starts again.
# At the true hyperparameters it is at most one, up to sampling.
_LARGEST_ERROR = 1.005


def restart_if_worse_than_average(fit: Fit, run_again: Callable[[FitOptions], Fit]) -> Fit:
    """Return this fit, or a better one from large noise; the initial values of that one if both are worse than the
    average.

    ``run_again``: run the fit once more with other options.
    """
    if not (fit.history and _can_start_again(fit)):
        return fit
    from_noise = replace(fit.options, initialise="noise", explores=False)
    error = _relative_error(fit)
    for options in (from_noise, replace(from_noise, steps=0)):
        if not error > _LARGEST_ERROR:
            break
        again = run_again(options)
        if (its_error := _relative_error(again)) < error:
            fit, error = again, its_error
    return fit


def _can_start_again(fit: Fit) -> bool:
    """Whether the initial values of this fit came from the data, its noise is learned, and its mean has no trend."""
    is_table = not (fit.model.is_grid or fit.model.num_inducing)
    has_average = len(fit.data.y) > 1 and fit.data.basis is None
    starts_from_data = fit.options.initialise in ("data", "best")
    return is_table and has_average and starts_from_data and positive(fit.model, "noise").raw.requires_grad


def _relative_error(fit: Fit) -> float:
    guard = Guard.draw(fit.data)
    return fit.compute.on_main_process(lambda: guard.relative_error(fit.model, fit.data))
