"""What ``solve`` refuses, and what the common frame does for all solvers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.operators import KernelOperator
from pathgp.solvers import AP, CG, SDD, SGD, Cholesky, Solver, Status
from pathgp.solvers.cholesky import factorise

Make = Callable[..., tuple[KernelOperator, Tensor]]


def test_bad_systems_are_refused_with_advice(make: Make) -> None:
    H, B = make(n=30, s=2)
    solve = CG().solve
    with pytest.raises(TypeError, match="pathgp operator"):
        solve(torch.eye(30), B)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="B must be a tensor"):
        solve(H, B.numpy())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"B must have shape \(30, s\)"):
        solve(H, B[:, 0])
    with pytest.raises(ValueError, match="x0 has shape"):
        solve(H, B, x0=B[:, :1])
    with pytest.raises(TypeError, match="float32"):
        solve(H, B.float())
    broken = B.clone()
    broken[3, 1] = torch.nan
    with pytest.raises(ValueError, match="delta contains NaN"):
        solve(H, B, delta=broken)
    with pytest.raises(ValueError, match="tol"):
        solve(H, B, tol=-1.0)
    with pytest.raises(ValueError, match="at least 1"):
        solve(H, B, max_epochs=0.5)
    with pytest.raises(ValueError, match="'every' or 'average'"):
        solve(H, B, rule="most")
    with pytest.raises(TypeError, match="generator must be"):
        solve(H, B, generator=3)  # type: ignore[arg-type]


def test_scaling_the_right_hand_side_scales_the_solution(make: Make) -> None:
    H, B = make(n=60)
    scale = torch.tensor([1e-9, 1.0, 1e6, 1e-3], dtype=torch.float64)
    x = AP(20).solve(H, B, generator=torch.Generator().manual_seed(0)).x
    y = AP(20).solve(H, B * scale, generator=torch.Generator().manual_seed(0)).x
    torch.testing.assert_close(y, x * scale, rtol=1e-8, atol=1e-20)


def test_the_start_is_checked_before_any_work(make: Make) -> None:
    H, B = make(n=60)
    truth = torch.linalg.solve(H.block(torch.arange(60)), B)
    solution = CG().solve(H, B, x0=truth)
    assert solution.converged
    assert solution.iterations == 0
    assert solution.epochs == 1.0
    assert solution.note == "the start was good enough"


@pytest.mark.parametrize("solver", [CG(block=1), AP(20), AP(20, "greedy"), SDD(), SGD()], ids=repr)
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_a_time_limit_ends_a_solve(solver: Solver, is_warm: bool, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that counts the rows of products, a second each: in time, with a residual that was recomputed."""
    H, B = make(n=60)
    passed = [0.0]

    def count(name: str) -> None:
        method = getattr(KernelOperator, name)

        def counted(self: KernelOperator, *args: Tensor) -> Tensor:
            passed[0] += len(args[0])
            return method(self, *args)

        monkeypatch.setattr(KernelOperator, name, counted)

    for name in ("__matmul__", "rows", "columns"):
        count(name)
    monkeypatch.setattr(time, "perf_counter", lambda: passed[0])
    start = 0.1 * torch.ones_like(B) if is_warm else None
    solution = solver.solve(H, B, x0=start, tol=1e-14, time_limit=1200.0, generator=torch.Generator().manual_seed(0))
    assert solution.status is Status.OUT_OF_TIME
    assert 500.0 < passed[0] <= 1260.0
    assert solution.residual_is_exact
    residual = torch.linalg.vector_norm(B - H @ solution.x, dim=0) / torch.linalg.vector_norm(B, dim=0)
    torch.testing.assert_close(residual, solution.residual, rtol=1e-6, atol=1e-12)


def test_no_gradients_are_recorded(make: Make) -> None:
    H, B = make(n=60)
    solution = CG().solve(H, B.requires_grad_())
    assert not solution.x.requires_grad


def test_cholesky_adds_jitter_only_where_it_must(make: Make) -> None:
    H, B = make(n=80)
    assert Cholesky().solve(H, B, tol=1e-9).note == ""
    # Two equal points without noise: singular.
    X = torch.rand(20, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    H = KernelOperator(kernels.SquaredExponential(1.0), torch.cat([X, X]), 0.0)
    B = torch.sin(torch.cat([X, X]))
    solution = Cholesky().solve(H, B)
    assert solution.note.startswith("jitter 1e-08")
    assert solution.status in (Status.CONVERGED, Status.STALLED)
    assert torch.isfinite(solution.x).all()


def test_factorise_gives_up_on_what_is_no_covariance() -> None:
    A = torch.tensor([[1.0, 5.0], [5.0, 1.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="not positive definite"):
        factorise(A)


def test_cholesky_in_float32_with_tiny_noise_says_what_is_left(make: Make) -> None:
    H, B = make(n=300, noise=1e-5, lengthscale=1.0, dtype=torch.float32)
    solution = Cholesky().solve(H, B, tol=1e-8)
    assert solution.status is Status.STALLED
    assert "use float64" in solution.explain(1e-2)


def test_a_direct_solve_without_a_tolerance_is_converged(make: Make) -> None:
    H, B = make(n=30, s=2)
    assert Cholesky().solve(H, B, tol=0.0).status is Status.CONVERGED
    assert AP(block_size=10).solve(H, B, tol=0.0, max_epochs=3).status is Status.BUDGET_EXHAUSTED
