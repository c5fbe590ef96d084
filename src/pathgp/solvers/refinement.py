"""Iterative refinement: low-precision products for the iterations, high precision for the residuals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathgp.compute.random import normal, permutation
from pathgp.solvers.run import Run, column_norms
from pathgp.solvers.solution import Solution, Status

if TYPE_CHECKING:
    from pathgp.solvers.base import Solver

# The smallest relative residual of a round: below the error of its products there is nothing to gain.
_DEEPEST = 0.05
# A round that leaves more than this of the residual shows that the system is too ill-conditioned for them.
_WORTHWHILE = 0.5
# Rows from which the error of low-precision products is estimated.
_ROWS = 512


def solve_refined(solver: Solver, run: Run) -> Solution:
    """x += solution of H~ d = r,  r = b - H x, until the true residual meets the tolerance.

    H~ is ``run.H.low_precision``, whose products are faster and less accurate. A round takes one product in high
    precision beside its fast ones, and both count as epochs. The rounds contract if the error of H~ is small relative
    to the noise. If an estimate from a few rows finds it larger, or a round does not contract, the solver continues
    with H itself from the best iterate, so that the solution does not depend on H~. Wilkinson (1963); Higham (2002),
    chapter 12.
    """
    x, residual, rounds = run.start, run.initial_residual, 0
    norms = column_norms(residual)
    if run.affords(4.0 * run.H.cost()) and (ratio := _error_over_noise(run)) > 1.0:
        run.precision_note = f"{run.H.precision} would be off by {ratio:.2g} times the noise"
        return solver._solve(run)
    note = run.precision_note = "no round of refinement fitted the budget"
    correction: Solution | None = None

    def finish(status: Status) -> Solution:
        solution = run.finish(x, status, solver, note, norms)
        if correction is None:
            return solution
        # With an automatic choice, the solver that was chosen.
        return replace(solution, solver=correction.solver, method=correction.method)

    while run.affords(4.0 * run.H.cost()):
        correction = _solve_correction(solver, run, residual, norms, rounds)
        new_x = x + correction.x
        new_residual = run.residual(new_x)
        new_norms = run.record(column_norms(new_residual), exact=True)
        rounds += 1
        if rounds == 1:
            run.product_error = _product_error(run, correction.x[:, :1], (residual - new_residual)[:, :1])
            run.precision, run.precision_note = run.H.precision, ""
        note = f"rounds of refinement: {rounds}; {correction.note}"
        contracts = run.measure(new_norms) <= _WORTHWHILE * run.measure(norms)
        if run.measure(new_norms) < run.measure(norms):
            x, residual, norms = new_x, new_residual, new_norms
        if run.is_converged(x, norms):
            return finish(Status.CONVERGED)
        if not contracts:
            run.restart(x, norms, residual)
            run.precision_note = "continued in high precision, because the rounds did not contract"
            solution = solver._solve(run)
            return replace(solution, note=f"{note}; then {solution.note}")
    return finish(Status.BUDGET_EXHAUSTED)


def _solve_correction(solver: Solver, run: Run, residual: Tensor, norms: Tensor, rounds: int) -> Solution:
    """One round: solve H~ d = r as far as it pays, and count its cost."""
    depth = min(0.5, max(_DEEPEST, 0.5 / run.measure(norms) if run.tol > 0 else 0.0))
    # Reserve a product for the residual, and in the first round one for the error of the products.
    budget = run.max_epochs - run.epochs - (1.0 if rounds else 2.0) * run.H.cost()
    correction = solver._solve(run.start_inner(run.H.low_precision, residual, depth, budget))
    run.epochs += correction.epochs
    run.iterations += correction.iterations
    return correction


def _error_over_noise(run: Run) -> float:
    """The norm of H~ - H over the noise, about the smallest eigenvalue of H: from rows of it times a normal vector."""
    n, low = run.H.shape[0], run.H.low_precision
    index = permutation(n, run.generator, run.H.device)[: max(1, min(_ROWS, n // 8))]
    v = normal((n, 1), run.generator, run.H.dtype, run.H.device)
    run.epochs += low.cost(len(index))
    error = low.rows(index, v) - run.rows(index, v)
    noise = float(run.H.noise.mean())
    return float(error.square().mean().sqrt()) / noise if noise > 0.0 else math.inf


def _product_error(run: Run, d: Tensor, product: Tensor) -> float:
    """|H~ d - H d| / |H d|, measured on one column: about what a round leaves of the residual."""
    run.epochs += run.H.cost()
    return float((run.H.low_precision @ d - product).norm() / product.norm().clamp_min(torch.finfo(d.dtype).tiny))
