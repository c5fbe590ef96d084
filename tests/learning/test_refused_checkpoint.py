"""The checkpoint of other data, settings or models, and any other file, is refused and left alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fit_worker as worker
import pathgp
from fit_worker import unbroken
from pathgp.compute import files
from pathgp.kernels import Matern, Scale, SquaredExponential
from pathgp.learning.checkpoint import FORMAT


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
        refused(path, "fit.pt (is not a file|is not a checkpoint|is damaged|is empty|belongs to another fit)")
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
