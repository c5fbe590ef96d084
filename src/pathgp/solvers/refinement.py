"""Cheap products for the iterations, full precision for the truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pathgp.compute.random import normal, permutation
from pathgp.solvers.base import Run, Solution, Status, column_norms

# How far a round goes at most: beyond the error of its products there is nothing to win.
_DEEPEST = 0.05
# A round that leaves more than this of the residual shows that the system is too ill-conditioned for them.
_WORTHWHILE = 0.5
# Rows that tell how rough the cheap products are.
_ROWS = 512


def refined(solve: Callable[[Run], Solution], solver: str, run: Run) -> Solution:
    """Iterative refinement: x += solution of H~ d = r,  r = b - H x, until the true residual meets the tolerance.

    H~ is ``run.H.inner``, whose products are cheaper and rougher. A round takes one product in full precision beside
    its cheap ones, and both count as epochs. The rounds contract while the error of H~ is small beside the noise. Where
    a look at some rows finds it larger, or a round does not contract, the solver goes on with H itself from the best
    iterate, so that the solution does not depend on H~. Wilkinson (1963); Higham (2002), chapter 12.
    """
    x, residual, rounds, level = run.start, run.initial_residual, 0, run.H.precision
    norms = column_norms(residual)
    if run.affords(4.0 * run.H.cost()) and (ratio := _roughness(run)) > 1.0:
        run.products = f"high precision: {level} would be off by {ratio:.2g} times the noise"
        return solve(run)
    note = "no round of refinement fitted the budget"
    run.products = f"high precision: {note}"
    while run.affords(4.0 * run.H.cost()):
        depth = min(0.5, max(_DEEPEST, 0.5 / run.measure(norms) if run.tol > 0 else 0.0))
        # A product for the truth, and in the first round one for the error.
        left = run.max_epochs - run.epochs - (1.0 if rounds else 2.0) * run.H.cost()
        cheap = Run(run.H.inner, residual, None, None, depth, left, run.generator, None, run.rule)
        cheap.begin()
        correction = solve(cheap)
        # That of the choice, where there was one.
        solver = correction.solver
        run.epochs += correction.epochs
        run.iterations += correction.iterations
        moved = x + correction.x
        after = run.residual(moved)
        reached = run.record(column_norms(after), exact=True)
        rounds += 1
        if rounds == 1:
            error = _error(run, correction.x[:, :1], (residual - after)[:, :1])
            run.products = f"{level} precision, off by {error:.1e}"
        note = f"rounds of refinement: {rounds}; {correction.note}"
        contracts = run.measure(reached) <= _WORTHWHILE * run.measure(norms)
        if run.measure(reached) < run.measure(norms):
            x, residual, norms = moved, after, reached
        if run.confirmed(x, norms):
            return run.finish(x, Status.CONVERGED, solver, note, norms)
        if not contracts:
            run.start, run.starts_at_zero, run.initial_residual, run.initial_norms = x, False, residual, norms
            run.products += ", then high: the rounds did not contract"
            solution = solve(run)
            return replace(solution, note=f"{note}; then {solution.note}")
    return run.finish(x, Status.BUDGET_EXHAUSTED, solver, note, norms)


def _roughness(run: Run) -> float:
    """The norm of H~ - H beside the smallest eigenvalue of H, about the noise: |rows of it times a normal vector|."""
    n = run.H.shape[0]
    index = permutation(n, run.generator, run.H.device)[: max(1, min(_ROWS, n // 8))]
    v = normal((n, 1), run.generator, run.H.dtype, run.H.device)
    run.epochs += run.H.inner.cost(len(index))
    off = run.H.inner.rows(index, v) - run.rows(index, v)
    noise = float(run.H.noise.mean())
    return float(off.square().mean().sqrt()) / noise if noise > 0.0 else math.inf


def _error(run: Run, d: Tensor, product: Tensor) -> float:
    """|H~ d - H d| / |H d|, measured on one column: about what a round leaves of the residual."""
    run.epochs += run.H.cost()
    return float((run.H.inner @ d - product).norm() / product.norm().clamp_min(torch.finfo(d.dtype).tiny))
