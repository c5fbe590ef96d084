"""Every automatic choice of a fit at its thresholds, and that each door leaves the choice to the policy."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pathgp
from fit_cases import X, Y, model, seeded
from pathgp.kernels import Kernel
from pathgp.learning import fitting, policy
from pathgp.learning.initialise import neighbour_lengthscale, set_values
from pathgp.learning.policy import FitOptions, Stage, choose_dtype, make_stages
from pathgp.learning.timing import describe_stages
from pathgp.posterior.conditioning import Settings
from plain_fits import plain_fit

SETTINGS = Settings.read("auto", 1e-2, None)
AUTOMATIC = {"optimiser": "auto", "estimator": "auto", "stages": "auto", "initialise": "auto", "steps": None}


def resolve(n: int, is_grid: bool = False, **options: Any) -> FitOptions:
    return FitOptions(SETTINGS, **options).resolve(n, is_grid)


def test_solves_of_steps_on_a_grid_have_a_budget() -> None:
    """The last solve has none, and a budget of the user's is used as it is."""
    limited = resolve(1000, is_grid=True)
    assert (limited.step_settings.max_epochs, limited.settings.max_epochs) == (120.0, None)
    assert resolve(1000, is_grid=True, stages="full").step_settings is SETTINGS
    assert resolve(10**5).step_settings is SETTINGS
    given = Settings.read("auto", 1e-2, 7.0)
    assert FitOptions(given).resolve(1000, True).step_settings is given


@pytest.mark.parametrize(
    ("n", "is_grid", "expected"),
    [
        (1000, False, ("exact", "lbfgs", "full", "data", 100, 0.1)),
        (2000, False, ("exact", "lbfgs", "coarse", "data", 125, 0.1)),
        (2001, False, ("pathwise", "lbfgs", "coarse", "data", 125, 0.1)),
        (2000, True, ("exact", "lbfgs", "coarse", "neighbours", 50, 0.1)),
        (2001, True, ("pathwise", "lbfgs", "coarse", "neighbours", 10, 0.1)),
        (10**6, True, ("pathwise", "lbfgs", "coarse", "neighbours", 10, 0.1)),
    ],
)
def test_tables_and_grids(n: int, is_grid: bool, expected: tuple[Any, ...]) -> None:
    chosen = resolve(n, is_grid)
    names = ("estimator", "optimiser", "stages", "initialise", "steps", "learning_rate")
    assert tuple(getattr(chosen, name) for name in names) == expected


def test_few_steps_start_from_the_most_likely_values() -> None:
    chosen = {steps: resolve(500, steps=steps).initialise for steps in (0, 1, 20, 21, 100, None)}
    assert chosen == {0: "model", 1: "best", 20: "best", 21: "data", 100: "data", None: "data"}
    assert resolve(10**5, steps=20).initialise == "best"
    assert resolve(500, steps=5, initialise="data").initialise == "data"
    assert resolve(500, True, steps=5).initialise == "neighbours"
    with pytest.raises(ValueError, match="initialise='best' is for tables"):
        resolve(500, True, initialise="best")


def test_adam_for_gradients_that_change_from_call_to_call() -> None:
    assert resolve(2001, warm_start=False).optimiser == "adam"
    assert resolve(2000, warm_start=False).optimiser == "lbfgs"  # exact
    with pytest.raises(ValueError, match="lbfgs needs"):
        resolve(2001, warm_start=False, optimiser="lbfgs")


def test_what_is_given_stays() -> None:
    given = {"estimator": "standard", "optimiser": "adam", "stages": "full", "initialise": "model"}
    given |= {"steps": 7, "learning_rate": 0.3}
    for n in (10, 10**5):
        assert vars(resolve(n, **given)).items() >= given.items()
    assert resolve(500, stages="coarse").stages == "coarse"


