"""Partial Cholesky factors: below the matrix, and as close to it as the variances left say."""

from __future__ import annotations

import pytest
import torch

from pathgp import kernels
from pathgp.operators.low_rank import partial_cholesky, random_pivots


@pytest.mark.parametrize("enough", [1e-2, 1e-5, 1e-8, 1e-12])
@pytest.mark.parametrize("block", [1, 32, 100])
def test_a_factor_of_a_matrix_that_is_singular_up_to_rounding(block: int, enough: float) -> None:
    """Some 126 of 300 eigenvalues are above 1e-12: pivots of one block depend on each other."""
    X = torch.rand(300, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K = kernels.SquaredExponential(0.02).requires_grad_(False)(X)
    choose = random_pivots(torch.Generator().manual_seed(1), block)
    F, left = partial_cholesky(lambda index: K[:, index].clone(), K.diagonal().clone(), 300, choose, enough)
    rest = K - F @ F.T
    assert float(left.mean()) <= max(enough, 1e-14)
    assert F.shape[1] < 250
    torch.testing.assert_close(rest.diagonal(), left, rtol=0, atol=1e-11)
    assert float(torch.linalg.eigvalsh(rest).min()) > -1e-11
    assert float(rest.abs().max()) <= float(left.max()) + 1e-11
