"""Batches from a pool: all kinds of arrays, every method, recall, pools that run out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

import pathgp
from pathgp import kernels
from pathgp.decisions import screen, screening, select_batch

RNG = np.random.default_rng(0)
POOL = RNG.poisson(1.0, size=(300, 20)).astype(np.float64)
TRUTH = POOL @ RNG.normal(size=20)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def post() -> pathgp.Posterior:
    gp = pathgp.GP(kernels.Scale(kernels.Tanimoto(), 2.0), 0.3)
    return gp.condition(POOL[:40], TRUTH[:40], samples=8, features=32, generator=seeded())


@pytest.mark.parametrize("kind", ["array", "counts", "tensor", "sparse"])
def test_kinds_of_pools_and_blocks(post: pathgp.Posterior, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[str, Any] = {
        "array": POOL,
        "counts": POOL.astype(np.uint8),
        "tensor": torch.from_numpy(POOL),
        "sparse": sparse.coo_matrix(POOL),
    }
    whole = select_batch(post, POOL, 20, exclude=range(40))
    monkeypatch.setattr(screening, "_ROWS", 17)
    monkeypatch.setattr(screening, "_SPARSE_ROWS", 17)
    np.testing.assert_array_equal(select_batch(post, kinds[kind], 20, exclude=range(40)), whole)


def test_thompson_takes_the_best_of_every_path(post: pathgp.Posterior) -> None:
    values = np.asarray(post.paths(POOL))
    rows = select_batch(post, POOL, 8)
    taken: list[int] = []
    for path in values:
        taken.append(next(int(row) for row in np.argsort(-path, kind="stable") if row not in taken))
    assert rows.tolist() == taken
    many = select_batch(post, POOL, 30)
    assert len(set(many.tolist())) == 30
    assert many[:8].tolist() == taken


def test_top_counts_over_the_paths(post: pathgp.Posterior) -> None:
    values = np.asarray(post.paths(POOL))
    wins = np.zeros(len(POOL))
    for path in values:
        wins[np.argsort(-path)[:15]] += 1
    rows = select_batch(post, POOL, 10, "top", top=15)
    assert np.sort(wins)[-10:].tolist() == sorted(wins[rows].tolist())
    assert np.all(np.diff(wins[rows]) <= 0)
    assert len(set(select_batch(post, POOL, 25, "top", top=5).tolist())) == 25


def test_greedy_and_upper_bound(post: pathgp.Posterior) -> None:
    mean, std = np.asarray(post.mean(POOL)), np.sqrt(np.asarray(post.variance(POOL)))
    assert select_batch(post, POOL, 5, "greedy").tolist() == np.argsort(-mean)[:5].tolist()
    assert select_batch(post, POOL, 5, "greedy", minimise=True).tolist() == np.argsort(mean)[:5].tolist()
    bound = mean + 3.0 * std
    assert select_batch(post, POOL, 5, "ucb", width=3.0).tolist() == np.argsort(-bound)[:5].tolist()


@pytest.mark.parametrize("method", ["thompson", "top", "greedy", "ucb"])
def test_screening_beats_chance(method: str) -> None:
    """A fifth of the rows at random finds a fifth of the best 20 on average; guided by the model more than a third."""
    gp = pathgp.GP(kernels.Scale(kernels.Tanimoto(), 2.0), 0.3, mean=pathgp.means.Constant())
    result = screen(
        gp,
        sparse.csr_matrix(POOL),
        lambda rows: TRUTH[rows],
        batch=15,
        rounds=4,
        method=method,
        samples=8,
        fit={"steps": 5},
        condition={"features": 32},
        generator=seeded(),
    )
    evaluations, recall = result.recall(TRUTH, 20)
    assert evaluations.tolist() == [15, 30, 45, 60]
    assert np.all(np.diff(recall) >= 0)
    assert recall[-1] >= 0.35
    assert len(set(result.rows.tolist())) == 60
    assert f"Screening({method}: 60 rows in 4 batches" in repr(result)


def test_small_pools_and_failures() -> None:
    gp = pathgp.GP(kernels.Matern(1.5, 2.0), 0.3)
    seen = []

    def measure(rows: Any) -> Any:
        values = TRUTH[rows].copy()
        values[0] = np.nan
        return values

    options: dict[str, Any] = {"batch": 8, "rounds": 9, "samples": 4, "refit": None, "condition": {"features": 16}}
    result = screen(gp, POOL[:20], measure, callback=lambda so_far: seen.append(len(so_far.rows)), **options)
    assert sorted(result.rows.tolist()) == list(range(20))
    assert seen == [8, 16, 20]
    assert "3 failed" in repr(result)
    chosen = screen(
        gp, POOL[:20], lambda rows: TRUTH[rows], initial=[3, 5], **(options | {"rounds": 1, "minimise": True})
    )
    assert chosen.rows.tolist() == [3, 5]
    assert chosen.best[1] == min(TRUTH[3], TRUTH[5])
    random = screen(gp, POOL[:20], lambda rows: TRUTH[rows], method="random", **(options | {"rounds": 2}))
    assert len(set(random.rows.tolist())) == 16


def test_everything_fails_or_the_pool_is_tiny() -> None:
    gp = pathgp.GP(kernels.Matern(1.5, 2.0), 0.3)
    options: dict[str, Any] = {"batch": 8, "rounds": 3, "samples": 4, "refit": None, "condition": {"features": 16}}
    failed = screen(gp, POOL[:20], lambda rows: np.full(len(rows), np.inf), **options)
    assert sorted(failed.rows.tolist()) == list(range(20))
    assert np.isnan(failed.values).all()
    assert repr(failed) == "Screening(thompson: 20 rows in 3 batches, 20 failed)"
    with pytest.raises(ValueError, match="no measurement has a finite value yet"):
        _ = failed.best
    tiny = screen(gp, POOL[:5], lambda rows: TRUTH[rows], **options)
    assert sorted(tiny.rows.tolist()) == list(range(5))
    assert len(select_batch(tiny.posterior or gp.condition(POOL[:3], TRUTH[:3], samples=2), POOL[:5], 8)) == 5


def test_equal_rows_of_a_pool() -> None:
    """Rows with the same inputs are measured one by one, and their values may differ."""
    gp = pathgp.GP(kernels.Scale(kernels.Tanimoto(), 1.0), 0.3)
    pool = sparse.csr_matrix(np.repeat(np.eye(4), 3, 0))
    values = np.random.default_rng(0).normal(size=12)
    options: dict[str, Any] = {"batch": 5, "rounds": 5, "samples": 4, "refit": None, "condition": {"features": 16}}
    result = screen(gp, pool, lambda rows: values[rows], **options)
    assert sorted(result.rows.tolist()) == list(range(12))
    assert result.best[1] == values.max()


def test_wrong_arguments(post: pathgp.Posterior) -> None:
    with pytest.raises(ValueError, match="method must be one of"):
        select_batch(post, POOL, 5, "best")
    with pytest.raises(ValueError, match="two dimensions"):
        select_batch(post, POOL[0], 5)
    with pytest.raises(ValueError, match="exclude must be numbers from 0 to 299"):
        select_batch(post, POOL, 5, exclude=[300])
    with pytest.raises(ValueError, match="measure must return 5 values"):
        screen(post.model, POOL, lambda rows: TRUTH[:2], batch=5)
