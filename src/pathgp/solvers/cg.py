"""Preconditioned conjugate gradients for many right-hand sides at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.conjugate_directions import ConjugateDirections
from pathgp.operators import Operator, Preconditioner
from pathgp.solvers.base import Solver
from pathgp.solvers.preconditioners import RandomlyPivotedCholesky
from pathgp.solvers.predict import automatic_block
from pathgp.solvers.run import Run, column_norms
from pathgp.solvers.solution import Solution, Status

# In float32 the residual of the recurrence drifts from b - H x. Recompute it by a product every 50 iterations.
_CHECK_EVERY = 50
# A run is stalled after this number of checks in a row without progress. Progress: the mean residual falls by 1 %, or
# the energy of a column grows by this fraction. With little noise the residual can stay the same for hundreds of
# iterations while the energy grows.
_PATIENCE, _ENERGY_GAIN = 6, 1e-3
# A run is also stalled if the recurrence ends this number of times in a row with no residual reduced by 1 %.
_MAX_FAILURES = 2
# Converged columns are dropped from the products once at most this fraction of the active columns is unconverged.
_DEFLATE_BELOW = 0.75


@dataclass(frozen=True)
class CG(Solver):
    """Preconditioned conjugate gradients for blocks of columns.

        R = B - H X;  Z = P^-1 R;  D = Z
        repeat:
            Q = H D;  A = (D^T Q)^-1 D^T R
            X += D A;  R -= Q A
            Z = P^-1 R;  D = Z - D (D^T Q)^-1 Q^T Z

    The error of every column is minimised over the search directions of all columns of its block. A block therefore
    needs fewer iterations than its columns one by one: with 65 columns and a low-rank preconditioner about half as many
    (benchmarks/results/block_cg_cpu.json). `ConjugateDirections` computes the same iterates in a form that stays stable
    when the columns of R become linearly dependent.

    R is recomputed as B - H X every 50 iterations and before the solver reports convergence.

    ``preconditioner``: an instance, None for none, or "auto". On a grid "auto" is `GridInverse` if the grid is complete
    or its holes are small, otherwise `GridBlocks` if a side is smooth. In all other cases it is a randomly pivoted
    Cholesky factor of automatic rank, P = F F^T + Sigma.
    ``block``: the largest number of columns of a block. 1 treats every column by itself, as in the thesis. None: 128,
    but 1 on a GPU if a product takes less time than the small matrices of a block (2.5 ms).

    Time: one epoch per iteration, and O(n block s) operations. Memory: eight vectors per column.
    O'Leary (1980); Dubrulle (2001). One column: thesis, section 2.2.4 (eq. cg).
    """

    preconditioner: str | Preconditioner | None = "auto"
    block: int | None = None

    def __post_init__(self) -> None:
        if not (self.preconditioner in ("auto", None) or isinstance(self.preconditioner, Preconditioner)):
            raise ValueError(
                "preconditioner must be 'auto', None, PivotedCholesky(rank), RandomlyPivotedCholesky(rank), "
                f"Vecchia(), GridBlocks() or GridInverse(), got {self.preconditioner!r}"
            )
        is_number = isinstance(self.block, int) and not isinstance(self.block, bool)
        if self.block is not None and not (is_number and self.block >= 1):
            raise ValueError(f"block must be an integer of at least 1, or None, got {self.block!r}")

    def __repr__(self) -> str:
        block = "" if self.block is None else f", block={self.block}"
        return f"CG(preconditioner={self.preconditioner!r}{block})"

    def _solve(self, run: Run) -> Solution:
        choice = self.preconditioner
        if isinstance(choice, str):
            choice = choose_preconditioner(run.H, run.max_epochs - run.epochs)
        apply_cost = 0.0 if choice is None else choice.apply_cost(run.H)
        if not run.affords(1.0 if choice is None else 1.0 + choice.cost(run.H) + apply_cost):
            return run.finish(run.start, Status.BUDGET_EXHAUSTED, self, "max_epochs does not cover one iteration")
        precondition, note = ((lambda r: r), "no preconditioner") if choice is None else choice.build(run)

        columns = _Columns(run, self.block or automatic_block(run.H, run.b.shape[1]))
        cg = columns.restart(precondition)
        while run.affords(1.0):
            cg.update_iterate(run.product(cg.d))
            has_ended = columns.record(cg)
            if has_ended or run.iterations % _CHECK_EVERY == 0:
                if not run.affords(1.0 + apply_cost):
                    break
                if (status := columns.check(cg, has_ended)) is not None:
                    return run.finish(columns.best_x, status, self, note, columns.best_norms)
                if has_ended:
                    cg = columns.restart(precondition)
                    continue
            else:
                columns.deflate(cg)
            if not run.affords(1.0 + apply_cost):
                break
            cg.update_direction(precondition(cg.w))
        columns.update_best(cg)
        return run.finish(columns.best_x, Status.BUDGET_EXHAUSTED, self, note, columns.best_norms)


class _Single:
    """Conjugate gradients column by column: x, r and directions d of the active columns, (n, active) each."""

    def __init__(self, x: Tensor, r: Tensor, z: Tensor) -> None:
        self.x, self.r, self.d = x, r, z.clone()
        self.rz = _dots(r, z)
        # Whether r.z and d.q are positive; if not, P or H is numerically indefinite.
        self.is_definite = self.rz > 0

    @property
    def w(self) -> Tensor:
        """The columns that the preconditioner is applied to: the residuals."""
        return self.r

    def replace(self, r: Tensor) -> None:
        """Continue with recomputed residuals."""
        self.r = r

    def update_iterate(self, q: Tensor) -> None:
        """a = r.z / d.q;  x += a d;  r -= a q  for q = H d."""
        dq = _dots(self.d, q)
        # An indefinite column takes no step, and its next direction is z: the column restarts.
        self.is_definite = (dq > 0) & (self.rz > 0)
        a = torch.where(self.is_definite, self.rz / dq, 0.0).to(q.dtype)
        self.x += a * self.d
        self.r -= a * q

    def update_direction(self, z: Tensor) -> None:
        """d = z + (r.z / previous r.z) d  for z = P^-1 r."""
        rz = _dots(self.r, z)
        self.d = z + torch.where(self.is_definite, rz / self.rz, 0.0).to(z.dtype) * self.d
        self.rz = rz

    def keep(self, mask: Tensor) -> None:
        """Keep the columns of a boolean mask, and drop all others."""
        self.x, self.r, self.d = self.x[:, mask], self.r[:, mask], self.d[:, mask]
        self.rz, self.is_definite = self.rz[mask], self.is_definite[mask]


class _Blocks:
    """Block conjugate gradients: iterates x of the active columns, and the `ConjugateDirections` of every block."""

    def __init__(self, x: Tensor, r: Tensor, z: Tensor, block: int) -> None:
        self.x = x
        # Blocks of nearly equal width.
        count = math.ceil(z.shape[1] / block)
        self.widths = [len(columns) for columns in torch.arange(z.shape[1]).tensor_split(count)]
        pairs = zip(r.split(self.widths, 1), z.split(self.widths, 1), strict=True)
        self.directions = [ConjugateDirections(R, Z) for R, Z in pairs]

    @property
    def d(self) -> Tensor:
        """The directions of all blocks, (n, k)."""
        return torch.cat([directions.P for directions in self.directions], 1)

    @property
    def w(self) -> Tensor:
        """The columns that the preconditioner is applied to, (n, k). They span the residuals of all blocks."""
        return torch.cat([directions.W for directions in self.directions], 1)

    @property
    def r(self) -> Tensor:
        """The residuals of all columns, (n, active)."""
        return torch.cat([directions.R for directions in self.directions], 1)

    def replace(self, r: Tensor) -> None:
        """Continue with recomputed residuals."""
        for directions, R in zip(self.directions, r.split(self.widths, 1), strict=True):
            directions.replace(R)

    def update_iterate(self, q: Tensor) -> None:
        """Take a step in every block, for q = H d: X += P a C and R -= Q a C."""
        products = q.split([directions.P.shape[1] for directions in self.directions], 1)
        iterates = self.x.split(self.widths, 1)
        for X, directions, Q in zip(iterates, self.directions, products, strict=True):
            X.addmm_(directions.P, directions.step(Q))
        definite = [directions.is_definite for directions in self.directions]
        self.is_definite = torch.tensor(definite).repeat_interleave(torch.tensor(self.widths))

    def update_direction(self, z: Tensor) -> None:
        """Compute the next directions of every block from z = P^-1 w."""
        parts = z.split([directions.W.shape[1] for directions in self.directions], 1)
        for directions, Z in zip(self.directions, parts, strict=True):
            directions.update(Z)

    def keep(self, mask: Tensor) -> None:
        """Keep the columns of a boolean mask, and drop all others."""
        masks = list(mask.split(self.widths))
        for directions, is_kept in zip(self.directions, masks, strict=True):
            if not bool(is_kept.all()):
                directions.replace(directions.R[:, is_kept])
        self.directions = [kept for kept, is_kept in zip(self.directions, masks, strict=True) if bool(is_kept.any())]
        self.widths = [int(is_kept.sum()) for is_kept in masks if bool(is_kept.any())]
        self.x, self.is_definite = self.x[:, mask], self.is_definite[mask]


class _Columns:
    """The state of all columns of a solve: active columns, residual norms, and the best iterate of every column.

    The best iterate has the smallest true residual b - H x; in finite precision the last one may be far worse. Norms
    are on the CPU, so that the stopping test synchronises with the device once per iteration.
    """

    def __init__(self, run: Run, block: int) -> None:
        self.run, self.block = run, block
        self.x, self.residual = run.start.clone(), run.initial_residual
        self.norms = column_norms(self.residual).cpu()
        self.best_x, self.best_norms = self.x.clone(), self.norms.clone()
        self.energy = self._compute_energy()
        self.failures = 0

    def restart(self, precondition: Callable[[Tensor], Tensor]) -> _Single | _Blocks:
        """Restart at the current iterate x.

        The active columns are those that have not converged (rule "every"), or those with a non-zero residual (rule
        "average").
        """
        limit = self.run.goal if self.run.rule == "every" else 0.0
        self.active = torch.nonzero(self.norms > limit).flatten()
        x, r = self.x[:, self.active], self.residual[:, self.active]
        z = precondition(r)
        return _Single(x, r, z) if self.block == 1 else _Blocks(x, r, z, self.block)

    def record(self, cg: _Single | _Blocks) -> bool:
        """Record the norms of r; return whether the recurrence has ended, by convergence or because H is indefinite."""
        self.run.iterations += 1
        self.norms[self.active] = column_norms(cg.r).cpu()
        self.run.record(self.norms.clone(), exact=False)
        can_improve = cg.is_definite.cpu() & (self.norms > self.run.goal)[self.active]
        return self.run.is_satisfied(self.norms) or not bool(can_improve.any())

    def check(self, cg: _Single | _Blocks, has_ended: bool) -> Status | None:
        """Recompute the residual by a product; return the status to end with, or None to continue."""
        previous_norms = self.best_norms
        self.update_best(cg)
        if self.run.is_converged(self.best_x, self.best_norms):
            return Status.CONVERGED
        if self.run.is_diverged(self.norms):
            return Status.DIVERGED
        # Rounding errors limit the accuracy if the recurrence ends without progress, or if checks show no progress.
        is_failure = has_ended and not bool((self.norms < 0.99 * previous_norms).any())
        self.failures = self.failures + 1 if is_failure else 0
        if self.failures == _MAX_FAILURES or self.run.is_stalled(self.best_norms, _PATIENCE, self._has_gained_energy()):
            return Status.STALLED
        cg.replace(self.residual[:, self.active])
        return None

    def update_best(self, cg: _Single | _Blocks) -> None:
        """Recompute the residual by a product; update the best iterate of every column whose residual is smaller."""
        self.x[:, self.active] = cg.x
        self.residual = self.run.residual(self.x)
        self.norms = column_norms(self.residual).cpu()
        is_better = self.norms < self.best_norms
        self.best_x = torch.where(is_better.to(self.x.device), self.x, self.best_x)
        self.best_norms = self.run.record(torch.where(is_better, self.norms, self.best_norms), exact=True)

    def _has_gained_energy(self) -> bool:
        """Whether the energy of a column is 0.1 % above its last recorded value; if so, record the energies."""
        energy = self._compute_energy()
        has_gained = bool((energy > (1.0 + _ENERGY_GAIN) * self.energy).any())
        if has_gained:
            self.energy = torch.maximum(self.energy, energy)
        return has_gained

    def _compute_energy(self) -> Tensor:
        """Energy 2 b.x - x.H x = x.(b + r) of every column (s,), on the CPU. Iterations increase it up to b.H^-1 b."""
        return _dots(self.x, self.run.b + self.residual).cpu()

    def deflate(self, cg: _Single | _Blocks) -> None:
        """Drop converged columns from the recurrence once they are a quarter of the active ones (rule "every")."""
        is_unconverged = (self.norms > self.run.goal)[self.active]
        if self.run.rule == "every" and int(is_unconverged.sum()) <= _DEFLATE_BELOW * len(is_unconverged):
            self.x[:, self.active] = cg.x
            self.active = self.active[is_unconverged]
            cg.keep(is_unconverged)


def choose_preconditioner(H: Operator, epochs: float) -> Preconditioner:
    """Return the preconditioner of "auto": the operator's own for a budget of ``epochs``, or else a low-rank factor."""
    return H.choose_preconditioner(epochs) or RandomlyPivotedCholesky()


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of matching columns, accumulated in float64."""
    return (a * b).sum(0, dtype=torch.float64)