def test_stages() -> None:
    """Coarse to fine, each stage with 2.5 times as many rows; L-BFGS begins with exact gradients on a subset."""
    adam = {"optimiser": "adam", "steps": 100}
    assert make_stages(7499, resolve(7499, **adam)) == (Stage(7499, 100),)
    assert make_stages(7500, resolve(7500, **adam)) == (Stage(2500, 25), Stage(7500, 75))
    assert make_stages(24_000, resolve(24_000, **adam)) == (Stage(3000, 50), Stage(8000, 25), Stage(24_000, 25))
    assert make_stages(24_000, resolve(24_000, **adam, stages="full")) == (Stage(24_000, 100),)
    exact = Stage(1000, 25, exact=True)
    explored = (exact, replace(exact, noise_factor=policy.SECOND_NOISE), exact)
    assert make_stages(1001, resolve(1001)) == (*explored, Stage(1001, 50))
    for given in ({"steps": 100}, {"initialise": "model"}):
        assert make_stages(1001, resolve(1001, **given)) == (Stage(1000, 50, exact=True), Stage(1001, 50))
    assert make_stages(1000, resolve(1000, estimator="pathwise")) == (Stage(1000, 100),)
    assert make_stages(5000, resolve(5000, estimator="exact")) == (*explored, Stage(5000, 50))
    assert make_stages(5000, resolve(5000, estimator="exact", stages="full", steps=100)) == (Stage(5000, 100),)


def test_stages_in_words() -> None:
    """The three exact stages of a fit that explores have the same rows: their steps are added."""
    exact = "75 exact steps on 1,000 rows"
    expected = f"{exact}, 25 steps on 3,875 rows, 12 steps on 10,333 rows, 13 steps on 31,000 rows"
    assert describe_stages(make_stages(31_000, resolve(31_000))) == expected
    assert describe_stages([Stage(40, 0), Stage(80, 1)]) == "1 step on 80 rows"
    assert describe_stages([Stage(80, 0)]) == "no steps"


def test_dtype() -> None:
    """float64 up to 10,000 rows; above float32, unless it merges values of a column."""
    few, many = torch.rand(10_000, 2, dtype=torch.float64), torch.rand(10_001, 2, dtype=torch.float64)
    assert choose_dtype(few) == (torch.float64, None)
    assert choose_dtype(many) == (torch.float32, None)
    many[:, 1] = 1.0 + 1e-9 * torch.arange(10_001, dtype=torch.float64)
    assert choose_dtype(many) == (torch.float64, 1)
    for n, dtype in ((10_000, torch.float64), (10_001, torch.float32)):
        data = model().prepare_data(torch.rand(n, 2, dtype=torch.float64), torch.randn(n), dtype="auto")
        assert data.dtype == dtype
    with pytest.raises(ValueError, match="'auto' or None, got"):
        model().condition(X, Y, dtype=torch.float16)


@pytest.mark.parametrize("apart", [0.0, 1e-9])
def test_repeated_rows_do_not_shorten_initial_length_scales(apart: float) -> None:
    """Equal and almost equal rows, as in tables of counts; products of rows would make length scales 0.003."""
    rows = torch.rand(400, 20, generator=seeded(), dtype=torch.float64) + 3.0
    other = rows + apart * torch.rand(400, 20, generator=seeded(1), dtype=torch.float64)
    found = []
    for A in (rows, torch.cat([rows, other])):
        gp = pathgp.GP(pathgp.kernels.Scale(pathgp.kernels.Matern(1.5, torch.ones(20))), noise=0.1)
        set_values(gp, gp.prepare_data(A, A[:, 0]), seeded(), has_sides=False)
        found.append(float(gp.kernel.kernel.lengthscale.detach().median()))
    # The least ratio of the nearest to the typical distance is that of evenly spread points of one column.
    assert (0.9 if apart == 0.0 else 800**-0.5) < found[1] / found[0] < 1.1


def test_length_scales_of_neighbours() -> None:
    """Three times the distance of neighbours on every side of a grid; per column as for tables."""
    assert neighbour_lengthscale(np.array([[0.0], [0.5], [1.0], [1.0], [1.5]])) == pytest.approx(1.5)
    assert neighbour_lengthscale(np.zeros((4, 1))) == 1.0
    sides: list[Kernel] = [pathgp.kernels.Matern(1.5), pathgp.kernels.Scale(pathgp.kernels.Matern(1.5), 1.0)]
    gp = pathgp.LatentKroneckerGP(sides, noise=0.5)
    values = torch.randn(6, 5, generator=seeded(), dtype=torch.float64)
    gp.fit([2.0 * torch.arange(6), None], values, steps=0, initialise="neighbours", samples=1, generator=seeded())
    found = gp.hyperparameters()
    assert (found["0.lengthscale"].item(), found["1.lengthscale"].item()) == pytest.approx((6.0, 3.0))
    assert found["noise"].item() == pytest.approx(0.1 * float(values.std(correction=0)))


