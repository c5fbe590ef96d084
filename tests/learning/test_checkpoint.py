"""A fit that is killed, interrupted or continued ends as if nothing had happened; foreign files are refused."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import files
from pathgp.kernels import Matern, Scale, SquaredExponential
from pathgp.learning import fitting
from pathgp.learning.checkpoint import FORMAT

WORKER = Path(__file__).with_name("fit_worker.py")
spec = importlib.util.spec_from_file_location("fit_worker", WORKER)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)


@dataclass
class Server:
    """The other process, which forks a child for every fit."""

    process: subprocess.Popen[str]
    folder: Path
    requests: int = 0

    def start(self, settings: str, checkpoint: Path, free: bool = False) -> tuple[int, Path, int]:
        """Begin a fit: its process, the file for its result, and where permissions to go on are written."""
        self.requests += 1
        pipe, result = (self.folder / f"{kind}{self.requests}" for kind in ("pipe", "result"))
        os.mkfifo(pipe)
        permissions = os.open(pipe, os.O_RDWR)
        request = {"settings": settings, "checkpoint": str(checkpoint), "result": str(result), "pipe": str(pipe)}
        self.process.stdin.write(json.dumps(request | {"free": free}) + "\n")
        self.process.stdin.flush()
        word, pid = self.process.stdout.readline().split()
        assert word == "pid"
        return int(pid), result, permissions

    def await_step(self) -> None:
        assert self.process.stdout.readline() == "step\n"

    def await_end(self) -> int:
        """The exit code of the child, steps in between passed over."""
        for line in self.process.stdout:
            if line.startswith("ended"):
                return int(line.split()[1])
        raise AssertionError("the server is gone")

    def whole(self, settings: str, checkpoint: Path) -> dict[str, Any]:
        """A fit without interference, from the checkpoint where there is one."""
        _, result, permissions = self.start(settings, checkpoint, free=True)
        assert self.await_end() == 0
        os.close(permissions)
        return torch.load(result, weights_only=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(WORKER)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Server(process, tmp_path_factory.mktemp("server"))
        process.stdin.close()


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Bit for bit."""
    if a.keys() != b.keys():
        return False
    return all(same(a[k], b[k]) if isinstance(a[k], dict) else torch.equal(a[k], b[k]) for k in a if k != "interrupted")


def unbroken(name: str, **options: Any) -> tuple[dict[str, Any], pathgp.FitReport]:
    gp, X, y = worker.problem()
    report = worker.fit(gp, X, y, name, **options)
    return worker.result(gp), report


@pytest.mark.parametrize("settings", worker.SETTINGS)
def test_kill_at_ten_random_moments(server: Server, tmp_path: Path, settings: str) -> None:
    """SIGKILL at ten moments drawn at random from some steps; bit for bit the result of a run that was left alone."""
    began = time.monotonic()
    expected = server.whole(settings, tmp_path / "unbroken")
    step = (time.monotonic() - began) / worker.STEPS
    checkpoint, source = tmp_path / "killed", random.Random(settings)
    for _ in range(10):
        pid, _, permissions = server.start(settings, checkpoint)
        for _ in range(source.randrange(3)):
            server.await_step()
            os.write(permissions, b".")
        time.sleep(source.uniform(0.0, 1.5 * step))
        os.kill(pid, signal.SIGKILL)
        assert server.await_end() == -signal.SIGKILL
        os.close(permissions)
        if checkpoint.exists():
            files.read(checkpoint)
    done = files.read(checkpoint)["step"]
    assert 1 <= done < worker.STEPS
    assert same(server.whole(settings, checkpoint), expected)
    # What a kill left behind half written lies beside the checkpoint and has harmed nothing.
    assert all(
        file.name.startswith("killed.") for file in tmp_path.iterdir() if file.name not in ("killed", "unbroken")
    )


