"""Tanimoto on sparse counts, by both ways to count common tokens, against the formula."""

from __future__ import annotations

import pytest
import torch

import reference
from pathgp import kernels
from pathgp.compute.counts import CountRows
from pathgp.kernels import tanimoto

GENERATOR = torch.Generator().manual_seed(0)
RATE = torch.full((40, 60), 0.2, dtype=torch.float64)
X, Z = (torch.poisson(RATE, GENERATOR) * torch.poisson(1.0 + RATE, GENERATOR) for _ in range(2))
X[3], Z[5] = 0.0, 0.0
LARGE = torch.tensor([[3000.0, 0.0, 1.0], [2999.0, 5.0, 0.0]], dtype=torch.float64)


@pytest.fixture(params=["sums of rows", "matrix product"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU takes matrix products; their numbers are those of a CPU."""
    if request.param == "matrix product":
        monkeypatch.setattr(tanimoto, "_sum_of_rows", tanimoto._matrix_product)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("way")
def test_sparse_counts(dtype: torch.dtype) -> None:
    kernel = kernels.Tanimoto()
    expected = reference.tanimoto(X, Z)
    assert expected[3, 5] == 1.0
    sparse, other = (CountRows.from_dense(rows.to(dtype)) for rows in (X, Z))
    for left, right in ((sparse, other), (sparse, Z.to(dtype)), (X.to(dtype), other)):
        found = kernel(left, right)
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected.to(dtype))
    torch.testing.assert_close(kernel(sparse), reference.tanimoto(X, X).to(dtype))
    assert torch.equal(kernel.diag(sparse), torch.ones(40, dtype=dtype))
    assert kernel(sparse[:0], other).shape == (0, 40)
    assert torch.equal(kernel(sparse[3:4], other[5:6]), torch.ones(1, 1, dtype=dtype))


@pytest.mark.usefixtures("way")
def test_large_counts() -> None:
    found = kernels.Tanimoto()(CountRows.from_dense(LARGE))
    torch.testing.assert_close(found, reference.tanimoto(LARGE, LARGE))


def test_sparse_counts_beside_other_numbers() -> None:
    """Dense inputs that are no counts compare with sparse rows as with dense ones."""
    halves = 0.5 * Z
    found = kernels.Tanimoto()(CountRows.from_dense(X), halves)
    torch.testing.assert_close(found, reference.tanimoto(X, halves))


@pytest.mark.parametrize("paths", [None, 3])
def test_features_of_sparse_counts(paths: int | None) -> None:
    phi = kernels.Tanimoto().features(32, torch.Generator().manual_seed(1), paths=paths, dim=60)
    sparse = CountRows.from_dense(X)
    assert torch.equal(phi(sparse), phi(X))
    if paths is not None:
        W = torch.randn(paths, 32, dtype=torch.float64, generator=GENERATOR)
        expected = torch.einsum("snf,sf->sn", phi(X), W)
        torch.testing.assert_close(phi.weighted(sparse, W), expected)
        torch.testing.assert_close(phi.weighted(X, W), expected)
