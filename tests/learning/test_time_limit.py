"""Fits with a time limit, on a clock that only products advance: they end in time, and say which rows they used."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import pathgp
from fit_cases import model, seeded
from pathgp.compute.hardware import rates
from pathgp.kernels import Matern, Scale
from pathgp.learning import fitting, last_solve, pace, policy, progress
from pathgp.learning.policy import FitOptions, Stage, make_stages
from pathgp.learning.report import Step
from pathgp.learning.timing import FitCosts, ImaginedOperator, describe_seconds, estimate_costs
from pathgp.operators import KernelOperator
from pathgp.posterior.conditioning import Settings

CPU = torch.device("cpu")
N = 600
X = torch.rand(N, 2, generator=seeded(), dtype=torch.float64)
KNOWN = 0.05 + 0.2 * torch.rand(N, generator=seeded(1), dtype=torch.float64)
Y = torch.sin(6.0 * X[:, 0]) + X[:, 1] + KNOWN * torch.randn(N, generator=seeded(2), dtype=torch.float64)
OPTIONS = {"optimiser": "adam", "samples": 4, "features": 16, "min_gain": 0.0, "solver": "cg"}


class Clock:
    """Seconds that pass only while H is multiplied: ``pace`` of them for each entry of a product."""

    def __init__(self, pace: float) -> None:
        self.now, self.pace = 1000.0, pace

    def __call__(self) -> float:
        return self.now

    def passes(self, entries: float) -> None:
        self.now += self.pace * entries


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """One second for a product with all rows; the smallest subset has 60 rows."""
    found = Clock(1.0 / N**2)
    product: Callable[[KernelOperator, Tensor], Tensor] = KernelOperator.__matmul__

    def slow(self: KernelOperator, V: Tensor) -> Tensor:
        found.passes(self.shape[0] ** 2)
        return product(self, V)

    monkeypatch.setattr(KernelOperator, "__matmul__", slow)
    monkeypatch.setattr(time, "perf_counter", found)
    monkeypatch.setattr(fitting, "MEASURE_FROM", math.inf)
    monkeypatch.setattr(pace, "GUARD_ROWS", 60)
    monkeypatch.setattr(last_solve, "GUARD_ROWS", 60)
    return found


def imagined_costs(n: int, d: int = 3, **options: Any) -> FitCosts:
    chosen = FitOptions(Settings.read("auto", 1e-2, None), **options).resolve(n, is_grid=False)
    operator = ImaginedOperator((n, n), torch.float64, CPU, "auto", 8e9, n**2, 1)
    return estimate_costs(d, d + 2, chosen, operator, rates(CPU, torch.float64))


def test_field_products_without_room_for_the_preconditioner() -> None:
    """The costs are those of alternating projections then; predicting them does not fail."""
    n, options = 90_000, FitOptions(Settings.read("auto", 0.01, None)).resolve(90_000, is_grid=False)
    roomy, tight = (
        ImaginedOperator((n, n), torch.float64, CPU, "auto", memory, n**2, 1, structured=(0.01, "field"))
        for memory in (8e9, 1e6)
    )
    r = rates(CPU, torch.float64)
    assert estimate_costs(2, 4, options, tight, r).solve(n, 9.0) > estimate_costs(2, 4, options, roomy, r).solve(n, 9.0)


def step(rows: int, epochs: float, solver_seconds: float, seconds: float, method: str = "AP") -> Step:
    values: dict[str, Any] = {"gain": 0.0, "log_likelihood": None, "values": {}, "residual": 0.0, "probe_residual": 0.0}
    facts = {"step": 0, "rows": rows, "epochs": epochs, "solver": method, "status": "CONVERGED", "method": method}
    return Step(**values, **facts, solver_seconds=solver_seconds, seconds=seconds)


# Predictions


def test_observed_seconds_correct_predictions() -> None:
    """On a machine that solves three times and does the rest twice as slowly as predicted, so does every prediction."""
    costs = imagined_costs(50_000)
    steps = [
        step(5000, 6.0, 3.0 * costs.solve(5000, 6.0), 3.0 * costs.solve(5000, 6.0) + 2.0 * costs.rest(5000)),
        step(5000, 2.0, 3.0 * costs.solve(5000, 2.0), 3.0 * costs.solve(5000, 2.0) + 2.0 * costs.rest(5000)),
    ]
    found = costs.observe(steps)
    assert found.solve(50_000, 4.0) == pytest.approx(3.0 * costs.solve(50_000, 4.0))
    assert found.rest(20_000) == pytest.approx(2.0 * costs.rest(20_000))
    assert (found.first_epochs, found.later_epochs) == (6.0, 2.0)
    assert found.observe(steps).solve_factor == found.solve_factor
    exact = costs.observe([step(1000, 0.0, 0.0, 9.0, ""), *[step(1000, 0.0, 0.0, 0.5, "")] * 3])
    assert exact.step(1000, exact=True) == pytest.approx(0.5)


def test_predictions_add_up() -> None:
    costs = imagined_costs(24_000)
    stages = (Stage(1000, 50, exact=True), Stage(3000, 2), Stage(24_000, 1))
    exact, coarse, fine = (costs.step(s.rows, exact=s.exact) for s in stages)
    first = [costs.step(s.rows, is_first=True, exact=s.exact) for s in stages]
    # The last stage may take the 5 steps that are left, and 11 are usual.
    last = costs.last_solve(24_000, is_first=False)
    expected = 45 * exact + first[0] + coarse + first[1] + 4 * fine + first[2] + last
    assert costs.predict(stages, 24_000) == pytest.approx(expected)
    # In the second stage, one step taken, two left for the whole fit.
    left = coarse + first[2] + costs.last_solve(24_000, is_first=False)
    assert costs.predict(stages, 24_000, stage=1, taken=1, left=2) == pytest.approx(left)
    assert costs.predict(stages[:2], 24_000, stage=1, taken=2, left=0) == pytest.approx(costs.last_solve(24_000))


def test_the_largest_number_of_rows_within_a_time() -> None:
    costs = imagined_costs(10**6)
    for seconds in (1.0, 100.0, 10_000.0):
        rows = costs.rows_within(seconds, 1000)
        assert costs.last_solve(rows) <= seconds < costs.last_solve(int(1.02 * rows))
    assert costs.rows_within(1e-9, 1000) == 1000
    assert costs.rows_within(math.inf, 1000) == 10**6


@pytest.mark.parametrize("columns", [3, 4])
def test_a_plan_agrees_with_the_fit(columns: int) -> None:
    """Also in up to three columns, where the fit uses Vecchia's likelihood."""
    n = 6000
    A = torch.rand(n, columns, generator=seeded(), dtype=torch.float64)
    gp = pathgp.GP(Scale(Matern(1.5, [1.0] * columns)))
    settings = Settings.read("auto", 1e-2, None, pathgp.Compute(memory=8e9))
    options = FitOptions(settings).resolve(n, is_grid=False, is_field=columns == 3)
    costs = fitting.predict_costs(gp, gp.prepare_data(A, A[:, 0]), options)
    planned = pathgp.plan(n, columns, dtype=torch.float64, memory=8e9).fit
    assert planned.stages == make_stages(n, options)
    assert planned.seconds == pytest.approx(costs.predict(planned.stages, n))


