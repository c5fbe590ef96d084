"""Every automatic choice of a fit, in one place: steps, gradient estimator, optimiser, stages, start, dtype.

The functions are pure: equal arguments give equal choices, from Python, the command line and all integrations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.inputs import real_number, whole_number
from pathgp.data.standardise import blurred_column
from pathgp.posterior.conditioning import Settings

# Up to this number of rows exact gradients and variances cost less than estimates; exact results are not random.
EXACT_ROWS = 1000
# Above this number of rows float32 is used, which halves time and memory.
FLOAT64_ROWS = 10_000
# Default number of steps, for tables and for grids.
TABLE_STEPS, GRID_STEPS = 100, 50
LEARNING_RATE = 0.1
# Rows of the subset on which `Guard` checks every step, and on which L-BFGS takes its first steps. One Cholesky
# factorisation of 1,000 rows takes milliseconds.
GUARD_ROWS = 1000
# Minimum number of rows of a coarse stage.
LEAST_ROWS = 2000

CHOICES = {
    "estimator": ("auto", "pathwise", "standard", "exact"),
    "optimiser": ("auto", "adam", "lbfgs"),
    "stages": ("auto", "full", "coarse"),
    "initialise": ("auto", "model", "data", "neighbours", "subsets"),
}


@dataclass(frozen=True)
class FitOptions:
    """The options of `GP.fit`, which documents them; None and "auto" are replaced by `resolve`."""

    settings: Settings
    steps: int | None = None
    optimiser: str = "auto"
    estimator: str = "auto"
    stages: str = "auto"
    initialise: str = "auto"
    learning_rate: float | None = None
    warm_start: bool = True
    samples: int = 64
    features: int = 512
    starts: int = 1
    min_gain: float = 5e-4

    def __post_init__(self) -> None:
        for name, minimum in (("steps", 0), ("samples", 1), ("features", 1), ("starts", 1)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(getattr(self, name), name, minimum))
        if self.learning_rate is not None and real_number(self.learning_rate, "learning_rate") <= 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        real_number(self.min_gain, "min_gain")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {getattr(self, name)!r}")

    def resolve(self, n: int, is_grid: bool) -> FitOptions:
        """Return the options with every automatic choice made, for n observations of a table or a grid."""
        if is_grid and (self.stages == "coarse" or self.initialise == "subsets"):
            raise ValueError("a grid is learned as a whole: stages='coarse' and initialise='subsets' are for tables")
        # On a grid estimates cost less than exact gradients at any size: products use the Kronecker structure.
        estimator = "exact" if n <= EXACT_ROWS and not is_grid else "pathwise"
        estimator = estimator if self.estimator == "auto" else self.estimator
        is_deterministic = estimator == "exact" or bool(self.warm_start)
        if self.optimiser == "lbfgs" and not is_deterministic:
            raise ValueError("lbfgs needs deterministic gradients: use warm_start=True, which fixes the random draws")
        automatic: dict[str, Any] = {
            "steps": GRID_STEPS if is_grid else TABLE_STEPS,
            "learning_rate": LEARNING_RATE,
            # L-BFGS needs fewer steps, but uses differences between gradients, which random gradients spoil.
            "optimiser": "lbfgs" if is_deterministic else "adam",
            # A subset of a grid has no grid structure, and exact gradients are used for few rows only.
            "stages": "full" if is_grid or estimator == "exact" else "coarse",
            # On a grid a fit from long length scales may miss short ones, such as that of a season: start from
            # distances between neighbours.
            "initialise": "neighbours" if is_grid else "data",
        }
        chosen = {name: value for name, value in automatic.items() if getattr(self, name) in (None, "auto")}
        return replace(self, estimator=estimator, **chosen)


def choose_dtype(X: Tensor) -> tuple[torch.dtype, int | None]:
    """Return the dtype of the computations for inputs X (n, d) in the model's units, and a column or None.

    float64 up to 10,000 rows, float32 above. If float32 has too few digits for a column of X, the dtype is
    float64, and the number of that column is the second result.
    """
    if len(X) <= FLOAT64_ROWS:
        return torch.float64, None
    column = blurred_column(X, torch.float32)
    return (torch.float32 if column is None else torch.float64), column


@dataclass(frozen=True)
class Stage:
    """At most ``steps`` steps on ``rows`` rows of the data; ``exact``: with exact gradients, on the rows of `Guard`."""

    rows: int
    steps: int
    exact: bool = False


def make_stages(n: int, options: FitOptions) -> tuple[Stage, ...]:
    """Return the stages of a fit with resolved options.

    If L-BFGS uses estimated gradients, at most half of the steps form a first stage: exact gradients on the rows of
    `Guard`. Coarse stages then take half of the remaining steps on an eighth of the rows, where a step costs 1/64 of a
    full one, and a quarter of them on a third of the rows. The last stage uses all rows. A coarse stage has at least
    2,000 rows, and at most half of all.
    """
    assert options.steps is not None
    steps, stages = options.steps, []
    if options.optimiser == "lbfgs" and options.estimator != "exact" and n > GUARD_ROWS and steps > 1:
        stages.append(Stage(GUARD_ROWS, steps // 2, exact=True))
        steps -= steps // 2
    remaining = steps
    for rows, share in ((n // 8, steps // 2), (n // 3, steps // 4)):
        rows = max(LEAST_ROWS, rows)
        if options.stages == "coarse" and 2 * rows <= n and share:
            stages.append(Stage(rows, share))
            remaining -= share
    return (*stages, Stage(n, remaining))
