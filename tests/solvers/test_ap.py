from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from pathgp import kernels
from pathgp.operators import KernelOperator
from pathgp.solvers import AP, Status

Make = Callable[..., tuple[KernelOperator, torch.Tensor]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_shuffled_blocks_need_far_fewer_epochs_than_fixed_ones(make: Make) -> None:
    H, B = make(n=300, noise=0.1)
    shuffled = AP(block_size=60).solve(H, B, generator=seeded())
    greedy = AP(block_size=60, selection="greedy").solve(H, B, generator=seeded(), max_epochs=1000)
    assert shuffled.converged
    assert greedy.converged
    assert shuffled.epochs < 0.2 * greedy.epochs


def test_bigger_blocks_need_fewer_epochs(make: Make) -> None:
    H, B = make(n=300, noise=0.1)
    epochs = [AP(block_size=b).solve(H, B, generator=seeded()).epochs for b in (20, 80, 300)]
    assert epochs[0] > epochs[1] > epochs[2]
    # One block is a direct solution.
    assert epochs[2] <= 3


def test_a_block_beyond_n_is_the_whole_matrix(make: Make) -> None:
    H, B = make(n=50)
    assert "1 blocks of 50 rows" in AP(block_size=10_000).solve(H, B).note


def test_the_error_of_greedy_blocks_falls_monotonically_in_the_norm_of_h(make: Make) -> None:
    H, B = make(n=120, noise=0.2)
    dense = H.block(torch.arange(120))
    truth = torch.linalg.solve(dense, B)
    errors = []
    for epochs in range(1, 8):
        error = AP(40, "greedy").solve(H, B, tol=1e-12, max_epochs=epochs, generator=seeded()).x - truth
        errors.append(float((error * (dense @ error)).sum()))
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(errors))
    assert errors[-1] < errors[0]


def test_checks_are_few(make: Make) -> None:
    """A look at some rows tells when a product is worth its price."""
    H, B = make(n=300, noise=0.1)
    solution = AP(block_size=60).solve(H, B, generator=seeded())
    exact = [record for record in solution.history if record.is_exact]
    assert len(exact) <= 3


def test_a_look_is_close_to_the_truth() -> None:
    """512 rows of 5,000: 8 to 23 % of standard error, as residuals pile up at the borders of blocks."""
    X = torch.rand(5000, 2, generator=seeded())
    H = KernelOperator(kernels.Matern(1.5, 0.1), X, 0.2)
    B = torch.randn(5000, 4, generator=seeded(1))
    solution = AP(block_size=500).solve(H, B, generator=seeded(2))
    *_, look, truth = solution.history
    assert truth.is_exact
    assert not look.is_exact
    assert float(look.residual.mean() / truth.residual.mean()) == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize(
    ("kernel", "noise"),
    [(kernels.Matern(1.5, 0.05), 0.1), (kernels.SquaredExponential(0.3), 0.1), (kernels.Matern(0.5, 2.0), 0.03)],
    ids=["rough", "smooth", "long"],
)
@pytest.mark.parametrize("d", [1, 2])
def test_few_sweeps_whatever_is_left_to_do(kernel: kernels.Kernel, noise: float, d: int) -> None:
    """Neighbours take away what is rough, random blocks what is smooth: one of them alone would take dozens."""
    X = torch.rand(2000, d, generator=seeded())
    H = KernelOperator(kernel, X, noise)
    K = H.block(torch.arange(2000)).double()
    B = (torch.linalg.cholesky(K) @ torch.randn(2000, 4, generator=seeded(1), dtype=torch.float64)).float()
    solution = AP(block_size=125).solve(H, B, generator=seeded(2), rule="average")
    assert solution.converged
    assert solution.epochs < 10


def test_inputs_without_distances_are_solved_too() -> None:
    X = torch.randint(0, 3, (400, 64), generator=seeded()).float()
    H = KernelOperator(kernels.Tanimoto(), X, 0.3)
    solution = AP(block_size=50).solve(H, torch.randn(400, 3, generator=seeded(1)), generator=seeded(2))
    assert solution.converged


def test_float32_with_tiny_noise_says_that_it_stalled(make: Make) -> None:
    H, B = make(n=300, noise=1e-4, lengthscale=1.0, dtype=torch.float32)
    solution = AP(block_size=60).solve(H, B, tol=1e-7, generator=seeded(), max_epochs=500)
    assert solution.status in (Status.STALLED, Status.BUDGET_EXHAUSTED)
    assert torch.isfinite(solution.x).all()


@pytest.mark.parametrize("noise", [0.1, torch.linspace(0.1, 0.2, 302)], ids=["one", "per row"])
def test_blocks_inverted_together_give_the_same_solution(
    noise: float | torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: five blocks in groups of two, of 60 and of 61 rows."""
    H = KernelOperator(kernels.Matern(1.5, 0.5), torch.rand(302, 2, generator=seeded()).double(), noise)
    B = torch.randn(302, 3, generator=seeded(1)).double()
    alone = AP(block_size=61).solve(H, B, tol=1e-6, generator=seeded(2))
    monkeypatch.setattr(KernelOperator, "blocks_at_once", lambda self, b: 2)
    together = AP(block_size=61).solve(H, B, tol=1e-6, generator=seeded(2))
    assert together.converged
    assert together.epochs == alone.epochs
    torch.testing.assert_close(together.x, alone.x, rtol=1e-9, atol=1e-9)


def test_errors() -> None:
    with pytest.raises(ValueError, match="block_size"):
        AP(block_size=0)
    with pytest.raises(ValueError, match="'shuffled' or 'greedy'"):
        AP(selection="cyclic")


def test_a_budget_ends_with_random_blocks(make: Make) -> None:
    """Blocks of neighbours leave residuals along their borders, which the last sweep should not."""
    H, B = make(n=400, noise=0.3)
    kinds: list[bool] = []

    class Spy(KernelOperator):
        def partition(self, parts: int, generator: torch.Generator, near: bool = False) -> tuple[torch.Tensor, ...]:
            kinds.append(near)
            return super().partition(parts, generator, near)

    AP(block_size=20).solve(Spy(H.kernel, H.X, 0.3), B, tol=0.0, max_epochs=6.0, generator=seeded())
    # Five epochs are left beside the closing check, less the looks: four whole sweeps and most of a fifth.
    assert kinds == [True, True, False, True, False]
