"""What happens between the exact stages of a fit, and after them. An exact stage uses exact gradients on few rows.

The likelihood of few rows may be largest at length scales near zero, where every row is fitted independently of the
others, and different initial values may lead to different optima. The likelihood of other rows, drawn independently
(the validation rows), decides from which hyperparameters the next stage starts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pathgp.kernels.parameters import positive
from pathgp.learning.guard import Guard

if TYPE_CHECKING:
    from pathgp.learning.loop import Fit

# An earlier step is restored if its likelihood of the validation rows is larger by more than this, in nats per row.
_MIN_VALIDATED_GAIN = 0.002
# A larger misfit shows that the noise, learned from fewer rows, is too small.
_LARGEST_MISFIT = 4.0


def validation_likelihood(fit: Fit) -> float:
    """The likelihood of the validation rows at the current hyperparameters, in nats per row."""
    validation = fit.validation
    assert validation is not None
    return fit.compute.on_main_process(lambda: validation.value(fit.model, fit.data))


def restart_from_initial(fit: Fit, noise_factor: float) -> None:
    """After an exact stage, return to the initial values, with the noise multiplied by a factor.

    ``fit.validation`` keeps the best hyperparameters of all exact stages so far, from which a later stage may start.
    """
    assert fit.validation is not None
    fit.validation = fit.validation.update(validation_likelihood(fit), fit.copy_parameters())
    fit.model.load_state_dict(fit.initial)
    noise = positive(fit.model, "noise")
    noise.assign(noise_factor * float(noise.value.detach()))
    noise.project()
    # A fresh optimiser of the same kind.
    fit.optimiser = type(fit.optimiser)(fit.coordinates, fit.optimiser.rate)
    fit.previous = None
    _reset_guard(fit)


def restore_best_validated(fit: Fit) -> None:
    """After an exact stage, restore the hyperparameters with which the validation rows had the largest likelihood.

    Not called if the next stage starts from the initial values. Does nothing if the last hyperparameters are as good up
    to 0.002 nats per row. Without it, a fit of 5,000 rows of the flights data continued from length scales near zero
    and ended 0.02 nats per row lower.
    """
    validation = fit.validation
    if validation is None or validation.state is None:
        return
    if validation.best <= validation_likelihood(fit) + _MIN_VALIDATED_GAIN:
        return
    fit.model.load_state_dict(validation.state)
    fit.optimiser.forget_curvature()
    # The next gradient is usually computed at this position. Then the earlier one, of another position, does not affect
    # the gain.
    if fit.previous is not None:
        fit.previous = (fit.coordinates.position(), fit.previous[1], None)
    _reset_guard(fit)


def increase_noise(fit: Fit, misfit: float) -> bool:
    """At the first step on more rows, increase a noise that is far too small for them; return whether it is larger now.

    If no two of few rows are close to each other, the learned noise may be almost zero. With more rows the misfit
    y^T H^-1 y / n is then huge and proportional to 1 / noise^2, and a quasi-Newton method takes short steps. If
    H is multiplied by c, the likelihood is largest at c = misfit; so the noise is multiplied by sqrt(misfit).
    """
    noise = positive(fit.model, "noise")
    is_first_step = fit.stage > 0 and len(fit.history) == fit.stage_began
    if not (is_first_step and misfit > _LARGEST_MISFIT and noise.raw.requires_grad):
        return False
    before = float(noise.value.detach())
    noise.assign(before * math.sqrt(misfit))
    fit.project()
    fit.optimiser.forget_curvature()
    _reset_guard(fit)
    fit.evaluated_at = fit.copy_parameters()
    return float(noise.value.detach()) > before


def _reset_guard(fit: Fit) -> None:
    """Reset the guard, because the fit continues from other hyperparameters."""
    fit.guard = None if fit.guard is None else Guard(fit.guard.rows, fit.guard.n)
