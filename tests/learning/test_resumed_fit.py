"""A fit goes on from its checkpoint: finished, with more steps, from several starts; and when one is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import fit_worker as worker
import pathgp
from fit_worker import same, unbroken
from pathgp.compute import files


@pytest.mark.parametrize("settings", ["adam, ap", "lbfgs, exact"])
def test_a_finished_fit_is_resumed_at_once(tmp_path: Path, settings: str) -> None:
    checkpoint = tmp_path / "new" / "folder" / "fit.pt"
    first, report = unbroken(settings, steps=8, checkpoint=checkpoint)
    seen: list[object] = []
    again, repeated = unbroken(settings, steps=8, checkpoint=str(checkpoint), callback=seen.append)
    assert not seen
    assert same(first, again)
    assert list(map(repr, repeated.history)) == list(map(repr, report.history))
    assert (repeated.stopped, repeated.seed) == (report.stopped, report.seed)
    assert files.read(checkpoint)["step"] == 8


@pytest.mark.parametrize("settings", ["adam, ap", "lbfgs, cg", "adam, cg, cold, standard"])
def test_more_steps_go_on_where_a_finished_fit_ended(tmp_path: Path, settings: str) -> None:
    checkpoint = tmp_path / "fit.pt"
    unbroken(settings, steps=8, checkpoint=checkpoint)
    grown, report = unbroken(settings, steps=14, checkpoint=checkpoint)
    assert len(report.history) == 14
    assert same(grown, unbroken(settings, steps=14)[0])


def test_several_starts_are_resumed(tmp_path: Path) -> None:
    """Interrupted in the second of three: the first is not repeated, and the end is the same."""
    options = {"starts": 3, "steps": 5}
    expected, whole = unbroken("lbfgs, ap", **options)
    seen: list[int] = []

    def callback(record: Any) -> None:
        seen.append(record.step)
        if len(seen) == 8:
            raise KeyboardInterrupt

    gp, X, y = worker.problem()
    checkpoint = pathgp.Checkpoint(tmp_path / "fit.pt", steps=1)
    with pytest.raises(KeyboardInterrupt):
        worker.fit(gp, X, y, "lbfgs, ap", checkpoint=checkpoint, callback=callback, **options)
    again, report = unbroken("lbfgs, ap", checkpoint=checkpoint, callback=callback, **options)
    assert seen == [*range(5), *range(5), *range(5)]
    assert same(again, expected)
    assert report.note == whole.note


def test_a_fit_that_settled_goes_on_when_asked_for_more(tmp_path: Path) -> None:
    checkpoint = tmp_path / "fit.pt"
    _, report = unbroken("lbfgs, exact", steps=200, min_gain=1e-2, checkpoint=checkpoint)
    assert len(report.history) < 200
    assert "nats per row" in report.stopped
    _, same_again = unbroken("lbfgs, exact", steps=200, min_gain=1e-2, checkpoint=checkpoint)
    assert (len(same_again.history), same_again.stopped) == (len(report.history), report.stopped)
    _, longer = unbroken("lbfgs, exact", steps=len(report.history) + 5, min_gain=0.0, checkpoint=checkpoint)
    assert len(longer.history) == len(report.history) + 5
    assert longer.stopped == "all steps done"


def test_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every k steps, or whenever so many seconds have passed, and at the end; the same for an object used again."""
    written: list[int] = []
    write = pathgp.Checkpoint.write

    def counted(self: pathgp.Checkpoint, content: dict[str, Any], step: int) -> None:
        written.append(step)
        write(self, content, step)

    monkeypatch.setattr(pathgp.Checkpoint, "write", counted)
    checkpoint = pathgp.Checkpoint(tmp_path / "fit.pt", steps=3, seconds=1e9)
    for _ in range(2):
        unbroken("adam, cg", steps=8, checkpoint=checkpoint)
        assert written == [3, 6, 8]
        written.clear()
        (tmp_path / "fit.pt").unlink()
    unbroken("adam, cg", steps=4, checkpoint=pathgp.Checkpoint(tmp_path / "fit.pt", steps=100, seconds=0.0))
    assert written == [1, 2, 3, 4, 4]


def test_a_failed_write_leaves_the_last_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the error is told, the earlier checkpoint is whole, and the model has the last whole step."""
    gp, X, y = worker.problem()
    checkpoint, saves = tmp_path / "fit.pt", []

    def full(number: int) -> None:
        saves.append(number)
        if len(saves) > 3:
            raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        worker.fit(gp, X, y, "adam, cg", checkpoint=pathgp.Checkpoint(checkpoint, steps=1))
    monkeypatch.undo()
    assert files.read(checkpoint)["step"] == 3
    assert [file.name for file in tmp_path.iterdir()] == ["fit.pt"]
    expected = unbroken("adam, cg")[1].history[3].values
    assert {name: value.flatten().tolist() for name, value in gp.hyperparameters().items()} == expected
    worker.fit(gp, X, y, "adam, cg", checkpoint=checkpoint)
    assert same(worker.result(gp), unbroken("adam, cg")[0])
