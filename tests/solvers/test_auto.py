from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pathgp import Compute, kernels, solvers
from pathgp.compute.hardware import rates
from pathgp.operators import KernelOperator, LatentKroneckerOperator
from pathgp.solvers import (
    AP,
    CG,
    SDD,
    SGD,
    Auto,
    Cholesky,
    GridInverse,
    Solver,
    as_solver,
    auto,
)
from pathgp.solvers.predict import block_factor, predict_ap, predict_cg, predict_cholesky
from pathgp.solvers.run import Run

Make = Callable[..., tuple[KernelOperator, Tensor]]


class Pretend(KernelOperator):
    """An operator that says it is large, for predictions only."""

    def __init__(self, n: int, backend: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(kernels.Matern(1.5, 0.3), torch.zeros(1, 1, dtype=dtype))
        self.shape, self.entries, self.backend, self.memory = (n, n), n**2, backend, 10**12


def test_small_systems_are_solved_directly(make: Make) -> None:
    H, B = make(n=300, s=16)
    solution = Auto().solve(H, B)
    assert solution.converged
    assert solution.solver == "Cholesky()"
    assert solution.note.startswith("Cholesky: about ")
    assert "AP" in solution.note
    assert "CG" in solution.note


def test_what_does_not_fit_is_left_out(make: Make) -> None:
    X = make(n=300)[0].X
    _, B = make(n=300)
    tight = KernelOperator(kernels.Matern(1.5, 0.4), X, 0.3, Compute(memory=16 * 300**2 - 1))
    solution = Auto().solve(tight, B)
    assert solution.converged
    assert not solution.solver.startswith("Cholesky")
    assert "Cholesky needs" in solution.note
    H, _ = make(n=300)
    solution = Auto().solve(H, B[:, :1], max_epochs=20)
    assert not solution.solver.startswith("Cholesky")
    assert "Cholesky exceeds max_epochs" in solution.note
    assert solution.epochs <= 20


def test_a_choice_that_stalls_is_followed_by_cholesky(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 and little noise: products do not resolve the small eigenvalues, float64 factors do."""
    for name in ("predict_ap", "predict_cholesky"):
        monkeypatch.setattr(auto, name, lambda *_: 1.0)
    monkeypatch.setattr(auto, "predict_cg", lambda *_, **__: 0.0)
    X = torch.linspace(0.0, 1.0, 400, dtype=torch.float32).unsqueeze(1)
    B = torch.cat([torch.sin(7 * X), torch.randn(400, 2, generator=torch.Generator().manual_seed(0))], 1)
    for memory, name in (
        (None, "Cholesky()"),
        (10**6, "CG(preconditioner=RandomlyPivotedCholesky(rank=None))"),
    ):
        H = KernelOperator(kernels.Matern(2.5, 0.2), X, 3e-3, Compute(memory=memory))
        alone, found = (solver.solve(H, B, tol=1e-4, generator=torch.Generator()) for solver in (CG(), Auto()))
        assert alone.status is solvers.Status.STALLED
        assert found.solver == name
        assert ("ended STALLED" in found.note) == (memory is None)
        if memory is None:
            assert float(found.residual[0]) < 0.2 * float(alone.residual[0])
            assert bool((found.residual < 1.1 * alone.residual).all()), (found.residual, alone.residual)


def test_a_factorisation_that_does_not_suffice_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("predict_ap", "predict_cg"):
        monkeypatch.setattr(auto, name, lambda *_, **__: 1.0)
    monkeypatch.setattr(auto, "predict_cholesky", lambda *_: 0.0)
    X = torch.linspace(0.0, 1.0, 400, dtype=torch.float32).unsqueeze(1)
    H = KernelOperator(kernels.Matern(2.5, 0.2), X, 3e-3)
    B = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    alone, found = (solver.solve(H, B, tol=1e-4, generator=torch.Generator()) for solver in (Cholesky(), Auto()))
    assert found.status is solvers.Status.STALLED
    assert found.residual.tolist() == alone.residual.tolist()
    assert "instead" not in found.note


def test_cholesky_asked_for_by_name_obeys_the_memory_as_well(make: Make) -> None:
    X = make(n=300)[0].X
    tight = KernelOperator(kernels.Matern(1.5, 0.4), X, 0.3, Compute(memory=10_000))
    with pytest.raises(ValueError, match="use AP or CG, or raise memory="):
        Cholesky().solve(tight, make(n=300)[1])


@pytest.mark.parametrize("backend", ["dense", "streamed"])
def test_direct_for_small_and_iterative_for_large(backend: str) -> None:
    small, large = Pretend(1000, backend), Pretend(50_000, backend)
    assert predict_cholesky(small, 64) < min(predict_ap(small, 64, 20), predict_cg(small, 64, 50))
    assert predict_cholesky(large, 64) > predict_ap(large, 64, 20)


def test_predictions_grow_as_the_work_does() -> None:
    small, large = Pretend(10_000, "dense"), Pretend(20_000, "dense")
    # CG builds a preconditioner of a fixed rank, in time proportional to n.
    for predict, factor in ((predict_ap, 3), (predict_cg, 2)):
        assert predict(large, 64, 20) > factor * predict(small, 64, 20)
        assert predict(large, 128, 20) > 1.4 * predict(large, 64, 20)
    assert predict_ap(Pretend(20_000, "streamed"), 8, 20) > predict_ap(Pretend(20_000, "dense"), 8, 20)
    half = Pretend(20_000, "dense", torch.float64)
    assert predict_cholesky(half, 64) == pytest.approx(predict_cholesky(Pretend(20_000, "dense"), 64), rel=0.2)


def test_the_choice_depends_on_nothing_but_its_inputs(make: Make) -> None:
    H, B = make(n=300)
    assert Auto().solve(H, B).note == Auto().solve(H, B).note
    cpu = torch.device("cpu")
    assert rates(cpu, torch.float32).multiply == 2 * rates(cpu, torch.float64).multiply


def test_a_warm_start_makes_iterating_cheaper(make: Make) -> None:
    H, B = make(n=300)
    cold = Auto().solve(H, B, tol=1e-3).note
    start = torch.linalg.solve(H.block(torch.arange(300)), B) * 0.99
    warm = Auto().solve(H, B, x0=start, tol=1e-3).note

    def seconds(note: str) -> float:
        return float(note.split("AP ")[1].split(" s")[0])

    assert seconds(warm) < 0.6 * seconds(cold)


def test_solvers_by_name() -> None:
    named = {"auto": Auto, "cholesky": Cholesky, "cg": CG, "ap": AP, "sdd": SDD, "SGD": SGD}
    for name, kind in named.items():
        assert as_solver(name) == kind()
    given = AP(block_size=10)
    assert as_solver(given) is given
    for bad in ("lu", 3, AP):
        with pytest.raises(ValueError, match="'auto', 'cholesky', 'cg'"):
            as_solver(bad)  # type: ignore[arg-type]


def test_every_solver_is_a_frozen_record() -> None:
    for kind in (Auto, Cholesky, CG, AP, SDD, SGD):
        solver: Solver = kind()
        assert solver == kind()
        assert hash(solver) == hash(kind())
        assert repr(solver).startswith(kind.__name__)
        with pytest.raises((AttributeError, TypeError)):
            solver.batch_size = 3  # type: ignore[attr-defined]
    assert {"AP", "CG", "SDD", "SGD", "Auto", "Cholesky", "as_solver"} <= set(vars(solvers))


@pytest.mark.parametrize("wide", [False, True], ids=["scattered", "wide"])
def test_holes_are_tried_on_one_column_first(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scattered ones are soon filled. Wide ones of a smooth field take long, and another solver is chosen."""
    generator = torch.Generator().manual_seed(0)
    places, times = (torch.linspace(0.0, 1.0, p, dtype=torch.float64).unsqueeze(1) for p in (200, 24))
    observed = torch.rand(200, 24, generator=generator) > 0.3
    observed[60:140, 6:18] &= not wide
    H = LatentKroneckerOperator([kernels.Matern(1.5, 0.3), kernels.Matern(1.5, 0.3)], [places, times], observed, 0.02)
    B = torch.randn(H.shape[0], 20, generator=generator, dtype=torch.float64)
    tried: list[Solver] = []
    solve_last_column = auto._solve_last_column

    def spy(run: Run, solver: Solver, max_epochs: float) -> tuple[float, bool]:
        tried.append(solver)
        return solve_last_column(run, solver, max_epochs)

    monkeypatch.setattr(auto, "_solve_last_column", spy)
    assert Auto().solve(H, B, generator=generator).converged
    assert not tried, "too little is at stake"
    monkeypatch.setattr(auto, "_TRIAL_SECONDS", 0.0)
    assert Auto().solve(H, B[:, :15], generator=generator).converged
    assert not tried, "too few columns"
    found = Auto().solve(H, B, generator=generator)
    assert found.converged
    assert tried == [CG(GridInverse()), CG(None)]
    assert (found.solver == repr(CG(GridInverse()))) is not wide
    assert "CG on the whole grid" in found.note
    assert float((H @ found.x - B).norm(dim=0).div(B.norm(dim=0)).max()) < 0.011


def holey(missing: float) -> tuple[LatentKroneckerOperator, Tensor]:
    generator = torch.Generator().manual_seed(0)
    factors = [torch.rand(p, 1, generator=generator, dtype=torch.float64) for p in (40, 20)]
    observed = torch.rand(40, 20, generator=generator) >= missing
    H = LatentKroneckerOperator([kernels.Matern(1.5, 0.4), kernels.Matern(1.5, 0.4)], factors, observed, 0.1)
    return H, torch.randn(H.shape[0], 20, generator=generator, dtype=torch.float64)


def test_what_one_column_takes() -> None:
    """The predicted epochs of all columns; those of the trial are counted, and may not be enough."""
    H, B = holey(0.3)
    for solver in (CG(GridInverse()), CG(None)):
        run = Run(H, B, None, None, 0.01, None, None, None, "every")
        run.begin()
        epochs, suffice = auto._solve_last_column(run, solver, math.inf)
        assert suffice
        of_one = CG(solver.preconditioner, block=1).solve(H, B[:, -1:]).epochs
        assert epochs == pytest.approx(block_factor(H, 20) * of_one, rel=0.15)
        assert run.epochs == pytest.approx(epochs / block_factor(H, 20) / 20)
        assert not auto._solve_last_column(run, solver, 0.5 * epochs)[1]


@pytest.mark.parametrize("case", ["complete", "zero", "no tolerance", "small budget", "out of reach"])
def test_nothing_is_learned_from_one_column(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is missing, where it is zero, or where no number of epochs is enough."""
    monkeypatch.setattr(auto, "_TRIAL_SECONDS", 0.0)
    monkeypatch.setattr(auto, "predict_ap", lambda *_: math.inf)
    monkeypatch.setattr(auto, "predict_cholesky", lambda *_: math.inf)
    H, B = holey(0.0 if case == "complete" else 0.3)
    if case == "zero":
        B[:, -1] = 0.0
    options = {"no tolerance": {"tol": 0.0}, "out of reach": {"tol": 1e-16}}.get(case, {})
    budget = {"complete": 4.0, "small budget": 150.0}.get(case, 300.0)
    solution = Auto().solve(H, B, max_epochs=budget, generator=torch.Generator(), **options)
    assert solution.solver == repr(CG(GridInverse()))
    assert solution.converged == (case not in ("no tolerance", "out of reach"))
    assert "inf" not in solution.note.split(";")[0]


def test_a_part_of_the_budget_is_kept_for_cholesky() -> None:
    """CG with the inverse of the whole grid would need more epochs than there are, Cholesky would not."""
    places, times = (torch.linspace(0.0, 1.0, p, dtype=torch.float64).unsqueeze(1) for p in (30, 24))
    generator = torch.Generator().manual_seed(0)
    observed = torch.rand(30, 24, generator=generator) > 0.2
    observed[10:20, 8:16] = False
    H = LatentKroneckerOperator([kernels.Matern(2.5, 2.0)] * 2, [places, times], observed, 1e-4)
    B = torch.randn(H.shape[0], 8, generator=generator, dtype=torch.float64)
    alone, found = (
        solver.solve(H, B, tol=1e-6, max_epochs=100, generator=torch.Generator())
        for solver in (CG(GridInverse()), Auto())
    )
    assert alone.status is solvers.Status.BUDGET_EXHAUSTED
    assert found.converged
    assert found.solver == "Cholesky()"
    assert "CG on the whole grid" in found.note.split(";")[0]
    assert found.epochs <= 100
