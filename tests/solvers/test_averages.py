"""Averages of neighbouring rows against dense float64 matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pathgp import Compute, kernels
from pathgp.operators import KernelOperator
from pathgp.solvers import CG, Auto, Vecchia, auto, averages, vecchia
from pathgp.solvers.averages import AveragedInverse, invert_averages

Make = Callable[..., tuple[KernelOperator, Tensor]]
N = 90


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _inputs(n: int = N, d: int = 2) -> Tensor:
    return torch.rand(n, d, generator=_generator(), dtype=torch.float64)


def _apply(H: KernelOperator, size: int, neighbours: int) -> tuple[AveragedInverse, Tensor]:
    """The preconditioner, and its matrix."""
    precondition = invert_averages(H, size, neighbours, _generator())
    return precondition, precondition(torch.eye(H.shape[0], dtype=H.dtype)).to(torch.float64)


def _reference(kernel: kernels.Kernel, X: Tensor, noise: Tensor, levels: list[list[Tensor]], m: int) -> Tensor:
    """The inverse covariance of y from its definition, with the exact covariance of the averages of the last level.

    y consists of the averages of all groups, and of differences B y of each group, with B 1 = 0. Given the averages,
    differences of different groups are independent, with the mean and covariance that the m nearest averages give.
    """
    if not levels:
        with torch.no_grad():
            return torch.linalg.inv(kernel(X) + noise.square().diag())
    groups, n = levels[0], len(X)
    M = len(groups)
    A = torch.zeros(M, n, dtype=torch.float64)
    for number, rows in enumerate(groups):
        A[number, rows] = noise[rows].pow(-2) / noise[rows].pow(-2).sum()
    centres = A @ X
    with torch.no_grad():
        averages_covariance = kernel(centres) + torch.diag(((A > 0).double() @ noise.pow(-2)).reciprocal())
    average_noise = ((A > 0).double() @ noise.pow(-2)).rsqrt()
    result = A.T @ _reference(kernel, centres, average_noise, levels[1:], m) @ A
    for number, rows in enumerate(groups):
        g = len(rows)
        if g == 1:
            continue
        near = (centres - centres[number]).norm(dim=1).argsort()[:m]
        with torch.no_grad():
            own, cross = kernel(X[rows]), kernel(X[rows], centres[near])
        W = torch.linalg.solve(averages_covariance[near][:, near], cross.T).T
        B = torch.diff(torch.eye(g, dtype=torch.float64), dim=0)
        covariance = B @ (own - W @ cross.T + noise[rows].square().diag()) @ B.T
        select = torch.eye(n, dtype=torch.float64)[rows]
        E = B @ (select - W @ A[near])
        result += E.T @ torch.linalg.inv(covariance) @ E
    return result


def _groups(precondition: AveragedInverse, n: int) -> list[Tensor]:
    grouped = [rows[rows < n] for rows in precondition.rows]
    return grouped + [row.reshape(1) for row in precondition.singles]


@pytest.mark.parametrize("case", ["one noise", "noise per point", "three columns", "sparse places", "float32"])
def test_the_inverse_against_its_definition(case: str) -> None:
    X = _inputs(d=3 if case == "three columns" else 2)
    noise = torch.full((N,), 0.4, dtype=torch.float64)
    if case == "noise per point":
        noise = torch.linspace(0.2, 1.0, N, dtype=torch.float64)
    if case == "sparse places":
        # Groups with these rows are divided.
        X[:12] *= 20.0
    kernel = kernels.Scale(kernels.Matern(1.5, 2.0), 0.8)
    dtype = torch.float32 if case == "float32" else torch.float64
    H = KernelOperator(kernel, X.to(dtype), noise)
    precondition, found = _apply(H, 4, N - 1)
    assert bool(len(precondition.singles)) == (case == "sparse places")
    expected = _reference(kernel, X.to(dtype).double(), noise, [_groups(precondition, N)], averages.MAX_AVERAGES)
    assert torch.allclose(found, expected, atol=(1e-4 if case == "float32" else 1e-8) * float(expected.abs().max()))
    assert float(torch.linalg.eigvalsh(found + found.T).min()) > 0.0


def test_averages_of_averages_against_their_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most rows lie in a dense cluster: their averages are averaged again, those of the others are not."""
    monkeypatch.setattr(averages, "_LEAST_AVERAGES", 20)
    X = _inputs()
    X[:70] *= 0.05
    noise = torch.linspace(0.3, 0.8, N, dtype=torch.float64)
    kernel = kernels.Scale(kernels.Matern(1.5, 1.0), 0.8)
    precondition, found = _apply(KernelOperator(kernel, X, noise), 4, N - 1)
    levels, count, level = [], N, precondition
    while isinstance(level, AveragedInverse):
        levels.append(_groups(level, count))
        count, level = len(levels[-1]), level.factor
    assert len(levels) > 1
    assert len(precondition.factor.singles)
    expected = _reference(kernel, X, noise, levels, averages.MAX_AVERAGES)
    assert torch.allclose(found, expected, atol=1e-8 * float(expected.abs().max()))
    assert float(torch.linalg.eigvalsh(found + found.T).min()) > 0.0


