"""The first, exact stages of a fit: two initial values of the noise, and the choice by other rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pathgp
from fit_cases import seeded
from pathgp.kernels import Matern, Scale
from pathgp.learning import checkpoint, guard, policy
from pathgp.learning.loop import Fit
from pathgp.learning.policy import FitOptions
from pathgp.learning.report import Step
from pathgp.learning.step_checks import check_step
from pathgp.posterior.conditioning import Settings
from pathgp.solvers.solution import NumericalFailure


@pytest.fixture
def small_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact stages of 40 rows and ten steps, validated on 80 rows."""
    for module in (policy, guard):
        monkeypatch.setattr(module, "GUARD_ROWS", 40)
    monkeypatch.setattr(policy, "EXPLORING_STEPS", 10)
    monkeypatch.setattr(checkpoint, "VALIDATION_ROWS", 80)


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.rand(160, 2, generator=seeded(0), dtype=torch.float64)
    return X, torch.sin(6 * X[:, 0]) + 0.8 * torch.randn(160, generator=seeded(1), dtype=torch.float64)


def _model() -> pathgp.GP:
    return pathgp.GP(Scale(Matern(1.5, 1.0), 1.0), noise=1.0)


def _fit(gp: pathgp.GP, **options: object) -> list[Step]:
    choices = {"estimator": "pathwise", "solver": "cholesky", "samples": 8, "min_gain": 0.0, "steps": 50}
    return gp.fit(*_data(), generator=seeded(2), **choices | options).history


@pytest.mark.usefixtures("small_stages")
def test_two_initial_values_of_the_noise_and_the_better_is_continued() -> None:
    """The second start has seven times the noise of the first; the third stage begins where other rows fit best."""
    history = _fit(_model())
    assert [step.rows for step in history[:31]] == 30 * [40] + [160]
    first, second, third = (history[start] for start in (0, 10, 20))
    assert second.values["noise"][0] == pytest.approx(7.0 * first.values["noise"][0])
    assert second.values["lengthscale"] == pytest.approx(first.values["lengthscale"])
    gp = _model()
    data = gp.prepare_data(*_data())
    rows = guard.Guard.draw(data, 80, seed=1)

    def validate(step: Step) -> float:
        gp.noise = step.values["noise"][0]
        gp.kernel.signal = step.values["signal"][0]
        gp.kernel.kernel.lengthscale = step.values["lengthscale"][0]
        return rows.value(gp, data)

    # Every fifth step is validated, and the end of each stage, which is no step of the history.
    assert validate(third) >= max(validate(step) for step in history[:20:5]) - 0.002


@pytest.mark.usefixtures("small_stages")
def test_fixed_noise_has_one_start() -> None:
    history = _fit(_model().constrain("noise", fixed=True))
    assert {step.values["noise"][0] for step in history} == {1.0}
    assert [step.rows for step in history[:26]] == 25 * [40] + [160]


@pytest.mark.usefixtures("small_stages")
@pytest.mark.parametrize("interrupted_at", [4, 13, 24])
def test_resumes_in_every_exact_stage(interrupted_at: int, tmp_path: Path) -> None:
    """A fit that was interrupted in an exact stage continues as if nothing had happened."""

    def interrupt(step: Step) -> None:
        if step.step == interrupted_at:
            raise KeyboardInterrupt

    expected, file = _fit(_model()), tmp_path / "fit.ckpt"
    with pytest.raises(KeyboardInterrupt):
        _fit(_model(), checkpoint=file, callback=interrupt)
    found = _fit(_model(), checkpoint=file)
    for a, b in zip(expected, found, strict=True):
        assert a.values == b.values


@pytest.mark.usefixtures("small_stages")
@pytest.mark.parametrize("is_better", [True, False])
def test_more_rows_decide_before_a_step_is_rejected(is_better: bool) -> None:
    """The 40 rows of the guard have seen a better value; all rows accept the current one unless it is bad for them."""
    X, y = _data()
    gp = _model()
    data = gp.prepare_data(X, y)
    options = FitOptions(Settings.read("auto", 1e-2, None), estimator="pathwise").resolve(len(y), is_grid=False)
    fit = Fit(gp, data, options, seeded(0))
    gp.noise = 30.0 if is_better else 0.8
    assert fit.guard is not None
    fit.guard = fit.guard.update(5.0, fit.copy_parameters())
    gp.noise = 0.8 if is_better else 30.0
    noise = float(gp.noise.detach())
    if is_better:
        value = check_step(fit)
        assert value == pytest.approx(fit.guard.value(gp, data))
        assert len(fit.guard.rows) == len(y)
        assert fit.guard.best < value
    else:
        with pytest.raises(NumericalFailure, match="of 160 rows fell"):
            check_step(fit)
        assert len(fit.guard.rows) == 40
    assert float(gp.noise.detach()) == noise