def test_durations() -> None:
    assert [describe_seconds(s) for s in (0.2, 41.2, 100.0, 7200.0, 3.2e6)] == [
        "1 s",
        "41 s",
        "2 min",
        "2 h",
        "37 days",
    ]


# Limits


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_a_time_limit_is_positive(value: float) -> None:
    with pytest.raises(ValueError, match="time_limit must be a positive, finite number of seconds, got"):
        model().fit(X, Y, time_limit=value)


@pytest.mark.parametrize("value", [True, "60", [60]])
def test_a_time_limit_is_a_number(value: Any) -> None:
    with pytest.raises(TypeError, match="time_limit must be a number of seconds, got"):
        model().fit(X, Y, time_limit=value)


def fit(limit: float | None, **options: Any) -> tuple[pathgp.GP, pathgp.FitReport]:
    gp = model()
    options = OPTIONS | {"estimator": "pathwise", "steps": 8, "generator": seeded(5)} | options
    return gp, gp.fit(X, Y, noise=KNOWN, time_limit=limit, **options)


def test_with_enough_time_a_limit_changes_nothing() -> None:
    (limited, report), (free, whole) = fit(1e6), fit(None)
    assert torch.equal(limited.posterior.mean(X), free.posterior.mean(X))
    assert [s.values for s in report.history] == [s.values for s in whole.history]
    assert report.condition.subset == ""
    assert report.condition.rows == N


@pytest.mark.parametrize("limit", [60.0, 200.0])
def test_a_fit_ends_within_its_limit(clock: Clock, limit: float) -> None:
    """The table of rates is off by a factor of thousands here: the fit learns the pace from its steps."""
    began = clock.now
    gp, report = fit(limit, steps=100)
    took = clock.now - began
    assert 0.3 * limit < took <= limit
    assert report.stopped == "time limit"
    condition = gp.posterior.report
    assert condition.solution.converged
    assert len(gp.posterior.system.X) == condition.rows
    assert condition.rows == N


