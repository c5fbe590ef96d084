"""Conjugate gradients, preconditioned, for many right-hand sides at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.solvers.base import Run, Solution, Solver, Status, column_norms
from pathgp.solvers.preconditioners import Preconditioner, RandomlyPivotedCholesky

# The recurrence for the residual drifts from the truth in float32; a product every so often corrects it.
_CHECK_EVERY = 50


@dataclass(frozen=True)
class CG(Solver):
    """Preconditioned conjugate gradients.

        q = H d;  a = r.z / d.q;  x += a d;  r -= a q;  z = P^-1 r;  d = z + (r.z / previous r.z) d

    One epoch per iteration, five vectors of memory per column. The preconditioner P = F F^T + Sigma comes
    from a low-rank factor of K: "auto" is a randomly pivoted Cholesky factor of automatic rank, None is none.
    Thesis, section 2.2.4 (eq. cg).
    """

    preconditioner: str | Preconditioner | None = "auto"

    def __post_init__(self) -> None:
        if not (self.preconditioner in ("auto", None) or isinstance(self.preconditioner, Preconditioner)):
            raise ValueError(
                "preconditioner must be 'auto', None, PivotedCholesky(rank) or "
                f"RandomlyPivotedCholesky(rank), got {self.preconditioner!r}"
            )

    def _solve(self, run: Run, residual: Tensor) -> Solution:
        choice = RandomlyPivotedCholesky() if isinstance(self.preconditioner, str) else self.preconditioner
        if not run.affords(1.0 if choice is None else 1.0 + choice.cost(run.H)):
            return run.finish(run.start, Status.BUDGET_EXHAUSTED, repr(self), "the budget is below one iteration")
        apply, note = ((lambda r: r), "no preconditioner") if choice is None else choice.build(run)
        x, norms = run.start.clone(), column_norms(residual)
        active = _unfinished(run, norms)
        part, r = x[:, active], residual[:, active]
        z = apply(r)
        d, rz = z.clone(), _dots(r, z)
        best, stalls = norms.clone(), 0

        while run.affords(1.0):
            q = run.product(d)
            dq = _dots(d, q)
            # Non-positive curvature: rounding has eaten the matrix, and the column waits for a restart.
            sound = (dq > 0) & (rz > 0)
            step = torch.where(sound, rz / dq, 0.0).to(r.dtype)
            part += step * d
            r -= step * q
            run.iterations += 1
            norms[active] = column_norms(r)
            run.record(norms, exact=False)

            claimed = run.satisfied(norms) or not bool((sound & (norms[active] > run.tol)).any())
            if claimed or run.iterations % _CHECK_EVERY == 0:
                if not run.affords(1.0):
                    break
                x[:, active] = part
                residual = run.residual(x)
                norms = run.record(column_norms(residual), exact=True)
                if run.satisfied(norms):
                    return run.finish(x, Status.CONVERGED, repr(self), note, norms)
                if not bool(torch.isfinite(norms).all()) or float(norms.max()) > 1e6:
                    return run.finish(run.start, Status.DIVERGED, repr(self), note)
                if claimed:
                    stalls = 0 if bool((norms[active] < 0.9 * best[active]).any()) else stalls + 1
                    if stalls == 2:
                        return run.finish(x, Status.STALLED, repr(self), note, norms)
                    best = torch.minimum(best, norms)
                    active = _unfinished(run, norms)
                    part, r = x[:, active], residual[:, active]
                    z = apply(r)
                    d, rz = z.clone(), _dots(r, z)
                    continue
                r = residual[:, active]
            elif run.rule == "every" and int((norms[active] > run.tol).sum()) <= 0.75 * len(active):
                keep = norms[active] > run.tol
                x[:, active] = part
                active, part, r, d, rz = active[keep], part[:, keep], r[:, keep], d[:, keep], rz[keep]

            z = apply(r)
            new = _dots(r, z)
            d = z + torch.where(rz > 0, new / rz, 0.0).to(r.dtype) * d
            rz = new

        x[:, active] = part
        return run.finish(x, Status.BUDGET_EXHAUSTED, repr(self), note)


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of matching columns, accumulated in float64."""
    return (a * b).sum(0, dtype=torch.float64)


def _unfinished(run: Run, norms: Tensor) -> Tensor:
    """Columns to work on: those above tol under the rule "every", all non-zero ones otherwise."""
    return torch.nonzero(norms > run.tol if run.rule == "every" else norms > 0).flatten()
