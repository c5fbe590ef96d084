"""Kernels of a grid where whole entries of a side are missing, and the period of a season there."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import kernels
from pathgp.learning.subgrids import choose_lines
from pathgp.models.kernel_choice import has_empty_entries, strongest_period

SITES, MONTHS = 6, 84


def seasonal_field() -> tuple[list[Tensor], Tensor, Tensor]:
    """Inputs, a field with holes, and without. Slow changes, and a year of twelve months with overtones; a
    tenth of the times is missing."""
    g = torch.Generator().manual_seed(3)
    places = torch.rand(SITES, 2, generator=g, dtype=torch.float64)
    t = torch.arange(MONTHS, dtype=torch.float64)[:, None]
    slow, space = kernels.Matern(0.5, 40.0), kernels.Matern(1.5, 0.3)
    with torch.no_grad():
        roots = [torch.linalg.cholesky(k(F) + 1e-9 * torch.eye(len(F))) for k, F in ((space, places), (slow, t))]
    Y = roots[0] @ torch.randn(SITES, MONTHS, generator=g, dtype=torch.float64) @ roots[1].T
    waves = sum(a * torch.cos(2 * math.pi * h * t[:, 0] / 12.0 + h) for h, a in ((1, 0.8), (2, 0.5), (3, 0.35)))
    Y = Y + waves * (1.0 + 0.3 * torch.randn(SITES, 1, generator=g, dtype=torch.float64))
    empty = 1 + torch.randperm(MONTHS - 2, generator=g)[: MONTHS // 10]
    return [places, t], Y.index_fill(1, empty, math.nan), Y


def test_the_period_where_whole_times_are_missing() -> None:
    """Slow changes must not leak into short periods through the pattern of the holes."""
    factors, Y, _ = seasonal_field()
    gp = pathgp.LatentKroneckerGP([None, None])
    assert strongest_period(gp.prepare_data(factors, Y), 1) == pytest.approx(12.0, rel=0.05)
    # The order of the entries has no influence, nor has their unit.
    order = torch.randperm(MONTHS, generator=torch.Generator().manual_seed(0))
    shuffled = gp.prepare_data([factors[0], 30.0 * factors[1][order]], Y[:, order])
    assert strongest_period(shuffled, 1) == pytest.approx(360.0, rel=0.05)


def test_a_fit_finds_the_season_where_whole_times_are_missing() -> None:
    """It predicts the missing times better than linear interpolation; lines along time determine the kernel."""
    factors, Y, truth = seasonal_field()
    gp = pathgp.LatentKroneckerGP([None, None], noise=0.1)
    generator = torch.Generator().manual_seed(0)
    report = gp.fit(factors, Y, steps=1, samples=2, generator=generator)
    season = next(part for part in gp.sides[1].modules() if isinstance(part, kernels.Periodic))
    assert float(season.period.detach()) == pytest.approx(12.0, rel=0.02)
    assert report.note.endswith("; that of side 1 by single lines along it")
    assert not any(parameter.requires_grad for parameter in gp.sides[1].parameters())
    assert all(parameter.requires_grad for parameter in gp.sides[0].parameters())
    observed = ~Y[0].isnan().numpy()
    months = factors[1][:, 0].numpy()
    linear = np.stack([np.interp(months, months[observed], row[observed]) for row in Y.numpy()])
    errors = [(values - truth.numpy())[:, ~observed] for values in (gp.posterior.mean().numpy(), linear)]
    assert np.square(errors[0]).mean() < np.square(errors[1]).mean()


def test_lines_along_a_side() -> None:
    factors, Y, _ = seasonal_field()
    data = pathgp.LatentKroneckerGP([None, None]).prepare_data(factors, Y)
    lines = choose_lines(data, 1, cells=60, count=5)
    assert [tuple(len(F) for F in line.factors) for line in lines] == [(1, 60)] * 5
    assert len({float(line.factors[0][0, 0]) for line in lines}) == 5
    assert len(choose_lines(data, 1, cells=500, count=40)) == SITES
    for line in lines:
        site = int((factors[0] - line.factors[0]).abs().sum(1).argmin())
        assert torch.equal(line.y, Y[site, line.factors[1][:, 0].long()][line.observed])


def test_a_side_has_many_empty_entries_only_if_they_are_a_tenth_of_the_holes() -> None:
    Y = torch.zeros(20, 50, dtype=torch.float64)
    Y[:, 7] = math.nan
    gp = pathgp.LatentKroneckerGP([None, None])

    def found(grid: Tensor) -> list[bool]:
        data = gp.prepare_data([None, None], grid)
        return [has_empty_entries(data, side) for side in (0, 1)]

    assert found(Y) == [False, True]
    Y[:, ::2] = torch.where(torch.arange(20)[:, None] == 3, 0.0, math.nan)
    assert found(Y) == [False, False]
    assert found(Y.nan_to_num(0.0)) == [False, False]


def test_the_only_side_is_learned_from_all_cells() -> None:
    """A time series with holes: it has a season, and its kernel stays free."""
    factors, Y, _ = seasonal_field()
    gp = pathgp.LatentKroneckerGP([None], noise=0.1)
    data = gp.prepare_data([factors[1]], Y[0])
    assert not has_empty_entries(data, 0)
    assert strongest_period(data, 0) == pytest.approx(12.0, rel=0.05)
    gp.fit([factors[1]], Y[0], steps=1, samples=2, generator=torch.Generator().manual_seed(0))
    assert all(parameter.requires_grad for parameter in gp.sides[0].parameters())