def test_too_little_time_for_all_rows(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The posterior of a subset is that of `condition` on it, with the known noise of its rows."""
    # Rates at which predictions are right: an epoch of 600 rows and 5 columns in one second.
    slow = replace(rates(CPU, torch.float64), multiply=2 * N**2 * 5.0, read=8.0 * N**2)
    monkeypatch.setattr(fitting, "rates", lambda *args: slow)
    began = clock.now
    gp, report = fit(20.0, steps=100, tol=1e-4)
    assert clock.now - began <= 20.0
    condition = gp.posterior.report
    assert 60 <= condition.rows < N
    expected = f"conditioned on {condition.rows} of 600 rows: time limit"
    assert condition.subset == expected
    assert expected in repr(report)
    assert expected in repr(condition)
    rows = torch.nonzero((X.unsqueeze(1) == gp.posterior.X).all(2).any(1)).flatten()
    assert len(rows) == condition.rows
    exact = gp.condition(X[rows], Y[rows], KNOWN[rows], solver="cholesky", samples=0)
    assert torch.allclose(gp.posterior.mean(X), exact.mean(X), atol=1e-3)


def test_a_solve_that_does_not_end_leaves_the_fallback(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger solve is slower than all before it."""
    solve_subset = last_solve._solve_subset

    def slower(running: Any, state: Any, count: int, *options: Any) -> Any:
        clock.pace *= 1.0 if count < N else 100.0
        return solve_subset(running, state, count, *options)

    monkeypatch.setattr(last_solve, "_solve_subset", slower)
    gp, report = fit(400.0, steps=1, estimator="exact")
    condition = gp.posterior.report
    assert condition.rows == N // 4
    assert condition.solution.converged
    assert "the solve on 600 rows did not end in time" in condition.solution.note
    assert report.condition.subset


def test_a_resumed_fit_gets_the_limit_anew(clock: Clock, tmp_path: Any) -> None:
    file = tmp_path / "fit.pt"
    _, first = fit(100.0, steps=100, checkpoint=file)
    _, second = fit(100.0, steps=100, checkpoint=file)
    assert first.stopped == second.stopped == "time limit"
    assert len(second.history) > len(first.history)
    assert [s.values for s in second.history[: len(first.history)]] == [s.values for s in first.history]


def test_a_grid_takes_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells, whatever the limit; a limit that cannot be kept is named."""
    gp = pathgp.LatentKroneckerGP([Matern(1.5), pathgp.kernels.Scale(Matern(1.5), 1.0)], noise=0.3)
    values = torch.randn(12, 9, generator=seeded(), dtype=torch.float64)
    options = {"samples": 2, "generator": seeded(), "min_gain": 0.0}
    with pytest.warns(pathgp.LongFitWarning, match="a grid is conditioned on all its cells"):
        report = gp.fit([None, None], values, time_limit=1e-6, **options)
    assert (report.stopped, len(report.history)) == ("time limit", 0)
    assert gp.posterior.report.rows == values.numel()


# What a fit says


def test_a_long_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LONG", 0.0)
    with pytest.warns(pathgp.LongFitWarning, match=r"600 rows: up to 1 step on 600 rows, .* about 1 s; limit it by"):
        fit(None, steps=1)


def test_an_interrupted_coarse_stage_leaves_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "GUARD_ROWS", 20)

    def stop(record: Step) -> None:
        if record.step == 2:
            raise KeyboardInterrupt

    gp = model()
    options = OPTIONS | {"estimator": "pathwise", "stages": "coarse", "tol": 1e-6}
    with pytest.raises(KeyboardInterrupt):
        gp.fit(X, Y, steps=40, callback=stop, generator=seeded(5), **options)
    condition = gp.posterior.report
    assert condition.subset == "conditioned on 75 of 600 rows: interrupted"
    assert condition.worst_residual < 1e-4


def test_a_second_interruption_keeps_the_hyperparameters(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first one says that a product follows, the second one skips it."""
    monkeypatch.setattr(last_solve, "_ANNOUNCE_FROM", 0.0)

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    def stop(record: Step) -> None:
        if record.step == 3:
            monkeypatch.setattr(last_solve, "_solve", interrupted)
            raise KeyboardInterrupt

    gp = model()
    before = gp.noise.item()
    with pytest.raises(KeyboardInterrupt):
        gp.fit(X, Y, steps=40, callback=stop, generator=seeded(5), estimator="pathwise", **OPTIONS)
    assert gp.noise.item() != before
    with pytest.raises(RuntimeError, match="there is no posterior"):
        _ = gp.posterior
    message = "finishing: one product confirms step 3, about 1 s; press Ctrl-C again to stop now"
    assert message in capfd.readouterr().err