def test_fields_are_learned_by_the_likelihood_of_vecchia() -> None:
    """From 1,001 rows on; it has at most 50,000 factors."""
    options = FitOptions(SETTINGS)
    assert options.resolve(1000, False, True).estimator == "exact"
    chosen = options.resolve(10**6, False, True)
    assert (chosen.estimator, chosen.optimiser, chosen.min_gain) == ("vecchia", "lbfgs", 2e-5)
    assert [stage.rows for stage in make_stages(10**6, chosen)] == [6250, 16_666, 50_000]
    assert options.resolve(10**6, False, False).estimator == "pathwise"
    assert options.resolve(10**6, True, False).estimator == "pathwise"


def test_no_copies_of_model_or_optimiser_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """More steps make no more deep copies, but for the snapshots of kernels that operators hold."""
    deepcopy, copied = copy.deepcopy, []

    def record(value: Any, *memo: Any) -> Any:
        copied.append(value)
        return deepcopy(value, *memo)

    monkeypatch.setattr(copy, "deepcopy", record)
    counts = []
    for steps in (2, 9):
        plain_fit(model(), X, Y, steps=steps, samples=2, features=16, min_gain=0.0, generator=seeded())
        counts.append(sum(not isinstance(value, Kernel) for value in copied))
        copied.clear()
    assert counts[0] == counts[1]


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options that reach the policy."""
    found: list[dict[str, Any]] = []
    resolve = FitOptions.resolve

    def record(self: FitOptions, *facts: Any) -> FitOptions:
        found.append(vars(self))
        return resolve(self, *facts)

    monkeypatch.setattr(fitting.FitOptions, "resolve", record)
    return found


def test_the_doors_leave_the_choice_to_the_policy(passed: list[dict[str, Any]], tmp_path: Path) -> None:
    sklearn = pytest.importorskip("pathgp.sklearn")
    xarray = pytest.importorskip("pathgp.xarray")
    from pathgp.cli import main

    rows, values = X[:40].numpy(), Y[:40].numpy()
    sklearn.GPRegressor(samples=2).fit(rows, values)
    both = np.stack([values[:8], -values[:8]], 1)
    sklearn.GPRegressor(samples=2, time_limit=100).fit(rows[:8], both)
    sklearn.GPRegressor(samples=2, time_limit=100, outputs="related").fit(rows[:8], both)
    field = np.outer(np.sin(np.arange(7.0)), np.arange(6.0))
    # A choice between kernels would end at an optimum, and learning would start there.
    xarray.fill(xarray.xr.DataArray(field), samples=2, time_limit=70, isotropic=False)
    table = tmp_path / "table.csv"
    np.savetxt(table, np.column_stack([rows, values]), delimiter=",", header="a,b,y", comments="")
    assert main(["fit", str(table), "--target", "y", "--quiet", "--samples", "2", "--minutes", "2"]) == 0
    # Independent outputs share the time.
    assert [options["time_limit"] for options in passed] == [None, 50.0, 50.0, 100.0, 70.0, 120.0]
    for options in passed:
        assert options.items() >= AUTOMATIC.items()


def test_the_doors_have_the_defaults_of_the_core() -> None:
    sklearn = pytest.importorskip("pathgp.sklearn")
    xarray = pytest.importorskip("pathgp.xarray")
    core = inspect.signature(pathgp.GP.fit).parameters
    shared = {"time_limit", "steps", "samples", "solver", "tol", "max_epochs"}
    for door, names in ((xarray.fill, shared), (sklearn.GPRegressor, shared | set(policy.CHOICES))):
        own = inspect.signature(door).parameters
        assert {name: own[name].default for name in names} == {name: core[name].default for name in names}
    assert sklearn.GPRegressor().noise == inspect.signature(pathgp.GP).parameters["noise"].default


def test_given_kernels_and_noise_of_a_field_are_where_learning_starts(passed: list[dict[str, Any]]) -> None:
    xarray = pytest.importorskip("pathgp.xarray")
    field = xarray.xr.DataArray(np.outer(np.sin(np.arange(7.0)), np.arange(6.0)), dims=("a", "b"))
    xarray.fill(field, {"a": pathgp.kernels.Matern(1.5, 2.0)}, samples=2, steps=1)
    xarray.fill(field, noise=0.3, samples=2, steps=1)
    assert [options["initialise"] for options in passed] == ["model", "model"]
