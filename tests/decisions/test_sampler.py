"""Ask and tell: progress, schedule, files, failures and repetitions."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pathgp
from optimisations import BOX, SMALL, hill, sampler, seeded
from pathgp import kernels
from pathgp.decisions import ThompsonSampler, maximise_paths
from pathgp.decisions import sampler as sampler_module
from pathgp.models import InducingGP
from subprocesses import Forks


@pytest.mark.parametrize("minimise", [False, True])
def test_finds_the_top(minimise: bool) -> None:
    sign = -1.0 if minimise else 1.0
    optimiser = sampler(minimise=minimise, refit=2.0, fit={"steps": 5})
    with pytest.raises(ValueError, match="call tell first"):
        _ = optimiser.best
    for _ in range(4):
        X = optimiser.ask(6)
        assert isinstance(X, np.ndarray)
        assert X.shape == (6, 2)
        assert len(optimiser.pending) == 6
        optimiser.tell(X, sign * hill(X))
    assert len(optimiser.pending) == 0
    assert len(optimiser.y) == 24
    assert sign * optimiser.best.y > 0.97
    np.testing.assert_allclose(optimiser.best.X, [0.6, 0.3], atol=0.1)
    rounds = optimiser.history.rounds
    assert [each.evaluations for each in rounds] == [6, 12, 18, 24]
    assert rounds[-1].best == optimiser.best.y
    assert "24 evaluations in 4 rounds, best" in repr(optimiser)
    assert len({tuple(row) for row in optimiser.X.tolist()}) == 24


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """A list that grows by the name and the rows of every fit, condition and update."""
    calls: list[tuple[str, int]] = []
    for owner, name in ((pathgp.GP, "fit"), (pathgp.GP, "condition"), (pathgp.Posterior, "update")):
        original = getattr(owner, name)

        def counted(self: Any, X: Any, *args: Any, _name: str = name, _original: Any = original, **options: Any) -> Any:
            calls.append((_name, len(X)))
            return _original(self, X, *args, **options)

        monkeypatch.setattr(owner, name, counted)
    return calls


@pytest.mark.parametrize("surprise", [False, True])
def test_schedule_of_fits_and_updates(surprise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch)
    optimiser = sampler(refit=2.0, fit={"steps": 1})
    for _ in range(3):
        X = optimiser.ask(4)
        post = optimiser.posterior
        optimiser.tell(X, hill(X) if post is None else np.asarray(post.mean(torch.as_tensor(X))))
    X = optimiser.ask(4)
    # Fits at 4 and 8 rows, an update at 12; the next fit would be at 16.
    assert calls == [("fit", 4), ("condition", 4), ("fit", 8), ("condition", 8), ("update", 4)]
    predicted = np.asarray(optimiser.posterior.mean(torch.as_tensor(X)))
    optimiser.tell(X[:2], predicted[:2] + (100.0 if surprise else 0.0))
    optimiser.ask(4)
    # 14 rows: too few for a fit unless the last values contradict the posterior.
    assert calls[5:] == ([("fit", 14), ("condition", 14)] if surprise else [("condition", 14)])


@pytest.mark.parametrize(("min_gain", "in_box"), [(0.0, 6), (1e9, 8)])
def test_min_gain_of_the_search_options(min_gain: float, in_box: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of eight paths are maximised in the region, and again in the box if their maximum is not informative."""
    counts = []

    def counted(post: Any, *, which: list[int], **options: Any) -> Any:
        counts.append(len(which))
        return maximise_paths(post, which=which, **options)

    monkeypatch.setattr(sampler_module, "maximise_paths", counted)
    optimiser = sampler(search=SMALL | {"min_gain": min_gain})
    X = np.random.default_rng(0).uniform(size=(30, 2))
    optimiser.tell(X, hill(X))
    assert optimiser.ask(8).shape == (8, 2)
    assert counts == [2, in_box]


