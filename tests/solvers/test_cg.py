from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pathgp import Compute, kernels
from pathgp.operators import KernelOperator
from pathgp.operators.low_rank import automatic_rank
from pathgp.solvers import CG, PivotedCholesky, RandomlyPivotedCholesky, Status, cg
from pathgp.solvers.preconditioners import LowRankInverse, PartialCholesky
from pathgp.solvers.run import Run

Make = Callable[..., tuple[KernelOperator, torch.Tensor]]
PIVOTS = [PivotedCholesky, RandomlyPivotedCholesky]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run_of(H: KernelOperator, B: torch.Tensor) -> Run:
    return Run(H, B, None, None, 1e-2, None, seeded(), None, "every")


@pytest.mark.parametrize("pivots", PIVOTS)
def test_a_preconditioner_saves_iterations(make: Make, pivots: type[PartialCholesky]) -> None:
    H, B = make(n=300, noise=0.05)
    plain = CG(preconditioner=None).solve(H, B, tol=1e-4)
    helped = CG(pivots(60)).solve(H, B, tol=1e-4, generator=seeded())
    assert plain.converged
    assert helped.converged
    assert helped.iterations < 0.5 * plain.iterations
    assert f"{pivots.__name__} of rank 60" in helped.note


def test_more_rank_saves_more(make: Make) -> None:
    H, B = make(n=300, noise=0.05)
    solvers = [CG(RandomlyPivotedCholesky(rank)) for rank in (10, 40, 160)]
    iterations = [solver.solve(H, B, tol=1e-4, generator=seeded()).iterations for solver in solvers]
    assert iterations[0] > iterations[1] > iterations[2]


@pytest.mark.parametrize("noise", [torch.tensor(0.04), torch.linspace(0.01, 0.2, 30)])
def test_woodbury_is_the_inverse(noise: torch.Tensor) -> None:
    F = torch.randn(30, 5, generator=seeded(), dtype=torch.float64)
    R = torch.randn(30, 3, generator=seeded(1), dtype=torch.float64)
    noise = noise.double()
    P = F @ F.T + torch.diag(noise.expand(30))
    torch.testing.assert_close(LowRankInverse(F, noise)(R), torch.linalg.solve(P, R))


@pytest.mark.parametrize("pivots", PIVOTS)
def test_the_factor_never_exceeds_the_kernel_matrix(make: Make, pivots: type[PartialCholesky]) -> None:
    """K - F F^T is a Schur complement: positive semi-definite, its trace is what is said to be left."""
    H, B = make(n=120, noise=0.1)
    run = run_of(H, B)
    variances = H.diagonal() - H.noise
    factor, left = pivots(40).factorise(run, variances)
    K = H.block(torch.arange(120)) - H.noise * torch.eye(120, dtype=torch.float64)
    rest = K - factor @ factor.T
    assert float(torch.linalg.eigvalsh(rest).min()) > -1e-10
    torch.testing.assert_close(rest.diagonal().clamp_min(0), left, rtol=1e-6, atol=1e-8)
    assert float(left.sum()) < 0.2 * float(variances.sum())
    assert run.epochs == pytest.approx(40 / 120)


@pytest.mark.parametrize("pivots", PIVOTS)
def test_a_full_rank_factor_is_the_matrix(make: Make, pivots: type[PartialCholesky]) -> None:
    H, B = make(n=60, noise=0.3)
    solution = CG(pivots(60)).solve(H, B, tol=1e-6, generator=seeded())
    assert solution.converged
    assert solution.iterations <= 3


def test_the_automatic_rank(make: Make) -> None:
    # It stops when what is left is below the noise, but not before the first round of pivots.
    H, B = make(n=1600, noise=2.0, lengthscale=0.3)
    solution = CG().solve(H, B, generator=seeded())
    assert automatic_rank(H) == 200
    assert "rank 128," in solution.note
    assert solution.epochs < 0.5 * CG(None).solve(H, B).epochs
    H, B = make(n=400, noise=1e-3, lengthscale=0.2)
    assert "rank 50," in CG().solve(H, B, generator=seeded()).note


def test_the_automatic_rank_fits_the_memory() -> None:
    X = torch.rand(1000, 2, generator=seeded())
    roomy = KernelOperator(kernels.Matern(1.5, 0.3), X)
    tight = KernelOperator(kernels.Matern(1.5, 0.3), X, compute=Compute(memory=1_000_000))
    assert automatic_rank(roomy) == 125
    assert automatic_rank(tight) * 1000 * 8 * 3 <= 500_000


def test_a_plateau_of_the_residual_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """With little noise the residual does not fall for a long time, while the energy improves."""
    monkeypatch.setattr(cg, "_CHECK_EVERY", 15)
    X = torch.rand(300, 2, generator=seeded(), dtype=torch.float64)
    y = torch.sin(5 * X.sum(1, keepdim=True)) + torch.randn(300, 1, generator=seeded(), dtype=torch.float64)
    H = KernelOperator(kernels.Matern(1.5, 0.5), X, 0.01)
    solution = CG(None).solve(H, y)
    assert solution.converged
    at_sixty = next(record for record in solution.history if record.iterations > 60)
    assert float(at_sixty.residual) > 1.0


