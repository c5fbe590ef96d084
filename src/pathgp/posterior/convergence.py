"""The warning about a solve that ended above its tolerance, worded in one place."""

from __future__ import annotations

import warnings

from pathgp.compute.stacklevel import levels_to_the_caller
from pathgp.solvers import Solution


class ConvergenceWarning(UserWarning):
    """A solve ended above its tolerance; the message says what to do."""


def warn_unless_converged(solution: Solution, tol: float, purpose: str, consequence: str = "") -> None:
    """Issue a `ConvergenceWarning` at the caller's line if a solve missed its tolerance.

    ``purpose``: the results that were solved for.  ``consequence``: how far off they may be.
    """
    if not solution.converged:
        residual = float(solution.residual.max())
        goal = f"tol {tol:.0e}" + (" is met, but not the goal for the error at the data" if residual <= tol else "")
        message = (
            f"{purpose}: {solution.solver} ended {solution.status.name} with a worst residual of "
            f"{residual:.1e} ({goal}): {solution.explain(tol)}"
        )
        message = f"{message}. {consequence}" if consequence else message
        warnings.warn(message, ConvergenceWarning, stacklevel=levels_to_the_caller())