def test_failures_are_kept_and_not_asked_for_again() -> None:
    optimiser = sampler()
    X = optimiser.ask(6)
    values = hill(X)
    values[[1, 4]] = np.nan, np.inf
    with pytest.warns(UserWarning, match="2 of 6 values are not finite"):
        optimiser.tell(X, values)
    assert len(optimiser.y) == 4
    assert optimiser.history.rounds[0].failed == 2
    assert "2 failed" in repr(optimiser)
    assert optimiser.ask(3).shape == (3, 2)
    with pytest.raises(ValueError, match=r"y must have shape \(6,\)"):
        optimiser.tell(X, values[:2])


def test_repeated_points() -> None:
    """A point may be told twice, with two values; it is not asked for again."""
    optimiser = sampler(refit=1.5, fit={"steps": 2, "samples": 4})
    X = np.array([[0.5, 0.5], [0.5, 0.5], [0.1, 0.9], [0.1, 0.9]])
    optimiser.tell(X, [1.0, 1.2, 0.0, 0.0])
    optimiser.tell(X[:1], [0.9])
    assert len(optimiser.y) == 5
    asked = optimiser.ask(6)
    assert len(np.unique(np.concatenate([asked, X[::2]]), axis=0)) == 8
    assert np.isfinite(asked).all()


def test_candidates_run_out() -> None:
    pool = np.stack(np.meshgrid(np.linspace(0, 1, 4), np.linspace(0, 1, 3)), -1).reshape(-1, 2)
    gp = pathgp.GP(kernels.Matern(2.5, 0.5), 0.02)
    optimiser = ThompsonSampler(
        gp,
        candidates=pool,
        constraint=lambda X: X[:, 0] < 0.9,
        refit=None,
        generator=seeded(),
        condition={"features": 64},
    )
    first = optimiser.ask(4)
    optimiser.tell(first, hill(first))
    second = optimiser.ask(3)
    with pytest.warns(UserWarning, match="2 candidates are left"):
        third = optimiser.ask(5)
    asked = np.concatenate([first, second, third])
    assert {tuple(row) for row in asked} == {tuple(row) for row in pool if row[0] < 0.9}
    assert len(asked) == 9
    optimiser.tell(asked[4:], hill(asked[4:]))
    with pytest.raises(ValueError, match="all candidates have been asked for"):
        optimiser.ask(1)


