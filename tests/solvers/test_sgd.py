from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.compute.random import permutation
from pathgp.operators import KernelOperator
from pathgp.solvers import SGD, Status
from pathgp.solvers.run import Run
from pathgp.solvers.sgd import gradient, row_weights
from statistics_tools import assert_unbiased

Make = Callable[..., tuple[KernelOperator, Tensor]]
N = 40
NOISE = {"scalar": torch.tensor(0.4, dtype=torch.float64), "per-point": torch.linspace(0.3, 0.7, N).double()}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(make: Make, noise: Tensor) -> tuple[KernelOperator, Tensor, Tensor, Run]:
    H, B = make(n=N, noise=noise, s=2)
    delta = torch.randn(B.shape, generator=seeded(1), dtype=torch.float64)
    return H, B, delta, Run(H, B, None, delta, 1e-2, None, seeded(2), None, "every")


@pytest.mark.statistical
@pytest.mark.parametrize("noise", NOISE)
def test_the_gradient_is_unbiased(make: Make, noise: str) -> None:
    """Batches and fresh features against K W (K u - b) / n + mean(sigma^2) K (u - delta) / n; one in a million."""
    H, _, _, run = problem(make, NOISE[noise])
    variance = NOISE[noise].square().expand(N)
    K = H.block(torch.arange(N)) - torch.diag(variance)
    u = torch.randn(N, 2, generator=seeded(3), dtype=torch.float64)
    weights = row_weights(run)
    torch.testing.assert_close(weights[:, 0], variance.mean() / variance)
    assert run.delta is not None
    expected = (K @ (weights * (K @ u - run.targets)) + variance.mean() * K @ (u - run.delta)) / N
    estimates = torch.stack(
        [
            gradient(run, permutation(N, run.generator, H.device)[:10], u, weights, H.features(20, run.generator))
            for _ in range(2000)
        ]
    )
    assert_unbiased(estimates, expected)


@pytest.mark.parametrize("noise", NOISE)
def test_the_low_variance_objective_has_the_same_minimiser(make: Make, noise: str) -> None:
    """The expected gradient vanishes at H^-1 (b + Sigma delta)."""
    H, B, delta, run = problem(make, NOISE[noise])
    variance = NOISE[noise].square().expand(N).unsqueeze(1)
    dense = H.block(torch.arange(N))
    K = dense - torch.diag(variance[:, 0])
    solution = torch.linalg.solve(dense, B + variance * delta) / run.scale
    assert run.delta is not None
    rows = K @ (row_weights(run) * (K @ solution - run.targets))
    regulariser = variance.mean() * K @ (solution - run.delta)
    assert float((rows + regulariser).abs().max()) < 1e-12
    assert float(rows.abs().max()) > 1e-3


def test_noise_in_delta_is_quieter_than_noise_in_the_targets(make: Make) -> None:
    """The reason for delta: less variance in the gradient at the solution, from the batches alone."""
    H, B = make(n=N, noise=1.0, s=2, lengthscale=1.0)
    noise = torch.randn(B.shape, generator=seeded(1), dtype=torch.float64)
    spreads = []
    for targets, delta in ((B, noise), (B + noise, torch.zeros_like(noise))):
        run = Run(H, targets, None, delta, 1e-2, None, seeded(2), None, "every")
        solution = torch.linalg.solve(H.block(torch.arange(N)), B + noise) / run.scale
        weights = row_weights(run)
        draws = torch.stack(
            [
                gradient(
                    run, permutation(N, run.generator, H.device)[:5], solution, weights, H.features(400, run.generator)
                )
                for _ in range(300)
            ]
        )
        spreads.append(float(draws.var(0).sum()))
    assert spreads[0] < spreads[1]


