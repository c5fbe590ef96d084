"""Inverses of several blocks at once against dense solutions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pathgp.solvers import block_inverses
from pathgp.solvers.block_inverses import invert_blocks


@pytest.fixture(autouse=True)
def small_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 50 rows then have three panels, and their triangles three levels."""
    monkeypatch.setattr(block_inverses, "_PANEL", 20)
    monkeypatch.setattr(block_inverses, "_LEAF", 5)


def make_blocks(g: int, b: int, noise: float = 1e-4) -> Tensor:
    X = torch.rand(g, b, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.exp(-torch.cdist(X, X).square()) + noise * torch.eye(b, dtype=torch.float64)


@pytest.mark.parametrize("g", [1, 3])
@pytest.mark.parametrize("b", [1, 5, 20, 50])
def test_solutions(g: int, b: int) -> None:
    blocks = make_blocks(g, b)
    R = torch.randn(g, b, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = torch.linalg.solve(blocks, R)
    for solve, r, x in zip(invert_blocks(blocks.clone()), R, expected, strict=True):
        torch.testing.assert_close(solve(r), x, rtol=1e-6, atol=1e-6)


def test_float32_blocks_are_factorised_in_float64() -> None:
    """The condition number is 5e7: factors in float32 would have no correct digit, or fail."""
    blocks = make_blocks(2, 50, noise=1e-6).float()
    r = torch.randn(50, 2, generator=torch.Generator().manual_seed(1))
    x = invert_blocks(blocks)[0](r)
    assert x.dtype == torch.float32
    torch.testing.assert_close(x.double(), torch.linalg.solve(blocks[0].double(), r.double()), rtol=1e-5, atol=1.0)


def test_one_indefinite_block_gets_jitter_and_leaves_the_others_alone() -> None:
    blocks = make_blocks(3, 50)
    blocks[1].diagonal().sub_(1.5e-4)
    x = [solve(torch.ones(50, 1, dtype=torch.float64)) for solve in invert_blocks(blocks.clone())]
    assert all(bool(torch.isfinite(part).all()) for part in x)
    for k in (0, 2):
        expected = torch.linalg.solve(blocks[k], torch.ones(50, 1, dtype=torch.float64))
        torch.testing.assert_close(x[k], expected, rtol=1e-6, atol=1e-6)
