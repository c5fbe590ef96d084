"""The contract of all solvers: three nouns (operator, solver, solution) and one verb (solve)."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import torch
from torch import Tensor

from pathgp.compute.random import as_generator, permutation
from pathgp.operators import Operator

# How far above those of zero the residuals of a sound run may end.
_FLUCTUATION = 4.0
# Residuals are estimated from one row in 64; of few rows from 512, at most one in eight.
_ONE_IN, _FEW = 64, 512
# An estimate is good to some 5 to 25 %: only far below one it is certain that a residual has fallen.
_FAR_BELOW = 0.5

DEFAULT_MAX_EPOCHS = 1000.0


class Status(Enum):
    """How a solve ended; the value says what it means and what to do."""

    CONVERGED = "every residual reached its goal"
    BUDGET_EXHAUSTED = (
        "the epoch budget ended before the residuals reached their goal: raise max_epochs, loosen tol, "
        "start from an earlier solution (x0), or use another solver"
    )
    STALLED = (
        "rounding errors keep the residuals above their goal: use float64 where this is float32, "
        "otherwise accept the residual reached"
    )
    DIVERGED = "the iterates grew and the best one is returned: use a smaller step size, or another solver"


@dataclass(frozen=True)
class Record:
    """One entry of a solve's history: the relative residual of every column at some cost."""

    iterations: int
    epochs: float
    seconds: float
    residual: Tensor
    is_exact: bool


