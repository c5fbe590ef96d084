"""Batches from a pool: all kinds of arrays, every method, recall, pools that run out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

import pathgp
from pathgp import kernels
from pathgp.decisions import Screening, screen, select_batch
from pathgp.decisions import pool as pool_module

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
    monkeypatch.setattr(pool_module, "_ROWS", 17)
    monkeypatch.setattr(pool_module, "_SPARSE_ROWS", 17)
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


# Nothing is measured in vain


DENSE = np.random.default_rng(3).random((60, 2))
SMALL: dict[str, Any] = {"batch": 5, "rounds": 3, "samples": 4, "fit": {"steps": 1}, "condition": {"features": 16}}


class Measure:
    """Counts the rows that it measures; ``fails`` may raise in a call."""

    def __init__(self, fails: Any = lambda call, rows: None) -> None:
        self.rows: list[int] = []
        self.calls, self.fails = 0, fails

    def __call__(self, rows: Any) -> Any:
        self.calls += 1
        found = self.fails(self.calls, rows)
        self.rows += rows.tolist()
        return np.sin(6 * DENSE[rows]).sum(1) if found is None else found


def dense_model() -> pathgp.GP:
    return pathgp.GP(kernels.Matern(2.5, lengthscale=[0.3, 0.3]), 0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "top", "top": 0}, "top must be at least 1"),
        ({"method": "ucb", "width": "a"}, "width must be a number"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"samples": -1, "method": "greedy"}, "samples must be at least 0"),
        ({"fit": {"stepz": 3}}, "fit={'stepz': ...} is not an option of fit: time_limit, steps"),
        ({"condition": {"sampels": 3}}, "condition={'sampels': ...} is not an option of condition: solver"),
        ({"fit": {"generator": None}}, "fit={'generator': ...} is not an option here: it is set for every call"),
        ({"initial": [1, 1, 2]}, "initial has row 1 more than once"),
        ({"initial": []}, "initial has no rows: leave it out"),
        ({"initial": 0}, "initial must be at least 1"),
        ({"resume": [1]}, "resume must be a Screening"),
        ({"resume": Screening("top", np.array([60]), np.zeros(1), np.zeros(1, int))}, "from 0 to 59"),
        ({"resume": Screening("top", np.arange(2), np.zeros(1), np.zeros(1, int))}, "lengths 2, 1 and 1"),
    ],
)
def test_options_are_checked_before_the_first_measurement(options: dict[str, Any], words: str) -> None:
    measure = Measure()
    with pytest.raises((ValueError, TypeError), match=words):
        screen(dense_model(), DENSE, measure, **(SMALL | options))
    assert not measure.rows


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (
            np.where(np.arange(120).reshape(60, 2) == 35, np.nan, DENSE),
            "the pool contains nan at row 17, column 1: rem",
        ),
        (torch.from_numpy(np.where(DENSE[58, 0] == DENSE, np.inf, DENSE)), "the pool contains inf at row 58, column 0"),
        (np.array([["a", "b"]] * 9), "the pool must hold real numbers, got dtype <U1"),
        (torch.ones(9, 2, dtype=torch.complex64), "the pool must hold real numbers"),
        ("x", "the pool must hold real numbers"),
        (None, "the pool must hold real numbers, got dtype object"),
        ([[1.0], [1.0, 2.0]], "the pool cannot be read as an array of numbers"),
        ([1.0] * 60, r"two dimensions \(rows, columns\), got shape \(60,\)"),
        (DENSE[:0], "the pool has no rows"),
        (DENSE[:, :1], "lengthscale has 2 entries, but the inputs have 1 columns"),
        (np.ma.masked_less(DENSE, np.sort(DENSE, None)[1]), "the pool has masked values, and the mask would be lost"),
        (sparse.csr_matrix(DENSE), "sparse inputs hold counts"),
    ],
)
def test_pools_are_checked_before_the_first_measurement(pool: Any, words: str) -> None:
    measure = Measure()
    with pytest.raises((ValueError, TypeError), match=words):
        screen(dense_model(), pool, measure, initial=range(5), **SMALL)
    assert not measure.rows


def test_the_pool_is_checked_block_by_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(pool_module, "_ENTRIES", 14)
    np.save(tmp_path / "pool.npy", np.where(np.arange(120).reshape(60, 2) == 116, np.nan, DENSE))
    with pytest.raises(ValueError, match="the pool contains nan at row 58, column 0"):
        screen(dense_model(), np.load(tmp_path / "pool.npy", mmap_mode="r"), Measure(), **SMALL)


def test_select_batch_names_the_row_of_the_pool(post: pathgp.Posterior) -> None:
    pool = POOL.copy()
    pool[200, 3] = np.nan
    with pytest.raises(ValueError, match="the pool contains nan at row 200, column 3"):
        select_batch(post, pool, 5, exclude=range(100))


def test_other_kinds_of_pools() -> None:
    pandas = pytest.importorskip("pandas")
    whole = screen(dense_model(), DENSE, Measure(), generator=seeded(), **SMALL)
    frame = pandas.DataFrame(DENSE, index=range(100, 160), columns=["a", "b"])
    for pool in (frame, DENSE.tolist(), DENSE.astype(">f8"), DENSE.astype(np.longdouble)):
        result = screen(dense_model(), pool, Measure(), generator=seeded(), **SMALL)
        assert result.rows.tolist() == whole.rows.tolist()
    assert len(screen(dense_model(), DENSE.astype(np.float16), Measure(), **SMALL).rows) == 15


def test_an_error_of_measure_keeps_the_measurements() -> None:
    def fails(call: int, rows: Any) -> None:
        if call == 3:
            raise OSError("the arm is stuck")

    measure = Measure(fails)
    with pytest.raises(OSError, match="the arm is stuck") as caught:
        screen(dense_model(), DENSE, measure, **SMALL)
    kept = caught.value.screening
    assert kept.rows.tolist() == measure.rows
    assert kept.batches.tolist() == [0] * 5 + [1] * 5
    assert "10 measurements were made before" in caught.value.__notes__[0]
    before = kept.rows.copy()
    result = screen(dense_model(), DENSE, measure, resume=kept, **(SMALL | {"rounds": 4}))
    assert measure.rows == result.rows.tolist()
    assert result.rows[:10].tolist() == before.tolist() == kept.rows.tolist()
    assert result.batches.tolist() == np.repeat(range(4), 5).tolist()
    assert len(set(measure.rows)) == 20
    done = screen(dense_model(), DENSE, measure, resume=result, **(SMALL | {"rounds": 4}))
    assert (len(done.rows), len(measure.rows)) == (20, 20)


WRONG = [np.zeros((5, 1)), 1.0, np.array(None), ["a"] * 5, np.zeros(5, complex), [[1.0], [1.0, 2.0]]]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_values_keep_the_earlier_ones(wrong: Any) -> None:
    measure = Measure(lambda call, rows: wrong if call == 2 else None)
    with pytest.raises((ValueError, TypeError), match=r"measure must return 5 (values|numbers)") as caught:
        screen(dense_model(), DENSE, measure, **SMALL)
    assert len(caught.value.screening.rows) == 5


def test_an_error_before_the_first_measurement_has_no_result() -> None:
    with pytest.raises(ValueError, match="measure must return") as caught:
        screen(dense_model(), DENSE, lambda rows: 1.0, **SMALL)
    assert not hasattr(caught.value, "screening")


def test_tensors_with_gradients_and_numbers_of_numpy() -> None:
    def measure(rows: Any) -> Any:
        values = torch.from_numpy(TRUTH[rows]).requires_grad_()
        rows[:] = 0  # what it gets is its own
        return values

    result = screen(
        pathgp.GP(kernels.Matern(1.5, 2.0), 0.3), POOL, measure, initial=np.int64(7), **(SMALL | {"fit": {"steps": 1}})
    )
    assert len(set(result.rows.tolist())) == len(result.rows) == 17
    np.testing.assert_array_equal(result.values, TRUTH[result.rows])


def test_results_of_callbacks_do_not_change() -> None:
    seen: list[Screening] = []
    screen(dense_model(), DENSE, Measure(), callback=seen.append, **SMALL)
    assert [len(so_far.rows) for so_far in seen] == [5, 10, 15]


def test_a_measure_that_is_not_a_function() -> None:
    with pytest.raises(
        TypeError, match=r"measure must be a function of row numbers, got ndarray.*lambda rows: y\[rows"
    ):
        screen(dense_model(), DENSE, np.zeros(60), **SMALL)


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize("method", ["greedy", "ucb"])
def test_the_mean_needs_no_paths(is_sparse: bool, method: str) -> None:
    gp = pathgp.GP(kernels.Scale(kernels.Tanimoto(), 2.0), 0.3)
    pool = sparse.csr_matrix(POOL) if is_sparse else POOL
    result = screen(gp, pool, lambda rows: TRUTH[rows], method=method, **(SMALL | {"samples": 0}))
    assert len(result.rows) == 15


def test_recall_with_missing_values_and_of_another_pool() -> None:
    truth = np.arange(10.0)
    truth[[3, 9]] = np.nan
    result = Screening("top", np.array([9, 8, 0, 7]), np.zeros(4), np.array([0, 0, 1, 1]))
    places, shares = result.recall(truth, 2)
    assert (places.tolist(), shares.tolist()) == ([2, 4], [0.5, 1.0])
    assert result.recall(truth, 50)[1].tolist() == [0.125, 0.375]
    with pytest.raises(ValueError, match=r"a value for every row of the pool, at least \(10,\); got shape \(5,\)"):
        result.recall(truth[:5], 2)
    with pytest.raises(ValueError, match="all are NaN"):
        result.recall(np.full(10, np.nan), 2)


def test_what_is_not_a_posterior(post: pathgp.Posterior) -> None:
    for wrong in (None, post.model):
        with pytest.raises(TypeError, match=r"post must be a posterior, such as gp.condition\(X, y\); got"):
            select_batch(wrong, POOL, 5)
    with pytest.raises(ValueError, match="the pool has 7 columns, the model was given 20"):
        select_batch(post, POOL[:, :7], 5)