CRASH = """
import os, signal, sys
import numpy as np
path, asked = sys.argv[1:]
from optimisations import hill, sampler
optimiser = sampler(checkpoint=path)
X = optimiser.ask(5)
optimiser.tell(X, hill(X))
np.save(asked, optimiser.ask(4))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_between_ask_and_tell(forks: Forks, tmp_path: Path) -> None:
    path, asked = tmp_path / "run.pathgp", tmp_path / "asked.npy"
    assert forks.run(CRASH, [path, asked]) == [-signal.SIGKILL]
    optimiser = sampler(checkpoint=path)
    assert len(optimiser.y) == 5
    np.testing.assert_array_equal(optimiser.pending, np.load(asked))
    assert len(optimiser.history) == 1
    X = optimiser.pending
    optimiser.tell(X, hill(X))
    assert len(optimiser.y) == 9
    again = sampler(checkpoint=path)
    np.testing.assert_array_equal(again.X, optimiser.X)
    assert (len(again.pending), len(again.history)) == (0, 2)
    with pytest.raises(ValueError, match="its minimise is False, here it is True"):
        sampler(checkpoint=path, minimise=True)
    with pytest.raises(ValueError, match="read_evaluations"):
        ThompsonSampler(pathgp.GP(kernels.Linear()), BOX, checkpoint=path)
    pathgp.GP(kernels.Matern(1.5)).condition(X, hill(X), samples=1).save(path)
    with pytest.raises(ValueError, match="not a checkpoint of a ThompsonSampler"):
        sampler(checkpoint=path)


def test_history_plots_itself() -> None:
    pytest.importorskip("matplotlib")
    optimiser = sampler(torch.from_numpy(BOX))
    with pytest.raises(ValueError, match="no evaluations"):
        optimiser.history.plot()
    for _ in range(2):
        X = optimiser.ask(3)
        assert isinstance(X, torch.Tensor)
        optimiser.tell(X, hill(X))
    figure = optimiser.history.plot(optimum=1.0)
    left, right = figure.axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("evaluations", "seconds")
    regret = left.lines[1].get_ydata()
    np.testing.assert_allclose(regret[-1], 1.0 - optimiser.best.y)
    assert "evaluations" in repr(optimiser.history)


def test_writes_a_page(tmp_path: Path) -> None:
    optimiser = sampler(minimise=True)
    with pytest.raises(ValueError, match="call tell first"):
        optimiser.to_html(tmp_path / "page.html")
    X = np.array([[0.5, 0.5], [1.0, 0.2], [0.1, 0.9]])
    with pytest.warns(UserWarning, match="not finite"):
        optimiser.tell(X, [2.0, 1.25, np.nan])
    X = optimiser.ask(3)
    optimiser.tell(X[:2], [3.0, 4.0])
    optimiser.to_html(tmp_path / "page.html", names=["a & b", "c"], target="cost")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for words in (
        "Search for the minimum of cost",
        "4 evaluations in 2 rounds, 2 inputs.",
        "The smallest cost so far is 1.25",
        "at a &amp; b 1 and c 0.2",
        "1 input without a value yet",
        "No better value for 1 round.",
        "The best point lies on an end of a &amp; b.",
        "1 evaluation failed",
        "Best cost against evaluations",
        "Best cost against seconds",
        "lengthscale",
    ):
        assert words in page, words
    assert "<script" not in page
    with pytest.raises(ValueError, match="names has 1 entries for 2 inputs"):
        optimiser.to_html(tmp_path / "page.html", names=["a"])


def test_wrong_models() -> None:
    with pytest.raises(TypeError, match=r"must be a pathgp\.GP"):
        ThompsonSampler(pathgp.LatentKroneckerGP([kernels.Matern(1.5)]), BOX)
    with pytest.raises(ValueError, match="more than 1"):
        sampler(refit=0.5)


def test_first_values_that_all_fail(tmp_path: Path) -> None:
    """They are a round of the history, also after a restart; the inputs are random until there is a value."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "run.pathgp"
    optimiser = sampler(checkpoint=path)
    X = optimiser.ask(4)
    with pytest.warns(UserWarning, match=r"4 of 4 values are not finite: .*; without any finite value .* random again"):
        optimiser.tell(X, [np.nan] * 4)
    with pytest.raises(ValueError, match="no finite values yet: all 4 evaluations failed"):
        _ = optimiser.best
    with pytest.raises(ValueError, match="all 4 evaluations failed"):
        optimiser.to_html(tmp_path / "page.html")
    optimiser.history.plot()
    optimiser = sampler(checkpoint=path)
    (first,) = optimiser.history.rounds
    assert (first.evaluations, first.failed) == (0, 4)
    assert np.isnan([first.best, first.batch_best]).all()
    assert "nan" in repr(optimiser.history)
    assert repr(optimiser) == "ThompsonSampler(0 evaluations in 1 rounds, 0 pending, 4 failed)"
    Z = optimiser.ask(4)
    assert not (Z[:, None] == X).all(2).any()
    optimiser.tell(Z, hill(Z))
    Z = optimiser.ask(2)
    optimiser.tell(Z, hill(Z))
    assert [each.evaluations for each in optimiser.history.rounds] == [0, 4, 6]
    optimiser.history.plot(optimum=1.0)
    optimiser.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "better than after the first round with a value" in page
    assert "4 evaluations failed" in page
    assert "nan" not in page


def test_every_value_is_counted_once_with_inducing_points() -> None:
    gp = InducingGP(kernels.Matern(2.5, 0.5), 0.1, inducing=5)
    optimiser = ThompsonSampler(
        gp, torch.as_tensor(BOX), refit=None, search=SMALL, condition={"features": 64}, generator=seeded()
    )
    X = torch.rand(12, 2, generator=seeded(1), dtype=torch.float64)
    optimiser.tell(X, torch.as_tensor(hill(X)))
    for told in (12, 15, 18):
        assert len(optimiser.y) == told
        X = optimiser.ask(3)
        assert optimiser.posterior is not None
        assert optimiser.posterior.report.rows == told
        optimiser.tell(X, torch.as_tensor(hill(X)))
