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
# Default number of steps of a table that does not explore, see EXPLORING_STEPS.
TABLE_STEPS = 100
# Up to this number of steps a fit begins at the most likely of several initial values. These are the steps that L-BFGS
# leaves to Adam, which changes the noise by at most 10 % each: they do not lead from a tenth of the standard deviation
# of y to large noise. With 15 steps on 800 rows of the flights, the test log likelihood is -1.363 instead of -1.448.
FEW_STEPS = 20
# Default number of steps with estimated gradients of a grid that begins at the optimum of sub-grids.
STEPS_AFTER_SUBGRIDS = 10
# Default number of steps of any other grid.
GRID_STEPS = 50
# Cells of a sub-grid, whose likelihood is computed exactly.
SUBGRID_CELLS = 600
# Number of sub-grids for each side of a grid; they are long along this side.
SUBGRIDS_PER_SIDE = 3
# Largest number of evaluations of the likelihood of the sub-grids.
SUBGRID_STEPS = 50
# The same three numbers for the choice of kernels, which compares several.
CHOICE_CELLS = 500
CHOICES_PER_SIDE = 2
CHOICE_STEPS = 25
# Single lines for the choice along a side with many entries without observations.
CHOICE_LINES = 16
# Up to this number of observed cells one kernel of all coordinates competes with a product: predictions at all cells
# are sums over all observations.
JOINT_CELLS = 200_000
# Probes of the gradient on a grid that begins at the optimum of sub-grids. s probes cost p / (2 s) nats in total for p
# hyperparameters, where the data cost p / 2.
GRID_PROBES = 8
# Largest number of epochs of a solve in the steps of such a grid. A solve that needs more continues in the next step.
GRID_STEP_EPOCHS = 120.0
LEARNING_RATE = 0.1
# The kernels of a field, one of which is chosen by its likelihood.
FIELD_KERNELS = ("matern-3/2", "matern-1/2", "matern-5/2")
# Rows, groups of neighbours, and steps of this comparison.
FIELD_ROWS = 600
FIELD_GROUPS = 9
FIELD_STEPS = 30
# Rows of the subset on which `Guard` checks every step, and on which L-BFGS takes its first steps. One Cholesky
# factorisation of 1,000 rows takes milliseconds.
GUARD_ROWS = 1000
# Other rows, drawn independently, whose likelihood decides which of these first steps the next stage starts from.
VALIDATION_ROWS = 2000
# This likelihood is computed once in this number of steps.
VALIDATE_EVERY = 5
# A fit that explores takes its first steps in three exact stages: from the initial noise, a tenth of the standard
# deviation of y; from that noise times this factor; and from the best result of both. With the smaller noise alone,
# flights and pol end 0.03 nats per row lower; with the larger noise alone, protein ends 0.02 lower.
SECOND_NOISE = 7.0
# Default number of steps of each of these stages, which are a fifth of all steps.
EXPLORING_STEPS = 25
# A coarse stage has at least this number of times the rows of the stage before it.
STAGE_RATIO = 2.5
# "auto" learns by Vecchia's likelihood if the kernel is a function of differences in at most this number of columns.
VECCHIA_COLUMNS = 3
# Neighbours of a row, and the largest number of factors of this likelihood.
VECCHIA_NEIGHBOURS = 30
VECCHIA_ROWS = 50_000
# Its steps are deterministic and cost little: they end at a smaller gain than estimated ones, in nats per row.
VECCHIA_MIN_GAIN = 2e-5

CHOICES = {
    "estimator": ("auto", "pathwise", "standard", "exact", "vecchia"),
    "optimiser": ("auto", "adam", "lbfgs"),
    "stages": ("auto", "full", "coarse"),
    "initialise": ("auto", "model", "data", "best", "noise", "neighbours", "subsets"),
}