def test_steps_are_those_of_the_thesis(make: Make) -> None:
    H, B = make(n=N, s=3)
    delta = torch.ones_like(B)
    delta[:, 0] = 0.0
    zero = B.clone()
    zero[:, 2] = 0.0
    settings = (1e-2, None, seeded(), None, "every")
    assert SGD()._steps(Run(H, B, None, delta, *settings)).tolist() == [0.5, 0.1, 0.1]
    assert SGD()._steps(Run(H, zero, None, None, *settings)).tolist() == [0.5, 0.5, 0.0]
    assert SGD(step_size=0.3)._steps(Run(H, B, None, delta, *settings)).tolist() == pytest.approx([0.3] * 3)


def test_predictions_come_long_before_small_residuals(make: Make) -> None:
    """K a is close to K H^-1 b although a is far from H^-1 b: what primal SGD is used for."""
    H, B = make(n=300, noise=0.3, lengthscale=1.0)
    truth = torch.linalg.solve(H.block(torch.arange(300)), B)
    solution = SGD(batch_size=50).solve(H, B, max_epochs=200, generator=seeded())
    assert solution.status is Status.BUDGET_EXHAUSTED
    fit, wanted = H @ solution.x - H.noise * solution.x, H @ truth - H.noise * truth
    assert float((fit - wanted).norm() / wanted.norm()) < 0.2
    assert float((solution.x - truth).norm() / truth.norm()) > 0.3


def test_the_arithmetic_average_is_the_mean_of_all_iterates(make: Make) -> None:
    """Full batches without momentum: the iterates follow by hand, and the features are drawn again from the seed."""
    H, B = make(n=N, s=2, noise=0.5)
    K = H.block(torch.arange(N)) - 0.25 * torch.eye(N, dtype=torch.float64)
    solver = SGD(batch_size=N, step_size=0.1, momentum=0.0, clip=1e9, averaging="arithmetic")
    solution = solver.solve(H, B, tol=0.0, max_epochs=8, generator=seeded(3))
    generator, a, iterates = seeded(3), torch.zeros_like(B), []
    permutation(N, generator, H.device)
    drawn = H.features(100, generator, draws=8)
    for step in range(solution.iterations):
        phi = drawn[step]
        a = a - 0.1 * (K @ (K @ a - B) / N + 0.25 / N * phi @ (phi.T @ a))
        iterates.append(a)
    assert len(iterates) >= 3
    torch.testing.assert_close(solution.x, torch.stack(iterates).mean(0))
    tail = replace(solver, averaging="tail").solve(H, B, tol=0.0, max_epochs=8, generator=seeded(3)).x
    assert (tail - a).norm() < (solution.x - a).norm()


def test_an_enormous_step_is_survived(make: Make) -> None:
    H, B = make(n=200, noise=0.3, dtype=torch.float32)
    solution = SGD(batch_size=50, step_size=1e30, clip=1e30).solve(H, B, generator=seeded(), max_epochs=400)
    assert solution.status is Status.DIVERGED
    assert torch.isfinite(solution.x).all()
    assert (solution.residual <= 1.0 + 1e-6).all()
    solution = SGD(batch_size=50, step_size=1e3).solve(H, B, generator=seeded(), max_epochs=400)
    assert "halvings" in solution.note
    assert (solution.residual < 1.0).all()


def test_a_kernel_without_features_says_so() -> None:
    class Featureless(kernels.Kernel):
        def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
            return torch.exp(-torch.cdist(X, Z))

        def _diagonal(self, X: Tensor) -> Tensor:
            return torch.ones_like(X[:, 0])

    X = torch.rand(20, 1, generator=seeded())
    with pytest.raises(NotImplementedError, match="use SDD, AP or CG"):
        SGD().solve(KernelOperator(Featureless(), X), torch.ones(20, 1))


def test_errors(make: Make) -> None:
    wrong = ({"batch_size": 0}, {"features": 0}, {"step_size": -1.0}, {"momentum": 1.0}, {"clip": 0.0})
    for settings in (*wrong, {"averaging": "geometric"}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            SGD(**settings)  # type: ignore[arg-type]
    noise = torch.full((30,), 0.2, dtype=torch.float64)
    noise[3] = 0.0
    H, B = make(n=30, noise=noise)
    with pytest.raises(ValueError, match="use AP or CG"):
        SGD().solve(H, B)
