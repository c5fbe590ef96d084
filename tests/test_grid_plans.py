"""Break-even and plan of a grid: the formulas of the thesis, and what the model does is what was said."""

from __future__ import annotations

import math

import pytest
import torch

from pathgp import break_even, kernels, plan_grid
from pathgp.models import LatentKroneckerGP
from pathgp.operators import LatentKroneckerOperator


@pytest.mark.parametrize("sizes", [(2000, 52), (4449, 7), (50, 40, 30), (6, 5, 4, 3)])
def test_the_formulas(sizes: tuple[int, ...]) -> None:
    p = math.prod(sizes)
    found = break_even(*sizes)
    assert found.time == pytest.approx(1.0 - math.sqrt(sum(sizes) / p))
    assert found.memory == pytest.approx(1.0 - math.sqrt(sum(s**2 for s in sizes)) / p)
    # By their definition: n^2 operations and numbers against those of the factors.
    assert ((1.0 - found.time) * p) ** 2 == pytest.approx(p * sum(sizes))
    assert ((1.0 - found.memory) * p) ** 2 == pytest.approx(sum(s**2 for s in sizes))


def test_the_structure_never_pays_on_one_side() -> None:
    assert break_even(100) == (0.0, 0.0)
    assert break_even(1, 1) == (0.0, 0.0)
    assert break_even(2, 2).time == 0.0


def test_a_plan() -> None:
    plan = plan_grid(2000, 52, observed=52_000, columns=11, dtype=torch.float64)
    assert plan.missing == 0.5
    assert plan.flops == {"dense": 2.0 * 52_000**2 * 11, "kronecker": 2.0 * 104_000 * 2052 * 11}
    assert plan.bytes == {"dense": 8.0 * 52_000**2, "kronecker": 8.0 * (2000**2 + 52**2)}
    assert 0.0 < plan.seconds["kronecker"] < plan.seconds["dense"]
    assert plan.choice == "kronecker"
    text = repr(plan)
    for words in ("52000 of 2000 x 52 cells observed, 50.0 % missing", "break-even at 86.0 % (time)", "11 columns"):
        assert words in text
    (chosen,) = [line for line in text.splitlines() if line.endswith("<- chosen")]
    assert chosen.startswith("kronecker")
    whole = plan_grid(30, 20)
    assert (whole.observed, whole.missing, whole.columns) == (600, 0.0, 65)


@pytest.mark.parametrize("sizes", [(6,), (6, 5), (4, 3, 3)])
def test_the_model_takes_what_the_plan_says(sizes: tuple[int, ...]) -> None:
    """For every number of observed cells; the switch lies at the break-even."""
    gp = LatentKroneckerGP([kernels.Matern(1.5, 1.0) for _ in sizes], 0.3)
    cells = math.prod(sizes)
    for n in range(1, cells + 1):
        Y = torch.full((cells,), torch.nan, dtype=torch.float64)
        Y[:n] = 1.0
        post = gp.condition([None] * len(sizes), Y.view(sizes), samples=1, solver="cholesky")
        # Entries of a side without observations do not take part.
        is_observed = Y.view(sizes).isfinite()
        kept = [int(is_observed.movedim(side, 0).reshape(sizes[side], -1).any(1).sum()) for side in range(len(sizes))]
        plan = plan_grid(*kept, observed=n)
        assert post.report.backend == plan.choice
        assert (plan.choice == "dense") == (n**2 < math.prod(kept) * sum(kept))


def test_the_flops_of_a_plan_are_the_entries_of_the_operator() -> None:
    factors = [torch.arange(p, dtype=torch.float64).unsqueeze(1) for p in (6, 5)]
    kernel = kernels.Matern(1.5, 1.0)
    H = LatentKroneckerOperator([kernel, kernel], factors, torch.ones(6, 5, dtype=torch.bool))
    assert plan_grid(6, 5, columns=1).flops["kronecker"] == 2.0 * H.entries


def test_bad_sizes() -> None:
    for function in (break_even, plan_grid):
        with pytest.raises(ValueError, match=rf"needs the sizes of the sides, for instance {function.__name__}\(2000"):
            function()
        with pytest.raises(ValueError, match="a side of the grid must be at least 1, got 0"):
            function(5, 0)
        with pytest.raises(TypeError, match="a side of the grid must be a whole number"):
            function(5, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="31 observed cells of 30"):
        plan_grid(6, 5, observed=31)
    with pytest.raises(ValueError, match="observed must be at least 1"):
        plan_grid(6, 5, observed=0)
    with pytest.raises(ValueError, match="columns must be at least 1"):
        plan_grid(6, 5, columns=0)
