"""Inducing points chosen among rows: distinct rows of the data, spread out, no more than carry information."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pathgp.data.rows import Rows
from pathgp.data.standardise import Standardisation
from pathgp.kernels import Kernel, Matern, SquaredExponential, Tanimoto
from pathgp.sparse import choose_points
from pathgp.sparse.choose import CHOICES

BUDGET = 10**8
every_choice = pytest.mark.parametrize("choice", CHOICES)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def rows(X: Tensor) -> Rows:
    return Rows.of(X, X[:, 0], None, Standardisation.identity(X))


def choose(kernel: Kernel, X: Tensor, num: int, choice: str, memory: int = BUDGET) -> tuple[Tensor, str]:
    return choose_points(kernel, rows(X), num, choice, seeded(), memory)


@every_choice
def test_points_are_distinct_rows(choice: str) -> None:
    X = torch.rand(400, 3, generator=seeded(), dtype=torch.float64)
    Z, words = choose(Matern(1.5, 0.5), X, 50, choice)
    assert Z.shape == (50, 3)
    assert (Z[:, None] == X).all(2).any(1).all()
    assert len(torch.unique(Z, dim=0)) == 50
    assert words == f"50 points: {choice} among 400 rows"
    again, _ = choose(Matern(1.5, 0.5), X, 50, choice)
    assert torch.equal(Z, again)


@every_choice
def test_more_points_than_rows_are_all_rows(choice: str) -> None:
    X = torch.rand(20, 2, generator=seeded(), dtype=torch.float64)
    Z, words = choose(Matern(1.5, 0.5), X, 100, choice)
    assert torch.equal(Z, X)
    assert "all 20 rows" in words


@every_choice
def test_repeated_rows_are_chosen_once(choice: str) -> None:
    X = torch.rand(10, 2, generator=seeded(), dtype=torch.float64).repeat(30, 1)
    Z, words = choose(Matern(1.5, 0.5), X, 40, choice)
    assert len(Z) == len(torch.unique(Z, dim=0)) == 10
    assert choice == "kmeans" or "near duplicates left out" in words


def test_rows_that_others_determine_are_left_out() -> None:
    """A smooth function on a line is known from a few points."""
    X = torch.linspace(0, 1, 500, dtype=torch.float64).unsqueeze(1)
    Z, words = choose(SquaredExponential(0.5), X, 200, "random")
    assert 5 <= len(Z) <= 30
    assert "near duplicates left out" in words


def test_kmeans_reaches_a_row_far_away() -> None:
    X = torch.rand(2000, 2, generator=seeded(), dtype=torch.float64)
    X[1234] = 50.0
    Z, _ = choose(Matern(1.5, 0.3), X, 30, "kmeans")
    assert bool((Z == 50.0).any())


def test_pivots_explain_more_than_random_rows() -> None:
    X = torch.randn(1500, 2, generator=seeded(), dtype=torch.float64)
    kernel = Matern(2.5, 0.7)
    left = {}
    for choice in CHOICES:
        Z, _ = choose(kernel, X, 60, choice)
        with torch.no_grad():
            V = torch.linalg.solve_triangular(torch.linalg.cholesky(kernel(Z)), kernel(Z, X), upper=False)
        left[choice] = float((1.0 - V.square().sum(0)).sum())
    assert left["pivots"] < 0.8 * left["random"]
    assert left["kmeans"] < left["random"]


def test_a_small_budget_limits_the_candidates() -> None:
    X = torch.rand(3000, 2, generator=seeded(), dtype=torch.float64)
    Z, words = choose(Matern(1.5, 0.2), X, 50, "pivots", memory=800_000)
    assert len(Z) == 50
    assert "among 500 rows" in words


def test_counts_stay_counts() -> None:
    X = torch.poisson(torch.ones(200, 8, dtype=torch.float64), generator=seeded())
    for choice in CHOICES:
        Z, _ = choose(Tanimoto(), X, 30, choice)
        assert (Z[:, None] == X).all(2).any(1).all()
