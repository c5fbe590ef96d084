"""Predicted seconds of a fit: from sizes and the rates of the device at first, then from the steps already taken.

The predictions are pure functions of sizes, rates and recorded steps; only `measured_rates` uses a clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from statistics import fmean, median
from typing import Self, cast

import torch

from pathgp.compute.hardware import Rates, rates
from pathgp.compute.memory import spans
from pathgp.compute.threads import count_threads, run_separately
from pathgp.kernels import Matern
from pathgp.learning.policy import GUARD_ROWS, VECCHIA_NEIGHBOURS, FitOptions, Stage
from pathgp.learning.report import VECCHIA, Step
from pathgp.operators import Operator
from pathgp.operators.kernel import SMALL
from pathgp.operators.structure_choice import MIN_STRUCTURED_ROWS, STRUCTURED_BACKENDS
from pathgp.solvers import Vecchia, predict

# Epochs to a residual of 0.01 before any solve was observed: of the first solve on new rows, and of later ones.
_FIRST_EPOCHS, _LATER_EPOCHS = 8.0, 4.0
# The last solve takes more than these: every system must reach the tolerance, not their average.
_LAST_EPOCHS = 2.0
# Epochs on a grid, to the same residual.
_GRID_EPOCHS = 60.0
# Steps after which most stages end: the exact stage, and a stage with estimated gradients, where every learned number
# adds to them (with 4 to 28 of them, stages took 4 to 41 steps).
_EXACT_STEPS, _STAGE_STEPS, _STEPS_PER_NUMBER = 46, 4.0, 0.8
# Parts of a step in evaluations of a kernel entry: an entry of a dense K, a feature of a prior path, and an entry in
# the gradient, plus what each column of X adds to it.
_DENSE_ENTRY, _FEATURE, _GRADIENT, _GRADIENT_COLUMN = 1.5, 0.6, 2.4, 0.06
# A feature of a prior path at sites x times.
_FEATURE_OF_SITES = 0.06
# Neighbours of Vecchia's preconditioner, with which structured systems are solved.
_SOLVE_NEIGHBOURS = 15
# Operations of an exact step in units of n^3, and evaluations in units of n^2.
_EXACT_CUBIC, _EXACT_SQUARE = 1.2, 6.0
# A step by Vecchia's likelihood: evaluations per entry of a factor, and operations in units of the cube of its rows, at
# the rate of small systems relative to large ones.
_LOCAL_ENTRY, _LOCAL_CUBIC, _SMALL_RATE = 4.0, 1.0, 0.04
# Further steps of its first stage, which starts far from the optimum.
_FIRST_LOCAL_STEPS = 20
# Operations of a step with m inducing points, in units of (n + m) m^2.
_INDUCING = 12.0
# Exact steps and estimated steps take at least these multiples of the latency: a GPU waits for many small operations.
_EXACT_LATENCY, _STEP_LATENCY = 4.0, 10.0
# Seconds of the gradient of structured products, in products.
_STRUCTURED_GRADIENT = 3.0
# Seconds to compile fused products at their first use.
_COMPILE = 4.0
# Measure the rates of the device if the table predicts more seconds than this.
MEASURE_FROM = 5.0
# Seconds and least number of runs of each measurement.
_MEASURE_SECONDS, _MEASURE_RUNS = 0.03, 2


@dataclass(frozen=True)
class ImaginedOperator:
    """The attributes of an operator that predictions read.

    structured: seconds of a structured product of all rows with one column, and its name, if there are such products.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    backend: str
    memory: float
    entries: int
    world_size: int
    structured: tuple[float, str] | None = None
    stationary_dim: int | None = 3

    @property
    def entry_backend(self) -> str:
        return self.backend

    def cost(self, rows: int | None = None) -> float:
        return 1.0 if rows is None else rows / self.shape[0]

    def predict_product(self, s: int) -> float | None:
        """Seconds of a structured product; those of other backends follow from the sizes."""
        is_structured = self.structured is not None and self.backend == self.structured[1]
        return s * self.structured[0] if self.structured is not None and is_structured else None

    def restrict(self, rows: int, rates: Rates) -> Self:
        """The operator of a subset of the rows, with the backend that "auto" chooses for it; a grid has no subsets."""
        if self.backend == "kronecker":
            return self
        if self.structured is not None and rows >= MIN_STRUCTURED_ROWS[self.structured[1]]:
            seconds, name = self.structured
            # Sites have a matrix; a field takes n log n.
            seconds *= (rows / self.shape[0]) ** (2 if name == "toeplitz" else 1)
            return replace(self, shape=(rows, rows), backend=name, entries=rows**2, structured=(seconds, name))
        if self.backend not in ("auto", *STRUCTURED_BACKENDS):
            return replace(self, shape=(rows, rows), entries=rows**2)
        is_fused = rates.fused > 0 and self.dtype == torch.float32
        fits = self.dtype.itemsize * rows * math.ceil(rows / self.world_size) <= self.memory
        backend = "dense" if fits and (rows <= SMALL or not is_fused) else "fused" if is_fused else "streamed"
        return replace(self, shape=(rows, rows), backend=backend, entries=rows**2)


