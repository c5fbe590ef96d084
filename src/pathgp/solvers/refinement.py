"""Cheap products for the iterations, full precision for the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pathgp.solvers.base import Run, Solution, Status, column_norms

# How far a round goes at most: beyond the error of its products there is nothing to win.
_DEEPEST = 0.05
# A round that leaves more than this of the residual shows that the system is too ill-conditioned for them.
_WORTHWHILE = 0.5


def refined(solve: Callable[[Run, Tensor], Solution], solver: str, run: Run, residual: Tensor) -> Solution:
    """Iterative refinement: x += solution of H~ d = r,  r = b - H x, until the true residual meets the tolerance.

    H~ is ``run.H.inner``, whose products are cheaper and rougher. A round takes one product in full precision beside
    its cheap ones, and both count as epochs. The rounds contract while the error of H~ is small beside the noise; where
    one does not, the solver goes on with H itself from the best iterate, so that the solution does not depend on H~.
    Wilkinson (1963); Higham (2002), chapter 12.
    """
    x, norms, rounds = run.start, column_norms(residual), 0
    note = "no round of refinement fitted the budget"
    while run.affords(4.0 * run.H.cost()):
        depth = min(0.5, max(_DEEPEST, 0.5 * run.tol / run.measure(norms)))
        # A product for the truth, and in the first round one for the error.
        left = run.max_epochs - run.epochs - (1.0 if rounds else 2.0) * run.H.cost()
        cheap = Run(run.H.inner, residual, None, None, depth, left, run.generator, None, run.rule)
        cheap.initial = column_norms(cheap.b)
        correction = solve(cheap, cheap.b.clone())
        run.epochs += correction.epochs
        run.iterations += correction.iterations
        moved = x + correction.x
        after = run.residual(moved)
        reached = run.record(column_norms(after), exact=True)
        rounds += 1
        if rounds == 1:
            error = _error(run, correction.x[:, :1], (residual - after)[:, :1])
        note = f"rounds of refinement: {rounds}, inner products off by {error:.1e}; {correction.note}"
        contracts = run.measure(reached) <= _WORTHWHILE * run.measure(norms)
        if run.measure(reached) < run.measure(norms):
            x, residual, norms = moved, after, reached
        if run.satisfied(norms):
            return run.finish(x, Status.CONVERGED, solver, note, norms)
        if not contracts:
            run.start, run.starts_at_zero = x, False
            solution = solve(run, residual)
            return replace(solution, note=f"{note}; then in full precision: {solution.note}")
    return run.finish(x, Status.BUDGET_EXHAUSTED, solver, note, norms)


def _error(run: Run, d: Tensor, product: Tensor) -> float:
    """|H~ d - H d| / |H d|, measured on one column: about what a round leaves of the residual."""
    run.epochs += run.H.cost()
    return float((run.H.inner @ d - product).norm() / product.norm().clamp_min(torch.finfo(d.dtype).tiny))
