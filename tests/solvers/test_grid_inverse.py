"""The inverse by way of the whole grid: at once where nothing is missing, through the holes where something is."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import pytest
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.operators import KernelOperator, LatentKroneckerOperator
from pathgp.operators.grid_inverse import hole_variance
from pathgp.operators.grid_lines import invert_lines
from pathgp.solvers import AP, CG, SGD, Auto, GridInverse, RandomlyPivotedCholesky
from pathgp.solvers.cg import choose_preconditioner
from pathgp.solvers.run import Run

SIZES = {1: (60,), 2: (12, 9), 3: (6, 5, 4)}


def grid(
    k: int, missing: float = 0.0, noise: float | Tensor = 0.2, dtype: torch.dtype = torch.float64
) -> tuple[LatentKroneckerOperator, Tensor]:
    generator = torch.Generator().manual_seed(0)
    factors = [torch.rand(p, 2, generator=generator, dtype=torch.float64).to(dtype) for p in SIZES[k]]
    parts = [kernels.Scale(kernels.Matern(1.5, 0.4), 1.3), kernels.SquaredExponential(0.5), kernels.Matern(0.5, 0.7)]
    observed = torch.rand(SIZES[k], generator=generator) >= missing
    H = LatentKroneckerOperator(parts[:k], factors, observed, noise)
    return H, torch.randn(H.shape[0], 4, generator=generator, dtype=torch.float64).to(dtype)


def applied(H: LatentKroneckerOperator, R: Tensor, tol: float = 1e-9) -> Tensor:
    run = Run(H, R, None, None, tol, None, None, None, "every")
    apply, _ = GridInverse().build(run)
    result = apply(R)
    assert run.epochs >= GridInverse().apply_cost(H)
    return result


def dense(H: LatentKroneckerOperator) -> Tensor:
    return H.block(torch.arange(H.shape[0]))


@pytest.mark.parametrize("k", SIZES)
def test_the_inverse_of_a_complete_grid(k: int) -> None:
    H, B = grid(k)
    torch.testing.assert_close(applied(H, B), torch.linalg.solve(dense(H), B), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("k", SIZES)
def test_one_iteration_on_a_complete_grid(k: int, dtype: torch.dtype) -> None:
    H, B = grid(k, dtype=dtype)
    for solver in (CG(GridInverse()), CG()):
        solution = solver.solve(H, B, tol=1e-4)
        assert solution.converged
        assert solution.iterations == 1
        assert solution.epochs == 2.0 + GridInverse().apply_cost(H)
        assert solution.note == "inverse on the whole grid, 0 % of it missing"


@pytest.mark.parametrize("noise", ["scalar", "per-cell"])
@pytest.mark.parametrize("missing", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("k", SIZES)
def test_the_inverse_with_the_mean_of_the_noise(k: int, missing: float, noise: str) -> None:
    n = grid(k, missing)[0].shape[0]
    H, B = grid(k, missing, 0.2 if noise == "scalar" else torch.linspace(0.1, 0.5, n, dtype=torch.float64))
    mean = dense(H) + torch.diag(H.noise.mean() - H.noise.expand(n))
    torch.testing.assert_close(applied(H, B), torch.linalg.solve(mean, B), rtol=1e-6, atol=1e-6)
    solution = CG(GridInverse()).solve(H, B, tol=1e-8, max_epochs=5000)
    assert solution.converged
    torch.testing.assert_close(solution.x, torch.linalg.solve(dense(H), B), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tol", [1e-2, 1e-5])
@pytest.mark.parametrize("missing", [0.1, 0.5, 0.9])
def test_an_application_leaves_less_than_the_tolerance(missing: float, tol: float) -> None:
    """So that one iteration is enough, and the work follows from the tolerance."""
    H, B = grid(2, missing, noise=0.05)
    B = B / B.norm(dim=0)
    left = (B - H @ applied(H, B, tol)).norm(dim=0)
    assert bool((left <= 0.5 * tol).all())
    solution = CG(GridInverse()).solve(H, B, tol=tol)
    assert solution.converged
    assert solution.iterations == 1


def test_scattered_holes_take_few_iterations_however_ill_conditioned_the_matrix() -> None:
    """Their covariance, given what is observed, decides: it is known to a part of the noise here."""
    epochs = []
    for noise in (0.1, 0.03, 0.01):
        source = torch.Generator().manual_seed(0)
        factors = [torch.linspace(0.0, 1.0, p, dtype=torch.float64).unsqueeze(1) for p in (60, 50)]
        observed = torch.rand(60, 50, generator=source) < 0.7
        H = LatentKroneckerOperator([kernels.SquaredExponential(0.3)] * 2, factors, observed, noise)
        B = torch.randn(H.shape[0], 3, generator=source, dtype=torch.float64)
        assert hole_variance(H) < 0.3
        assert choose_preconditioner(H, math.inf) == GridInverse()
        solution = CG().solve(H, B, tol=1e-2)
        assert solution.converged
        epochs.append(solution.epochs)
    assert max(epochs) < 25
    assert CG(None).solve(H, B, tol=1e-2, max_epochs=500).epochs > 4 * max(epochs)


@pytest.mark.parametrize(("k", "largest"), [(1, 512), (2, 512), (3, 512), (2, 3)])
def test_inverses_along_lines(k: int, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum over the sides of inverse blocks of I - U D U^T; lines with more than ``largest`` holes are divided."""
    monkeypatch.setattr("pathgp.operators.grid_lines._LARGEST", largest)
    H, _ = grid(k, missing=0.5)
    spectrum = reduce(lambda a, b: a.unsqueeze(-1) * b, [values for values, _ in H.basis])
    D = spectrum / (spectrum + 0.04)
    U = reduce(torch.kron, [vectors for _, vectors in H.basis])
    matrix = (torch.eye(len(U), dtype=U.dtype) - (U * D.flatten()) @ U.T)[H.holes][:, H.holes]
    places = torch.stack(torch.unravel_index(H.holes, H.sizes), 1)
    expected = torch.zeros_like(matrix)
    for side in range(k):
        others = [m for m in range(k) if m != side]
        for line in {tuple(place) for place in places[:, others].tolist()}:
            for part in (places[:, others] == torch.tensor(line)).all(1).nonzero().flatten().split(largest):
                expected[part[:, None], part] += torch.linalg.inv(matrix[part][:, part])
    R = torch.randn(len(H.holes), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(invert_lines(H, D)(R), expected @ R, rtol=1e-8, atol=1e-8)


def test_wide_holes_take_few_iterations() -> None:
    """Half of the records end early, and a rectangle is missing: hundreds of iterations without the lines."""
    source = torch.Generator().manual_seed(0)
    factors = [torch.linspace(0.0, 1.0, p, dtype=torch.float64).unsqueeze(1) for p in (50, 40)]
    observed = torch.rand(50, 40, generator=source) < 0.9
    observed[10:30, 10:30] = False
    observed[::2, 25:] = False
    H = LatentKroneckerOperator([kernels.Matern(1.5, 0.05)] * 2, factors, observed, 0.01)
    B = torch.randn(H.shape[0], 3, generator=source, dtype=torch.float64)
    solution = CG().solve(H, B, tol=1e-2)
    assert solution.converged
    assert solution.epochs < 100
    assert choose_preconditioner(H, math.inf) == GridInverse()


@pytest.mark.parametrize("k", [2, 3])
def test_the_variance_of_holes(k: int) -> None:
    """Against all observed cells, of which the nearest along the sides tell most; never below their posterior."""
    H, _ = grid(k, missing=0.3, noise=0.3)
    everything = torch.ones(SIZES[k], dtype=torch.bool)
    whole = LatentKroneckerOperator([f.kernel for f in H.factors], [f.X for f in H.factors], everything, 0.0)
    K = dense(whole)
    holes = torch.ones(len(K), dtype=torch.bool)
    holes[H.cells] = False
    o, h = H.cells, holes.nonzero().flatten()
    posterior = K[h][:, h] - K[h][:, o] @ torch.linalg.solve(dense(H), K[o][:, h])
    exact, prior = float(posterior.diagonal().mean()) / 0.09, float(K.diagonal()[h].mean()) / 0.09
    found = hole_variance(H)
    assert exact < found < 0.5 * (exact + prior)


def test_without_noise_and_with_rows_alike() -> None:
    """A singular matrix on the whole grid: the largest eigenvalue lends its rounding error."""
    H, B = grid(2, noise=0.0)
    assert bool(torch.isfinite(applied(H, B)).all())
    factors = [torch.zeros(5, 1, dtype=torch.float64), torch.linspace(0.0, 1.0, 4, dtype=torch.float64).unsqueeze(1)]
    parts = [kernels.Matern(1.5, 0.4), kernels.SquaredExponential(0.5)]
    H = LatentKroneckerOperator(parts, factors, torch.ones(5, 4, dtype=torch.bool), 0.1)
    solution = CG(GridInverse()).solve(H, B[:20], tol=1e-8)
    assert solution.converged
    assert solution.iterations <= 2


def test_a_budget_counts_the_applications() -> None:
    H, B = grid(2, missing=0.3, noise=0.05)
    for budget in (1.0, 3.0, 4.0, 6.5, 20.0):
        assert CG(GridInverse()).solve(H, B, tol=1e-12, max_epochs=budget).epochs <= budget


def test_a_budget_counts_the_applications_to_columns_that_come_later() -> None:
    """Columns are filled a few at a time; the first of them leave the others their share of the budget."""
    _, V = grid(2, missing=0.3)
    n = V.shape[0]
    H, _ = grid(2, missing=0.3, noise=torch.linspace(0.02, 0.2, n, dtype=torch.float64))
    H.memory = 10 * 2 * 4 * 8 * math.prod(H.sizes)
    B = torch.randn(n, 65, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert H.columns_at_once() == 10
    for budget in (5.0, 6.5, 7.5, 9.0, 12.5, 30.0):
        assert CG(GridInverse()).solve(H, B, tol=1e-12, max_epochs=budget).epochs <= budget


def test_a_small_budget_gets_somewhere() -> None:
    """Holes that are half filled are worth nothing; other iterations fall step by step."""
    source = torch.Generator().manual_seed(0)
    factors = [torch.linspace(0.0, 1.0, p, dtype=torch.float64).unsqueeze(1) for p in (60, 50)]
    observed = torch.rand(60, 50, generator=source) < 0.7
    H = LatentKroneckerOperator([kernels.Matern(1.5, 0.3)] * 2, factors, observed, 0.1)
    B = torch.randn(H.shape[0], 3, generator=source, dtype=torch.float64)
    unfinished, small = (CG(way).solve(H, B, max_epochs=10.0, generator=source) for way in (GridInverse(), "auto"))
    assert small.epochs <= 10.0
    assert float(unfinished.residual.min()) > 0.99
    assert float(small.residual.max()) < 0.5
    assert CG().solve(H, B).note.startswith("inverse on the whole grid")


def test_what_automatic_means() -> None:
    """The inverse, however wide the holes. Few epochs, or noise of every cell: a factor."""
    n = grid(2)[0].shape[0]
    assert choose_preconditioner(grid(2)[0], math.inf) == GridInverse()
    assert choose_preconditioner(grid(2, missing=0.1)[0], math.inf) == GridInverse()
    assert choose_preconditioner(grid(2, missing=0.1)[0], epochs=10.0) == RandomlyPivotedCholesky()
    assert choose_preconditioner(grid(2, missing=0.8, noise=0.01)[0], math.inf) == GridInverse()
    per_cell = torch.linspace(0.1, 0.5, n, dtype=torch.float64)
    assert choose_preconditioner(grid(2, noise=per_cell)[0], math.inf) == RandomlyPivotedCholesky()


def test_a_side_too_long_for_its_eigenvectors() -> None:
    """Their time grows with the cube of the side, that of products with its square."""
    source = torch.Generator().manual_seed(0)
    choices = []
    for p in (400, 3000):
        factors = [torch.rand(size, 1, generator=source) for size in (p, 4)]
        observed = torch.rand(p, 4, generator=source) < 0.9
        H = LatentKroneckerOperator([kernels.Matern(0.5, 0.5)] * 2, factors, observed, 0.5)
        choices.append(choose_preconditioner(H, math.inf))
    assert choices == [GridInverse(), RandomlyPivotedCholesky()]


def test_auto_says_that_a_complete_grid_is_solved_through_its_factors() -> None:
    H, B = grid(2)
    solution = Auto().solve(H, B)
    assert solution.converged
    assert "inverse on the whole grid" in solution.note
    # Rows of a grid cost as much as those of a dense matrix: AP is never the first choice here.
    holes, B = grid(2, missing=0.3)
    assert not Auto().solve(holes, B).note.startswith(AP.__name__)


def test_refused_for_other_operators(make: Callable[..., tuple[KernelOperator, Tensor]]) -> None:
    H, B = make(n=50)
    with pytest.raises(ValueError, match="GridInverse is for grids, not for KernelOperator"):
        CG(GridInverse()).solve(H, B)


def test_primal_sgd_is_refused() -> None:
    H, B = grid(2, missing=0.3)
    with pytest.raises(NotImplementedError, match="no random features for primal SGD: use CG"):
        SGD().solve(H, B)
