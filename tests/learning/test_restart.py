"""Fits of rows with heavy-tailed errors start again if they predict worse than the average."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
from fit_cases import seeded
from pathgp.kernels import Matern, Scale
from pathgp.learning.report import Step

COLUMNS = 6


def _draw_rows(seed: int, degrees: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """300 rows to learn from and 2,000 others: a smooth function plus errors from a t distribution."""
    rng = np.random.default_rng(seed)
    X = rng.random((2300, COLUMNS))
    y = np.sin(6.0 * X[:, 0]) + X[:, 1] ** 2 + rng.standard_t(degrees, size=len(X))
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    return X[:300], y[:300], X[300:], y[300:]


def _model() -> pathgp.GP:
    return pathgp.GP(Scale(Matern(2.5, torch.ones(COLUMNS)), 1.0), noise=0.1, standardise=True)


@pytest.mark.parametrize(("seed", "steps"), [(1, None), (3, None), (1, 10)])
def test_heavy_tails_do_not_make_predictions_worse_than_the_average(seed: int, steps: int | None) -> None:
    """With seed 3 the fit from large noise is as bad, and the model keeps the initial values of that fit."""
    X, y, X_test, y_test = _draw_rows(seed, 1.6)
    gp = _model()
    report = gp.fit(X, y, steps=steps, samples=4, generator=seeded(0))
    error = (gp.posterior.mean(X_test) - y_test).square().mean().sqrt()
    assert error < 1.03 * (y.mean() - y_test).square().mean().sqrt()
    assert "started again from large noise" in report.note


def test_fits_with_normal_errors_values_of_the_user_or_fixed_noise_do_not_start_again() -> None:
    normal, heavy = _draw_rows(1, 100.0), _draw_rows(1, 1.6)
    assert "again" not in _model().fit(*normal[:2], samples=4, generator=seeded(0)).note
    for gp, initialise in ((_model(), "model"), (_model().constrain("noise", fixed=True), "auto")):
        report = gp.fit(*heavy[:2], initialise=initialise, steps=30, samples=4, generator=seeded(0))
        assert "again" not in report.note


@pytest.mark.filterwarnings("ignore:.* of y are equal", "ignore:y has one value")
def test_few_rows_and_equal_values() -> None:
    for X, y in ((torch.rand(1, 2), torch.ones(1)), (torch.rand(9, 2), torch.ones(9))):
        gp = pathgp.GP(Scale(Matern(2.5, 1.0), 1.0), noise=0.1, standardise=True)
        assert "again" not in gp.fit(X, y, steps=3, samples=4, generator=seeded(0)).note
    # The average of equal values has no error: without standardisation every prediction is worse than it.
    X = torch.rand(40, 2, generator=seeded(0), dtype=torch.float64)
    gp = pathgp.GP(Scale(Matern(2.5, torch.ones(2)), 1.0), noise=0.1)
    with pytest.warns(UserWarning, match="all 40 values of y are equal"):
        report = gp.fit(X, torch.ones(40), samples=4)
    assert "worse than the average" not in report.note + report.warning


def test_a_fit_that_stays_worse_than_the_average_says_so(tmp_path: Path) -> None:
    """The kernel is too short to learn the level of y, which every start then predicts as zero."""
    X = torch.rand(60, 2, generator=seeded(1), dtype=torch.float64)
    y = 3.0 + torch.randn(60, generator=seeded(2), dtype=torch.float64)
    gp = pathgp.GP(Scale(Matern(2.5, 1e-3), 1.0), noise=0.1).constrain("lengthscale", fixed=True)
    with pytest.warns(UserWarning, match=r"left-out rows are worse than the average of y.*; take more steps") as caught:
        report = gp.fit(X, y, steps=5, starts=2, samples=4, generator=seeded(0))
    assert [str(warning.message) for warning in caught] == [report.warning]
    assert report.warning in repr(report)
    gp.posterior.to_html(tmp_path / "page.html", fit=report)
    assert "worse than the average of y, from large noise too" in (tmp_path / "page.html").read_text(encoding="utf-8")
    for targets, rows in ((y - y.mean(), 60), (y, 19)):
        assert gp.fit(X[:rows], targets[:rows], steps=5, samples=4, generator=seeded(0)).warning == ""


def test_interrupted_repetition_keeps_its_own_values() -> None:
    """Not those of the first fit, which predicts worse than the average."""
    X, y, _, _ = _draw_rows(1, 1.6)
    gp, steps = _model(), []

    def interrupt_the_second_fit(step: Step) -> None:
        steps.append(step.step)
        if steps.count(2) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gp.fit(X, y, samples=4, generator=seeded(0), callback=interrupt_the_second_fit)
    # The second fit starts from large noise.
    assert float(gp.noise.detach()) > 0.5
