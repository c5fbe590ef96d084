"""Direct solution by a Cholesky factorisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.solvers.base import Solver
from pathgp.solvers.run import Run, column_norms
from pathgp.solvers.solution import NumericalFailure, Solution, Status


@dataclass(frozen=True)
class Cholesky(Solver):
    """Factorise H = L L^T in float64 and substitute.

    Time n^3 / 3, memory 8 n^2 bytes (16 n^2 while factorising). The factorisation is counted as
    n / (6 s) epochs, its share of floating-point operations in a product with s columns.

    If rounding errors or jitter leave residuals above their goals, one step of iterative refinement follows, with the
    same factor: one more product, one more substitution. Higham (2002), chapter 12.
    """

    def _solve(self, run: Run) -> Solution:
        n, s = run.b.shape
        if 16 * n**2 > run.H.memory:
            raise ValueError(
                f"Cholesky needs {16e-9 * n**2:.2g} GB, the operator's budget is {run.H.memory / 1e9:.2g} GB: "
                "use AP or CG, or raise memory="
            )
        if not run.affords(1.0 + n / (6.0 * s)):
            return run.finish(run.start, Status.BUDGET_EXHAUSTED, self, "the factorisation exceeds the budget")
        H = run.H.block(torch.arange(n, device=run.H.device)).to(torch.float64)
        run.epochs += 1.0 + n / (6.0 * s)
        factor, jitter = factorise(H)

        def substitute(residual: Tensor) -> Tensor:
            return torch.cholesky_solve(residual.to(torch.float64), factor).to(run.H.dtype)

        x = run.start + substitute(run.initial_residual)
        residual = run.residual(x)
        norms, run.iterations = column_norms(residual), 1
        note = "" if jitter == 0 else f"jitter {jitter:.0e} on the diagonal"
        # The factor is that of H: with approximate products refinement would lead away from the solution.
        has_exact_products = run.H.precision == "high" and run.H.product_error is None
        if run.tol > 0 and has_exact_products and not run.is_converged(x, norms) and run.affords(0.0):
            refined = x + substitute(residual)
            refined_norms = column_norms(run.residual(refined))
            run.iterations += 1
            is_smaller = refined_norms < norms
            x, norms = torch.where(is_smaller, refined, x), torch.where(is_smaller, refined_norms, norms)
        return run.finish(x, Status.CONVERGED, self, note, norms)


def factorise(A: Tensor, least: float = 1e-8) -> tuple[Tensor, float]:
    """Lower Cholesky factor of a float64 matrix, and the jitter added to its diagonal; the matrix is overwritten.

    Rounding K to float32 can make H indefinite if the noise is tiny. Jitter starts at ``least`` times the largest
    variance, by default the rounding error of float32, and grows tenfold until the factorisation succeeds.
    """
    factor, info = torch.linalg.cholesky_ex(A)
    jitter = 0.0
    while int(info) != 0:
        scale = float(A.diagonal().max())
        added = least * scale if jitter == 0.0 else 9.0 * jitter
        jitter += added
        if not jitter <= scale < math.inf:
            raise NumericalFailure("the matrix is not positive definite, not even with jitter: check it for NaN")
        A.diagonal().add_(added)
        factor, info = torch.linalg.cholesky_ex(A)
    return factor, jitter
