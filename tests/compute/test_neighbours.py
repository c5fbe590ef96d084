"""Nearest points against sorted distances to all points, or to all earlier ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pathgp.compute import cells
from pathgp.compute.neighbours import earlier_neighbours, nearest_neighbours, search_tiles, search_tiles_around


def _distances(X: Tensor, m: int, index: Tensor) -> Tensor:
    return (X[m + 1 :].unsqueeze(1) - X[index.long()]).norm(dim=2).sort(1).values


def _truth(X: Tensor, m: int) -> Tensor:
    D = torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist")
    later = torch.ones(len(X), len(X), dtype=torch.bool).triu()
    return D.masked_fill(later, torch.inf)[m + 1 :].sort(1).values[:, :m]


def _points(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(1800, 1 if kind in ("1 column", "sorted") else 3, generator=generator, dtype=torch.float64)
    if kind == "few distinct points":
        X = X[:7].repeat(30, 1)
    elif kind == "sorted":
        # All near points but one in two come later.
        X = X.sort(0).values
    elif kind == "clusters":
        X[::2] = 0.5 + 1e-5 * X[::2]
        X[::5] *= 1e4
    elif kind == "a line":
        X[:, 1] = 0.3
    return X


KINDS = ["1 column", "3 columns", "few distinct points", "sorted", "clusters", "a line"]
# Tiles of a hundred rows.
MEMORY = 4 * 48 * 100**2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("search", ["trees", "tiles", "cells"])
def test_the_nearest_earlier_points(kind: str, search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_FIRST", 100)
    X, m = _points(kind), 6
    if search == "cells":
        index = cells.search_cells(X, m, MEMORY, search_tiles)
    else:
        index = earlier_neighbours(X, m, 10**9) if search == "trees" else search_tiles(X, m, MEMORY)
    assert index.shape == (len(X) - m - 1, m)
    assert (index < torch.arange(m + 1, len(X)).unsqueeze(1)).all()
    assert all(len(set(row)) == m for row in index.tolist())
    assert torch.allclose(_distances(X, m, index), _truth(X, m), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("search", [nearest_neighbours, cells.search_cells_around, search_tiles_around])
@pytest.mark.parametrize("m", [1, 6])
def test_the_nearest_points(kind: str, search: Callable[[Tensor, int, int], Tensor], m: int) -> None:
    X = _points(kind)
    index = search(X, m, MEMORY)
    assert index.shape == (len(X), m)
    assert index.dtype == torch.int32
    assert all(len(set(row)) == m for row in index.tolist())
    distance = (X.unsqueeze(1) - X[index.long()]).norm(dim=2).sort(1).values
    everywhere = torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.allclose(distance, everywhere.sort(1).values[:, :m], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("n", "m"), [(1, 0), (5, 0), (5, 4)])
def test_few_points(n: int, m: int) -> None:
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert earlier_neighbours(X, m, 10**6).shape == (n - m - 1, m)
    assert search_tiles(X, m, 10**6).shape == (n - m - 1, m)
