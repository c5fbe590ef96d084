"""A solve in progress: the scaled system, the budget, the history and the stopping rule."""

from __future__ import annotations

import math
import time
from functools import cached_property

import torch
from torch import Tensor

from pathgp.compute.random import as_generator, permutation
from pathgp.operators import Operator
from pathgp.solvers.solution import AllowedResidual, Callback, Record, Solution, Status

DEFAULT_MAX_EPOCHS = 1000.0
# A stable run from zero may end with residuals up to this factor above the initial ones.
_FLUCTUATION = 4.0
# Residuals are estimated from one row in 64; of few rows from 512, at most one in eight.
_SAMPLE_EVERY, _MIN_SAMPLE = 64, 512
# An estimate has a relative error of 5 to 25 %: a residual below this part of it has certainly fallen.
_CERTAINLY_FALLEN = 0.5
# Exact rows from which the error of field products is estimated at the end of a solve: random ones, each with its
# nearest rows.
_CONFIRMED_GROUPS, _CONFIRMED_ROWS = 32, 8
# A relative residual above this means divergence.
_DIVERGED = 1e6
# Epochs after which the pace of a run is known.
_PACE_EPOCHS = 0.25


class Run:
    """One solve in progress; `Solver.solve` describes the arguments.

    Columns are scaled to |b| = 1 while solving, so that one tolerance and one step size fit them all.
    A zero column has the solution zero and residual zero.
    """

    def __init__(
        self,
        H: Operator,
        B: Tensor,
        x0: Tensor | None = None,
        delta: Tensor | None = None,
        tol: float = 1e-2,
        max_epochs: float | None = None,
        generator: torch.Generator | None = None,
        callback: Callback | None = None,
        rule: str = "every",
        allowed: AllowedResidual | None = None,
        time_limit: float | None = None,
    ) -> None:
        _check_system(H, {"B": B, "x0": x0, "delta": delta}, tol, max_epochs, rule)
        self.H, self.tol, self.rule, self.callback = H, tol, rule, callback
        self.max_epochs = DEFAULT_MAX_EPOCHS if max_epochs is None else float(max_epochs)
        self.time_limit, self._is_late = time_limit, False
        self.generator = H.sync_generator(as_generator(generator))
        noise = H.noise.to(H.dtype)
        full = B if delta is None else B + (noise.unsqueeze(1) if noise.ndim else noise) * delta
        norms = _overflow_safe_norms(full).to(full.dtype)
        self.is_zero = norms == 0
        self.scale = torch.where(self.is_zero, torch.ones_like(norms), norms)
        self.b = full / self.scale
        self.targets = self.b if delta is None else B / self.scale
        self.delta = None if delta is None else delta / self.scale
        self.start = torch.zeros_like(self.b) if x0 is None else (x0 / self.scale).masked_fill(self.is_zero, 0.0)
        self.starts_at_zero = x0 is None
        self.initial_norms: Tensor
        self.allowed = allowed
        # The relative residual to reach, one per column; on the CPU, where the stopping rule is evaluated.
        self.goal = torch.full((B.shape[1],), float(tol), dtype=torch.float64)
        if allowed is not None:
            self._tighten(allowed(None))
        self._first_goal = self.goal
        self.iterations, self.epochs = 0, 0.0
        self.history: list[Record] = []
        self.precision, self.precision_note = "high", ""
        self.product_error: float | None = None
        # The error of field products over the goal of the residuals.
        self.product_excess = 0.0
        self._began = time.perf_counter()
        self._lowest_level, self._checks_without_progress = math.inf, 0

    def start_inner(self, H: Operator, B: Tensor, tol: float, max_epochs: float) -> Run:
        """Begin another solve as a part of this one: same generator and rule, and the time that is left."""
        inner = Run(H, B, None, None, tol, max_epochs, self.generator, None, self.rule, None, self.seconds_left)
        inner.begin()
        return inner

    def product(self, V: Tensor) -> Tensor:
        """H V, one epoch."""
        self.epochs += self.H.cost()
        return self.H @ V

    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        """H[index, :] V, a part of an epoch."""
        self.epochs += self.H.cost(len(index))
        return self.H.rows(index, V)

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        """H[:, index] D, a part of an epoch."""
        self.epochs += self.H.cost(len(index))
        return self.H.columns(index, D)

    def residual(self, x: Tensor) -> Tensor:
        """b - H x by a new product."""
        return self.b - self.product(x)

    @cached_property
    def initial_residual(self) -> Tensor:
        """b - H x at the start: a product, free for x = 0."""
        return self.b if self.starts_at_zero else self.residual(self.start)

    @cached_property
    def sample(self) -> Tensor:
        """The rows from which `estimate_residual` estimates."""
        n = self.b.shape[0]
        return permutation(n, self.generator, self.b.device)[: _sample_size(n)].sort().values

    @cached_property
    def initial_sample(self) -> Tensor:
        """The rows `sample` of the initial residual."""
        if self.starts_at_zero or "initial_residual" in vars(self):
            return self.initial_residual[self.sample]
        return self._sampled_residual(self.start)

    def estimate_residual(self, x: Tensor) -> Tensor:
        """Norms of b - H x (s,), estimated from a sample of the rows."""
        return self.record(self._extrapolate(self._sampled_residual(x)), exact=False)

    def begin(self) -> bool:
        """Measure the initial residual; return whether the start is good enough already.

        The residual is estimated from a sample of the rows if that is cheap, which saves a product for solvers that do
        not need the whole vector; otherwise it is computed.
        """
        n = self.b.shape[0]
        is_cheap = n >= 8 * _MIN_SAMPLE and self.H.cost(_sample_size(n)) <= self.H.cost() / 8
        if is_cheap and self.max_epochs >= 4.0 and not self.starts_at_zero:
            self.initial_norms = self.record(self._extrapolate(self.initial_sample), exact=False)
        else:
            self.initial_norms = self.record(column_norms(self.initial_residual), exact=True)
        if not self.is_satisfied(self.initial_norms):
            return False
        return self.is_converged(self.start, column_norms(self.initial_residual))

    def restart(self, x: Tensor, norms: Tensor, residual: Tensor | None = None) -> None:
        """Continue from x, in the scaled units of this run, with its residual if that is known."""
        self.start, self.starts_at_zero, self.initial_norms = x, False, norms
        for name in ("initial_residual", "initial_sample"):
            vars(self).pop(name, None)
        if residual is not None:
            self.initial_residual = residual
        self._lowest_level, self._checks_without_progress = math.inf, 0

    def affords(self, epochs: float) -> bool:
        """Whether the budget covers this work, the closing check, and the initial residual if it is still unknown."""
        checks = 1.0 if self.starts_at_zero or "initial_residual" in vars(self) else 2.0
        needed = epochs + checks * self.H.cost()
        return self.epochs + needed <= self.max_epochs + 1e-9 and self._has_time(needed)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time limit; None without one."""
        return None if self.time_limit is None else self.time_limit - (time.perf_counter() - self._began)

    def _has_time(self, epochs: float) -> bool:
        """Whether this work ends before the time limit, at the pace of the run; all processes decide alike."""
        if self.time_limit is None:
            return True
        # The first rows are no measure: preparations and caches make them slow.
        pace = (time.perf_counter() - self._began) / self.epochs if self.epochs >= _PACE_EPOCHS else 0.0
        left = self.seconds_left or 0.0
        self._is_late = self.H.on_main_process(lambda: pace * epochs > left)
        return not self._is_late

    def record(self, residual: Tensor, exact: bool) -> Tensor:
        """Add per-column residual norms (s,) to the history, call the callback, and return them."""
        seconds = time.perf_counter() - self._began
        entry = Record(self.iterations, self.epochs, seconds, residual.detach().cpu(), exact)
        self.history.append(entry)
        if self.callback is not None:
            self.callback(entry)
        return residual

    def measure(self, residual: Tensor, goal: Tensor | None = None) -> float:
        """Residual over goal, at most 1 when the rule is met: the worst column, or the first and the others' mean.

        ``goal``: another one than that of this run. With tol = 0 there is no goal, and the residual itself is returned.
        """
        ratio = residual.cpu().to(torch.float64) / ((self.goal if goal is None else goal) if self.tol > 0 else 1.0)
        if self.rule == "every" or len(ratio) == 1:
            return float(ratio.max())
        return max(float(ratio[0]), float(ratio[1:].mean()))

    def is_satisfied(self, residual: Tensor) -> bool:
        """Whether the stopping rule is met; never for tol = 0, which runs until the budget is spent."""
        return self.tol > 0 and self.measure(residual) <= 1.0

    def is_converged(self, x: Tensor, residual: Tensor) -> bool:
        """Whether x, whose relative residuals have been recomputed, is good enough.

        If ``allowed`` depends on the solution, the goals are first adapted to x, until it asks for no smaller ones.
        """
        while self.is_satisfied(residual):
            previous = self.goal
            if self.allowed is not None:
                self._tighten(self.allowed(x * self.scale))
            if torch.equal(previous, self.goal):
                return True
        return False

    def is_stalled(self, residual: Tensor, patience: float, has_progressed: bool = False) -> bool:
        """Whether the mean residual has not fallen by a percent for ``patience`` calls in a row, nor
        ``has_progressed`` was true."""
        level = float(residual.mean())
        if level < 0.99 * self._lowest_level or has_progressed:
            self._lowest_level, self._checks_without_progress = min(level, self._lowest_level), 0
        else:
            self._checks_without_progress += 1
        return self._checks_without_progress >= patience

    def is_diverged(self, residual: Tensor) -> bool:
        """Whether a residual is far above one, or not a number."""
        return not bool((residual <= _DIVERGED).all())

    def finish(self, x: Tensor, status: Status, solver: object, note: str, residual: Tensor | None = None) -> Solution:
        """Unscale, recompute the residual unless an exact one is given, and judge convergence by it."""
        if residual is None:
            residual = column_norms(self.initial_residual if x is self.start else self.residual(x))
        # Never return worse columns than the start. From zero, descent may raise the residual before it lowers it.
        limit = _FLUCTUATION if self.starts_at_zero and status is not Status.DIVERGED else 1.0
        has_fallen = bool((residual <= _CERTAINLY_FALLEN * self.initial_norms.to(residual)).all())
        start = (self.initial_norms if has_fallen else column_norms(self.initial_residual)).to(residual)
        worse = ~(residual <= limit * start)
        x, residual = torch.where(worse.to(x.device), self.start, x), torch.where(worse, start, residual)
        is_converged = self.is_converged(x, residual)
        if self.H.product_error is not None:
            residual = torch.hypot(residual, self._measure_product(x).to(residual))
        last = self.history[-1]
        if not last.is_exact or last.epochs < self.epochs:
            self.record(residual, exact=True)
        if is_converged:
            status = Status.CONVERGED
        elif status is Status.CONVERGED and self.tol > 0:
            status = Status.STALLED
        elif status is Status.BUDGET_EXHAUSTED and self._is_late:
            status = Status.OUT_OF_TIME
        return Solution(
            x=x * self.scale,
            residual=residual.to(x.device),
            residual_is_exact=True,
            iterations=self.iterations,
            epochs=self.epochs,
            status=status,
            history=self.history,
            solver=repr(solver),
            note=note,
            seconds=time.perf_counter() - self._began,
            method=type(solver).__name__,
            precision=self.precision,
            product_error=self.product_error,
            precision_note=self.precision_note,
        )

    def _measure_product(self, x: Tensor) -> Tensor:
        """Norms (s,) of the error of the product with x, from exact rows; the report contains the largest one.

        The part of it that neighbouring rows have in common must meet the goal of a residual. The rest, such as
        rounding errors, averages out like noise, and must meet the goal that does not depend on the solution.
        """
        n, s = self.b.shape
        index = self._rows_with_neighbours()
        count = index.numel()
        product = self.product(x)[index.flatten()]
        error = (product - self.rows(index.flatten(), x)).to(torch.float64).view(*index.shape, s)
        total = error.square().sum((0, 1))
        pairs = (error.sum(1).square().sum(0) - total) / max(1, index.shape[1] - 1)
        # The same for all columns: a single one has too few rows.
        common = float((pairs / total.clamp_min(torch.finfo(torch.float64).tiny)).mean().clamp(0.0, 1.0))
        norms = (n / count * total).sqrt()
        self.product_error = float(norms.max())
        if self.tol > 0:
            parts = self.measure(math.sqrt(common) * norms), self.measure(norms, self._first_goal)
            self.product_excess = max(parts)
        self.precision_note = f"field products, compared with {count} exact rows; their error is in the residuals"
        return norms

    def _rows_with_neighbours(self) -> Tensor:
        """Random rows, each with the nearest ones: (groups, rows)."""
        C, n = self.H.coordinates, self.b.shape[0]
        assert C is not None
        width = min(n, _CONFIRMED_ROWS)
        centres = permutation(n, self.generator, C.device)[: min(n // width, _CONFIRMED_GROUPS)]
        near = [torch.linalg.vector_norm(C - C[centre], dim=1).topk(width, largest=False).indices for centre in centres]
        return torch.stack(near)

    def _sampled_residual(self, x: Tensor) -> Tensor:
        return self.b[self.sample] - self.rows(self.sample, x)

    def _extrapolate(self, sampled: Tensor) -> Tensor:
        """Norms of columns (s,) from those of their rows `sample`."""
        return math.sqrt(self.b.shape[0] / len(self.sample)) * column_norms(sampled)

    def _tighten(self, rms: float) -> None:
        limit = rms * math.sqrt(self.b.shape[0]) / self.scale.cpu().to(torch.float64)
        self.goal = torch.minimum(self.goal, limit)


def column_norms(R: Tensor) -> Tensor:
    """Euclidean norm of every column, accumulated in float64."""
    return torch.linalg.vector_norm(R, dim=0, dtype=torch.float64)


def _overflow_safe_norms(R: Tensor) -> Tensor:
    """Column norms of numbers whose squares may leave the range of float64."""
    largest = R.abs().amax(0).to(torch.float64)
    return largest * column_norms(R / torch.where(largest > 0, largest, 1.0))


def _sample_size(n: int) -> int:
    """Rows, of n, from which a residual is estimated."""
    return max(1, n // _SAMPLE_EVERY, min(n // 8, _MIN_SAMPLE))


def _check_system(
    H: Operator, vectors: dict[str, Tensor | None], tol: float, max_epochs: float | None, rule: str
) -> None:
    if not isinstance(H, Operator):
        raise TypeError(f"H must be a pathgp operator, got {type(H).__name__}")
    expected = getattr(vectors["B"], "shape", None)
    for name, value in vectors.items():
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        if value.ndim != 2 or value.shape[0] != H.shape[0] or value.shape[1] == 0:
            raise ValueError(f"{name} must have shape ({H.shape[0]}, s), got {tuple(value.shape)}")
        if value.shape != expected:
            raise ValueError(f"{name} has shape {tuple(value.shape)}, B has {tuple(expected or ())}: they must agree")
        if value.dtype != H.dtype or value.device != H.device:
            raise TypeError(f"{name} is {value.dtype} on {value.device}, H is {H.dtype} on {H.device}")
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} contains NaN or infinite values")
    if not tol >= 0:
        raise ValueError(f"tol must not be negative, got {tol}")
    if max_epochs is not None and not max_epochs >= 1:
        raise ValueError(f"max_epochs must be at least 1, for the product that checks the result, got {max_epochs}")
    if rule not in ("every", "average"):
        raise ValueError(f"rule must be 'every' or 'average', got {rule!r}")
