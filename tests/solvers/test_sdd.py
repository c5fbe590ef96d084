from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pathgp.operators import KernelOperator
from pathgp.solvers import CG, SDD, Status
from pathgp.solvers.run import Run
from pathgp.solvers.sdd import choose_batch_size, choose_step

Make = Callable[..., tuple[KernelOperator, torch.Tensor]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run_of(H: KernelOperator, B: torch.Tensor, **changes: Any) -> Run:
    settings = {"tol": 1e-2, "max_epochs": None, "generator": seeded(), "callback": None, "rule": "every"}
    return Run(H, B, None, None, **{**settings, **changes})


def test_one_step_is_the_algorithm(make: Make) -> None:
    """All coordinates in one batch: Nesterov's method, written out."""
    H, B = make(n=50, noise=0.5)
    dense, b = H.block(torch.arange(50)), B / B.norm(dim=0)
    step, rho = 0.02, 0.9
    a, v, average = torch.zeros_like(b), torch.zeros_like(b), torch.zeros_like(b)
    for _ in range(5):
        g = dense @ (a + rho * v) - b
        v = rho * v - step * g
        a = a + v
        average = a  # 100 / 5 steps caps the weight at one
    solution = SDD(batch_size=50, step_size=step * 50).solve(H, B, tol=0.0, max_epochs=6)
    assert solution.iterations == 5
    torch.testing.assert_close(solution.x, average * B.norm(dim=0))


def test_a_step_size_is_quoted_as_in_the_thesis(make: Make) -> None:
    """beta n / batch moves a sampled coordinate, also when the batch exceeds the data."""
    H, B = make(n=40, noise=0.5, s=1)
    exact = 0.3 * B
    for batch, step in ((40, 12.0), (1000, 12.0)):
        solution = SDD(batch_size=batch, step_size=step, momentum=0.0).solve(H, B, tol=0.0, max_epochs=2)
        torch.testing.assert_close(solution.x, exact)


def test_the_automatic_step_is_the_inverse_of_the_largest_eigenvalue(make: Make) -> None:
    H, B = make(n=200, noise=0.3)
    index = torch.arange(200)
    largest = float(torch.linalg.eigvalsh(H.block(index)).max())
    run = run_of(H, B)
    assert choose_step(run, 200, 0.9) == pytest.approx(1 / largest, rel=0.02)
    # A quarter of the rows has about a quarter of the eigenvalue.
    assert choose_step(run_of(H, B), 50, 0.0) == pytest.approx(4 / largest, rel=0.3)
    assert run.epochs > 0


def test_the_automatic_step_is_stable_where_four_times_it_is_not(make: Make) -> None:
    H, B = make(n=400, noise=0.1)
    automatic = SDD(batch_size=50).solve(H, B, generator=seeded(), max_epochs=300)
    assert "halving" not in automatic.note
    estimates = torch.stack([record.residual for record in automatic.history]).amax(1)
    assert (estimates[1:] < 2 * estimates[0]).all()
    step = choose_step(run_of(H, B), 50, 0.9) * 50
    larger = SDD(batch_size=50, step_size=4 * step).solve(H, B, generator=seeded(), max_epochs=300)
    assert "halving" in larger.note


@pytest.mark.parametrize("lengthscale", [0.002, 0.03])
@pytest.mark.parametrize("batch", [1, 8, 40])
def test_the_automatic_step_is_stable_where_inputs_have_few_neighbours(
    make: Make, lengthscale: float, batch: int
) -> None:
    """Nothing tells a coordinate between two visits that momentum has carried it too far."""
    H, B = make(n=600, noise=0.1, lengthscale=lengthscale)
    sound = SDD(batch_size=batch).solve(H, B, generator=seeded(), max_epochs=20)
    assert "halving" not in sound.note
    assert float(sound.residual.max()) < 0.2
    # How far a single coordinate goes until it is met again, times its variance of 1.01, must not exceed two.
    limit = 2 / (sum(0.9**k for k in range(600 // batch)) * 1.01)
    assert choose_step(run_of(H, B), batch, 0.9) == pytest.approx(0.5 * limit, rel=0.05)
    if lengthscale < 0.01:
        beyond = SDD(batch_size=batch, step_size=1.6 * limit * batch).solve(H, B, generator=seeded(), max_epochs=20)
        assert "halving" in beyond.note


def test_the_automatic_batch_takes_the_step_of_a_single_coordinate(make: Make) -> None:
    H, B = make(n=4000, noise=0.3, lengthscale=0.05)
    batch = choose_batch_size(run_of(H, B), 0.9)
    assert 64 < batch < 2048
    largest = float(torch.linalg.eigvalsh(H.block(torch.arange(batch))).max())
    assert largest == pytest.approx(float(H.diagonal().max()) / 0.1, rel=0.15)
    assert f"batches of {math.ceil(4000 / math.ceil(4000 / batch))}," in SDD().solve(H, B, generator=seeded()).note


def test_the_automatic_batch_has_bounds(make: Make) -> None:
    # All inputs alike, and none: with every coordinate the eigenvalue grows by the whole variance, or not at all.
    for lengthscale, bound in ((50.0, 64), (1e-6, 2048)):
        H, B = make(n=300, noise=0.3, lengthscale=lengthscale)
        assert choose_batch_size(run_of(H, B), 0.9) == bound
    H, B = make(n=20)
    assert SDD().solve(H, B, generator=seeded()).converged


def test_the_guard_restores_and_goes_on(make: Make) -> None:
    """A step a thousand times too large costs some epochs and nothing else."""
    H, B = make(n=400, noise=0.3)
    solution = SDD(batch_size=50, step_size=3000.0).solve(H, B, generator=seeded(), max_epochs=300)
    assert solution.converged
    assert "halvings" in solution.note


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tol", [0.0, 1e-2])
def test_divergence_never_returns_garbage(make: Make, dtype: torch.dtype, tol: float) -> None:
    H, B = make(n=400, noise=0.3, dtype=dtype)
    solution = SDD(batch_size=20, step_size=1e30).solve(H, B, tol=tol, generator=seeded(), max_epochs=100)
    assert solution.status is Status.DIVERGED
    assert torch.isfinite(solution.x).all()
    assert (solution.residual <= 1.0 + 1e-6).all()
    # The budget may end before the guard has given up.
    solution = SDD(batch_size=20, step_size=1e30).solve(H, B, tol=tol, generator=seeded(), max_epochs=3.5)
    assert solution.status is Status.BUDGET_EXHAUSTED
    assert (solution.residual <= 1.0 + 1e-6).all()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("tol", [0.0, 1e-2])
def test_iterates_are_those_of_the_thesis(make: Make, momentum: float, tol: float) -> None:
    H, B = make(n=200, noise=0.5)
    batches: list[torch.Tensor] = []

    class Spy(KernelOperator):
        def rows(self, index: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
            batches.append(index)
            return super().rows(index, V)

    spied = Spy(H.kernel, H.X, noise=H._deviation)
    step = 0.02
    sdd = SDD(batch_size=10, step_size=10 * step, momentum=momentum)
    solution = sdd.solve(spied, B, tol=tol, max_epochs=21, generator=seeded())
    a, v, average = (torch.zeros_like(B) for _ in range(3))
    for index in batches:
        g = H.rows(index, a + momentum * v) - B[index]
        v *= momentum
        v[index] -= step * g
        a += v
        average.lerp_(a, 100 / len(batches))
    assert len(batches) == solution.iterations
    # The average is for fixed budgets only.
    torch.testing.assert_close(solution.x, a if tol else average, rtol=1e-9, atol=1e-11)


def test_an_epoch_visits_every_row_once(make: Make) -> None:
    H, B = make(n=100)
    seen: list[torch.Tensor] = []

    class Spy(KernelOperator):
        def rows(self, index: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
            seen.append(index)
            return super().rows(index, V)

    spy = Spy(H.kernel, H.X, 0.3)
    SDD(batch_size=30, step_size=1.0).solve(spy, B, tol=0.0, max_epochs=3)
    assert len(seen) == 8
    for epoch in (seen[:4], seen[4:]):
        assert torch.cat(epoch).sort().values.tolist() == list(range(100))
    assert not torch.equal(seen[0], seen[4])


def test_a_budget_below_the_automatic_step_says_so(make: Make) -> None:
    H, B = make(n=100, s=1)
    for solver in (SDD(), SDD(batch_size=100)):
        solution = solver.solve(H, B, max_epochs=1.5)
        assert solution.status is Status.BUDGET_EXHAUSTED
        assert "step size" in solution.note
        assert solution.epochs == 0


def test_errors() -> None:
    for settings in ({"batch_size": 0}, {"step_size": "best"}, {"step_size": -1.0}, {"momentum": 1.0}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            SDD(**settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step_size"):
        SDD(step_size=math.nan)


def test_a_budget_that_ends_an_unstable_run_keeps_a_warm_start(make: Make) -> None:
    """Otherwise a fit with a budget would hand growing errors from one step to the next."""
    H, B = make(n=400, noise=0.3)
    start = CG().solve(H, B, tol=0.1, generator=seeded())
    unstable = SDD(batch_size=10, momentum=0.99)
    solution = unstable.solve(H, B, x0=start.x, tol=1e-3, generator=seeded(), max_epochs=4)
    assert solution.status is Status.BUDGET_EXHAUSTED
    assert (solution.residual <= start.residual * 1.001).all()
