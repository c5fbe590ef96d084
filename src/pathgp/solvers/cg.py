"""Conjugate gradients, preconditioned, for many right-hand sides at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.operators import Operator, Preconditioner
from pathgp.solvers.base import Solver
from pathgp.solvers.preconditioners import RandomlyPivotedCholesky
from pathgp.solvers.run import Run, column_norms
from pathgp.solvers.solution import Solution, Status

# The recurrence for the residual drifts from the true one in float32; a product after this many iterations corrects it.
_CHECK_EVERY = 50
# Checks without an improvement by a percent after which a run counts as stalled.
_PATIENCE = 6
# Failed claims of convergence in a row after which the precision is the limit.
_MAX_FAILURES = 2
# Converged columns are dropped from the products once at most this part of the columns is left.
_DEFLATE_BELOW = 0.75


@dataclass(frozen=True)
class CG(Solver):
    """Preconditioned conjugate gradients.

        q = H d;  a = r.z / d.q;  x += a d;  r -= a q;  z = P^-1 r;  d = z + (r.z / previous r.z) d

    One epoch per iteration, six vectors of memory per column. ``preconditioner``: "auto" is the choice of the operator
    (on a grid `GridInverse` if it is complete or its holes are small, and otherwise `GridBlocks` if a side is smooth),
    or a randomly pivoted Cholesky factor of automatic rank, P = F F^T + Sigma; None uses none.
    Thesis, section 2.2.4 (eq. cg).
    """

    preconditioner: str | Preconditioner | None = "auto"

    def __post_init__(self) -> None:
        if not (self.preconditioner in ("auto", None) or isinstance(self.preconditioner, Preconditioner)):
            raise ValueError(
                "preconditioner must be 'auto', None, PivotedCholesky(rank), RandomlyPivotedCholesky(rank), "
                f"GridBlocks() or GridInverse(), got {self.preconditioner!r}"
            )

    def _solve(self, run: Run) -> Solution:
        choice = self.preconditioner
        if isinstance(choice, str):
            choice = choose_preconditioner(run.H, run.max_epochs - run.epochs)
        apply_cost = 0.0 if choice is None else choice.apply_cost(run.H)
        if not run.affords(1.0 if choice is None else 1.0 + choice.cost(run.H) + apply_cost):
            return run.finish(run.start, Status.BUDGET_EXHAUSTED, self, "the budget is below one iteration")
        precondition, note = ((lambda r: r), "no preconditioner") if choice is None else choice.build(run)

        columns = _Columns(run)
        cg = columns.restart(precondition)
        while run.affords(1.0):
            cg.move(run.product(cg.d))
            is_claimed = columns.update(cg)
            if is_claimed or run.iterations % _CHECK_EVERY == 0:
                if not run.affords(1.0 + apply_cost):
                    break
                if (status := columns.check(cg, is_claimed)) is not None:
                    return run.finish(columns.best_x, status, self, note, columns.best)
                if is_claimed:
                    cg = columns.restart(precondition)
                    continue
            else:
                columns.deflate(cg)
            if not run.affords(1.0 + apply_cost):
                break
            cg.turn(precondition(cg.r))
        columns.compare(cg)
        return run.finish(columns.best_x, Status.BUDGET_EXHAUSTED, self, note, columns.best)


class _Recurrence:
    """The iterate x, residual r and direction d of the active columns, (n, active) each."""

    def __init__(self, x: Tensor, r: Tensor, z: Tensor) -> None:
        self.x, self.r, self.d = x, r, z.clone()
        self.rz = _dots(r, z)
        self.is_sound = self.rz > 0

    def move(self, q: Tensor) -> None:
        """a = r.z / d.q;  x += a d;  r -= a q  for q = H d."""
        dq = _dots(self.d, q)
        # Without positive curvature H is numerically indefinite; the column restarts.
        self.is_sound = (dq > 0) & (self.rz > 0)
        a = torch.where(self.is_sound, self.rz / dq, 0.0).to(q.dtype)
        self.x += a * self.d
        self.r -= a * q

    def turn(self, z: Tensor) -> None:
        """d = z + (r.z / previous r.z) d  for z = P^-1 r."""
        rz = _dots(self.r, z)
        self.d = z + torch.where(self.is_sound, rz / self.rz, 0.0).to(z.dtype) * self.d
        self.rz = rz

    def keep(self, columns: Tensor) -> None:
        """Drop all other columns."""
        self.x, self.r, self.d = self.x[:, columns], self.r[:, columns], self.d[:, columns]
        self.rz, self.is_sound = self.rz[columns], self.is_sound[columns]


class _Columns:
    """All columns of a solve: which are active, their residual norms, and the best iterate of each.

    In finite precision the last iterate may be far worse than the best: columns are compared by true residuals. Norms
    live on the CPU, so that the stopping test synchronises with the device once in an iteration.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.x, self.residual = run, run.start.clone(), run.initial_residual
        self.norms = column_norms(self.residual).cpu()
        self.best_x, self.best = self.x.clone(), self.norms.clone()
        self.failures = 0

    def restart(self, precondition: Callable[[Tensor], Tensor]) -> _Recurrence:
        """Begin at the present iterate: with columns above their goal ("every"), or all non-zero ones ("average")."""
        limit = self.run.goal if self.run.rule == "every" else 0.0
        self.active = torch.nonzero(self.norms > limit).flatten()
        r = self.residual[:, self.active]
        return _Recurrence(self.x[:, self.active], r, precondition(r))

    def update(self, cg: _Recurrence) -> bool:
        """Record the norms of an iteration; return whether the recurrence claims convergence or cannot continue."""
        self.run.iterations += 1
        self.norms[self.active] = column_norms(cg.r).cpu()
        self.run.record(self.norms.clone(), exact=False)
        can_improve = cg.is_sound.cpu() & (self.norms > self.run.goal)[self.active]
        return self.run.is_satisfied(self.norms) or not bool(can_improve.any())

    def check(self, cg: _Recurrence, is_claimed: bool) -> Status | None:
        """Recompute the residual by a product; the status to end with, or None to continue."""
        previous = self.best
        self.compare(cg)
        if self.run.is_converged(self.best_x, self.best):
            return Status.CONVERGED
        if self.run.is_diverged(self.norms):
            return Status.DIVERGED
        # The limit of the precision: claims that fail, or no progress at all.
        is_failure = is_claimed and not bool((self.norms < 0.99 * previous).any())
        self.failures = self.failures + 1 if is_failure else 0
        if self.failures == _MAX_FAILURES or self.run.is_stalled(self.best, _PATIENCE):
            return Status.STALLED
        cg.r = self.residual[:, self.active]
        return None

    def compare(self, cg: _Recurrence) -> None:
        """Recompute the residual by a product and keep, column by column, the iterate with the smaller one."""
        self.x[:, self.active] = cg.x
        self.residual = self.run.residual(self.x)
        self.norms = column_norms(self.residual).cpu()
        is_better = self.norms < self.best
        self.best_x = torch.where(is_better.to(self.x.device), self.x, self.best_x)
        self.best = self.run.record(torch.where(is_better, self.norms, self.best), exact=True)

    def deflate(self, cg: _Recurrence) -> None:
        """Drop converged columns from the recurrence once they are many."""
        above = (self.norms > self.run.goal)[self.active]
        if self.run.rule == "every" and int(above.sum()) <= _DEFLATE_BELOW * len(above):
            self.x[:, self.active] = cg.x
            self.active = self.active[above]
            cg.keep(above)


def choose_preconditioner(H: Operator, epochs: float) -> Preconditioner:
    """The preconditioner that "auto" uses on a budget of ``epochs``: the operator's own, or a low-rank factor."""
    return H.choose_preconditioner(epochs) or RandomlyPivotedCholesky()


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of matching columns, accumulated in float64."""
    return (a * b).sum(0, dtype=torch.float64)
