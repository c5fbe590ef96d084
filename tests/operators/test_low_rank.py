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


@pytest.mark.parametrize("share", [1e-4, 1e-7])
def test_no_variance_above_what_may_be_dropped(share: float) -> None:
    """A point far from all others has its variance to itself, which hardly shows in the mean."""
    X = torch.cat([torch.linspace(0.0, 1.0, 2000, dtype=torch.float64), torch.tensor([9.0], dtype=torch.float64)])
    kernel = kernels.SquaredExponential(0.1).requires_grad_(False)
    K = kernel(X.unsqueeze(1))
    choose = random_pivots(torch.Generator().manual_seed(0), 8)
    F, left = partial_cholesky(lambda index: K[:, index].clone(), K.diagonal().clone(), 300, choose, 1e-2, share)
    assert float(left.max()) <= share
    assert float((K - F @ F.T).abs().max()) <= 10 * share
    assert F.shape[1] < 40