def test_averages_of_averages_save_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meridians that meet in a pole: rows are far denser there than elsewhere."""
    radius = torch.linspace(0.0, 1.0, 20, dtype=torch.float64).square()
    angle = torch.linspace(0.0, 2.0 * math.pi, 151, dtype=torch.float64)[:-1]
    r, a = torch.meshgrid(radius, angle, indexing="ij")
    X = torch.stack([r * a.cos(), r * a.sin()], -1).reshape(-1, 2)
    H = KernelOperator(kernels.Matern(1.5, 0.5), X, 0.3)
    L = torch.linalg.cholesky(H @ torch.eye(len(X), dtype=torch.float64))
    B = L @ torch.randn(len(X), 3, generator=_generator(), dtype=torch.float64)
    iterations = {}
    for least in (128, len(X)):
        monkeypatch.setattr(averages, "_LEAST_AVERAGES", least)
        solution = CG(Vecchia(10, 4), block=1).solve(H, B, tol=1e-2, generator=_generator())
        assert solution.converged
        iterations[least] = solution.iterations
    assert iterations[128] <= 10
    assert 1.4 * iterations[128] <= iterations[len(X)]


def test_equal_points_give_the_inverse() -> None:
    """Averages of rows at one point lose nothing."""
    X = _inputs(20).repeat_interleave(4, 0)
    noise = torch.linspace(0.1, 0.8, 80, dtype=torch.float64)
    H = KernelOperator(kernels.Matern(1.5, 0.4), X, noise)
    _, found = _apply(H, 4, 79)
    assert torch.allclose(
        found @ (H @ torch.eye(80, dtype=torch.float64)), torch.eye(80, dtype=torch.float64), atol=1e-9
    )


def test_parts_have_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    H = KernelOperator(kernels.Matern(1.5, 0.7), _inputs(), 0.4)
    _, whole = _apply(H, 4, 10)
    monkeypatch.setattr(averages, "_AT_ONCE", {"cpu": 3000})
    _, parts = _apply(H, 4, 10)
    assert torch.allclose(whole, parts, atol=1e-10)


def test_dense_rows_take_few_iterations(make: Make) -> None:
    """Where 30 neighbours among single rows are far from enough, the automatic preconditioner averages."""
    H, B = make(n=3000, noise=0.4, lengthscale=1.0, dtype=torch.float32)
    plain, automatic = (CG(choice).solve(H, B, tol=1e-2, generator=_generator()) for choice in (Vecchia(30), Vecchia()))
    assert "averages of" in automatic.note
    assert automatic.converged
    assert automatic.iterations <= 6
    assert plain.iterations >= 1.5 * automatic.iterations


def test_the_number_of_averaged_rows_follows_the_density() -> None:
    X = _inputs(4096)
    chosen = {
        lengthscale: vecchia.choose_averages(KernelOperator(kernels.Matern(1.5, lengthscale), X, 0.3), _generator())
        for lengthscale in (0.01, 0.3, 3.0)
    }
    assert chosen[0.01] == 1
    assert 1 < chosen[0.3] < chosen[3.0]


@pytest.mark.parametrize("case", ["not stationary", "no noise", "few rows"])
def test_rows_that_are_not_averaged(case: str) -> None:
    kernel = kernels.Matern(1.5, 3.0) + kernels.Linear() if case == "not stationary" else kernels.Matern(1.5, 3.0)
    X = _inputs(100 if case == "few rows" else 1000)
    H = KernelOperator(kernel, X, 0.0 if case == "no noise" else 0.3)
    assert vecchia.choose_averages(H, _generator()) == 1


def test_auto_averages_dense_rows(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """With costs of many rows: those of this test would be solved by a factorisation."""

    def predict(H: Any, s: int, epochs: float, preconditioner: Any = None) -> float:
        return epochs if isinstance(preconditioner, Vecchia) else 1e6

    monkeypatch.setattr(auto, "predict_cg", predict)
    for name in ("predict_ap", "predict_cholesky"):
        monkeypatch.setattr(auto, name, lambda *_: 1e6)
    H, B = make(n=2000, noise=0.4, lengthscale=1.0)
    solution = Auto().solve(H, B, generator=_generator())
    assert solution.converged
    assert "averaged=" in solution.solver
    assert "averaged=1)" not in solution.solver


def test_errors(make: Make) -> None:
    B = torch.ones(N, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="averaged must be an integer of at least 1, or None, got 0"):
        Vecchia(30, 0)
    # Also if the number of neighbours is automatic: before the rehearsal, which needs averages.
    for neighbours in (5, None):
        solver = CG(Vecchia(neighbours, averaged=4))
        with pytest.raises(ValueError, match="averaged needs positive noise for every row: use averaged=1"):
            solver.solve(KernelOperator(kernels.Matern(1.5), _inputs(), 0.0), B)
        with pytest.raises(ValueError, match="averaged needs a stationary kernel"):
            solver.solve(KernelOperator(kernels.Matern(1.5) + kernels.Linear(), _inputs(), 0.1), B)
    H, B = make(n=400)
    tight = KernelOperator(kernels.Matern(1.5, 0.4), H.X, 0.3, Compute(memory=48 * 400 * 5))
    with pytest.raises(ValueError, match="use fewer neighbours or raise memory="):
        CG(Vecchia(30, 4)).solve(tight, B)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_few_rows(n: int) -> None:
    X = _inputs(n)
    H = KernelOperator(kernels.Matern(1.5, 5.0), X, 0.3)
    solution = CG(Vecchia(30, 4)).solve(H, torch.ones(n, 1, dtype=torch.float64), tol=1e-8, generator=_generator())
    assert solution.converged
