"""What a grid with holes may be given: empty rows, single cells, lists, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from grid_cases import (
    NOISE,
    TIGHT,
    Grid,
    cells,
    close,
    covariance,
    sampled,
    seeded,
    sides,
)
from pathgp import Compute
from pathgp import kernels as K
from pathgp.models import LatentKroneckerGP
from statistics_tools import assert_mean_and_covariance


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("side", ["row", "column"])
def test_a_row_or_a_column_without_observations(k: int, side: str) -> None:
    grid = Grid(k)
    Y = grid.Y.clone()
    Y[(2,) if side == "row" else (..., 1)] = torch.nan
    post = grid.model.condition(grid.factors, Y, samples=2, **TIGHT)
    close(post.mean(), grid.exact(Y=Y)[0])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_one_cell(k: int) -> None:
    grid = Grid(k)
    only = torch.full_like(grid.Y, torch.nan)
    only[(1,) * k] = 0.7
    close(grid.model.condition(grid.factors, only, samples=2, **TIGHT).mean(), grid.exact(Y=only)[0])
    tiny = [F[:1] for F in grid.factors]
    post = grid.model.condition(tiny, torch.full((1,) * k, 0.7, dtype=torch.float64), samples=2, **TIGHT)
    close(post.mean(), torch.tensor([0.7 * 1.44 / (1.44 + NOISE**2)], dtype=torch.float64))
    assert post.sample(*grid.new).shape == (2, *(3,) * k)


@pytest.mark.statistical
def test_rows_alike() -> None:
    """Two rows and two columns with the same inputs are two observations of one function: samples agree there."""
    grid = Grid(2)
    factors = grid.factors
    factors[0][3], factors[1][4] = factors[0][0], factors[1][1]
    post = grid.model.condition(factors, grid.Y, samples=4096, generator=seeded(), **TIGHT)
    there = ~grid.Y.flatten().isnan()
    mean, exact = reference.posterior(
        covariance(2), cells(factors)[there], grid.Y.flatten()[there], NOISE, cells(factors)
    )
    close(post.mean(), mean)
    draws = post.sample()
    assert_mean_and_covariance(draws.flatten(1), mean, exact)
    torch.testing.assert_close(draws[:, 3], draws[:, 0], rtol=0.0, atol=2e-3)


def test_one_dimensional_missing_and_integer_factors() -> None:
    """(p,) is one column, None is 0, 1, ..., integers are numbers; Y of integers is complete."""
    gp = LatentKroneckerGP([K.Matern(1.5, 2.0), K.SquaredExponential(1.5)], NOISE)
    Y = torch.arange(20).view(5, 4) % 3
    column = [torch.arange(p, dtype=torch.float64).unsqueeze(1) for p in (5, 4)]
    expected = gp.condition(column, Y.double(), samples=1, **TIGHT)
    for factors in ([torch.arange(5), None], [None, column[1][:, 0]], [list(range(5)), np.arange(4)], (None, None)):
        post = gp.condition(factors, Y, samples=1, **TIGHT)
        torch.testing.assert_close(post.mean(), expected.mean())
        at = torch.tensor([0.5, 2.0], dtype=torch.float64)
        torch.testing.assert_close(post.mean(at, None), expected.mean(at.unsqueeze(1), None))
        for listed in ([0.5, 2], (0.5, 2.0), np.array([0.5, 2.0])):
            np.testing.assert_allclose(post.mean(listed, [1]), expected.mean(at.unsqueeze(1), [[1]]))
    assert gp.condition(column, Y.tolist(), samples=1).mean().dtype == np.float64


def test_what_does_not_fit_into_memory_is_refused() -> None:
    """Square roots of a side, and draws continued to many new inputs: an error with advice, nothing is allocated."""
    gp = LatentKroneckerGP([K.Matern(1.5, 2.0), K.SquaredExponential(1.5)], NOISE)
    long = torch.ones(200, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="samples need a square root for the side of 200 entries"):
        gp.condition([None, None], long, compute=Compute(memory=1e5))
    with pytest.raises(ValueError, match="raise memory=, shorten this side, or use"):
        gp.fit([None, None], long, compute=Compute(memory=1e5))
    post = gp.condition([None, None], long[:20], samples=8, compute=Compute(memory=1e5))
    assert post.mean(torch.linspace(0, 9, 2000), None).shape == (2000, 2)
    assert post.sample(torch.linspace(0, 9, 20), None).shape == (8, 20, 2)
    with pytest.raises(ValueError, match="ask for fewer inputs at once, or use paths"):
        post.at(torch.rand(60, 2, generator=seeded()) * 200.0)


def test_inputs_are_not_changed_and_not_kept() -> None:
    grid = Grid(2)
    factors, Y = grid.factors, grid.Y.clone()
    gp = LatentKroneckerGP(sides(2), NOISE, mean=lambda X: X[:, 0], standardise=True)
    post = gp.condition(factors, Y, samples=2, **TIGHT)
    assert all(torch.equal(a, b) for a, b in zip(factors, grid.factors, strict=True))
    assert torch.equal(Y.nan_to_num(9.0), grid.Y.nan_to_num(9.0))
    before = post.mean()
    for tensor in (*factors, Y):
        tensor.zero_()
    assert torch.equal(post.mean(), before)


def bad_cell(value: float) -> Tensor:
    Y = Grid(2).Y.clone()
    Y[3, 2] = value
    return Y


FACTORS, GOOD = Grid(2).factors, Grid(2).Y
BAD: dict[str, tuple[Any, Any, dict[str, Any], type[Exception], str]] = {
    "all missing": (FACTORS, torch.full_like(GOOD, torch.nan), {}, ValueError, "every value of Y is missing"),
    "infinite": (FACTORS, bad_cell(math.inf), {}, ValueError, r"Y is infinite at cell \[3, 2\]: mark missing values"),
    "negative infinity": (FACTORS, bad_cell(-math.inf), {}, ValueError, r"infinite at cell \[3, 2\]"),
    "empty": (FACTORS, GOOD[:0], {}, ValueError, "at least one cell"),
    "number": (FACTORS, 3.0, {}, ValueError, "at least one cell"),
    "complex": (FACTORS, GOOD.to(torch.complex128), {}, TypeError, "Y must be real"),
    "words": (FACTORS, [["a", "b"]], {}, TypeError, "Y must be numeric"),
    "transposed": (FACTORS, GOOD.T, {}, ValueError, "factor 0 has 8 rows, side 0 of Y has 6 cells"),
    "one factor": (FACTORS[:1], GOOD, {}, ValueError, "factors must be a list of 2 sets of inputs"),
    "three factors": ([*FACTORS, None], GOOD, {}, ValueError, "factors must be a list of 2 sets of inputs"),
    "factors in one": (FACTORS[0], GOOD, {}, ValueError, "factors must be a list of 2"),
    "no factors": (None, GOOD, {}, ValueError, "factors must be a list of 2"),
    "flat Y": (FACTORS, GOOD.flatten(), {}, ValueError, "Y has 1 dimensions, the model has 2 kernels"),
    "deep Y": (FACTORS, GOOD.unsqueeze(2), {}, ValueError, "Y has 3 dimensions, the model has 2 kernels"),
    "NaN factor": ([FACTORS[0] / 0.0, None], GOOD, {}, ValueError, "factor 0 contains inf at row 0, column 0"),
    "deep factor": ([FACTORS[0].unsqueeze(2), None], GOOD, {}, ValueError, "factor 0 must have two dimensions"),
    "noise shape": (
        FACTORS,
        GOOD,
        {"noise": torch.ones(7)},
        ValueError,
        r"\(7,\), which does not broadcast .* \(8, 6\)",
    ),
    "negative noise": (FACTORS, GOOD, {"noise": -torch.ones(6)}, ValueError, "noise must hold standard deviations"),
    "missing noise": (FACTORS, GOOD, {"noise": torch.full((6,), torch.nan)}, ValueError, "not missing, in observed"),
    "infinite noise": (FACTORS, GOOD, {"noise": torch.full((6,), torch.inf)}, ValueError, "noise is infinite at cell"),
    "samples": (FACTORS, GOOD, {"samples": 0}, ValueError, "samples must be at least 1"),
    "solver": (FACTORS, GOOD, {"solver": "lu"}, ValueError, "solver must be one of"),
    "memory": (FACTORS, GOOD, {"compute": Compute(memory=5)}, ValueError, "1000 at least, got 5"),
    "primal SGD": (FACTORS, GOOD, {"solver": "sgd"}, NotImplementedError, "no random features for primal SGD: use CG"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused(case: str) -> None:
    factors, Y, options, error, match = BAD[case]
    with pytest.raises(error, match=match):
        Grid(2).model.condition(factors, Y, **options)


def test_no_inputs_no_values() -> None:
    post, none = sampled(2), torch.zeros(0, 2, dtype=torch.float64)
    assert post.mean(none, None).shape == post.variance(none, None).shape == (0, 6)
    assert post.sample(none, None).shape == post.paths(none, None).shape == (4096, 0, 6)
    assert post.at(torch.zeros(0, 3, dtype=torch.float64)).samples.shape == (4096, 0)


def test_bad_models_and_questions() -> None:
    with pytest.raises(TypeError, match="kernels must be a list, one kernel per side"):
        LatentKroneckerGP(K.Matern())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="kernels must be a list"):
        LatentKroneckerGP([])
    with pytest.raises(TypeError, match="must be pathgp kernels such as Matern"):
        LatentKroneckerGP([K.Matern(), "matern"])  # type: ignore[list-item]
    grid, post = Grid(2), sampled(2)
    with pytest.raises(ValueError, match="1 sets of inputs for a grid with 2 sides"):
        post.mean(grid.new[0])
    with pytest.raises(ValueError, match="inputs 0 has 1 columns, the model was given 2"):
        post.sample(grid.new[1], None)
    with pytest.raises(ValueError, match="inputs 1 contains nan"):
        post.variance(None, torch.full((2,), torch.nan))
    with pytest.raises(ValueError, match="points has 2 columns, the model was given 3"):
        post.at(torch.ones(4, 2))
