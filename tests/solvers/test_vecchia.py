"""Vecchia's preconditioner against dense float64 matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pathgp import Compute, kernels
from pathgp.operators import KernelOperator, LatentKroneckerOperator
from pathgp.solvers import AP, CG, Auto, Vecchia, auto, inverse_factor, vecchia
from pathgp.solvers.run import Run
from reference import matern, system

Make = Callable[..., tuple[KernelOperator, Tensor]]
N = 90


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _inputs(n: int = N, d: int = 2) -> Tensor:
    return torch.rand(n, d, generator=_generator(), dtype=torch.float64)


def _apply(H: KernelOperator, neighbours: int) -> Tensor:
    """U U^T as a dense matrix."""
    n = H.shape[0]
    precondition, _ = Vecchia(neighbours).build(Run(H, torch.ones(n, 1, dtype=H.dtype), generator=_generator()))
    return precondition(torch.eye(n, dtype=torch.float64))


@pytest.mark.parametrize("noise", [0.1, torch.linspace(0.05, 0.5, N, dtype=torch.float64)], ids=["one", "per point"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_rows_give_the_inverse(noise: float | Tensor, dtype: torch.dtype) -> None:
    X = _inputs().to(dtype)
    H = KernelOperator(kernels.Scale(kernels.Matern(1.5, torch.tensor([0.3, 0.5])), 0.8), X, noise)
    dense = system(lambda A, Z: 0.64 * matern(A, Z, 1.5, torch.tensor([0.3, 0.5])), X, noise)
    for neighbours in (N - 1, 10 * N):
        error = _apply(H, neighbours) @ dense - torch.eye(N, dtype=torch.float64)
        assert float(error.abs().max()) < 1e-7


def test_the_columns_of_the_factor() -> None:
    """u_i = x / sqrt(x_i) with H[S, S] x = e_i; few neighbours leave u_i zero elsewhere."""
    X, m = _inputs(), 5
    H = KernelOperator(kernels.Matern(1.5, 0.4), X, 0.2)
    dense = system(lambda A, Z: matern(A, Z, 1.5, torch.tensor(0.4)), X, 0.2)
    order = torch.randperm(N, generator=_generator(1))
    position = order.argsort()
    index, values = inverse_factor.factor_columns(H.coordinates, H.small_blocks, order, m, 10**9)
    U = torch.zeros(N, N, dtype=torch.float64).index_put((torch.arange(N).unsqueeze(1), index.long()), values).T
    for i in range(N):
        earlier = torch.nonzero(position < position[i]).flatten()
        nearest = (X[earlier] - X[i]).norm(dim=1).argsort()[:m]
        # The first rows are one block: each of them has all rows before it.
        S = torch.cat([earlier if position[i] <= m else earlier[nearest], torch.tensor([i])])
        x = torch.linalg.solve(dense[S][:, S], (torch.arange(len(S)) == len(S) - 1).double())
        expected = torch.zeros(N, dtype=torch.float64).index_copy(0, S, x / x[-1].sqrt())
        assert torch.allclose(U[:, i], expected, atol=1e-9), i


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Scale(kernels.Matern(0.5, torch.tensor([0.3, 2.0, 0.5])), 1.5),
        kernels.Scale(kernels.SquaredExponential(0.5), 2.0) + kernels.Matern(2.5, 0.2, active_dims=[1]),
        kernels.RationalQuadratic(0.5, active_dims=[0, 2]) * kernels.Matern(1.5, 1.0, active_dims=[1]),
        kernels.Matern(1.5, 0.3) + kernels.Linear(),
    ],
    ids=["scale", "sum", "product", "not stationary"],
)
@pytest.mark.parametrize("b", [1, 7])
def test_small_blocks(kernel: kernels.Kernel, b: int) -> None:
    noise = torch.linspace(0.1, 1.0, 40, dtype=torch.float64)
    # Far from the origin: the blocks depend on differences alone.
    X = _inputs(40, 3) + (0.0 if isinstance(kernel, kernels.Sum) else 1e3)
    H = KernelOperator(kernel, X, noise, Compute("streamed"))
    index = torch.randint(40, (6, b), generator=_generator())
    expected = torch.stack([H.block(rows) for rows in index])
    blocks = H.small_blocks(index)
    assert blocks.dtype == torch.float64
    assert torch.allclose(blocks, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("kernel", "dim"),
    [
        (kernels.Matern(1.5) + kernels.SquaredExponential(), 3),
        (kernels.Scale(kernels.Matern(1.5, active_dims=[0, 2])), 2),
        (kernels.Matern(1.5) * kernels.Linear(), None),
    ],
)
def test_the_columns_of_a_stationary_kernel(kernel: kernels.Kernel, dim: int | None) -> None:
    assert KernelOperator(kernel, _inputs(5, 3)).stationary_dim == dim


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", ["plain", "noise per point", "duplicates", "one row", "two rows"])
def test_solutions(make: Make, case: str, dtype: torch.dtype) -> None:
    n = {"one row": 1, "two rows": 2}.get(case, 400)
    noise: float | Tensor = torch.linspace(0.05, 0.5, n, dtype=torch.float64) if case == "noise per point" else 0.1
    H, B = make(n=n, noise=noise, lengthscale=0.2, dtype=dtype)
    if case == "duplicates":
        H = KernelOperator(kernels.Matern(1.5, 0.2), H.X[torch.arange(n) // 3], noise)
    solution = CG(Vecchia()).solve(H, B, tol=1e-3, generator=_generator())
    dense = system(lambda A, Z: matern(A, Z, 1.5, torch.tensor(0.2)), H.X, noise)
    residual = (B.double() - dense @ solution.x.double()).norm(dim=0) / B.double().norm(dim=0)
    assert solution.converged
    assert float(residual.max()) < 1.1e-3
    assert solution.iterations <= 12
    assert "Vecchia with" in solution.note


def test_equal_rows_without_noise_have_a_preconditioner() -> None:
    """H is singular; the right-hand side is in its range."""
    X = _inputs(60).repeat(2, 1)
    H = KernelOperator(kernels.Matern(0.5, 0.3), X, 0.0)
    B = H @ torch.randn(120, 2, generator=_generator(), dtype=torch.float64)
    solution = CG(Vecchia(20)).solve(H, B, tol=1e-2, generator=_generator())
    assert solution.converged


def test_more_neighbours_save_iterations(make: Make) -> None:
    H, B = make(n=800, noise=0.1, lengthscale=0.3)
    iterations = [CG(Vecchia(m)).solve(H, B, tol=1e-4, generator=_generator()).iterations for m in (2, 10, 50)]
    assert iterations[0] > 1.5 * iterations[1] > 1.5**2 * iterations[2], iterations


def test_the_automatic_number_of_neighbours(make: Make) -> None:
    """More noise relative to the distances needs more neighbours; with the choice a solve takes few iterations."""
    chosen = {}
    for noise in (0.02, 0.5):
        H, B = make(n=1500, noise=noise, lengthscale=0.5)
        predicted = vecchia.rehearse_neighbours(H, B, _generator(), vecchia.NEIGHBOURS)
        chosen[noise] = min(predicted, key=lambda m: predicted[m])
        solution = CG(Vecchia()).solve(H, B, tol=1e-2, generator=_generator())
        assert solution.iterations <= 6, (noise, chosen, solution.iterations)
    assert chosen[0.02] < chosen[0.5], chosen


def test_the_note_of_a_rehearsal_without_convergence(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    H, B = make(n=300)
    monkeypatch.setattr(vecchia, "_count_iterations", lambda *_: math.inf)
    solution = CG(Vecchia()).solve(H, B, generator=_generator())
    assert "more than 60 iterations predicted" in solution.note


def test_memory(make: Make) -> None:
    _, B = make(n=400)
    X = make(n=400)[0].X
    least = 48 * 400 * 21
    tight, wide = (KernelOperator(kernels.Matern(1.5, 0.4), X, 0.3, Compute(memory=m)) for m in (least, 10**9))
    found = [CG(Vecchia(20)).solve(H, B, tol=1e-6, generator=_generator()) for H in (tight, wide)]
    # The small systems are solved in more parts, with the same numbers.
    assert found[0].iterations == found[1].iterations
    assert torch.allclose(found[0].x, found[1].x, atol=1e-6)
    assert vecchia.neighbours_to_try(tight) == [9]
    assert vecchia.neighbours_to_try(wide) == [15, 30, 60, 120]
    with pytest.raises(ValueError, match="use fewer neighbours or raise memory="):
        CG(Vecchia(21)).solve(tight, B)


def _force(monkeypatch: pytest.MonkeyPatch, neighbours: int | None = None) -> None:
    """Predict that CG with Vecchia's preconditioner is the fastest, and AP the next."""

    def predict(H: Any, s: int, epochs: float, preconditioner: Any = None) -> float:
        return 5.0 if isinstance(preconditioner, Vecchia) else 1e6

    monkeypatch.setattr(auto, "predict_cg", predict)
    monkeypatch.setattr(auto, "predict_ap", lambda *_: 20.0)
    monkeypatch.setattr(auto, "predict_cholesky", lambda *_: 1e6)
    monkeypatch.setattr(auto, "predict_rehearsal", lambda *_: math.inf)
    if neighbours is not None:
        monkeypatch.setattr(vecchia, "rehearse_neighbours", lambda *_: {neighbours: 1.0})