@dataclass(frozen=True)
class Solution:
    """The result of a solve.

    x: (n, s).  residual: (s,) relative residuals |b - H x| / |b|, unpreconditioned.
    residual_is_exact: recomputed from x by a product, not carried along by a recurrence.
    epochs: cost in products with H, checks included.  history: a list of `Record`.
    solver: its settings as used.  note: what the solver chose by itself, in words.
    products: the precision of those between the checks, in words, and of rough ones H~ d the measured relative error
    |H~ d - H d| / |H d|; nothing in files from before it was recorded.
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
    products: str = ""

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED


Callback = Callable[[Record], None]

AllowedResidual = Callable[[Tensor | None], float]
"""The largest root mean square that a column of b - H x may have: before a solution is known (None), and given x."""


class NumericalFailure(ValueError):
    """The numbers left their range: an indefinite matrix, an overflow; the message says what to do."""


class Run:
    """One solve in progress: the scaled system, its costs so far, its history and its stopping rule.

    Columns are scaled to |b| = 1 while solving, so that one tolerance and one step size fit them all.
    A zero column has the solution zero and residual zero.
    """

    def __init__(
        self,
        H: Operator,
        B: Tensor,
        x0: Tensor | None,
        delta: Tensor | None,
        tol: float,
        max_epochs: float | None,
        generator: torch.Generator | None,
        callback: Callback | None,
        rule: str,
        allowed: AllowedResidual | None = None,
    ) -> None:
        _check_system(H, B, x0, delta, tol, max_epochs, rule)
        self.H, self.tol, self.rule, self.callback = H, tol, rule, callback
        self.max_epochs = DEFAULT_MAX_EPOCHS if max_epochs is None else float(max_epochs)
        self.generator = H.sync_generator(as_generator(generator))
        noise = H.noise.to(H.dtype)
        noise = noise.unsqueeze(1) if noise.ndim else noise
        full = B if delta is None else B + noise * delta
        norms = norms_of_any_size(full).to(full.dtype)
        self.scale = torch.where(norms > 0, norms, torch.ones_like(norms))
        self.b = full / self.scale
        self.targets = self.b if delta is None else B / self.scale
        self.delta = None if delta is None else delta / self.scale
        self.zero = norms == 0
        start = torch.zeros_like(self.b) if x0 is None else (x0 / self.scale).masked_fill(self.zero, 0.0)
        self.start = start
        self.starts_at_zero = x0 is None
        self.initial_norms: Tensor
        self._allowed = allowed
        # The relative residual to reach, one per column; on the CPU, where the stopping rule is evaluated.
        self.goal = torch.full((B.shape[1],), float(tol), dtype=torch.float64)
        if allowed is not None:
            self._tighten(allowed(None))
        self.iterations = 0
        self.epochs = 0.0
        self.history: list[Record] = []
        self.products = "high precision"
        self._began = time.perf_counter()
        self._mark, self._waited = math.inf, 0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

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
        """b - H x by a fresh product."""
        return self.b - self.product(x)

    @cached_property
    def initial_residual(self) -> Tensor:
        """b - H x at the start: a product, free for x = 0."""
        return self.b if self.starts_at_zero else self.residual(self.start)

    @cached_property
    def sample(self) -> Tensor:
        """The rows that `estimate_residual` takes."""
        n = self.b.shape[0]
        return permutation(n, self.generator, self.b.device)[: _looked_at(n)].sort().values

    def estimate_residual(self, x: Tensor) -> Tensor:
        """The norms of b - H x, estimated from some rows."""
        r = self.b[self.sample] - self.rows(self.sample, x)
        return self.record(math.sqrt(self.b.shape[0] / len(self.sample)) * column_norms(r), exact=False)

    def begin(self) -> bool:
        """Whether the start is good enough already.

        Estimate the initial residual from sampled rows where that is cheap, which spares a product to those solvers
        that do not need it; otherwise compute it.
        """
        n = self.b.shape[0]
        cheap = n >= 8 * _FEW and self.H.cost(_looked_at(n)) <= self.H.cost() / 8 and self.max_epochs >= 4.0
        looks = cheap and not self.starts_at_zero
        self.initial_norms = (
            self.estimate_residual(self.start)
            if looks
            else self.record(column_norms(self.initial_residual), exact=True)
        )
        return self.satisfied(self.initial_norms) and self.confirmed(self.start, column_norms(self.initial_residual))

    def affords(self, epochs: float) -> bool:
        """Whether this much more work still leaves room for the closing check, and one of the start if need be."""
        checks = 1.0 if self.starts_at_zero or "initial_residual" in vars(self) else 2.0
        return self.epochs + epochs + checks * self.H.cost() <= self.max_epochs + 1e-9

    def record(self, residual: Tensor, exact: bool) -> Tensor:
        """Enter per-column residual norms (s,) into the history and tell the callback."""
        entry = Record(self.iterations, self.epochs, self.seconds, residual.detach().cpu(), exact)
        self.history.append(entry)
        if self.callback is not None:
            self.callback(entry)
        return residual

    def measure(self, residual: Tensor) -> float:
        """Residual over goal, at most 1 when the rule is met: the worst column, or the first and the others' mean.

        With tol = 0 there is no goal, and the residual itself is returned.
        """
        ratio = residual.cpu().to(torch.float64) / (self.goal if self.tol > 0 else 1.0)
        if self.rule == "every" or len(ratio) == 1:
            return float(ratio.max())
        return max(float(ratio[0]), float(ratio[1:].mean()))

    def satisfied(self, residual: Tensor) -> bool:
        """Whether the stopping rule is met; never for tol = 0, which runs until the budget is spent."""
        return self.tol > 0 and self.measure(residual) <= 1.0

    def confirmed(self, x: Tensor, residual: Tensor) -> bool:
        """Whether x, whose relative residuals have been recomputed, is good enough.

        The goals depend on the solution where ``allowed`` does: a solution that meets them first adapts them to itself.
        """
        if not self.satisfied(residual):
            return False
        if self._allowed is not None:
            self._tighten(self._allowed(x * self.scale))
        return self.satisfied(residual)

    def _tighten(self, rms: float) -> None:
        limit = rms * math.sqrt(self.b.shape[0]) / self.scale.cpu().to(torch.float64)
        self.goal = torch.minimum(self.goal, limit)

    def stalled(self, residual: Tensor, patience: int) -> bool:
        """Whether the mean residual has not fallen by a percent for ``patience`` calls in a row."""
        level = float(residual.mean())
        if level < 0.99 * self._mark:
            self._mark, self._waited = level, 0
        else:
            self._waited += 1
        return self._waited >= patience

    def finish(self, x: Tensor, status: Status, solver: str, note: str, residual: Tensor | None = None) -> Solution:
        """Unscale, recompute the residual unless a fresh one is given, and judge convergence by it."""
        if residual is None:
            residual = column_norms(self.initial_residual if x is self.start else self.residual(x))
        # Never worse than the start. A sound run from zero may be: descent lowers another norm first.
        allowed = _FLUCTUATION if self.starts_at_zero and status is not Status.DIVERGED else 1.0
        unsure = not bool((residual <= _FAR_BELOW * self.initial_norms.to(residual)).all())
        start = (column_norms(self.initial_residual) if unsure else self.initial_norms).to(residual)
        worse = ~(residual <= allowed * start)
        x, residual = torch.where(worse.to(x.device), self.start, x), torch.where(worse, start, residual)
        last = self.history[-1]
        if not last.is_exact or last.epochs < self.epochs:
            self.record(residual, exact=True)
        if self.confirmed(x, residual):
            status = Status.CONVERGED
        elif status is Status.CONVERGED and self.tol > 0:
            status = Status.STALLED
        return Solution(
            x=x * self.scale,
            residual=residual.to(x.device),
            residual_is_exact=True,
            iterations=self.iterations,
            epochs=self.epochs,
            status=status,
            history=self.history,
            solver=solver,
            note=note,
            seconds=self.seconds,
            products=self.products,
        )


class Solver(ABC):
    """A frozen record of settings with one verb."""

    def solve(
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
    ) -> Solution:
        """Solve H x = B + Sigma delta for all columns of B (n, s) at once.

        Args:
            H: the system matrix.
            B: right-hand sides (n, s).
            x0: initial guess (n, s), for instance the solution of a similar system.
            delta: noise in the regulariser's coordinates (n, s); SGD uses it for its low-variance objective.
            tol: relative residual |b - H x| / |b| to reach; 0 runs until the budget is spent.
            max_epochs: budget in products with H, checks included; 1000 by default.
            generator: source of the solver's random choices; None draws a fresh seed.
            callback: called with a `Record` whenever residuals are known.
            rule: "every" column below its goal, or "average": the first column and the mean of the others (the rule
                of chapter 5 of the thesis).
            allowed: the largest root mean square of b - H x in a column, as a function of the solution. A column's
                goal is the smaller of this and ``tol``.
        """
        with torch.no_grad():
            run = Run(H, B, x0, delta, tol, max_epochs, generator, callback, rule, allowed)
            if run.begin():
                run.products += "" if H.precision == "high" else ": the start was good enough"
                return run.finish(run.start, Status.CONVERGED, repr(self), "the start was good enough")
            if H.inner is H:
                return self._solve(run)
            from pathgp.solvers.refinement import refined

            return refined(self._solve, repr(self), run)

    @abstractmethod
    def _solve(self, run: Run) -> Solution:
        """Iterate from ``run.start``, where the residual is ``run.initial_residual``; end with ``run.finish``."""


def _looked_at(n: int) -> int:
    """How many of n rows make an estimate."""
    return max(1, n // _ONE_IN, min(n // 8, _FEW))


def column_norms(R: Tensor) -> Tensor:
    """Euclidean norm of every column, accumulated in float64."""
    return torch.linalg.vector_norm(R, dim=0, dtype=torch.float64)


def norms_of_any_size(R: Tensor) -> Tensor:
    """The same for numbers whose squares are beyond the range of float64."""
    largest = R.abs().amax(0).to(torch.float64)
    return largest * column_norms(R / torch.where(largest > 0, largest, 1.0))


def _check_system(
    H: Operator,
    B: Tensor,
    x0: Tensor | None,
    delta: Tensor | None,
    tol: float,
    max_epochs: float | None,
    rule: str,
) -> None:
    if not isinstance(H, Operator):
        raise TypeError(f"H must be a pathgp operator, got {type(H).__name__}")
    for name, value in (("B", B), ("x0", x0), ("delta", delta)):
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        if value.ndim != 2 or value.shape[0] != H.shape[0] or value.shape[1] == 0:
            raise ValueError(f"{name} must have shape ({H.shape[0]}, s), got {tuple(value.shape)}")
        if value.shape != B.shape:
            raise ValueError(f"{name} has shape {tuple(value.shape)}, B has {tuple(B.shape)}: they must agree")
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
