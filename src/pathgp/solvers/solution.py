"""What a solve returns: the solution, its residuals, its cost and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

# Larger residuals leave nothing of a solution.
_USABLE = 0.1


class Status(Enum):
    """How a solve ended; the value says what it means. `Solution.explain` adds what to do."""

    CONVERGED = "every residual reached its goal"
    BUDGET_EXHAUSTED = "the epoch budget ended before the residuals reached their goal"
    OUT_OF_TIME = "the time limit ended before the residuals reached their goal"
    STALLED = "rounding errors keep the residuals above their goal"
    DIVERGED = "the residuals grew and the best iterate is returned"


@dataclass(frozen=True)
class Record:
    """One entry of a solve's history: relative residuals (s,) and the cost so far."""

    iterations: int
    epochs: float
    seconds: float
    residual: Tensor
    is_exact: bool


@dataclass(frozen=True)
class Solution:
    """The result of a solve.

    x: (n, s).  residual: (s,) relative residuals |b - H x| / |b|, unpreconditioned.
    residual_is_exact: recomputed from x by a product, not updated by a recurrence.
    epochs: cost in products with H, checks included.  history: a list of `Record`.
    solver: its settings as used.  method: the name of its class.  note: what the solver chose by itself, in words.
    precision: accuracy of the products between the checks: "high", "medium" or "low"; empty if not recorded.
    product_error: relative error |H~ d - H d| / |H d| of low-precision products, as measured.
    precision_note: why this precision was used, in words.
    """

    x: Tensor
    residual: Tensor
    residual_is_exact: bool
    iterations: int
    epochs: float
    status: Status
    history: list[Record] = field(repr=False)
    solver: str
    note: str
    seconds: float
    method: str = ""
    precision: str = ""
    product_error: float | None = None
    precision_note: str = ""

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED

    def explain(self, tol: float) -> str:
        """What the status means, and what to do in this dtype and with this solver, after a solve to a tolerance.

        A looser tolerance changes nothing if the tolerance is met: then the error at the data asked for less.
        """
        if self.converged:
            return self.status.value
        residual, is_descent = float(self.residual.max()), self.method in ("SDD", "SGD")
        loosen = [] if residual <= tol else ["loosen tol"]
        if self.status is Status.BUDGET_EXHAUSTED:
            remedies = ["raise max_epochs", *loosen, "start from an earlier solution (x0)"]
        elif self.status is Status.OUT_OF_TIME:
            remedies = ["raise time_limit", *loosen, "use fewer rows"]
        elif self.x.dtype == torch.float32:
            remedies = ["use float64"]
        elif self.status is Status.STALLED and residual <= _USABLE:
            remedies = [*loosen, "accept the residual reached"]
        else:
            remedies = []
        if self.status is Status.DIVERGED and is_descent:
            remedies += ["use a smaller step size"]
        # With little noise rounding stops CG at its start, where AP reaches residuals of 1e-6.
        is_lost = self.status is Status.DIVERGED or (self.status is Status.STALLED and residual > _USABLE)
        if is_descent or (is_lost and self.method not in ("AP", "Cholesky")):
            remedies += ["use AP"]
        if not remedies and self.status is Status.STALLED:
            remedies = ["use a rougher kernel, such as Matern(1.5),", "merge rows with equal inputs"]
        *first, last = remedies or ["check the inputs for extreme values"]
        remedy = f"{', '.join(first)} or {last}" if first else last
        return f"{self.status.value}: {remedy}"


def describe_products(precision: str, error: float | None, note: str) -> str:
    """The precision of products for a report, for instance "low precision, off by 1.2e-03"."""
    if not precision:
        return "not recorded"
    measured = "" if error is None else f", off by {error:.1e}"
    return f"{precision} precision{measured}" + (f": {note}" if note else "")


Callback = Callable[[Record], None]

AllowedResidual = Callable[[Tensor | None], float]
"""The largest root mean square that a column of b - H x may have: before a solution is known (None), and given x."""


class NumericalFailure(ValueError):
    """Numbers out of range: an indefinite matrix or an overflow; the message says what to do."""