def test_noise_free_systems_have_a_preconditioner_too(make: Make) -> None:
    H, B = make(n=100, noise=0.0, lengthscale=0.1)
    solution = CG().solve(H, B, tol=1e-6, generator=seeded())
    assert solution.converged


def test_converged_columns_are_left_alone(make: Make) -> None:
    """Columns that converge early cost nothing afterwards and stay as they are."""
    H, B = make(n=200, noise=0.1)
    easy = H @ torch.ones_like(B[:, :1])
    x0 = torch.zeros_like(B)
    both = torch.cat([easy, B[:, 1:]], 1)
    x0[:, 0] = 1.0
    solution = CG(None).solve(H, both, x0=x0)
    assert solution.converged
    torch.testing.assert_close(solution.x[:, 0], x0[:, 0], rtol=1e-15, atol=0.0)


def test_blocks_minimise_over_the_directions_of_all_columns(make: Make) -> None:
    """After three iterations X is the minimiser in the space of B, H B and H^2 B, for every column."""
    H, B = make(n=80, noise=0.3)
    A = H.block(torch.arange(80))
    space = torch.linalg.qr(torch.cat([B, A @ B, A @ A @ B], 1)).Q
    best = space @ torch.linalg.solve(space.T @ A @ space, space.T @ B)
    solution = CG(None).solve(H, B, tol=0.0, max_epochs=4)
    torch.testing.assert_close(solution.x, best, rtol=1e-8, atol=1e-10)
    alone = CG(None, block=1).solve(H, B, tol=0.0, max_epochs=4).x
    energies = [((X * (A @ X)).sum(0) / 2 - (X * B).sum(0)) for X in (solution.x, alone)]
    assert (energies[0] < energies[1] - 1e-6).all()


def test_a_block_takes_fewer_iterations_than_its_columns(make: Make) -> None:
    H, _ = make(n=400, noise=0.05)
    B = torch.randn(400, 40, generator=seeded(), dtype=torch.float64)
    iterations = [CG(None, block=block).solve(H, B, tol=1e-4).iterations for block in (1, 10, 40)]
    assert iterations[0] > 1.5 * iterations[1] > 2.0 * iterations[2]


@pytest.mark.parametrize("block", [1, 2, 3, 128])
def test_dependent_columns(make: Make, block: int) -> None:
    """Repeated columns, combinations and zeros have the solutions of the others."""
    H, B = make(n=120, noise=0.2)
    b = B[:, :1]
    B = torch.cat([b, 1e-6 * b, torch.zeros_like(b), -b, B[:, 1:3], b + B[:, 1:2]], 1)
    solution = CG(block=block).solve(H, B, tol=1e-8, generator=seeded())
    assert solution.converged
    exact = torch.linalg.solve(H.block(torch.arange(120)), B)
    assert float(((solution.x - exact).norm(dim=0) / exact.norm(dim=0).clamp_min(1e-300)).max()) < 1e-6
    assert not solution.x[:, 2].any()


def test_blocks_of_converged_columns_end(make: Make) -> None:
    """One block of easy columns and one of hard ones: the easy columns leave the products."""
    H, B = make(n=200, noise=0.1)
    easy = H @ torch.eye(200, 2, dtype=torch.float64)
    x0 = torch.zeros(200, 2 + B.shape[1], dtype=torch.float64)
    x0[:, :2] = torch.eye(200, 2, dtype=torch.float64) * (1 - 1e-3)
    solution = CG(None, block=2).solve(H, torch.cat([easy, B], 1), x0=x0, tol=1e-6)
    assert solution.converged
    exact = torch.linalg.solve(H.block(torch.arange(200)), B)
    torch.testing.assert_close(solution.x[:, 2:], exact, rtol=1e-3, atol=1e-4)


def test_float32_with_tiny_noise_says_that_it_stalled(make: Make) -> None:
    H, B = make(n=300, noise=1e-2, lengthscale=1.0, dtype=torch.float32)
    solution = CG().solve(H, B, tol=1e-6, generator=seeded(), max_epochs=2000)
    assert solution.status is Status.STALLED
    assert "use float64" in solution.explain(1e-2)
    assert torch.isfinite(solution.x).all()
    assert (solution.residual <= 1.0 + 1e-6).all()


@pytest.mark.parametrize("bad", ["greedy", 100, object()])
def test_errors(bad: Any) -> None:
    with pytest.raises(ValueError, match="RandomlyPivotedCholesky"):
        CG(preconditioner=bad)
    with pytest.raises(ValueError, match="rank"):
        PivotedCholesky(0)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "all"])
def test_errors_of_blocks(bad: Any) -> None:
    with pytest.raises(ValueError, match="block must be an integer of at least 1"):
        CG(block=bad)
