"""Small grids with holes beside the textbook: what latent Kronecker models are checked on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from scipy import stats
from torch import Tensor

import reference
from pathgp import kernels as K
from pathgp.models import LatentKroneckerGP
from pathgp.posterior.grid import GridPosterior
from reference import Covariance

NOISE = 0.3
SIZES = {1: (16,), 2: (8, 6), 3: (5, 4, 4)}
Inputs = Sequence[Tensor | None]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(rows: int, columns: int, seed: int) -> Tensor:
    return torch.rand(rows, columns, generator=seeded(seed), dtype=torch.float64)


def sides(k: int) -> list[K.Kernel]:
    """A kernel for every side; the first, on two columns, carries the signal scale."""
    ard = torch.tensor([0.4, 0.8], dtype=torch.float64)
    return [K.Scale(K.Matern(1.5, ard), 1.2), K.SquaredExponential(0.5), K.Matern(0.5, 0.7)][:k]


def covariance(k: int) -> Covariance:
    """The product of the same kernels on the columns of all sides, from the textbook."""
    ard = torch.tensor([0.4, 0.8], dtype=torch.float64)
    parts: list[Covariance] = [
        lambda X, Z: 1.44 * reference.matern(X[:, :2], Z[:, :2], 1.5, ard),
        lambda X, Z: reference.squared_exponential(X[:, 2:3], Z[:, 2:3], 0.5),
        lambda X, Z: reference.matern(X[:, 3:], Z[:, 3:], 0.5, 0.7),
    ]
    return lambda X, Z: math.prod((part(X, Z) for part in parts[:k]), start=torch.ones((), dtype=torch.float64))


def cells(inputs: Sequence[Tensor]) -> Tensor:
    """The inputs of all cells of a grid (g_1 ... g_k, d_1 + ... + d_k), row by row."""
    grid = torch.meshgrid(*(torch.arange(len(G)) for G in inputs), indexing="ij")
    return torch.cat([G[place.flatten()] for G, place in zip(inputs, grid, strict=True)], 1)


@dataclass(frozen=True)
class Grid:
    """Data on a grid with k sides, a share of the cells missing."""

    k: int
    missing: float = 0.3

    @property
    def factors(self) -> list[Tensor]:
        return [uniform(p, 2 if i == 0 else 1, seed=i) for i, p in enumerate(SIZES[self.k])]

    @property
    def new(self) -> list[Tensor]:
        """Three inputs per side that are not in the grid."""
        return [uniform(3, 2 if i == 0 else 1, seed=10 + i) for i in range(self.k)]

    @property
    def mixed(self) -> list[Tensor]:
        """The first two inputs of a side, and new ones."""
        return [torch.cat([F[:2], G]) for F, G in zip(self.factors, self.new, strict=True)]

    @cached_property
    def Y(self) -> Tensor:
        X = cells(self.factors)
        signal = torch.sin(3.0 * X.sum(1)) + 0.5 * torch.cos(7.0 * X[:, 0])
        y = signal + NOISE * torch.randn(len(X), generator=seeded(5), dtype=torch.float64)
        y[torch.randperm(len(X), generator=seeded(6))[: round(self.missing * len(X))]] = torch.nan
        return y.view(SIZES[self.k])

    @property
    def model(self) -> LatentKroneckerGP:
        return LatentKroneckerGP(sides(self.k), NOISE)

    def observed(self, Y: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (n, d) and values (n,) of the observed cells, and which these are."""
        y = (self.Y if Y is None else Y).flatten()
        there = ~y.isnan()
        return cells(self.factors)[there], y[there], there

    def exact(self, inputs: Inputs | None = None, Y: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean (m,) and covariance (m, m) of the dense posterior; None for the inputs of a side in training."""
        X, y, _ = self.observed(Y)
        given = [None] * self.k if inputs is None else inputs
        return self.at(cells([F if G is None else G for G, F in zip(given, self.factors, strict=True)]), X, y)

    def at(self, Xs: Tensor, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return reference.posterior(covariance(self.k), X, y, NOISE, Xs)

    def __str__(self) -> str:
        return f"k={self.k}, {100 * self.missing:.0f} % missing"


GRIDS = [Grid(k, missing) for k in SIZES for missing in (0.0, 0.3, 0.8)]

TIGHT: dict[str, Any] = {"tol": 1e-10}


def places(grid: Grid) -> dict[str, Inputs]:
    """Where a posterior is asked: on the grid, at inputs new in one side, in all, and mixed."""
    rest: Inputs = [None] * (grid.k - 1)
    return {
        "training": [None, *rest],
        "new rows": [grid.new[0], *rest],
        "new columns": [*rest, grid.new[-1]],
        "all new": grid.new,
        "mixed": grid.mixed[: max(1, grid.k - 1)] + ([grid.new[-1]] if grid.k > 1 else []),
    }


PLACES = list(places(Grid(1)))


@cache
def sampled(k: int, missing: float = 0.3) -> GridPosterior:
    grid = Grid(k, missing)
    return grid.model.condition(grid.factors, grid.Y, samples=4096, generator=seeded(), **TIGHT)


def close(found: Tensor, expected: Tensor, atol: float = 1e-6) -> None:
    torch.testing.assert_close(found.flatten(), expected, rtol=0.0, atol=atol)


def assert_variance(found: Tensor, exact: Tensor, samples: int = 4096) -> None:
    """Relative standard error at most sqrt(2 / s): normal to first order, Bonferroni, a false-alarm rate of 1e-6."""
    limit = stats.norm.isf(0.5e-6 / exact.numel()) * math.sqrt(2.0 / samples)
    assert float((found.flatten() / exact - 1.0).abs().max()) <= limit
