from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pathgp import Compute, kernels
from pathgp.compute.hardware import H200
from pathgp.operators import KernelOperator, LatentKroneckerOperator
from pathgp.solvers import AP, CG, Auto, Cholesky, RandomlyPivotedCholesky, Status, auto
from pathgp.solvers.auto import Predicted, predict_options
from pathgp.solvers.rehearsal import Rehearsal, predict_rehearsal, ranks_to_try
from pathgp.solvers.run import Run

ROUGH, SMOOTH = kernels.Matern(0.5, 0.3), kernels.SquaredExponential(0.3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def system(kernel: kernels.Kernel, noise: float, n: int = 1200, **options: Any) -> tuple[KernelOperator, Tensor]:
    """Points on a square, too many for a factorisation within the memory budget, and draws from the model."""
    X = torch.rand(n, 2, generator=seeded(), dtype=torch.float64)
    H = KernelOperator(kernel, X, noise, Compute(memory=16 * n**2 - 1, **options))
    L = torch.linalg.cholesky(H.block(torch.arange(n)))
    return H, L @ torch.randn(n, 5, generator=seeded(1), dtype=torch.float64)


def begin(H: Any, B: Tensor, x0: Tensor | None = None, tol: float = 1e-2) -> Run:
    run = Run(H, B, x0, tol=tol, generator=seeded())
    assert not run.begin()
    return run


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rehearse small systems, too."""
    monkeypatch.setattr(auto, "predict_rehearsal", lambda *_: 0.0)


@pytest.mark.parametrize(("kernel", "method"), [(ROUGH, "AP"), (SMOOTH, "CG")], ids=["rough", "smooth"])
def test_the_choice_follows_the_problem(kernel: kernels.Kernel, method: str, free: None) -> None:
    """Little noise: AP for a rough kernel, CG with a low-rank factor for a smooth one; the epochs come true."""
    H, B = system(kernel, 0.03)
    solution = Auto().solve(H, B, generator=seeded())
    assert solution.converged
    assert solution.method == method
    assert "instead" not in solution.note
    predicted = min(predict_options(begin(H, B))[0].values(), key=lambda cost: cost.seconds)
    assert 0.5 < solution.epochs / predicted.epochs < 2.0
    assert solution.note == Auto().solve(H, B, generator=seeded()).note


def test_epochs_of_both_solvers() -> None:
    for kernel, noise in ((ROUGH, 0.1), (SMOOTH, 1.0)):
        H, B = system(kernel, noise)
        rehearsal = Rehearsal(begin(H, B))
        assert ranks_to_try(H) == [128, 150]
        solvers = {AP(): rehearsal.epochs_ap()}
        solvers |= {CG(RandomlyPivotedCholesky(rank)): rehearsal.epochs_cg(rank) for rank in ranks_to_try(H)}
        for solver, predicted in solvers.items():
            assert 0.4 < solver.solve(H, B, generator=seeded()).epochs / predicted < 2.5, solver


def test_warm_starts_take_fewer_epochs() -> None:
    H, B = system(ROUGH, 0.1)
    x0 = 0.97 * Cholesky().solve(KernelOperator(ROUGH, H.X, 0.1), B).x
    cold, warm = Rehearsal(begin(H, B)), Rehearsal(begin(H, B, x0))
    assert warm.epochs_ap() < cold.epochs_ap()
    assert warm.epochs_cg(128) < 0.7 * cold.epochs_cg(128)


def test_a_wrong_prediction_is_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """CG ends after twice the epochs that it was expected to take, and AP continues from its iterate."""
    H, B = system(ROUGH, 0.03)
    slow = CG(RandomlyPivotedCholesky(16))
    options = {slow: Predicted(8.0, 1.0), AP(): Predicted(8.0, 1.5)}
    monkeypatch.setattr(auto, "predict_options", lambda run: (options, "is left out"))
    solution = Auto().solve(H, B, generator=seeded())
    assert solution.converged
    assert solution.method == "AP"
    assert "it ended BUDGET_EXHAUSTED" in solution.note
    assert "AP instead" in solution.note
    assert 12.0 < solution.epochs < 16.0 + AP().solve(H, B, generator=seeded()).epochs + 2.0
    assert Auto().solve(H, B, max_epochs=10, generator=seeded()).epochs <= 10


def test_the_choice_goes_on_if_nothing_else_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget covers the factorisation at the start, but not after a few epochs of AP."""
    H, B = system(ROUGH, 0.03, n=300)
    H.memory = 10**9
    options = {AP(): Predicted(1.0, 1.0), Cholesky(): Predicted(11.0, 1.0)}
    monkeypatch.setattr(auto, "predict_options", lambda run: (options, ""))
    solution = Auto().solve(H, B, max_epochs=13, generator=seeded())
    assert solution.converged
    assert solution.method == "AP"
    assert "instead" not in solution.note


def test_an_option_without_an_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal may find that a solver never ends; the note says so."""
    H, B = system(ROUGH, 0.3, n=60)
    never = Predicted(math.inf, math.inf)
    for options, words in (({CG(): Predicted(99.0, 1.0), AP(): never}, "AP too many epochs"), ({AP(): never}, "")):
        monkeypatch.setattr(auto, "predict_options", lambda run, options=options: (options, ""))
        solution = Auto().solve(H, B, generator=seeded())
        assert solution.converged
        assert words in solution.note


def test_rehearsals_of_any_system() -> None:
    """Noise per row, no noise, one row, a grid: finite numbers, or none that can be reached."""
    X = torch.rand(300, 2, generator=seeded(), dtype=torch.float64)
    rows = KernelOperator(ROUGH, X, torch.linspace(0.1, 1.0, 300, dtype=torch.float64))
    noiseless, single = KernelOperator(ROUGH, X, 0.0), KernelOperator(ROUGH, X[:1], 0.1)
    sides = [torch.rand(p, 1, generator=seeded(), dtype=torch.float64) for p in (20, 15)]
    grid = LatentKroneckerOperator([ROUGH, ROUGH], sides, torch.rand(20, 15, generator=seeded()) > 0.2, 0.1)
    for H in (rows, noiseless, single, grid):
        rehearsal = Rehearsal(begin(H, torch.ones(H.shape[0], 2, dtype=torch.float64)))
        assert rehearsal.epochs_ap() >= 2.0
        assert all(rehearsal.epochs_cg(rank) >= 2.0 for rank in ranks_to_try(H))


def test_a_rehearsal_costs_a_tenth_at_most() -> None:
    H, B = system(ROUGH, 0.03)
    assert "s for 11 epochs" in Auto().solve(H, B, generator=seeded()).note, "typical values of AP"
    assert predict_rehearsal(H, H200) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_explanations_fit_the_solve(dtype: torch.dtype) -> None:
    X = torch.rand(60, 2, generator=seeded(), dtype=dtype)
    H = KernelOperator(ROUGH, X, 0.3)
    solution = AP(block_size=10).solve(H, X, max_epochs=3, tol=1e-9, generator=seeded())
    assert solution.status is Status.BUDGET_EXHAUSTED
    assert "raise max_epochs, loosen tol" in solution.explain(1e-9)
    assert "loosen" not in solution.explain(1.0), "the tolerance is not what was missed"
    good = AP().solve(H, X, x0=Cholesky().solve(H, X).x)
    assert (good.solver, good.method, good.iterations) == ("none needed", "none needed", 0)
    for status in (Status.STALLED, Status.DIVERGED):
        for method in ("AP", "SDD"):
            text = replace(solution, status=status, method=method).explain(1e-9)
            assert ("float64" in text) == (dtype == torch.float32)
            assert ("use AP" in text) == (method == "SDD")


def test_only_a_useful_residual_may_be_accepted() -> None:
    X = torch.rand(200, 1, generator=seeded(), dtype=torch.float64)
    H = KernelOperator(SMOOTH, X, 1e-8)
    B = torch.sin(6.0 * X)
    lost = CG().solve(H, B, tol=1e-8, max_epochs=200)
    assert not lost.converged
    assert float(lost.residual.max()) > 0.1
    stalled = replace(lost, status=Status.STALLED)
    assert stalled.explain(1e-8).endswith(": use AP")
    found = AP().solve(H, B, tol=1e-8, generator=seeded())
    assert float(found.residual.max()) < 1e-3, "the advice is right"
    assert "accept the residual" in replace(found, status=Status.STALLED).explain(1e-8)
    assert "rougher kernel" in replace(stalled, method="AP").explain(1e-8)