@dataclass(frozen=True)
class FitOptions:
    """The options of `GP.fit`, which documents them; None and "auto" are replaced by `resolve`.

    Chosen by `resolve`: ``probes`` of the gradient, whether a grid begins at the optimum of sub-grids, and whether a
    fit explores two initial values of the noise.
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
    explores: bool = False

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

    def resolve(self, n: int, is_grid: bool, is_field: bool = False) -> FitOptions:
        """Return the options with every automatic choice made, for n observations of a table or a grid.

        ``is_field``: the kernel is a function of differences in at most three columns.
        """
        if is_grid and self.initialise in ("subsets", "best"):
            refused = f"initialise={self.initialise!r}"
            raise ValueError(f"{refused} is for tables: a grid has stages='coarse', which uses sub-grids")
        # On larger grids estimates cost less than exact gradients: products use the Kronecker structure.
        estimator = "vecchia" if is_field and n > GUARD_ROWS else "exact" if n <= EXACT_ROWS else "pathwise"
        estimator = "pathwise" if is_grid and n > EXACT_ROWS else estimator
        estimator = estimator if self.estimator == "auto" else self.estimator
        is_deterministic = estimator in ("exact", "vecchia") or bool(self.warm_start)
        if self.optimiser == "lbfgs" and not is_deterministic:
            raise ValueError("lbfgs needs deterministic gradients: use warm_start=True, which fixes the random draws")
        begins_on_subgrids = is_grid and (self.stages == "coarse" or (self.stages == "auto" and self.steps != 0))
        # Exact gradients cost little where they are chosen, and their steps end once the likelihood stays the same.
        grid_steps = STEPS_AFTER_SUBGRIDS if begins_on_subgrids and estimator != "exact" else GRID_STEPS
        automatic: dict[str, Any] = {
            "steps": TABLE_STEPS if not is_grid else grid_steps,
            "learning_rate": LEARNING_RATE,
            # L-BFGS needs fewer steps, but uses differences between gradients, which random gradients spoil.
            "optimiser": "lbfgs" if is_deterministic else "adam",
            # Sub-grids cost little compared with all cells. For tables exact gradients are used for few rows only.
            "stages": "coarse" if begins_on_subgrids or (not is_grid and n > GUARD_ROWS) else "full",
            "initialise": self._choose_initialise(is_grid),
        }
        chosen = {name: value for name, value in automatic.items() if getattr(self, name) in (None, "auto")}
        probes = min(self.samples, GRID_PROBES) if begins_on_subgrids else self.samples
        min_gain = min(self.min_gain, VECCHIA_MIN_GAIN) if estimator == "vecchia" else self.min_gain
        chosen |= {"probes": probes, "begins_on_subgrids": begins_on_subgrids, "min_gain": min_gain}
        resolved = replace(self, estimator=estimator, **chosen)
        exploring_steps = 5 * EXPLORING_STEPS
        has_steps = self.steps is None or self.steps >= exploring_steps
        if not (has_steps and resolved.initialise == "data" and resolved.has_exact_stage(n)):
            return resolved
        return replace(resolved, explores=True, steps=self.steps or exploring_steps)

    def _choose_initialise(self, is_grid: bool) -> str:
        """The automatic choice of ``initialise``."""
        if self.steps == 0:
            # Without steps the hyperparameters do not change.
            return "model"
        if is_grid:
            # From long length scales a fit may miss short ones, such as that of a season.
            return "neighbours"
        return "best" if self.steps is not None and self.steps <= FEW_STEPS else "data"

    def has_exact_stage(self, n: int) -> bool:
        """Whether a fit of n rows begins with exact gradients on a subset: L-BFGS does with estimated gradients, and
        with exact ones unless ``stages`` is "full".
        """
        has_subset = self.estimator in ("pathwise", "standard") or (
            self.estimator == "exact" and self.stages == "coarse"
        )
        return self.optimiser == "lbfgs" and has_subset and n > GUARD_ROWS and (self.steps or 0) > 1

    @property
    def step_settings(self) -> Settings:
        """The settings of the solves of all steps; the last solve has ``settings``, without an automatic budget."""
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


def choose_initialise(has_values: bool) -> str:
    """The option ``initialise`` of a fit: "model" if the user has given initial values, otherwise "auto"."""
    return "model" if has_values else "auto"


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
    """At most ``steps`` steps on ``rows`` rows of the data.

    ``exact``: whether gradients are exact, on the rows of `Guard`.  ``noise_factor``: if given, the stage restarts from
    the initial values, with the noise multiplied by this factor.
    """

    rows: int
    steps: int
    exact: bool = False
    noise_factor: float | None = None


def make_stages(n: int, options: FitOptions) -> tuple[Stage, ...]:
    """Return the stages of a fit with resolved options.

    A grid that begins at the optimum of sub-grids has one stage, with all cells. Other fits have up to three parts:

    - Exact stages, if L-BFGS uses estimated gradients (`FitOptions.has_exact_stage`), on the 1,000 rows of `Guard`: one
      with half of the steps. A fit that explores has three, each with a fifth of the steps: from the initial noise,
      from seven times that noise, and from the better of both results.
    - Coarse stages, if ``stages`` is "coarse": half of the remaining steps on an eighth of the rows, where a step costs
      1/64 of a full one, and a quarter of them on a third of the rows. A coarse stage is left out if it has fewer than
      2,500 rows, or fewer than 2.5 times those of the coarse stage before it.
    - A stage with all other steps on all rows; Vecchia's likelihood has at most 50,000 factors.

    A stage may end before it has taken all its steps.
    """
    assert options.steps is not None
    steps, stages = options.steps, list[Stage]()
    n = min(n, VECCHIA_ROWS) if options.estimator == "vecchia" else n
    if options.begins_on_subgrids:
        return (Stage(n, steps),)
    if options.has_exact_stage(n):
        stages = [Stage(GUARD_ROWS, steps // 2, exact=True)]
        if options.explores:
            factors = (None, SECOND_NOISE, None)
            stages = [Stage(GUARD_ROWS, steps // 5, exact=True, noise_factor=factor) for factor in factors]
        steps -= sum(stage.steps for stage in stages)
    remaining, previous = steps, GUARD_ROWS
    for rows, share in ((n // 8, steps // 2), (n // 3, steps // 4)):
        if options.stages == "coarse" and rows >= STAGE_RATIO * previous and share:
            stages.append(Stage(rows, share))
            remaining, previous = remaining - share, rows
    return (*stages, Stage(n, remaining))
