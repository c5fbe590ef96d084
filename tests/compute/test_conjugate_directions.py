from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pathgp.compute.conjugate_directions import ConjugateDirections


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def positive_definite(n: int, seed: int) -> Tensor:
    A = torch.randn(n, n, generator=seeded(seed), dtype=torch.float64)
    return A @ A.T / n + 0.3 * torch.eye(n, dtype=torch.float64)


def solve(A: Tensor, B: Tensor, M: Tensor, iterations: int) -> tuple[Tensor, ConjugateDirections, list[Tensor]]:
    X, directions, previous = torch.zeros_like(B), ConjugateDirections(B, M @ B), []
    for _ in range(iterations):
        previous.append(directions.P)
        X = X + directions.P @ directions.step(A @ directions.P)
        directions.update(M @ directions.W)
    return X, directions, previous


def test_every_column_is_minimised_over_the_directions_of_all() -> None:
    """With a preconditioner M: over the space of M B, M A M B, (M A)^2 M B."""
    A, M = positive_definite(40, 0), positive_definite(40, 1)
    B = torch.randn(40, 3, generator=seeded(2), dtype=torch.float64)
    X, directions, previous = solve(A, B, M, 3)
    space = torch.linalg.qr(torch.cat([M @ B, M @ A @ M @ B, M @ A @ M @ A @ M @ B], 1)).Q
    best = space @ torch.linalg.solve(space.T @ A @ space, space.T @ B)
    torch.testing.assert_close(X, best, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(directions.R, B - A @ X, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(directions.squared_norms, ((B - A @ X) * (M @ (B - A @ X))).sum(0))
    for earlier in previous:
        assert float((directions.P.T @ A @ earlier).abs().max()) < 1e-10


def test_replaced_residuals_stay_conjugate_to_the_last_directions() -> None:
    A, M = positive_definite(40, 0), torch.eye(40, dtype=torch.float64)
    B = torch.randn(40, 5, generator=seeded(2), dtype=torch.float64)
    X, directions, _ = solve(A, B, M, 2)
    last = directions.P
    X = X + last @ directions.step(A @ last)
    directions.replace((B - A @ X)[:, :2])
    directions.update(directions.W)
    assert directions.P.shape == (40, 2)
    assert float((directions.P.T @ A @ last).abs().max()) < 1e-10
    torch.testing.assert_close(directions.R, (B - A @ X)[:, :2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dependent_columns_share_directions(dtype: torch.dtype) -> None:
    """Columns of very different lengths, three of them combinations of the others, and zeros."""
    Z = torch.randn(50, 4, generator=seeded(), dtype=dtype) * torch.logspace(-6, 6, 4, dtype=dtype)
    B = torch.cat([Z, Z[:, :1], Z[:, 2:3] * 2, torch.zeros(50, 1, dtype=dtype)], 1)
    A = positive_definite(50, 0).to(dtype)
    directions = ConjugateDirections(B, B)
    assert directions.P.shape == (50, 4)
    X = directions.P @ directions.step(A @ directions.P)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    scale = B.norm(dim=0).clamp_min(1e-30)
    assert float(((directions.R - (B - A @ X)).norm(dim=0) / scale).max()) < tolerance
    assert float((X[:, 4] - X[:, 0]).norm() / X[:, 0].norm()) < tolerance
    assert not X[:, 6].any()


def test_zeros_have_no_direction() -> None:
    Z = torch.zeros(10, 3)
    directions = ConjugateDirections(Z, Z)
    assert not directions.P.any()
    assert not directions.step(directions.P).any()
    assert not directions.is_definite
    directions.update(directions.W)
    assert not directions.R.any()


def test_indefinite_matrices_are_noticed() -> None:
    Z = torch.randn(20, 2, generator=seeded(), dtype=torch.float64)
    directions = ConjugateDirections(Z, Z)
    assert not directions.step(-directions.P).any()
    assert not directions.is_definite
    torch.testing.assert_close(directions.R, Z)
