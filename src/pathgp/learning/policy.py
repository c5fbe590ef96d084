"""Every automatic choice of a fit, in one place: steps, gradient estimator, optimiser, stages, start, dtype.

The functions are pure: equal arguments give equal choices, from Python, the command line and all integrations.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.inputs import real_number, whole_number
from pathgp.data.standardise import blurred_column
from pathgp.posterior.conditioning import Settings
from pathgp.posterior.exact_covariance import EXACT_ROWS

# Above this number of rows float32 is used, which halves time and memory.
FLOAT64_ROWS = 10_000
# Default number of steps, for tables, for grids, and for grids that begin at the optimum of sub-grids.
TABLE_STEPS, GRID_STEPS, NEAR_STEPS = 100, 50, 10
# Cells of a sub-grid whose likelihood is computed exactly, number of sub-grids that are long along each side, and the
# largest number of evaluations of their likelihood.
SUBGRID_CELLS, SUBGRIDS_PER_SIDE, SUBGRID_STEPS = 600, 3, 50
# The same for the choice of kernels, which compares several.
CHOICE_CELLS, CHOICES_PER_SIDE, CHOICE_STEPS = 500, 2, 25
# Probes of the gradient on a grid that begins at the optimum of sub-grids. s probes cost p / (2 s) nats in total for p
# hyperparameters, where the data cost p / 2.
GRID_PROBES = 8
# Epochs of the solves of such a grid's steps. A solve that needs more goes on in the next step, from its last iterate.
GRID_STEP_EPOCHS = 120.0
LEARNING_RATE = 0.1
# The kernels of a field of which the likelihood chooses one; rows, groups of neighbours and steps of that comparison.
FIELD_KERNELS = ("matern-3/2", "matern-1/2", "matern-5/2")
FIELD_ROWS, FIELD_GROUPS, FIELD_STEPS = 600, 4, 30
# Rows of the subset on which `Guard` checks every step, and on which L-BFGS takes its first steps. One Cholesky
# factorisation of 1,000 rows takes milliseconds.
GUARD_ROWS = 1000
# Rows whose likelihood decides, every few steps, whether these first steps suit other rows as well.
VALIDATION_ROWS, VALIDATE_EVERY = 2000, 5
# Minimum ratio of the numbers of rows of two successive stages.
STAGE_RATIO = 2.5

CHOICES = {
    "estimator": ("auto", "pathwise", "standard", "exact"),
    "optimiser": ("auto", "adam", "lbfgs"),
    "stages": ("auto", "full", "coarse"),
    "initialise": ("auto", "model", "data", "neighbours", "subsets"),
}


@dataclass(frozen=True)
class FitOptions:
    """The options of `GP.fit`, which documents them; None and "auto" are replaced by `resolve`.

    Chosen by `resolve`: ``probes`` of the gradient, and whether a grid begins at the optimum of sub-grids.
    """

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
    time_limit: float | None = None
    probes: int | None = None
    begins_on_subgrids: bool = False

    def __post_init__(self) -> None:
        for name, minimum in (("steps", 0), ("samples", 1), ("features", 1), ("starts", 1)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(getattr(self, name), name, minimum))
        if self.learning_rate is not None and real_number(self.learning_rate, "learning_rate") <= 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        real_number(self.min_gain, "min_gain")
        if self.time_limit is not None:
            object.__setattr__(self, "time_limit", read_time_limit(self.time_limit))
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {getattr(self, name)!r}")

    def resolve(self, n: int, is_grid: bool) -> FitOptions:
        """Return the options with every automatic choice made, for n observations of a table or a grid."""
        if is_grid and self.initialise == "subsets":
            raise ValueError("initialise='subsets' is for tables: a grid has stages='coarse', which uses sub-grids")
        # On a grid estimates cost less than exact gradients at any size: products use the Kronecker structure.
        estimator = "exact" if n <= EXACT_ROWS and not is_grid else "pathwise"
        estimator = estimator if self.estimator == "auto" else self.estimator
        is_deterministic = estimator == "exact" or bool(self.warm_start)
        if self.optimiser == "lbfgs" and not is_deterministic:
            raise ValueError("lbfgs needs deterministic gradients: use warm_start=True, which fixes the random draws")
        begins_near = is_grid and (self.stages == "coarse" or (self.stages == "auto" and self.steps != 0))
        automatic: dict[str, Any] = {
            "steps": NEAR_STEPS if begins_near else GRID_STEPS if is_grid else TABLE_STEPS,
            "learning_rate": LEARNING_RATE,
            # L-BFGS needs fewer steps, but uses differences between gradients, which random gradients spoil.
            "optimiser": "lbfgs" if is_deterministic else "adam",
            # Sub-grids cost little compared with all cells. For tables exact gradients are used for few rows only.
            "stages": "coarse" if begins_near or (not is_grid and estimator != "exact") else "full",
            # Without steps the model is conditioned as it is.
            # On a grid a fit from long length scales may miss short ones, such as that of a season: start from
            # distances between neighbours.
            "initialise": "model" if self.steps == 0 else "neighbours" if is_grid else "data",
        }
        chosen = {name: value for name, value in automatic.items() if getattr(self, name) in (None, "auto")}
        probes = min(self.samples, GRID_PROBES) if begins_near else self.samples
        return replace(self, estimator=estimator, probes=probes, begins_on_subgrids=begins_near, **chosen)

    @property
    def step_settings(self) -> Settings:
        """The settings of the solves of steps; the last solve has no budget but the user's."""
        if not self.begins_on_subgrids or self.settings.max_epochs is not None:
            return self.settings
        return replace(self.settings, max_epochs=GRID_STEP_EPOCHS)


def read_time_limit(value: Any) -> float:
    """A positive number of seconds; TypeError or ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"time_limit must be a number of seconds, got {value!r}")
    seconds = float(value)
    if not 0 < seconds < math.inf:
        raise ValueError(f"time_limit must be a positive, finite number of seconds, got {seconds:g}")
    return seconds


def divide_time_limit(value: Any, models: int) -> float | None:
    """The time limit of each of several models that are learned one after the other; None stays None."""
    return None if value is None else read_time_limit(value) / models


def choose_start(is_given: bool) -> str:
    """``initialise`` for a caller whose user may give initial values: learning starts from given ones."""
    return "model" if is_given else "auto"


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

    A grid that begins at the optimum of sub-grids has one stage, with all cells.

    Otherwise, if L-BFGS uses estimated gradients, at most half of the steps form a first stage: exact gradients on the
    rows of `Guard`. Coarse stages then take half of the remaining steps on an eighth of the rows, where a step costs
    1/64 of a full one, and a quarter of them on a third of the rows. The last stage uses all rows. Every stage has at
    least 2.5 times as many rows as the previous one; a coarse stage has at least 2,500.
    """
    assert options.steps is not None
    steps, stages = options.steps, []
    if options.begins_on_subgrids:
        return (Stage(n, steps),)
    if options.optimiser == "lbfgs" and options.estimator != "exact" and n > GUARD_ROWS and steps > 1:
        stages.append(Stage(GUARD_ROWS, steps // 2, exact=True))
        steps -= steps // 2
    remaining, previous = steps, GUARD_ROWS
    for rows, share in ((n // 8, steps // 2), (n // 3, steps // 4)):
        if options.stages == "coarse" and rows >= STAGE_RATIO * previous and share:
            stages.append(Stage(rows, share))
            remaining, previous = remaining - share, rows
    return (*stages, Stage(n, remaining))
