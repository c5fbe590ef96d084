"""Conjugate gradients, preconditioned, for many right-hand sides at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.settings import full_rate_float64
from pathgp.operators import LatentKroneckerOperator, Operator
from pathgp.solvers.base import Run, Solution, Solver, Status, column_norms
from pathgp.solvers.grid_blocks import GridBlocks, smooth_side
from pathgp.solvers.grid_inverse import GridInverse, hole_variance
from pathgp.solvers.preconditioners import Preconditioner, RandomlyPivotedCholesky

# The recurrence for the residual drifts from the truth in float32; a product every so often corrects it.
_CHECK_EVERY = 50
# Checks without an improvement by a percent after which a run counts as stalled.
_PATIENCE = 6
# Variances of holes, relative to the noise, up to which the inverse of the whole grid beats blocks and beats a factor.
_WELL_KNOWN, _HARDLY_KNOWN = 0.3, 100.0
# Epochs that the holes may take to fill.
_ENOUGH = 100.0


@dataclass(frozen=True)
class CG(Solver):
    """Preconditioned conjugate gradients.

        q = H d;  a = r.z / d.q;  x += a d;  r -= a q;  z = P^-1 r;  d = z + (r.z / previous r.z) d

    One epoch per iteration, six vectors of memory per column. The preconditioner P = F F^T + Sigma comes
    from a low-rank factor of K: "auto" is a randomly pivoted Cholesky factor of automatic rank (on a grid `GridInverse`
    where it is complete or its holes are small, and `GridBlocks` otherwise, if a side is smooth), None is none.
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
        left = run.max_epochs - run.epochs
        choice = choose_preconditioner(run.H, left) if isinstance(self.preconditioner, str) else self.preconditioner
        each = 0.0 if choice is None else choice.apply_cost(run.H)
        if not run.affords(1.0 if choice is None else 1.0 + choice.cost(run.H) + each):
            return run.finish(run.start, Status.BUDGET_EXHAUSTED, repr(self), "the budget is below one iteration")
        apply, note = ((lambda r: r), "no preconditioner") if choice is None else choice.build(run)
        # Norms live on the CPU: the stopping test then waits for the device once in an iteration.
        x, residual = run.start.clone(), run.initial_residual
        norms = column_norms(residual).cpu()
        # The iterate with the smallest true residual, for every column by itself: in finite precision the
        # last one may be far worse.
        best_x, best = x.clone(), norms.clone()
        active = _unfinished(run, norms)
        part, r = x[:, active], residual[:, active]
        z = apply(r)
        d, rz = z.clone(), _dots(r, z)
        claims = 0

        while run.affords(1.0):
            q = run.product(d)
            dq = _dots(d, q)
            # Non-positive curvature: rounding has eaten the matrix, and the column restarts.
            sound = (dq > 0) & (rz > 0)
            step = torch.where(sound, rz / dq, 0.0).to(r.dtype)
            part += step * d
            r -= step * q
            run.iterations += 1
            norms[active] = column_norms(r).cpu()
            run.record(norms.clone(), exact=False)

            claimed = run.satisfied(norms) or not bool((sound.cpu() & (norms > run.goal)[active]).any())
            if claimed or run.iterations % _CHECK_EVERY == 0:
                if not run.affords(1.0 + each):
                    break
                x[:, active] = part
                residual = run.residual(x)
                norms = column_norms(residual).cpu()
                progress = bool((norms < 0.99 * best).any())
                best_x, best = _better(best_x, best, x, norms)
                run.record(best, exact=True)
                if run.confirmed(best_x, best):
                    return run.finish(best_x, Status.CONVERGED, repr(self), note, best)
                if not bool(torch.isfinite(norms).all()) or float(norms.max()) > 1e6:
                    return run.finish(best_x, Status.DIVERGED, repr(self), note, best)
                # The floor of the precision: claims that do not hold, or no progress at all.
                claims = claims + 1 if claimed and not progress else 0
                if claims == 2 or run.stalled(best, _PATIENCE):
                    return run.finish(best_x, Status.STALLED, repr(self), note, best)
                if claimed:
                    active = _unfinished(run, norms)
                    part, r = x[:, active], residual[:, active]
                    z = apply(r)
                    d, rz = z.clone(), _dots(r, z)
                    continue
                r = residual[:, active]
            elif run.rule == "every" and int((norms > run.goal)[active].sum()) <= 0.75 * len(active):
                keep = (norms > run.goal)[active]
                x[:, active] = part
                active, part, r, d = active[keep], part[:, keep], r[:, keep], d[:, keep]
                rz, sound = rz[keep], sound[keep]

            if not run.affords(1.0 + each):
                break
            z = apply(r)
            new = _dots(r, z)
            d = z + torch.where(sound, new / rz, 0.0).to(r.dtype) * d
            rz = new

        x[:, active] = part
        best_x, best = _better(best_x, best, x, column_norms(run.residual(x)).cpu())
        run.record(best, exact=True)
        return run.finish(best_x, Status.BUDGET_EXHAUSTED, repr(self), note, best)


def _better(best_x: Tensor, best: Tensor, x: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
    """Column by column, the iterate with the smaller residual."""
    smaller = norms < best
    return torch.where(smaller.to(x.device), x, best_x), torch.where(smaller, norms, best)


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of matching columns, accumulated in float64."""
    return (a * b).sum(0, dtype=torch.float64)


def _unfinished(run: Run, norms: Tensor) -> Tensor:
    """Columns to work on: those above their goal under the rule "every", all non-zero ones otherwise."""
    return torch.nonzero(norms > run.goal if run.rule == "every" else norms > 0).flatten()


def choose_preconditioner(H: Operator, epochs: float = math.inf) -> Preconditioner:
    """What "auto" means on a budget: a randomly pivoted Cholesky factor, or what grids have to offer.

    `GridInverse` where nothing is missing or neighbours tell what is, to a part of the noise: 5 to 30 iterations where
    a low-rank factor takes hundreds. Otherwise `GridBlocks` along a side of few directions, which wide holes do not
    trouble; without such a side `GridInverse` again, up to a hundredfold of the noise. With few epochs nothing that has
    to be finished.
    """
    if not isinstance(H, LatentKroneckerOperator):
        return RandomlyPivotedCholesky()
    # Matrices, their eigenvectors and copies.
    fits = 3 * 8 * sum(p * r for p, r in zip(H.sizes, H.ranks, strict=True)) <= H.memory // 2
    unknown = math.inf
    if fits and H.noise.ndim == 0:
        if H.shape[0] == math.prod(H.sizes):
            return GridInverse()
        # Some ten cubes of a side for its eigenvectors, beside a hundred products with a few columns.
        cheap = 10.0 * sum(p**3 for p, r in zip(H.sizes, H.ranks, strict=True) if r == p) <= 3200.0 * H.entries
        if cheap and full_rate_float64(H.device) and epochs >= _ENOUGH:
            unknown = hole_variance(H)
    if unknown <= _WELL_KNOWN:
        return GridInverse()
    if smooth_side(H) is not None:
        return GridBlocks()
    return GridInverse() if unknown <= _HARDLY_KNOWN else RandomlyPivotedCholesky()
