"""Windows of points on a grid against dense matrices: sparse matrices of a CPU, tiles of a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.operators import FieldOperator
from pathgp.operators.field import points as field_points
from pathgp.operators.field.grid import Grid, Windows
from pathgp.operators.field.points import SparseWindows, TiledWindows

MAKERS: dict[str, Callable[[Grid, Tensor], Windows]] = {
    "kept": lambda grid, X: SparseWindows(grid, X, 10**9),
    "values kept": lambda grid, X: SparseWindows(grid, X, 4 * grid.window * len(X) * X.element_size()),
    "not kept": lambda grid, X: SparseWindows(grid, X, 1),
    "tiles": lambda grid, X: TiledWindows(grid, X, 10**9),
    "one tile at a time": lambda grid, X: TiledWindows(grid, X, 1),
}
CASES = {
    "d 1": ((60,), 6, "uniform"),
    "d 2": ((40, 30), 5, "uniform"),
    "d 3": ((20, 18, 24), 4, "uniform"),
    "d 2, clusters": ((200, 160), 6, "clusters"),
    "d 3, clusters": ((60, 40, 50), 6, "clusters"),
    "d 2, one point": ((40, 30), 6, "one point"),
    "d 2, nodes": ((20, 16), 0, "nodes"),
}


def make_grid(shape: tuple[int, ...], width: int) -> Grid:
    d = len(shape)
    return Grid(tuple(range(d)), (0.5,) * d, (0.5,) * d, shape, width, tuple(size / 2.0 for size in shape), shape)


def make_points(shape: tuple[int, ...], width: int, where: str) -> Tensor:
    """Points whose windows lie on the grid, some of them at its ends."""
    generator = torch.Generator().manual_seed(0)
    n = 1 if where == "one point" else 500
    position = torch.rand(n, len(shape), generator=generator, dtype=torch.float64)
    if where == "clusters":
        centres = torch.rand(7, len(shape), generator=generator, dtype=torch.float64)
        position = (centres[torch.arange(n) % 7] + 0.02 * position).clamp(0.0, 1.0)
    room = torch.tensor([size - 1.0 - width for size in shape], dtype=torch.float64)
    position = width / 2.0 + position * room
    return 0.5 + 0.5 * (position.round() if where == "nodes" else position)


def dense_windows(grid: Grid, X: Tensor) -> Tensor:
    """W (n, nodes), one point and one node after the other."""
    corner, weights = grid.place(X)
    W = torch.zeros(len(X), grid.nodes, dtype=X.dtype)
    for row, first in enumerate(corner.tolist()):
        window = torch.zeros(grid.shape, dtype=X.dtype)
        box = torch.ones([])
        for own in weights:
            box = box.unsqueeze(-1) * own[row]
        window[tuple(slice(a, a + k) for a, k in zip(first, box.shape, strict=True))] = box.to(X.dtype)
        W[row] = window.flatten()
    return W


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("case", CASES)
def test_spread_and_gather(case: str, maker: str, dtype: torch.dtype) -> None:
    shape, width, where = CASES[case]
    grid, X = make_grid(shape, width), make_points(shape, width, where).to(dtype)
    generator = torch.Generator().manual_seed(1)
    V = torch.randn(len(X), 3, generator=generator, dtype=dtype)
    G = torch.randn(3, grid.nodes, generator=generator, dtype=dtype)
    W, windows = dense_windows(grid, X), MAKERS[maker](grid, X)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(windows.spread(V), (W.T @ V).T, **tolerance)
    torch.testing.assert_close(windows.gather(G), W @ G.T, **tolerance)


def test_tiles_of_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever edge and number of points are chosen, the windows are the same."""
    grid, X = make_grid((40, 30), 5), make_points((40, 30), 5, "clusters")
    V = torch.randn(len(X), 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = SparseWindows(grid, X, 10**9).spread(V)
    for edge in (1, 2, 8, 16):
        for points in (1, 4, 64):
            monkeypatch.setattr(field_points, "_EDGES", (edge,))
            monkeypatch.setattr(field_points, "_POINTS", (points,))
            windows = TiledWindows(grid, X, 10**9)
            assert (windows.edge, windows.points) == (edge, points)
            torch.testing.assert_close(windows.spread(V), wanted)
            torch.testing.assert_close(windows.gather(wanted), SparseWindows(grid, X, 1).gather(wanted))


def test_the_kept_windows_obey_the_budget() -> None:
    grid, X = make_grid((40, 30), 5), make_points((40, 30), 5, "uniform")
    entries = 25 * len(X)
    kept = [SparseWindows(grid, X, 4 * entries * size) for size in (12, 11, 8, 7)]
    assert [windows.kept is not None for windows in kept] == [True, False, False, False]
    assert [windows.values is not None for windows in kept] == [True, True, True, False]


def test_products_by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole product with the windows that GPUs use."""
    X = torch.rand(800, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    k = kernels.Matern(0.5, 0.3)
    monkeypatch.setattr("pathgp.operators.field.product.place_points", TiledWindows)
    V = torch.randn(len(X), 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        exact = k(X) @ V
    H = FieldOperator(k, X, noise=1.0)
    assert float((H @ V - V - exact).norm() / exact.norm()) < 1e-5
