"""The maxima of posterior paths over boxes, lists and mixtures, against dense grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import kernels
from pathgp.decisions import maximise_paths
from pathgp.decisions.domain import Domain
from pathgp.decisions.search import proposal_spread
from pathgp.decisions.top import assign_distinct, top_rows

BOX = torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=torch.float64)
SMALL: dict[str, Any] = {"starts": 3, "proposals": 200, "steps": 25}
S = 6


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inside(n: int, generator: torch.Generator) -> Tensor:
    return BOX[0] + (BOX[1] - BOX[0]) * torch.rand(n, 2, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def post() -> pathgp.Posterior:
    generator = seeded()
    X = inside(30, generator)
    gp = pathgp.GP(kernels.Matern(2.5, torch.tensor([0.3, 0.9])), 0.05)
    return gp.condition(X, torch.sin(5 * X[:, 0]) * X[:, 1], samples=S, features=64, generator=generator, tol=1e-6)


@pytest.fixture(scope="module")
def grid() -> Tensor:
    sides = (torch.linspace(float(a), float(b), 61, dtype=torch.float64) for a, b in BOX.T)
    return torch.cartesian_prod(*sides)


@pytest.mark.parametrize("minimise", [False, True])
def test_no_point_of_a_grid_is_better(post: pathgp.Posterior, grid: Tensor, minimise: bool) -> None:
    X, values = maximise_paths(post, BOX, minimise=minimise, generator=seeded(1), **SMALL)
    assert (X.shape, values.shape) == ((S, 2), (S,))
    assert torch.equal(X.clamp(*BOX), X)
    torch.testing.assert_close(values, post.paths_at(X.unsqueeze(1))[:, 0], rtol=1e-9, atol=1e-9)
    sign = -1.0 if minimise else 1.0
    # The grid can miss a maximum by its spacing; the search must not miss it by more than a little.
    assert bool((sign * values >= (sign * post.paths(grid)).amax(1) - 1e-3).all())


def test_ascent_improves_on_the_proposals(post: pathgp.Posterior) -> None:
    before = maximise_paths(post, BOX, generator=seeded(1), **(SMALL | {"steps": 0}))[1]
    after = maximise_paths(post, BOX, generator=seeded(1), **SMALL)[1]
    assert bool((after >= before).all())
    assert float((after - before).max()) > 1e-4


def test_kinds_and_chosen_paths(post: pathgp.Posterior) -> None:
    X, values = maximise_paths(post, BOX.tolist(), which=[4, 1], generator=seeded(1), **SMALL)
    assert isinstance(X, np.ndarray)
    assert isinstance(values, np.ndarray)
    expected = post.paths_at(torch.from_numpy(X).unsqueeze(1), [4, 1])[:, 0]
    np.testing.assert_allclose(values, expected, rtol=1e-9)


def test_constraint(post: pathgp.Posterior, grid: Tensor) -> None:
    def low(X: Any) -> Any:
        assert isinstance(X, np.ndarray)
        return X.sum(1) <= 1.0

    X, values = maximise_paths(post, BOX.numpy(), constraint=low, generator=seeded(1), **SMALL)
    assert low(X).all()
    allowed = grid[grid.sum(1) <= 1.0]
    # Maxima on the border of the constraint are found only up to the steps of the ascent.
    assert bool((torch.from_numpy(values) >= post.paths(allowed).amax(1) - 0.1).all())
    with pytest.raises(ValueError, match="tighter bounds"):
        maximise_paths(post, BOX, constraint=lambda X: X[:, 0] > 5.0, **SMALL)
    with pytest.raises(ValueError, match="booleans"):
        maximise_paths(post, BOX, constraint=lambda X: X[:, 0], **SMALL)


def test_a_column_with_choices(post: pathgp.Posterior) -> None:
    values_of_column = [-0.5, 0.25, 1.75]
    X, values = maximise_paths(post, BOX, choices={1: values_of_column}, generator=seeded(1), **SMALL)
    assert set(X[:, 1].tolist()) <= set(values_of_column)
    line = torch.linspace(0.0, 1.0, 201, dtype=torch.float64)
    grid = torch.cartesian_prod(line, torch.tensor(values_of_column, dtype=torch.float64))
    assert bool((values >= post.paths(grid).amax(1) - 1e-3).all())


def test_candidates(post: pathgp.Posterior, grid: Tensor) -> None:
    X, values = maximise_paths(post, candidates=grid)
    best = post.paths(grid).max(1)
    torch.testing.assert_close(values, best.values, rtol=0, atol=0)
    assert torch.equal(X, grid[best.indices])
    few = torch.cat([grid[:4], grid[:4]])
    found, values = maximise_paths(post, candidates=few.numpy(), which=range(4), distinct=True)
    assert len({tuple(row) for row in found.tolist()}) == 4
    np.testing.assert_allclose(values, post.paths_at(torch.from_numpy(found).unsqueeze(1), range(4))[:, 0])
    with pytest.raises(ValueError, match="4 candidates are left for 6 paths"):
        maximise_paths(post, candidates=few, distinct=True)


def test_points_to_avoid(post: pathgp.Posterior) -> None:
    first, _ = maximise_paths(post, BOX, generator=seeded(1), **SMALL)
    again, values = maximise_paths(post, BOX, avoid=first, generator=seeded(1), **SMALL)
    assert torch.cdist(first, again).min() > 1e-6
    torch.testing.assert_close(values, post.paths_at(again.unsqueeze(1))[:, 0], rtol=1e-9, atol=1e-9)
    single = maximise_paths(post, BOX, choices={0: [0.5], 1: [0.0]}, avoid=first, generator=seeded(1), **SMALL)[0]
    assert torch.equal(single, torch.tensor([[0.5, 0.0]], dtype=torch.float64).expand(S, 2))


def test_neighbourhoods_are_in_the_units_of_the_caller() -> None:
    X = torch.rand(20, 3, generator=seeded(), dtype=torch.float64) * torch.tensor([1.0, 100.0, 1.0])
    kernel = kernels.Matern(1.5, torch.tensor([0.4, 0.8]), active_dims=[0, 1]) + kernels.Linear(1.0, active_dims=[2])
    post = pathgp.GP(kernel, 0.1, standardise=True).condition(X, X[:, 0], samples=1, features=32)
    bounds = [[0.0, 0.0, 0.0], [1.0, 100.0, 1.0]]
    spread = proposal_spread(post, Domain.read(bounds, None, None, torch.device("cpu")))
    deviations = X.std(0, correction=0)
    expected = torch.stack([0.2 * deviations[0], 0.4 * deviations[1], torch.tensor(0.1, dtype=torch.float64)])
    torch.testing.assert_close(spread, expected)


def test_wrong_arguments(post: pathgp.Posterior) -> None:
    with pytest.raises(TypeError, match="either bounds"):
        maximise_paths(post)
    with pytest.raises(ValueError, match=r"two rows.*use bounds.T"):
        maximise_paths(post, torch.zeros(3, 2))
    with pytest.raises(ValueError, match="bounds have 1 columns"):
        maximise_paths(post, [[0.0], [1.0]])
    with pytest.raises(ValueError, match="column 1 are 1 and 1"):
        maximise_paths(post, [[0.0, 1.0], [1.0, 1.0]])
    with pytest.raises(ValueError, match="column 7"):
        maximise_paths(post, BOX, choices={7: [1.0]})
    with pytest.raises(ValueError, match="empty"):
        maximise_paths(post, BOX, choices={0: []})
    with pytest.raises(ValueError, match="share"):
        maximise_paths(post, BOX, explore=2.0)


def test_top_rows_in_blocks() -> None:
    values = torch.rand(3, 20, generator=seeded(), dtype=torch.float64)
    for size in (1, 7, 20):
        blocks = ((torch.arange(20)[i : i + size], values[:, i : i + size]) for i in range(0, 20, size))
        largest, rows = top_rows(blocks, 4)
        expected = values.topk(4, 1)
        assert torch.equal(largest, expected.values)
        assert torch.equal(rows, expected.indices)


def test_distinct_rows() -> None:
    assert assign_distinct([[1, 2], [1, 3], [1]], taken=[3]) == [1, None, None]
    assert assign_distinct([[1, 2], [1, 3]]) == [1, 3]
