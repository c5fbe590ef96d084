"""What GP.fit may change, and where it starts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import pathgp
from fit_cases import TRUTH, X, Y, close, gp_noise, likelihood, model, optimum, seeded
from learning_cases import SCALED_MATERN, Values
from pathgp.kernels import Matern, Scale, SquaredExponential
from pathgp.learning import guard, initialise, loop, policy
from plain_fits import plain_fit

# What learning may do


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_fixed_hyperparameters_stay(optimiser: str, best: Values) -> None:
    gp = model().constrain("noise", fixed=True).constrain("signal", fixed=True)
    start = gp.hyperparameters()
    plain_fit(gp, X, Y, estimator="exact", optimiser=optimiser, steps=150, min_gain=0.0, samples=1)
    found = gp.hyperparameters()
    for name in ("noise", "signal"):
        assert torch.equal(found[name], start[name])
    expected = optimum(likelihood, start, fixed=("noise", "signal"))
    assert torch.allclose(found["lengthscale"], expected["lengthscale"], rtol=1e-2)
    gp.constrain("noise", fixed=False).constrain("signal", fixed=False)
    plain_fit(gp, X, Y, estimator="exact", optimiser="lbfgs", samples=1, min_gain=0.0)
    assert close(gp.hyperparameters(), best, 1e-3)


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_bounds_hold_at_every_step(optimiser: str) -> None:
    bounds = {"noise": (0.3, 0.7), "lengthscale": (0.05, 0.45)}
    gp = model()
    for name, limits in bounds.items():
        gp.constrain(name, bounds=limits)
    report = plain_fit(gp, X, Y, estimator="exact", optimiser=optimiser, steps=150, min_gain=0.0, samples=1)
    for step in report.history:
        assert 0.3 <= step.values["noise"][0] * (1 + 1e-12) <= 0.7 * (1 + 1e-9)
        assert all(0.05 <= value <= 0.45 * (1 + 1e-12) for value in step.values["lengthscale"])
    expected = optimum(likelihood, model().hyperparameters(), bounds=bounds)
    assert expected["noise"].item() == pytest.approx(0.3)
    assert close(gp.hyperparameters(), expected, 1e-2)


def test_bounds_move_the_start() -> None:
    gp = model().constrain("lengthscale", bounds=(1.0, 2.0))
    assert torch.allclose(gp.kernel.kernel.lengthscale.detach(), torch.ones(2, dtype=torch.float64))


def test_priors_pull(best: Values) -> None:
    """MAP: the optimum of likelihood plus log prior, the density taken in logarithms."""
    gp = model()
    gp.constrain("noise", prior=pathgp.LogNormal(0.5, 0.05)).constrain("lengthscale", prior=pathgp.LogNormal(1.0, 0.2))

    def objective(theta: Values) -> Tensor:
        lengths = ((theta["lengthscale"].log() - 0.0) / 0.2).square().sum()
        return likelihood(theta) - 0.5 * lengths - 0.5 * ((theta["noise"].log() - math.log(0.5)) / 0.05).square()

    expected = optimum(objective, gp.hyperparameters())
    plain_fit(gp, X, Y, estimator="exact", optimiser="lbfgs", steps=150, min_gain=0.0, samples=1)
    assert close(gp.hyperparameters(), expected, 1e-3)
    assert expected["noise"] > 1.5 * best["noise"]


def test_constraints_by_name() -> None:
    gp = pathgp.GP(Scale(Matern(), 1.0) + Scale(SquaredExponential(), 2.0))
    assert list(gp.hyperparameters()) == ["0.lengthscale", "0.signal", "1.lengthscale", "1.signal", "noise"]
    gp.constrain("1.signal", fixed=True)
    assert not gp.kernel.kernels[1]._signal.raw.requires_grad
    assert gp.kernel.kernels[0]._signal.raw.requires_grad
    gp.constrain("lengthscale", fixed=True)
    assert not any(part.kernel._lengthscale.raw.requires_grad for part in gp.kernel.kernels)
    with pytest.raises(ValueError, match=r"no hyperparameter is called 'length': there are 0\.lengthscale, 0\.signal"):
        gp.constrain("length", fixed=True)
    for bounds in ((-1.0, 1.0), (1.0, 0.5), (1.0, 1.0), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="bounds of noise must satisfy 0 <= low < high"):
            gp.constrain("noise", bounds=bounds)
    with pytest.raises(TypeError, match="bounds of noise must be two numbers"):
        gp.constrain("noise", bounds=3.0)
    with pytest.raises(TypeError, match="must be a LogNormal"):
        gp.constrain("noise", prior=torch.distributions.Normal(0.0, 1.0))
    with pytest.raises(ValueError, match="median of a LogNormal must be positive"):
        pathgp.LogNormal(-1.0)
    with pytest.raises(ValueError, match="may have any sign"):
        pathgp.GP(Matern(), mean=pathgp.means.Constant()).constrain("mean.value", bounds=(1.0, 2.0))


# Where it starts


def test_starts_keep_the_best() -> None:
    """From a start at which all is noise; the others are drawn around it, and one of them finds the function."""
    grid = torch.linspace(0.0, 1.0, 60, dtype=torch.float64).unsqueeze(1)
    wave = torch.sin(25.0 * grid[:, 0])
    options = {"estimator": "exact", "optimiser": "lbfgs", "steps": 40, "samples": 1}
    values = []
    for starts in (1, 5):
        gp = pathgp.GP(Scale(SquaredExponential(0.4), 1.0), 0.5).constrain("noise", bounds=(0.01, 10.0))
        report = plain_fit(gp, grid, wave, starts=starts, generator=seeded(4), **options)
        values.append(gp.posterior.log_marginal_likelihood().value)
        assert ("kept" in report.note) == (starts > 1)
    assert values[1] > values[0] + 20.0
    assert f"of 5 kept, log likelihood {values[1]:.1f}" in report.note


def test_starts_at_the_first_are_a_plain_fit() -> None:
    options = {"estimator": "exact", "steps": 5, "samples": 2, "features": 16}
    gp = model()
    report = plain_fit(gp, X, Y, starts=2, generator=seeded(5), **options)
    single = model()
    plain = plain_fit(single, X, Y, generator=seeded(5), **options)
    first = report.history if report.note.startswith("start 1") else None
    assert first is None or [step.values for step in first] == [step.values for step in plain.history]
    exact = float(likelihood(gp.hyperparameters()))
    assert exact >= float(likelihood(single.hyperparameters())) - 1e-9


def test_initialise_from_data() -> None:
    A = torch.cat([100.0 * X[:, :1], 0.01 * X[:, 1:]], 1)
    gp = model(mean=7.0)
    plain_fit(gp, A, 7.0 + 50.0 * Y, steps=0, initialise="data", generator=seeded(6))
    found = gp.hyperparameters()
    # The median distance of two uniform numbers is 1 - 1/sqrt(2); times sqrt(2) for two columns.
    expected = torch.tensor([100.0, 0.01], dtype=torch.float64) * (math.sqrt(2.0) - 1.0)
    nearest = torch.cdist(X, X).fill_diagonal_(math.inf).amin(1).median()
    towards = (nearest / torch.pdist(X).median()).sqrt()
    assert torch.allclose(found["lengthscale"], expected * towards, rtol=0.5)
    assert found["signal"].item() == pytest.approx(50.0 * Y.std(correction=0).item())
    assert found["noise"].item() == pytest.approx(0.1 * found["signal"].item())


@pytest.mark.parametrize("kept", ["current", "data", "larger noise"])
def test_initialise_with_the_most_likely_of_three(kept: str) -> None:
    """The values behind the data; far-off values for smooth data; far-off values for pure noise."""
    y = {"current": Y, "data": torch.sin(3.0 * X[:, 0]), "larger noise": torch.randn(len(X), generator=seeded(3))}[kept]
    start = {name: value.double() if kept == "current" else 20.0 * value.double() for name, value in TRUTH.items()}
    found = {}
    for how in ("best", "data"):
        gp = model(float(start["noise"]))
        gp.kernel.signal, gp.kernel.kernel.lengthscale = float(start["signal"]), start["lengthscale"]
        plain_fit(gp, X, y, steps=0, initialise=how, generator=seeded(6))
        found[how] = gp.hyperparameters()
    factor = {"current": None, "data": 1.0, "larger noise": policy.SECOND_NOISE}[kept]
    expected = start if factor is None else found["data"] | {"noise": factor * found["data"]["noise"]}
    assert close(found["best"], expected, 1e-6)


def test_a_few_steps_from_given_values_are_not_worse_than_these() -> None:
    """A short second fit continues the first; y has more noise than the default start."""
    y = X[:, 0] + torch.randn(len(X), generator=seeded(3))
    gp = model()
    gp.fit(X, y, generator=seeded(4))
    first = float(SCALED_MATERN.log_likelihood(gp.hyperparameters(), X, y))
    gp.fit(X, y, steps=2, generator=seeded(5))
    assert float(SCALED_MATERN.log_likelihood(gp.hyperparameters(), X, y)) >= first - 1e-3


def test_initialise_leaves_what_is_fixed_or_bounded() -> None:
    for how in ("data", "best", "noise", "subsets"):
        gp = model().constrain("signal", fixed=True).constrain("noise", bounds=(0.4, 0.6))
        gp.constrain("lengthscale", bounds=(0.01, 0.02))
        plain_fit(gp, X[:20], Y[:20], steps=0, initialise=how, generator=seeded(6))
        found = gp.hyperparameters()
        assert found["signal"].item() == 1.0
        assert 0.4 - 1e-12 <= found["noise"].item() <= 0.6 + 1e-12
        assert bool((found["lengthscale"] <= 0.02 + 1e-12).all())


def test_initialise_from_subsets(best: Values, monkeypatch: pytest.MonkeyPatch) -> None:
    """With subsets of all rows the average of exact optima is the optimum; with fewer it is of its order."""
    monkeypatch.setattr(initialise, "SUBSETS", 2)
    gp = model()
    plain_fit(gp, X, Y, steps=0, initialise="subsets", generator=seeded(7))
    assert close(gp.hyperparameters(), best, 0.05)
    monkeypatch.setattr(initialise, "SUBSETS", 6)
    monkeypatch.setattr(initialise, "SUBSET_ROWS_CPU", 50)
    gp = model()
    plain_fit(gp, X, Y, steps=0, initialise="subsets", generator=seeded(7))
    assert not close(gp.hyperparameters(), best, 0.01)
    # Length scales of a few dozen points are no more than a guess.
    assert float(likelihood(gp.hyperparameters())) > float(likelihood(model().hyperparameters()))


def test_a_second_fit_goes_on_from_the_first() -> None:
    gp = model()
    plain_fit(gp, X, Y, estimator="exact", steps=5, samples=1)
    middle = {name: value.flatten().tolist() for name, value in gp.hyperparameters().items()}
    report = plain_fit(gp, X, Y, estimator="exact", steps=5, samples=1)
    assert report.history[0].values == middle
    gp.noise = 0.9
    assert plain_fit(gp, X, Y, estimator="exact", steps=1, samples=1).history[0].values["noise"] == [gp_noise(0.9)]


def test_rows_at_first_few_then_all(best: Values, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "GUARD_ROWS", 4)
    gp = model()
    options = {"solver": "cholesky", "tol": 1e-9, "samples": 64, "features": 64, "generator": seeded(8)}
    report = plain_fit(gp, X, Y, stages="coarse", steps=120, min_gain=0.0, **options)
    assert [step.rows for step in report.history] == [10] * 60 + [26] * 30 + [80] * 30
    stage = {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in report.history[90].values.items()}
    assert float(likelihood(best)) >= float(likelihood(gp.hyperparameters())) > float(likelihood(stage))
    assert gp.posterior.report.rows == 80
    assert gp.posterior.report.worst_residual < 1e-8


@pytest.mark.parametrize("is_validated", [True, False])
def test_noise_of_few_rows_is_raised_for_more(is_validated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far from each other, rows do not tell signal and noise apart; repeated ones do, and the noise was too small.

    Validated on more rows, the fit returns to an earlier step with more noise; otherwise the noise is raised.
    """
    if not is_validated:
        monkeypatch.setattr(loop, "restore_best_validated", lambda fit: None)
    for module in (policy, guard):
        monkeypatch.setattr(module, "GUARD_ROWS", 40)
    few = guard.Guard.draw(model().prepare_data(X[:1].expand(160, 2), Y[:1].expand(160))).rows
    places = torch.empty(160, dtype=torch.long)
    places[few] = torch.arange(40)
    places[torch.ones(160, dtype=torch.bool).index_fill(0, few, False)] = torch.arange(120) % 40
    f, noise = (torch.randn(count, generator=seeded(0), dtype=torch.float64) for count in (40, 160))
    gp = pathgp.GP(Scale(Matern(1.5, 0.1), 1.0), noise=1e-3).constrain("lengthscale", fixed=True)
    options = {"estimator": "pathwise", "initialise": "model", "solver": "cholesky", "samples": 64}
    report = gp.fit(places[:, None].to(torch.float64), f[places] + 0.3 * noise, generator=seeded(1), **options)
    last = [step for step in report.history if step.rows == 40][-1].values["noise"][0]
    first = next(step for step in report.history if step.rows == 160).values["noise"][0]
    assert first > (2.0 if is_validated else 30.0) * last
    assert 0.27 < float(gp.noise.detach()) < 0.33
