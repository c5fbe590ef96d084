"""A fit that is killed or interrupted at any moment leaves a whole step and ends, resumed, as if left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import fit_worker as worker
import pathgp
from fit_worker import same, unbroken
from pathgp.compute import files
from pathgp.learning import fitting
from subprocesses import Forks

PROGRAM = "import json, sys, fit_worker; fit_worker.child(json.loads(sys.argv[1]))"


@dataclass
class Server:
    """Starts every fit in a process of its own."""

    forks: Forks
    folder: Path
    requests: int = 0

    def start(self, settings: str, checkpoint: Path, free: bool = False) -> tuple[int, Path, int]:
        """Begin a fit: its process, the file for its result, and where permissions to go on are written."""
        self.requests += 1
        pipe, result = (self.folder / f"{kind}{self.requests}" for kind in ("pipe", "result"))
        os.mkfifo(pipe)
        permissions = os.open(pipe, os.O_RDWR)
        request = {"settings": settings, "checkpoint": str(checkpoint), "result": str(result), "pipe": str(pipe)}
        self.forks.start(PROGRAM, [json.dumps(request | {"free": free})])
        word, pid = self.forks.read_line().split()
        assert word == "pid"
        return int(pid), result, permissions

    def await_step(self) -> None:
        assert self.forks.read_line() == "step"

    def whole(self, settings: str, checkpoint: Path) -> dict[str, Any]:
        """A fit without interference, from the checkpoint where there is one."""
        _, result, permissions = self.start(settings, checkpoint, free=True)
        assert self.forks.wait() == 0
        os.close(permissions)
        return torch.load(result, weights_only=True)


@pytest.fixture(scope="module")
def server(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Server:
    return Server(forks, tmp_path_factory.mktemp("server"))


@pytest.mark.parametrize("settings", worker.SETTINGS)
def test_kill_at_five_random_moments(server: Server, tmp_path: Path, settings: str) -> None:
    """SIGKILL at five moments drawn at random from some steps; bit for bit the result of a run that was left alone."""
    began = time.monotonic()
    expected = server.whole(settings, tmp_path / "unbroken")
    step = (time.monotonic() - began) / worker.STEPS
    checkpoint, source = tmp_path / "killed", random.Random(settings)
    for _ in range(5):
        pid, _, permissions = server.start(settings, checkpoint)
        for _ in range(source.randrange(3)):
            server.await_step()
            os.write(permissions, b".")
        time.sleep(source.uniform(0.0, 1.5 * step))
        os.kill(pid, signal.SIGKILL)
        assert server.forks.wait() == -signal.SIGKILL
        os.close(permissions)
        if checkpoint.exists():
            files.read(checkpoint)
    done = files.read(checkpoint)["step"]
    assert 1 <= done < worker.STEPS
    assert same(server.whole(settings, checkpoint), expected)
    # What a kill left behind half written is removed by the next one that writes.
    assert {file.name for file in tmp_path.iterdir()} == {"killed", "unbroken"}


@pytest.mark.parametrize("settings", ["adam, ap", "lbfgs, cg", "lbfgs, exact"])
def test_ctrl_c_at_a_random_moment(server: Server, tmp_path: Path, settings: str) -> None:
    checkpoint, source = tmp_path / "fit.pt", random.Random(settings)
    pid, file, permissions = server.start(settings, checkpoint)
    for _ in range(5):
        server.await_step()
        os.write(permissions, b".")
    time.sleep(source.uniform(0.0, 0.02))
    os.kill(pid, signal.SIGINT)
    assert server.forks.wait() == 0
    os.close(permissions)
    left = torch.load(file, weights_only=True)
    assert left["interrupted"]
    history = files.read(checkpoint)["history"]
    assert 5 <= len(history) <= 6
    gp, _, _ = worker.problem()
    gp.load_state_dict(left["hyperparameters"])
    assert {name: value.flatten().tolist() for name, value in gp.hyperparameters().items()} == history[-1]["values"]
    assert ("paths" in left) == ("exact" not in settings)
    assert same(server.whole(settings, checkpoint), server.whole(settings, tmp_path / "unbroken"))


def stop_at(step: int) -> Callable[[Any], None]:
    def callback(record: Any) -> None:
        if record.step == step:
            raise KeyboardInterrupt

    return callback


def test_sigterm_leaves_the_checkpoint(tmp_path: Path) -> None:
    """How batch systems and torchrun end a program; the interval of the checkpoint has not passed."""
    checkpoint = pathgp.Checkpoint(tmp_path / "fit.pt", steps=100)

    def callback(record: Any) -> None:
        if record.step == 3:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit, match="143"):
        unbroken("adam, ap", checkpoint=checkpoint, callback=callback)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert files.read(checkpoint.path)["step"] == 4
    assert same(unbroken("adam, ap", checkpoint=checkpoint)[0], unbroken("adam, ap")[0])


def test_sigterm_does_not_end_the_writing_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = pathgp.Checkpoint(tmp_path / "fit.pt", steps=100)
    monkeypatch.setattr(os, "fsync", lambda number: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        unbroken("adam, ap", checkpoint=checkpoint, callback=stop_at(3))
    assert files.read(checkpoint.path)["step"] == 4


def test_a_checkpoint_that_cannot_be_written_does_not_hide_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").write_text("a file where a folder should be")
    checkpoint = pathgp.Checkpoint(tmp_path / "folder" / "fit.pt", steps=100)
    monkeypatch.setattr(pathgp.Checkpoint, "read", lambda self, facts, mean: None)
    with pytest.raises(KeyboardInterrupt) as caught:
        unbroken("adam, ap", checkpoint=checkpoint, callback=stop_at(3))
    assert "the checkpoint could not be written" in caught.value.__notes__[0]


def test_a_handler_of_the_program_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        monkeypatch.setattr(os, "fsync", lambda number: signal.raise_signal(signal.SIGTERM))
        unbroken("adam, ap", checkpoint=tmp_path / "fit.pt", steps=2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


@pytest.mark.parametrize("warm_start", [True, False], ids=["warm", "cold"])
def test_an_interrupted_fit_leaves_a_posterior(warm_start: bool) -> None:
    """The posterior of the last whole step: that of `condition` at its hyperparameters, up to the tolerance."""
    gp, X, y = worker.problem()
    with pytest.raises(KeyboardInterrupt):
        worker.fit(gp, X, y, "adam, cg", warm_start=warm_start, callback=stop_at(7), tol=1e-6)
    assert gp.noise.item() != 0.5
    exact = gp.condition(X, y, solver="cholesky", samples=0)
    assert torch.allclose(gp.posterior.mean(X), exact.mean(X), atol=1e-4)
    assert gp.posterior.num_samples == 4
    assert gp.posterior.report.worst_residual < 1e-4
    assert torch.equal(gp.posterior.model.noise, gp.noise)


def test_interrupted_before_the_first_step_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    gp, X, y = worker.problem()
    before = gp.hyperparameters()

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pathgp.learning.estimators.Iterative.evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        worker.fit(gp, X, y, "adam, cg")
    assert all(map(torch.equal, gp.hyperparameters().values(), before.values()))


def test_interrupted_in_the_last_solve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All steps are done: their hyperparameters stay, and resuming makes up for the solve."""
    checkpoint = tmp_path / "fit.pt"
    gp, X, y = worker.problem()
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "solve_last", lambda *args: signal.default_int_handler(0, None))
        with pytest.raises(KeyboardInterrupt):
            worker.fit(gp, X, y, "adam, cg", steps=5, checkpoint=checkpoint)
    values = files.read(checkpoint)["history"][-1]["values"]
    assert gp.noise.item() == values["noise"][0]
    assert gp.posterior.num_samples == 4
    worker.fit(gp, X, y, "adam, cg", steps=5, checkpoint=checkpoint)
    assert same(worker.result(gp), unbroken("adam, cg", steps=5)[0])


def test_resuming_after_ctrl_c_goes_on_from_the_model_left(tmp_path: Path) -> None:
    """The same object again: the checkpoint counts, not the hyperparameters the model has meanwhile."""
    gp, X, y = worker.problem()
    checkpoint = tmp_path / "fit.pt"
    with pytest.raises(KeyboardInterrupt):
        worker.fit(gp, X, y, "lbfgs, ap", checkpoint=checkpoint, callback=stop_at(6))
    seen: list[int] = []
    report = worker.fit(gp, X, y, "lbfgs, ap", checkpoint=checkpoint, callback=lambda step: seen.append(step.step))
    assert seen == list(range(7, worker.STEPS))
    expected, whole = unbroken("lbfgs, ap")
    assert same(worker.result(gp), expected)
    assert [step.values for step in report.history] == [step.values for step in whole.history]
    assert [step.gain for step in report.history] == [step.gain for step in whole.history]
