"""What the direct solver does about errors of its factor."""

from __future__ import annotations

import torch

from pathgp import kernels
from pathgp.operators import KernelOperator
from pathgp.solvers import Cholesky
from pathgp.solvers.cholesky import factorise


def test_residuals_above_their_goals_are_refined_once() -> None:
    """Jitter leaves a residual in every smooth column; the factor with jitter reduces it, at the cost of a product."""
    x = torch.rand(20, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X = torch.cat([x, x])
    H, B = KernelOperator(kernels.SquaredExponential(1.0), X, 0.0), torch.cat([torch.sin(X), torch.cos(X)], 1)
    factor, jitter = factorise(H.block(torch.arange(40)))
    assert jitter > 0
    left = (B - H @ torch.cholesky_solve(B, factor)).norm(dim=0) / B.norm(dim=0)
    loose = Cholesky().solve(H, B, tol=2.0 * float(left.max()))
    torch.testing.assert_close(loose.residual, left, rtol=1e-2, atol=0)
    solution = Cholesky().solve(H, B, tol=0.8 * float(left.max()))
    assert solution.converged
    assert solution.iterations == 2
    assert solution.epochs == loose.epochs + 1
    assert bool((solution.residual <= loose.residual).all())
