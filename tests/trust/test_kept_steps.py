"""A fit never loses its steps: periodic kernels that outgrow their features, errors, other means, killed writers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fit_worker as worker
import pathgp
from pathgp.compute import files
from pathgp.kernels import Kernel, Linear, Matern, Periodic, Scale, SquaredExponential, Tanimoto, Task
from pathgp.pathwise import PriorPaths
from plain_fits import plain_fit
from statistics_tools import assert_mean_and_covariance, assert_unbiased
from subprocesses import Forks


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(d: int, n: int = 60) -> tuple[Tensor, Tensor]:
    generator = seeded()
    X = 5.0 * torch.rand(n, d, generator=generator, dtype=torch.float64)
    return X, torch.randn(n, generator=generator, dtype=torch.float64)


# Columns, and a kernel.
KERNELS: dict[str, tuple[int, Callable[[], Kernel]]] = {
    "alone": (1, lambda: Scale(Periodic())),
    "from a long length scale": (1, lambda: Scale(Periodic(1.0, 3.0))),
    "times Linear": (1, lambda: Scale(Periodic()) * Linear()),
    "times Matern": (1, lambda: Scale(Periodic()) * Matern(1.5, 3.0)),
    "plus Matern": (1, lambda: Scale(Periodic()) + Scale(Matern(1.5, 3.0))),
    "two inputs": (2, lambda: Scale(Periodic(1.0, torch.ones(2)))),
    "one per input": (2, lambda: Scale(Periodic(active_dims=[0])) * Periodic(active_dims=[1])),
}


def downhill(name: str) -> tuple[pathgp.GP, Tensor, Tensor, dict[str, Any]]:
    """A fit whose periodic length scales are driven from one to a hundredth, by their prior."""
    d, kernel = KERNELS[name]
    gp = pathgp.GP(kernel(), 0.5)
    for full in gp.hyperparameters():
        if full.endswith("lengthscale") and full.replace("lengthscale", "period") in gp.hyperparameters():
            gp.constrain(full, prior=pathgp.LogNormal(0.01, 0.05))
    options = {"steps": 40, "learning_rate": 0.3, "samples": 4, "features": 512, "min_gain": 0.0, "tol": 1e-6}
    return gp, *data(d), options | {"generator": seeded(1)}


@pytest.mark.parametrize("name", KERNELS)
def test_periodic_fits_do_all_their_steps(name: str) -> None:
    """The series is outgrown, more than once, and at last given up for random features."""
    gp, X, y, options = downhill(name)
    report = plain_fit(gp, X, y, **options)
    assert len(report.history) == 40
    smallest = min(min(values) for key, values in report.values.items() if key.endswith("lengthscale"))
    assert smallest < 0.05
    assert gp.posterior.paths(X[:3]).shape == (4, 3)
    # The posterior is that of the kernel, not of features that were left behind.
    expected = gp.condition(X, y, solver="cholesky", samples=0)
    torch.testing.assert_close(gp.posterior.mean(X), expected.mean(X), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["alone", "times Matern", "two inputs"])
def test_periodic_fits_resume_to_the_same_end(name: str, tmp_path: Path) -> None:
    """Interrupted after the features were rebuilt: bit for bit the end of a fit that was left alone."""
    checkpoint = tmp_path / "fit.pt"

    def stop(step: pathgp.learning.report.Step) -> None:
        if step.step == 20:
            raise KeyboardInterrupt

    whole, X, y, options = downhill(name)
    plain_fit(whole, X, y, **options)
    gp, X, y, options = downhill(name)
    with pytest.raises(KeyboardInterrupt):
        plain_fit(gp, X, y, checkpoint=checkpoint, callback=stop, **options)
    again, X, y, options = downhill(name)
    plain_fit(again, X, y, checkpoint=checkpoint, **options)
    for key, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
    assert torch.equal(whole.posterior.paths(X), again.posterior.paths(X))


@pytest.mark.parametrize("name", KERNELS)
def test_rebuilt_paths_change_by_what_was_missing(name: str) -> None:
    """Just beyond the end of a series the functions stay what they were, so that warm starts are worth something."""
    d, make = KERNELS[name]
    kernel, (X, _) = make().requires_grad_(False), data(d)
    prior = PriorPaths.draw(kernel, 8, 512, d, seeded(1))
    periodic = [part for part in kernel.modules() if isinstance(part, Periodic)]
    scale = 1.0
    while prior.features.suffices:
        scale *= 0.97
        before = prior(X)
        for part in periodic:
            part.lengthscale = scale * torch.ones_like(part.lengthscale)
    followed = prior.follow(seeded(2))
    assert followed.features.suffices
    change = float((followed(X) - before).square().mean() / before.square().mean())
    # Independent draws are twice the variance apart. In a product the frequencies are dealt out anew; in two dimensions
    # there is no room for more harmonics, and all is drawn anew.
    limits = {"times Matern": 1.6, "plus Matern": 0.3, "two inputs": 4.0, "one per input": 4.0}
    assert change < limits.get(name, 0.05)
    assert followed.follow(seeded(3)) is followed


CIRCLES: dict[str, Callable[[], Kernel]] = {
    "alone": lambda: Periodic(torch.tensor([1.3, 0.7]), torch.tensor([0.1, 0.3]), active_dims=[0, 1]),
    "tiny": lambda: Periodic(1.3, 1e-7, active_dims=[0]),
    "times stationary": lambda: Periodic(1.3, 0.05, active_dims=[0]) * SquaredExponential(0.9, active_dims=[0, 1]),
    "times finite": lambda: Periodic(1.3, 0.05, active_dims=[1]) * Task(3, 2, active_dims=[2]),
    "times Tanimoto": lambda: Periodic(1.3, 0.05, active_dims=[1]) * Tanimoto(active_dims=[3, 4]),
    "twice": lambda: Periodic(1.3, 0.2, active_dims=[0]) * Periodic(0.6, 0.2, active_dims=[1]),
    "plus": lambda: Scale(Periodic(1.3, 0.1, active_dims=[0, 1]), 0.8) + Matern(1.5, 0.5, active_dims=[0]),
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", CIRCLES)
def test_periodic_features_without_room_for_a_series_are_unbiased(name: str) -> None:
    """By t-tests; false alarms one in a million each."""
    generator = seeded()
    real = 0.15 * torch.randn(6, 2, generator=generator, dtype=torch.float64)
    X = torch.cat([real, torch.randint(0, 3, (6, 3), generator=generator)], 1)
    kernel = CIRCLES[name]().requires_grad_(False)
    phi = kernel.features(48, seeded(1), paths=600, dim=5)
    assert phi.num <= 48
    features = phi(X)
    assert_unbiased(features @ features.transpose(1, 2), kernel(X))
    W = torch.randn(600, phi.num, generator=generator, dtype=torch.float64)
    values = phi.weighted(X, W)
    torch.testing.assert_close(values, torch.einsum("snf,sf->sn", features, W))
    assert_mean_and_covariance(values, torch.zeros(6, dtype=torch.float64), kernel(X), gaussian=False, rtol=1e-3)


def test_circles_are_differentiable_and_restored() -> None:
    kernel = CIRCLES["times stationary"]()
    phi = kernel.features(16, seeded(1), paths=2, dim=2)
    X = torch.rand(3, 2, generator=seeded(), dtype=torch.float64).requires_grad_()
    W = torch.randn(2, phi.num, generator=seeded(2), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *_: phi.weighted(X, W), (X, *kernel.parameters()), atol=1e-4)
    restored = type(phi).from_state(kernel, phi.state())
    assert torch.equal(restored(X), phi(X))


class Trouble(Exception):
    pass


def fail_at(step: int) -> Callable[[Any], None]:
    def callback(record: Any) -> None:
        if record.step == step:
            raise Trouble("something of the user's")

    return callback


@pytest.mark.parametrize("settings", ["adam, cg", "lbfgs, exact"])
def test_an_error_keeps_the_steps_before_it(settings: str, tmp_path: Path) -> None:
    checkpoint = pathgp.Checkpoint(tmp_path / "fit.pt", steps=100)
    gp, X, y = worker.problem()
    with pytest.raises(Trouble) as caught:
        worker.fit(gp, X, y, settings, checkpoint=checkpoint, callback=fail_at(7))
    assert "hyperparameters of step 7" in caught.value.__notes__[0]
    history = files.read(checkpoint.path)["history"]
    assert len(history) == 8
    assert {name: value.flatten().tolist() for name, value in gp.hyperparameters().items()} == history[-1]["values"]
    assert (gp._posterior is not None) == ("exact" not in settings)
    again, _, _ = worker.problem()
    worker.fit(again, X, y, settings, checkpoint=checkpoint)
    assert worker.same(worker.result(again), worker.unbroken(settings)[0])


def test_an_error_in_the_middle_of_a_step_keeps_the_steps_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory, say, which also stands in the way of a posterior."""
    from pathgp.learning.estimators import Iterative

    gp, X, y = worker.problem()
    whole = Iterative.evaluate
    calls: list[int] = []

    def evaluate(self: Iterative, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            monkeypatch.setattr("pathgp.posterior.conditioning.Settings.solve", evaluate)
            raise RuntimeError("out of memory")
        return whole(self, *args)

    monkeypatch.setattr(Iterative, "evaluate", evaluate)
    seen: list[Any] = []
    with pytest.raises(RuntimeError, match="out of memory"):
        worker.fit(gp, X, y, "adam, cg", callback=seen.append)
    assert len(seen) == 5
    assert {name: value.flatten().tolist() for name, value in gp.hyperparameters().items()} == seen[-1].values


def test_an_error_in_a_later_start_keeps_the_start_before_it() -> None:
    gp, X, y = worker.problem()
    expected, _, _ = worker.problem()
    worker.fit(expected, X, y, "adam, cg", steps=3)
    seen: list[int] = []

    def callback(step: Any) -> None:
        seen.append(step.step)
        if seen == [0, 1, 2, 0, 1]:
            raise Trouble

    with pytest.raises(Trouble) as caught:
        worker.fit(gp, X, y, "adam, cg", steps=3, starts=2, callback=callback)
    assert "hyperparameters of start 1" in caught.value.__notes__[0]
    assert worker.same(worker.result(gp), worker.result(expected))


class Wave(nn.Module):
    """A mean whose repr says nothing about its frequency."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.frequency = frequency
        self.size = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, X: Tensor) -> Tensor:
        return self.size[0] * torch.sin(self.frequency * X[:, 0]) + self.size[1] * X[:, 1]


def slope(X: Tensor) -> Tensor:
    return X[:, 0]


def steeper(X: Tensor) -> Tensor:
    return 1.001 * X[:, 0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (slope, steeper),
        (lambda X: X[:, 0], lambda X: X[:, 1]),
        (0.1234567, 0.1234569),
        (Wave(2.0), Wave(3.0)),
        (2.0, lambda X: 0.0 * X[:, 0]),
    ],
)
def test_a_checkpoint_of_another_mean_is_refused(first: Any, second: Any, tmp_path: Path) -> None:
    checkpoint, (X, y) = tmp_path / "fit.pt", data(2)
    settings: dict[str, Any] = {"steps": 2, "samples": 4, "checkpoint": checkpoint}
    plain_fit(pathgp.GP(Matern(1.5), 0.5, mean=first), X, y, **settings, generator=seeded())
    content = checkpoint.read_bytes()
    gp = pathgp.GP(Matern(1.5), 0.5, mean=second)
    before = gp.hyperparameters()
    with pytest.raises(ValueError, match=r"belongs to another fit: its m(ean function|odel).* remove the file"):
        plain_fit(gp, X, y, **settings, generator=seeded())
    assert checkpoint.read_bytes() == content
    assert all(map(torch.equal, gp.hyperparameters().values(), before.values()))
    # The same one goes on.
    report = plain_fit(pathgp.GP(Matern(1.5), 0.5, mean=first), X, y, **settings | {"steps": 4}, generator=seeded())
    assert len(report.history) == 4


def test_a_checkpoint_of_another_fixed_value_is_refused(tmp_path: Path) -> None:
    checkpoint, (X, y) = tmp_path / "fit.pt", data(2)
    for noise in (0.5, 0.4):
        gp = pathgp.GP(Scale(Matern(1.5)), noise).constrain("noise", fixed=True)
        if noise == 0.5:
            plain_fit(gp, X, y, steps=2, samples=4, checkpoint=checkpoint)
            continue
        with pytest.raises(ValueError, match=r"its model is .*noise fixed at 0\.5.*here it is .*noise fixed at 0\.4"):
            plain_fit(gp, X, y, steps=2, samples=4, checkpoint=checkpoint)


WRITER = """
import os, sys, time
from pathgp.compute import files
with files.replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print(sys.argv[2], os.getpid(), flush=True)
    time.sleep(60)
"""


def test_what_a_killed_writer_left_is_removed_and_a_living_one_is_left_alone(forks: Forks, tmp_path: Path) -> None:
    path = tmp_path / "fit.pt"
    bystanders = [tmp_path / "fit.pt.tmp", tmp_path / "fit.pt.1", tmp_path / f"other.pt.{'0' * 32}.tmp"]
    for file in bystanders:
        file.write_text("not ours")

    def unfinished() -> set[Path]:
        return set(tmp_path.glob("fit.pt.????????????????????????????????.tmp"))

    forks.start(WRITER, [path, 0], [path, 1])
    writers = sorted(tuple(map(int, forks.read_line().split())) for _ in range(2))
    unfinished_at = [len(unfinished())]
    for number, pid in writers:
        os.kill(pid, signal.SIGKILL)
        assert forks.wait() == -signal.SIGKILL
        files.write(path, {"content": number})
        unfinished_at.append(len(unfinished()))
    assert unfinished_at == [2, 1, 0]
    assert files.read(path) == {"content": 1}
    assert all(file.read_text() == "not ours" for file in bystanders)
