"""Blocks along a smooth side as a preconditioner: the formula, against a dense matrix, and what it is good for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.operators import KernelOperator, LatentKroneckerOperator, grid_blocks
from pathgp.operators.grid_blocks import smooth_side
from pathgp.solvers import CG, Auto, GridBlocks
from pathgp.solvers.cg import choose_preconditioner
from pathgp.solvers.run import Run

SIZES = {"last": (40, 48), "first": (48, 40), "middle": (5, 48, 7)}


def grid(
    where: str, noise: float = 0.1, per_cell: bool = False, dtype: torch.dtype = torch.float64
) -> tuple[LatentKroneckerOperator, Tensor]:
    """A side of 48 with a smooth kernel, beside rough ones; every curve along it is cut somewhere."""
    generator, sizes = torch.Generator().manual_seed(0), SIZES[where]
    side = sizes.index(48)
    parts: list[kernels.Kernel] = [kernels.Matern(0.5, 0.5) for _ in sizes]
    parts[side] = kernels.Scale(kernels.SquaredExponential(0.6), 1.3)
    factors = [torch.rand(p, 1, generator=generator, dtype=torch.float64).to(dtype) for p in sizes]
    lengths = torch.randint(0, 49, [p for i, p in enumerate(sizes) if i != side], generator=generator)
    observed = (torch.arange(48) < lengths.unsqueeze(-1)).movedim(-1, side)
    n = int(observed.sum())
    deviation = noise * (1.0 + torch.rand(n, generator=generator, dtype=torch.float64)) if per_cell else noise
    H = LatentKroneckerOperator(parts, factors, observed, deviation)
    return H, torch.randn(n, 3, generator=generator, dtype=torch.float64).to(dtype)


def applied(H: LatentKroneckerOperator, R: Tensor, rank: int | None = None) -> Tensor:
    run = Run(H, R, None, None, 1e-2, None, torch.Generator().manual_seed(1), None, "every")
    return GridBlocks(rank).build(run)[0](R)


@pytest.mark.parametrize("per_cell", [False, True], ids=["one-noise", "per-cell"])
@pytest.mark.parametrize("where", SIZES)
def test_the_inverse_where_the_rank_suffices(where: str, per_cell: bool) -> None:
    """Of the matrix with the columns of B above the noise."""
    H, R = grid(where, per_cell=per_cell)
    side = SIZES[where].index(48)
    B, (place, blocks), (variances, columns) = H.roots[side], H.cells_along(side), H.other_factors(side)
    assert B is not None
    B = B[:, B.square().sum(0) * variances.mean() > H.noise.mean()]
    K = columns(torch.arange(blocks))[place // 48][:, place // 48] * (B @ B.T)[place % 48][:, place % 48]
    P = K + torch.diag(H.noise.expand(H.shape[0]))
    torch.testing.assert_close(P @ applied(H, R, rank=10**6), R, rtol=1e-4, atol=1e-4)
    assert float((P - H.block(torch.arange(H.shape[0]))).abs().max()) < float(H.noise.max())


@pytest.mark.parametrize("where", SIZES)
def test_the_blocks_are_those_of_the_matrix(where: str) -> None:
    """P = H inside every block, and P is symmetric and positive definite."""
    H, _ = grid(where, noise=0.3)
    inverse = applied(H, torch.eye(H.shape[0], dtype=torch.float64), rank=20)
    torch.testing.assert_close(inverse, inverse.T, rtol=1e-7, atol=1e-7)
    P, exact = torch.linalg.inv(inverse), H.block(torch.arange(H.shape[0]))
    assert float(torch.linalg.eigvalsh(P).min()) > 0
    place, blocks = H.cells_along(SIZES[where].index(48))
    assert blocks == math.prod(SIZES[where]) // 48
    inside = (place // 48).unsqueeze(1) == place // 48
    # Up to what the noise hides.
    assert float((P - exact)[inside].abs().max()) < 0.09
    assert float((P - exact).abs().max()) > 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("noise", [0.03, 0.3])
def test_a_few_iterations_where_the_rank_suffices(noise: float, dtype: torch.dtype) -> None:
    H, B = grid("last", noise=noise, dtype=dtype)
    before = B.clone()
    solution = CG(GridBlocks()).solve(H, B, tol=1e-2)
    assert solution.converged
    assert solution.iterations <= 6
    assert torch.equal(B, before)


def test_all_sides_smooth() -> None:
    """In float32 the other sides are singular up to rounding: their factor ends there."""
    generator, sizes = torch.Generator().manual_seed(0), (60, 50)
    factors = [torch.rand(p, 1, generator=generator) for p in sizes]
    observed = torch.rand(sizes, generator=generator) < 0.7
    parts = [kernels.SquaredExponential(0.5), kernels.SquaredExponential(0.7)]
    H = LatentKroneckerOperator(parts, factors, observed, 0.1)
    solution = CG(GridBlocks()).solve(H, torch.randn(H.shape[0], 3, generator=generator), tol=1e-2)
    assert solution.converged
    assert solution.iterations <= 10


def test_what_automatic_means() -> None:
    H, B = grid("last")
    assert smooth_side(H) == 1
    assert choose_preconditioner(H, math.inf) == GridBlocks()
    assert "blocks along side 1" in CG().solve(H, B).note
    assert Auto().solve(H, B).converged


def test_refused_for_other_operators(make: Callable[..., tuple[KernelOperator, Tensor]]) -> None:
    H, B = make(n=50)
    with pytest.raises(ValueError, match="GridBlocks is for grids with holes of which one side has a smooth kernel"):
        CG(GridBlocks()).solve(H, B)


@pytest.mark.parametrize("smooth", [True, False], ids=["smooth", "rough"])
def test_a_larger_rank_where_it_leaves_less_than_the_noise(smooth: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then does it make the iterations few; otherwise the rank is the usual one."""
    monkeypatch.setattr(grid_blocks, "max_rank", lambda device: 320)
    generator = torch.Generator().manual_seed(0)
    factors = [torch.rand(p, 1, generator=generator, dtype=torch.float64) for p in (300, 48)]
    across = kernels.SquaredExponential(0.01) if smooth else kernels.Matern(0.5, 0.02)
    observed = torch.rand(300, 48, generator=generator) < 0.7
    H = LatentKroneckerOperator([across, kernels.SquaredExponential(0.3)], factors, observed, 0.1)
    B = torch.randn(H.shape[0], 8, generator=generator, dtype=torch.float64)
    free, usual = (CG(GridBlocks(rank)).solve(H, B, generator=generator) for rank in (None, 320))
    found = [re.search(r"of rank (\d+), rank (\d+) across", solution.note) for solution in (free, usual)]
    (r, m), (_, few) = (tuple(map(int, match.groups())) for match in found if match)
    assert few == 320 // r
    if smooth:
        assert m >= 2 * few
        assert free.epochs < 0.3 * usual.epochs
    else:
        assert m == few