@pytest.mark.parametrize("settings", ["adam, ap", "lbfgs, cg", "lbfgs, exact"])
def test_ctrl_c_at_a_random_moment(server: Server, tmp_path: Path, settings: str) -> None:
    checkpoint, source = tmp_path / "fit.pt", random.Random(settings)
    pid, file, permissions = server.start(settings, checkpoint)
    for _ in range(5):
        server.await_step()
        os.write(permissions, b".")
    time.sleep(source.uniform(0.0, 0.02))
    os.kill(pid, signal.SIGINT)
    assert server.await_end() == 0
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
        patch.setattr(fitting, "_posterior", lambda *args: signal.default_int_handler(0, None))
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
    assert "nats a row" in report.stopped
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
    """A full disk: the error is told, the earlier checkpoint is whole, and the model is as it was."""
    gp, X, y = worker.problem()
    before, checkpoint, saves = gp.hyperparameters(), tmp_path / "fit.pt", []

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
    assert all(map(torch.equal, gp.hyperparameters().values(), before.values()))
    worker.fit(gp, X, y, "adam, cg", checkpoint=checkpoint)
    assert same(worker.result(gp), unbroken("adam, cg")[0])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The checkpoint of a short fit."""
    path = tmp_path_factory.mktemp("saved") / "fit.pt"
    unbroken("adam, cg", steps=3, checkpoint=path)
    return path.read_bytes()


def refused(path: Path, match: str, change: Callable[[pathgp.GP], object] | None = None, **options: Any) -> None:
    """The fit of the problem refuses the file, without a step, and leaves file and model alone."""
    gp, X, y = worker.problem()
    if change is not None:
        gp = change(gp)
    before, content, seen = gp.hyperparameters(), path.read_bytes(), []
    X, y = options.pop("X", X), options.pop("y", y)
    with pytest.raises(ValueError, match=match):
        worker.fit(gp, X, y, options.pop("settings", "adam, cg"), checkpoint=path, callback=seen.append, **options)
    assert not seen
    assert path.read_bytes() == content
    assert all(map(torch.equal, gp.hyperparameters().values(), before.values()))


def other_data() -> dict[str, dict[str, Tensor]]:
    _, X, y = worker.problem()
    nudged = y.clone()
    nudged[7] += 1e-9
    return {
        "inputs": {"X": X + 0.01 * X.square()},
        "a target": {"y": nudged},
        "rows": {"X": X[:-1], "y": y[:-1]},
        "order": {"X": X.flip(0), "y": y.flip(0)},
        "known noise": {"noise": torch.full_like(y, 0.1)},
        "precision": {"X": X.float()},
    }


@pytest.mark.parametrize("options", [pytest.param(v, id=k) for k, v in other_data().items()])
def test_other_data_are_refused(saved: bytes, tmp_path: Path, options: dict[str, Tensor]) -> None:
    path = tmp_path / "fit.pt"
    path.write_bytes(saved)
    refused(
        path, "belongs to another fit: its data is .* remove the file to start anew, or use another path", **options
    )


OTHER_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "probes": ("estimator", {"samples": 5}),
    "features": ("estimator", {"features": 64}),
    "cold starts": ("estimator", {"warm_start": False}),
    "estimator": ("estimator", {"estimator": "standard"}),
    "learning rate": ("optimiser", {"learning_rate": 0.05}),
    "optimiser": ("optimiser", {"optimiser": "lbfgs"}),
    "solver": ("solver", {"solver": "ap"}),
    "tolerance": ("solver", {"tol": 1e-2}),
    "budget": ("solver", {"max_epochs": 50}),
}


@pytest.mark.parametrize(("name", "options"), OTHER_SETTINGS.values(), ids=OTHER_SETTINGS)
def test_other_settings_are_refused(saved: bytes, tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    path = tmp_path / "fit.pt"
    path.write_bytes(saved)
    refused(path, f"belongs to another fit: its {name} is", **options)


OTHER_MODELS: dict[str, Callable[[pathgp.GP], pathgp.GP]] = {
    "smoothness": lambda gp: pathgp.GP(Scale(Matern(2.5, torch.ones(2))), 0.5, pathgp.means.Constant()),
    "kernel": lambda gp: pathgp.GP(Scale(SquaredExponential(torch.ones(2))), 0.5, pathgp.means.Constant()),
    "length scales": lambda gp: pathgp.GP(Scale(Matern(1.5)), 0.5, pathgp.means.Constant()),
    "mean": lambda gp: pathgp.GP(Scale(Matern(1.5, torch.ones(2))), 0.5),
    "fixed": lambda gp: gp.constrain("noise", fixed=True),
    "bounds": lambda gp: gp.constrain("noise", bounds=(0.1, 1.0)),
    "prior": lambda gp: gp.constrain("noise", prior=pathgp.LogNormal(0.1)),
}


@pytest.mark.parametrize("change", OTHER_MODELS.values(), ids=OTHER_MODELS)
def test_other_models_are_refused(saved: bytes, tmp_path: Path, change: Callable[[pathgp.GP], pathgp.GP]) -> None:
    path = tmp_path / "fit.pt"
    path.write_bytes(saved)
    refused(path, "belongs to another fit: its model is .*Matern", change)


def test_other_formats_are_refused(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "fit.pt"
    path.write_bytes(saved)
    content = files.read(path)
    files.write(path, content | {"pathgp checkpoint": 99})
    refused(path, "has checkpoint format 99, this version writes .* remove the file")


class Intruder:
    """What a malicious file would hold: unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_foreign_files_are_refused_and_never_executed(saved: bytes, tmp_path: Path) -> None:
    path, mark = tmp_path / "fit.pt", tmp_path / "executed"

    def foreign(write: Callable[[], object]) -> None:
        write()
        refused(path, "is not a checkpoint of a pathgp fit|belongs to another fit")
        assert not mark.exists()

    for length in (0, 1, 100, len(saved) // 2, len(saved) - 1):
        foreign(lambda length=length: path.write_bytes(saved[:length]))
    foreign(lambda: path.write_text("a shopping list"))
    foreign(lambda: torch.save({"weights": torch.ones(3)}, path))
    foreign(lambda: torch.save(torch.ones(3), path))
    foreign(lambda: files.write(path, {"pathgp checkpoint": FORMAT}))
    foreign(lambda: torch.save({"pathgp checkpoint": 1, "facts": Intruder(mark)}, path))
    foreign(lambda: path.write_bytes(pickle.dumps(Intruder(mark))))
    pickle.loads(pickle.dumps(Intruder(mark)))
    assert mark.exists()
