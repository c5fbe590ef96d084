from __future__ import annotations

import pytest
import torch

from pathgp.compute.conjugate_directions import ConjugateDirections, basis


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_basis_spans_the_columns(dtype: torch.dtype) -> None:
    """Columns of very different lengths, three of them combinations of the others."""
    Z = torch.randn(50, 6, generator=seeded(), dtype=dtype) * torch.logspace(-6, 6, 6, dtype=dtype)
    Z = torch.cat([Z, Z[:, :1], Z[:, 2:3] * 2, torch.zeros(50, 1, dtype=dtype)], 1)
    D = basis(Z)
    assert D.shape == (50, 6)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(D.T @ D, torch.eye(6, dtype=dtype), rtol=0.0, atol=tolerance)
    left = Z - D @ (D.T @ Z)
    assert float((left.norm(dim=0) / Z.norm(dim=0).clamp_min(1e-30)).max()) < tolerance


def test_zeros_have_no_direction() -> None:
    Z = torch.zeros(10, 3)
    assert not basis(Z).any()
    directions = ConjugateDirections(Z)
    assert not directions.step(directions.D, Z).any()
    assert not directions.are_definite


def test_directions_are_conjugate() -> None:
    A = torch.randn(40, 40, generator=seeded(), dtype=torch.float64)
    A = A @ A.T + torch.eye(40, dtype=torch.float64)
    R = torch.randn(40, 3, generator=seeded(1), dtype=torch.float64)
    X = torch.zeros_like(R)
    B, directions, previous = R.clone(), ConjugateDirections(R), []
    for _ in range(6):
        D = directions.D
        for earlier in previous:
            assert float((D.T @ A @ earlier).abs().max()) < 1e-8 * float(A.norm())
        previous.append(D)
        C = directions.step(A @ D, R)
        assert directions.are_definite
        X, R = X + D @ C, R - A @ D @ C
        directions.update(R)
    torch.testing.assert_close(R, B - A @ X)


def test_indefinite_matrices_are_noticed() -> None:
    directions = ConjugateDirections(torch.randn(20, 2, generator=seeded(), dtype=torch.float64))
    C = directions.step(-directions.D, directions.D)
    assert not directions.are_definite
    assert not C.any()