def test_auto_uses_it_where_it_is_predicted_to_be_fastest(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    _force(monkeypatch)
    H, B = make(n=500, noise=0.1, lengthscale=0.2)
    solution = Auto().solve(H, B, generator=_generator())
    assert solution.converged
    assert solution.solver.startswith("CG(preconditioner=Vecchia(neighbours=")
    assert solution.note.startswith("CG with Vecchia's preconditioner: about 7.5 s for ")
    assert solution.iterations <= 6


@pytest.mark.parametrize("case", ["five columns", "not stationary"])
def test_auto_leaves_it_out(case: str, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    _force(monkeypatch)
    kernel = kernels.Matern(1.5, 0.5) + kernels.Linear() if case == "not stationary" else kernels.Matern(1.5, 0.5)
    H = KernelOperator(kernel, _inputs(300, 5 if case == "five columns" else 2), 0.3)
    solution = Auto().solve(H, make(n=300)[1], generator=_generator())
    assert solution.solver == str(AP())
    assert "Vecchia" not in solution.note


def test_auto_replaces_it_if_it_takes_twice_its_prediction(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    _force(monkeypatch, neighbours=1)
    H, B = make(n=500, noise=0.05, lengthscale=0.5)
    solution = Auto().solve(H, B, generator=_generator())
    assert solution.converged
    assert solution.solver == str(AP())
    assert "AP instead" in solution.note


@pytest.mark.parametrize("neighbours", [0, -3, 2.5, True, "15"])
def test_errors(neighbours: Any) -> None:
    with pytest.raises(ValueError, match="neighbours must be an integer of at least 1, or None, got"):
        Vecchia(neighbours)


def test_a_grid_has_its_own_preconditioners() -> None:
    sides = [torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(1)] * 2
    H = LatentKroneckerOperator([kernels.Matern(1.5), kernels.Matern(1.5)], sides, torch.ones(5, 5, dtype=torch.bool))
    for preconditioner in (Vecchia(), Vecchia(averaged=4), Vecchia(5, averaged=4)):
        with pytest.raises(ValueError, match="Vecchia needs rows with coordinates"):
            CG(preconditioner).solve(H, torch.ones(25, 1, dtype=torch.float64))