@dataclass(frozen=True)
class FitCosts:
    """The seconds of steps and solves of one fit.

    operator: of all rows.  columns: of X.  learned: number of learned hyperparameters.  samples, features: as in
    `GP.fit`; no features: no prior paths.  rates: of the device.  solver: the class of the solver.
    is_exact: whether the gradients of all rows are exact.  neighbours: of Vecchia's likelihood; 0: not used.
    exact_factor, local_factor, solve_factor, rest_factor: observed seconds over predicted ones, of exact steps, of
    steps by Vecchia's likelihood, of the solves of estimated steps and of the rest of these steps.
    first_epochs, later_epochs: of a solve on rows that are new, and of one that starts near its solution.
    inducing: number of inducing points m; 0 for none.
    """

    operator: ImaginedOperator
    columns: int
    learned: int
    samples: int
    features: int
    rates: Rates
    solver: str = "Auto"
    is_exact: bool = False
    neighbours: int = 0
    exact_factor: float = 1.0
    local_factor: float = 1.0
    solve_factor: float = 1.0
    rest_factor: float = 1.0
    first_epochs: float = _FIRST_EPOCHS
    later_epochs: float = _LATER_EPOCHS
    inducing: int = 0

    @property
    def rows(self) -> int:
        return self.operator.shape[0]

    def exact_step(self, rows: int) -> float:
        """A step with exact gradients."""
        r, m = self.rates, self.inducing
        seconds = _EXACT_CUBIC * rows**3 / r.factorise + _EXACT_SQUARE * rows**2 / r.evaluate
        if m:
            seconds = _INDUCING * (rows + m) * m**2 / r.factorise + _EXACT_SQUARE * rows * m / r.evaluate
        return self.exact_factor * (seconds + _EXACT_LATENCY * r.latency)

    def local_step(self, rows: int) -> float:
        """A step by Vecchia's likelihood."""
        r, b = self.rates, self.neighbours + 1
        systems = _LOCAL_ENTRY * b**2 / r.evaluate + _LOCAL_CUBIC * b**3 / (_SMALL_RATE * r.factorise)
        return self.local_factor * (rows * systems + _EXACT_LATENCY * r.latency)

    def solve(self, rows: int, epochs: float, method: str = "") -> float:
        """A solve of all columns; ``method``: the solver that was used, by default AP or Cholesky, if faster."""
        H, s, r = self.operator.restrict(rows, self.rates), 1 + self.samples, self.rates
        operator = cast(Operator, H)
        if H.backend == "kronecker":
            return self.solve_factor * epochs * 2.0 * predict.predict_product(operator, s, r)
        iterative = predict.predict_ap(operator, s, epochs, r)
        if H.predict_product(s) is not None:
            field = predict_field_solve(operator, s, epochs, r)
            iterative = iterative if field is None else field
        if not method and self.solver == "Auto" and 16.0 * rows**2 <= H.memory:
            return self.solve_factor * min(iterative, predict.predict_cholesky(operator, s, r))
        is_direct = (method or self.solver) == "Cholesky"
        return self.solve_factor * (predict.predict_cholesky(operator, s, r) if is_direct else iterative)

    def rest(self, rows: int, is_last: bool = False) -> float:
        """What a step takes beside its solve: kernel matrix, right-hand sides, gradient, and the check by `Guard`.

        ``is_last``: without the last two, as in the last solve.
        """
        H, r = self.operator.restrict(rows, self.rates), self.rates
        evaluate = (r.fused if H.backend == "fused" else r.evaluate) * H.world_size
        entries = float(H.entries if H.backend == "kronecker" else rows**2)
        seconds = _DENSE_ENTRY * entries / evaluate if H.backend == "dense" else 0.0
        feature = _FEATURE_OF_SITES if H.backend == "toeplitz" else _FEATURE
        seconds += feature * rows * self.samples * self.features / r.evaluate
        if not is_last:
            product = H.predict_product(1 + self.samples)
            entrywise = (_GRADIENT + _GRADIENT_COLUMN * self.columns) * entries / evaluate
            seconds += entrywise if product is None else _STRUCTURED_GRADIENT * product
            guard = min(rows, GUARD_ROWS)
            seconds += guard**3 / 3 / r.factorise + 2.0 * guard**2 / r.evaluate + _STEP_LATENCY * r.latency
        return self.rest_factor * seconds

    def step(self, rows: int, is_first: bool = False, exact: bool = False) -> float:
        """One step; ``is_first``: the first one on these rows.  ``exact``: with exact gradients."""
        if exact or self.is_exact:
            return self.exact_step(rows)
        if self.neighbours:
            return self.local_step(rows)
        return self.rest(rows) + self.solve(rows, self.first_epochs if is_first else self.later_epochs)

    def last_solve(self, rows: int, is_first: bool = True) -> float:
        """The solve for the posterior; ``is_first``: no step has used all of these rows."""
        if self.inducing:
            return self.exact_step(rows) / 3.0
        epochs = self.first_epochs if is_first else self.later_epochs
        return self.rest(rows, is_last=True) + self.solve(rows, epochs + _LAST_EPOCHS)

    def predict(
        self, stages: Sequence[Stage], last_rows: int, stage: int = 0, taken: int = 0, left: int | None = None
    ) -> float:
        """Seconds until the end of the fit, with a last solve on ``last_rows`` rows.

        ``stage``: the current stage, in which ``taken`` steps are done.  ``left``: steps that the fit may still take.
        """
        left = sum(s.steps for s in stages) if left is None else left
        is_compiled = stage or taken or self.operator.restrict(last_rows, self.rates).backend != "fused"
        seconds, last = 0.0 if is_compiled else _COMPILE, len(stages) - 1
        for number, current in enumerate(stages[stage:], stage):
            # The last stage may take the steps that the others have left.
            most = left if number == last else min(left, current.steps - taken)
            expected = _EXACT_STEPS
            if not (current.exact or self.is_exact):
                expected = round(_STAGE_STEPS + _STEPS_PER_NUMBER * self.learned)
                expected += _FIRST_LOCAL_STEPS if self.neighbours and number == 0 else 0
            # A stage that has not ended where others do takes some steps more, the more the longer it has been.
            count = min(most, max(expected - taken, 3, round(taken / 4)))
            if count > 0:
                seconds += (count - 1) * self.step(current.rows, exact=current.exact)
                seconds += self.step(current.rows, is_first=not taken, exact=current.exact)
            left, taken = left - max(count, 0), 0
        is_first = self.is_exact or bool(self.neighbours) or stages[-1].rows < last_rows
        return seconds + self.last_solve(last_rows, is_first)

    def rows_within(self, seconds: float, least: int) -> int:
        """The largest number of rows, at least ``least``, whose last solve takes at most these seconds."""
        low, high = min(least, self.rows), self.rows
        if self.last_solve(high) <= seconds:
            return high
        while high - low > max(1, low // 100):
            middle = (low + high) // 2
            low, high = (middle, high) if self.last_solve(middle) <= seconds else (low, middle)
        return low

    def observe(self, steps: Sequence[Step]) -> FitCosts:
        """The costs corrected by the latest steps: those that used the same rows as the last one."""
        plain = replace(self, exact_factor=1.0, local_factor=1.0, solve_factor=1.0, rest_factor=1.0)
        exact = [step for step in steps if not step.method]
        if exact:
            # The first step of a process is slow.
            ratios = [step.seconds / plain.exact_step(step.rows) for step in exact[1:][-10:] or exact]
            plain = replace(plain, exact_factor=median(ratios))
        local = [step for step in steps if step.method == VECCHIA]
        if local:
            ratios = [step.seconds / plain.local_step(step.rows) for step in local[1:][-10:] or local]
            plain = replace(plain, local_factor=median(ratios))
        estimated = [step for step in steps if step.solver]
        if not estimated:
            return plain
        same = [step for step in estimated if step.rows == estimated[-1].rows]
        return plain.observe_solves(
            [(step.rows, step.epochs, step.solver_seconds, step.method) for step in same],
            [(step.rows, step.seconds - step.solver_seconds) for step in same],
        )

    def observe_solves(
        self, solves: Sequence[tuple[int, float, float, str]], rests: Sequence[tuple[int, float]] = ()
    ) -> FitCosts:
        """The costs corrected by solves (rows, epochs, seconds, method) and other parts of steps (rows, seconds)."""
        plain = replace(self, solve_factor=1.0, rest_factor=1.0)
        # Medians: compilation makes the first step of a stage slow.
        ratios = [seconds / max(plain.solve(rows, epochs, method), 1e-9) for rows, epochs, seconds, method in solves]
        found = replace(self, solve_factor=median(ratios))
        if rests:
            ratios = [seconds / max(plain.rest(rows), 1e-9) for rows, seconds in rests]
            found = replace(found, rest_factor=median(ratios))
        iterative = [epochs for _, epochs, _, method in solves if method != "Cholesky"]
        if not iterative:
            return found
        later = fmean(iterative[1:][-3:] or [iterative[0] * _LATER_EPOCHS / _FIRST_EPOCHS])
        # The first solve may have been direct.
        first = iterative[0] if solves[0][3] != "Cholesky" else later * _FIRST_EPOCHS / _LATER_EPOCHS
        return replace(found, first_epochs=max(first, later), later_epochs=later)


def estimate_costs(
    columns: int, learned: int, options: FitOptions, operator: ImaginedOperator, r: Rates, inducing: int = 0
) -> FitCosts:
    """The costs of a fit with resolved options, for these numbers of columns of X, of learned hyperparameters and of
    inducing points.
    """
    is_grid = operator.backend == "kronecker"
    # Prior draws on a grid come from square roots of its sides.
    features = options.features if options.estimator in ("pathwise", "vecchia") and not is_grid else 0
    first, later = (_GRID_EPOCHS, _GRID_EPOCHS) if is_grid else (_FIRST_EPOCHS, _LATER_EPOCHS)
    # Each digit of the residual takes about as many epochs as another.
    digits = -math.log10(min(max(options.settings.tol, 1e-16), 0.1)) / 2.0
    return FitCosts(
        operator,
        columns,
        learned,
        # The steps on a grid, which take most of the time, may have fewer probes than there are samples.
        options.probes or options.samples,
        features,
        r,
        solver=type(options.settings.solver).__name__,
        is_exact=options.estimator == "exact",
        neighbours=VECCHIA_NEIGHBOURS if options.estimator == "vecchia" else 0,
        first_epochs=digits * first,
        later_epochs=digits * later,
        inducing=inducing,
    )


def predict_field_solve(H: Operator, s: int, epochs: float, r: Rates) -> float | None:
    """Seconds of CG with structured products and Vecchia's preconditioner; None if that needs too much memory."""
    try:
        return predict.predict_cg(H, s, epochs, r, Vecchia(_SOLVE_NEIGHBOURS))
    except ValueError:
        return None


def describe_stages(stages: Sequence[Stage]) -> str:
    """The stages in words, such as "75 exact steps on 1,000 rows, 50 steps on 4,000 rows".

    Successive stages of the same kind, on the same number of rows, are counted together.
    """
    words = []
    for (rows, exact), group in groupby(stages, key=lambda stage: (stage.rows, stage.exact)):
        if steps := sum(stage.steps for stage in group):
            kind = ("exact " if exact else "") + ("step" if steps == 1 else "steps")
            words.append(f"{steps} {kind} on {rows:,} rows")
    return ", ".join(words) if words else "no steps"


def describe_seconds(seconds: float) -> str:
    """A duration that is known roughly, such as "40 s", "4 min", "3.5 h" or "37 days"."""
    if seconds < 90:
        return f"{max(seconds, 1.0):.2g} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.2g} h" if seconds < 72 * 3600 else f"{seconds / 86400:,.0f} days"


@cache
def measured_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """The rates of this machine, from small problems; those of fused products and the latency come from the table."""
    n = 768 if device.type == "cpu" else 8192
    A = torch.rand(n, n, dtype=dtype, device=device)
    B = A.to(torch.float64)
    positive = B + B.T + 2 * n * torch.eye(n, dtype=torch.float64, device=device)
    long = A.repeat(8, 1)
    # As in products with K: many rows, few columns.
    V = torch.rand(n, 65, dtype=dtype, device=device)
    X, Z = torch.rand(2, n, 16, dtype=dtype, device=device)
    kernel = Matern(1.5, 1.0).to(device).requires_grad_(False)
    parts = list(spans(n, -(-n // count_threads(device))))

    def evaluate() -> None:
        # As in products with K: each thread computes a tile of its own, and another busy process delays it alone.
        run_separately(parts, lambda I: kernel(X[I], Z), device)

    return replace(
        rates(device, dtype),
        multiply=2 * 8 * n**2 * 65 / _seconds(lambda: long @ V, device),
        multiply64=2 * n**3 / _seconds(lambda: B @ B, device),
        factorise=n**3 / 3 / _seconds(lambda: torch.linalg.cholesky(positive), device),
        read=long.nbytes / _seconds(lambda: long @ long[0], device),
        evaluate=n**2 / _seconds(evaluate, device),
    )


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The shortest of a few runs after a first one: other programs only make runs longer."""
    runs: list[float] = []
    while len(runs) <= _MEASURE_RUNS or sum(runs[1:]) < _MEASURE_SECONDS:
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        runs.append(time.perf_counter() - began)
    return min(runs[1:])
