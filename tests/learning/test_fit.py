"""GP.fit finds what exact optimisation finds, ends, and refuses what it cannot learn from."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import pathgp
import reference
from fit_cases import TRUTH, XS, X, Y, close, drawn, likelihood, model, optimum, seeded
from learning_cases import CASES, SCALED_MATERN, Case, Values
from pathgp.kernels import Linear, Matern, Scale
from pathgp.learning.estimators import GradientEstimate, Iterative
from pathgp.solvers.solution import NumericalFailure
from plain_fits import plain_fit

# The optimum


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[4]], ids=str)
def test_lbfgs_with_exact_gradients_agrees_with_scipy(case: Case) -> None:
    A, b = case.data(80)
    gp = pathgp.GP(case.kernel, 0.3)
    # The data have neither a period nor an offset: without limit these would run off.
    fixed = tuple(name for name in gp.hyperparameters() if name in ("1.bias", "0.period"))
    for name in fixed:
        gp.constrain(name, fixed=True)
    expected = optimum(lambda t: case.log_likelihood(t, A, b), gp.hyperparameters(), fixed)
    report = plain_fit(gp, A, b, estimator="exact", optimiser="lbfgs", steps=150, min_gain=0.0, samples=1)
    assert close(gp.hyperparameters(), expected, 1e-3)
    value = float(case.log_likelihood(expected, A, b))
    assert report.history[-1].log_likelihood == pytest.approx(value, abs=1e-5)


def test_adam_with_exact_gradients_agrees_with_scipy(best: Values) -> None:
    gp = model()
    plain_fit(gp, X, Y, estimator="exact", steps=250, min_gain=0.0, samples=1)
    assert close(gp.hyperparameters(), best, 1e-3)


def optimum_spread(best: Values, pathwise: bool, probes: int) -> tuple[Tensor, Tensor]:
    """Of the root of an estimated gradient, to first order: mean and covariance in logarithms of hyperparameters.

    F^-1 C F^-1 / (4 s), F the negative Hessian of the likelihood and C the covariance of l^T dH r for one probe:
    2 tr(A_i A_j) for pathwise probes, tr(A_i A_j) + tr(A_i A_j^T) for standard ones.
    """
    sizes = [value.numel() for value in best.values()]

    def values(flat: Tensor) -> Values:
        parts = zip(best, flat.exp().split(sizes), strict=True)
        return {name: part.view(best[name].shape) for name, part in parts}

    def H(flat: Tensor) -> Tensor:
        theta = values(flat)
        return reference.system(SCALED_MATERN.covariance(theta), X, theta["noise"])

    at = torch.cat([value.log().flatten() for value in best.values()])
    F = -torch.autograd.functional.hessian(lambda flat: likelihood(values(flat)), at)
    slopes = torch.stack([torch.autograd.functional.jvp(H, at, e)[1] for e in torch.eye(len(at), dtype=at.dtype)])
    A = torch.linalg.solve(H(at), slopes)
    one = torch.einsum("iab,jba->ij", A, A)
    C = one + (one if pathwise else torch.einsum("iab,jab->ij", A, A))
    inverse = torch.linalg.inv(F)
    return at, inverse @ C @ inverse / (4 * probes)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("estimator", "optimiser"), [("pathwise", "adam"), ("pathwise", "lbfgs"), ("standard", "lbfgs")]
)
def test_iterative_estimators_find_the_optimum(best: Values, estimator: str, optimiser: str) -> None:
    """Within what 256 frozen probes allow: a chi-square test, to first order, at a false-alarm rate of 1e-6.

    Random features make pathwise probes vary a little more than normal ones: twice the variance is allowed for.
    """
    gp = model()
    report = plain_fit(
        gp,
        X,
        Y,
        estimator=estimator,
        optimiser=optimiser,
        steps=150 if optimiser == "adam" else 60,
        solver="cholesky",
        tol=1e-9,
        samples=256,
        features=128,
        min_gain=0.0,
        generator=seeded(1),
    )
    assert report.estimator == f"{estimator}, 256 probes, warm starts"
    centre, covariance = optimum_spread(best, estimator == "pathwise", 256)
    found = torch.cat([value.log().flatten() for value in gp.hyperparameters().values()])
    distance = float((found - centre) @ torch.linalg.solve(2.0 * covariance, found - centre))
    assert distance <= stats.chi2.isf(1e-6, len(centre))
    assert float(likelihood(gp.hyperparameters())) > float(likelihood(best)) - 0.5


def test_warm_starts_save_work() -> None:
    runs = {}
    for warm in (True, False):
        gp = model()
        options = {"solver": pathgp.solvers.CG(block=1), "samples": 64, "features": 128, "steps": 40}
        runs[warm] = plain_fit(gp, X, Y, warm_start=warm, min_gain=0.0, generator=seeded(2), **options)
        assert float(likelihood(gp.hyperparameters())) > float(likelihood(model().hyperparameters())) + 5.0
    assert runs[True].epochs < 0.8 * runs[False].epochs
    assert "cold starts" in runs[False].estimator


def test_hyperparameters_are_recovered_from_much_data() -> None:
    """From 400 rows: the noise well, signal and length scales, which stand for each other, to their order."""
    A, b = drawn(400, seed=3)
    gp = model()
    plain_fit(gp, A, b, samples=16, features=128, generator=seeded(3))
    found = gp.hyperparameters()
    assert found["noise"] == pytest.approx(0.2, rel=0.15)
    assert found["signal"] == pytest.approx(1.2, rel=0.5)
    assert torch.allclose(found["lengthscale"], TRUTH["lengthscale"].double(), rtol=0.5)


# When it ends


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
@pytest.mark.parametrize("estimator", ["exact", "pathwise"])
def test_a_converged_fit_ends(estimator: str, optimiser: str) -> None:
    options = {"estimator": estimator, "optimiser": optimiser, "samples": 16, "features": 64, "solver": "cholesky"}
    gp = model()
    report = plain_fit(gp, X, Y, steps=400, tol=1e-8, generator=seeded(22), **options)
    assert 10 < len(report.history) < 400
    assert report.stopped == "10 steps changed the objective by less than 0.0005 nats per row"
    longer = plain_fit(gp, X, Y, steps=30, tol=1e-8, min_gain=0.0, generator=seeded(22), **options)
    assert len(longer.history) == 30
    assert longer.stopped.startswith("all steps done")


# What it refuses


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"steps": -1}, ValueError, "steps must be at least 0, got -1"),
        ({"steps": 2.5}, TypeError, "steps must be a whole number"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be positive, got 0"),
        ({"learning_rate": math.nan}, ValueError, "learning_rate must be finite"),
        ({"learning_rate": "fast"}, TypeError, "learning_rate must be a number"),
        ({"samples": 0}, ValueError, "samples must be at least 1"),
        ({"features": 0}, ValueError, "features must be at least 1"),
        ({"starts": 0}, ValueError, "starts must be at least 1"),
        ({"min_gain": math.inf}, ValueError, "min_gain must be finite"),
        ({"estimator": "hutchinson"}, ValueError, "estimator must be one of 'auto', 'pathwise', 'standard', 'exact'"),
        ({"optimiser": "sgd"}, ValueError, "optimiser must be one of 'auto', 'adam', 'lbfgs', got 'sgd'"),
        ({"initialise": "random"}, ValueError, "initialise must be one of .*'subsets', got 'random'"),
        ({"optimiser": "lbfgs", "warm_start": False}, ValueError, "lbfgs needs .* use warm_start=True"),
        ({"solver": "gauss"}, ValueError, "solver"),
        (
            {"estimator": "exact", "compute": pathgp.Compute(memory=1e5)},
            ValueError,
            "exact estimator needs .*pathwise",
        ),
        ({"generator": 5}, TypeError, "generator must be a torch.Generator"),
        ({"noise": -torch.ones(80)}, ValueError, "noise is -1.0 at row 0"),
        ({"noise": torch.ones(79)}, ValueError, r"noise must have shape \(80,\)"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) and len(str(value)) < 60 else "",
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], match: str) -> None:
    gp = model()
    before = gp.hyperparameters()
    with pytest.raises(error, match=match):
        plain_fit(gp, X, Y, **options)
    assert close(gp.hyperparameters(), before, 0.0)
    assert gp._posterior is None


def test_bad_data() -> None:
    gp = model()
    hole = Y.clone()
    hole[3] = math.nan
    with pytest.raises(ValueError, match="y contains nan at row 3"):
        plain_fit(gp, X, hole)
    with pytest.raises(ValueError, match=r"y must have shape \(80,\)"):
        plain_fit(gp, X, Y[:-1])
    with pytest.raises(ValueError, match="at least one observation is needed"):
        plain_fit(gp, X[:0], Y[:0])


def test_nothing_to_learn() -> None:
    gp = model()
    for name in gp.hyperparameters():
        gp.constrain(name, fixed=True)
    with pytest.raises(ValueError, match=r"nothing to learn: every hyperparameter is fixed; use condition\(\)"):
        plain_fit(gp, X, Y)


@pytest.mark.filterwarnings("ignore:.* of y are equal", "ignore:y has one value")
@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_few_and_constant_observations(optimiser: str) -> None:
    """One row, two equal rows, a constant y: nothing to learn from, and no error."""
    for A, y in ((X[:1], Y[:1]), (X[:1].expand(2, 2), Y[:2]), (X[:20], torch.ones(20)), (X[:20], torch.zeros(20))):
        gp = model(standardise=True)
        plain_fit(
            gp, A, y, steps=5, optimiser=optimiser, samples=2, features=16, initialise="data", generator=seeded(23)
        )
        assert bool(torch.isfinite(gp.posterior.mean(XS)).all())


@pytest.mark.filterwarnings("ignore:.* of y are equal", "ignore:y has one value")
@pytest.mark.parametrize("level", [0.0, 0.1, 5.0, 1e6])
def test_equal_values_with_a_learned_mean(level: float) -> None:
    """Steps of the mean were measured by the standard deviation of y, and ended at NaN."""
    for n in (1, 30):
        gp = pathgp.GP(Scale(Matern(1.5, 0.5), 1.0), noise=0.1, mean=pathgp.means.Constant())
        gp.fit(X[:n], torch.full((n,), level, dtype=torch.float64), samples=2)
        assert abs(float(gp.posterior.mean(X[:1])) - level) <= 1e-3 * max(level, 1.0)


def test_a_fit_to_equal_values_says_that_its_noise_is_not_learned() -> None:
    """The standard deviation of one row, far from it, was 1e-7."""
    for n, words in ((1, "y has one value"), (4, "all 4 values of y are equal")):
        gp = model(standardise=True)
        with pytest.warns(UserWarning, match=f"{words}: noise and signal cannot be learned"):
            report = gp.fit(X[:n], torch.full((n,), 3.0), steps=2, samples=2)
        assert report.warning.startswith(words)
        # Priors and known noise say what y does not.
        gp.constrain("noise", prior=pathgp.LogNormal(0.1))
        assert gp.fit(X[:n], torch.full((n,), 3.0), steps=2, samples=2).warning == ""


def test_copies_of_rows_are_in_the_note() -> None:
    """Each copy with the same y looks like a measurement without noise. Equal inputs alone are measurements."""
    for A, y, words in (
        (torch.cat([X[:20], X[:3]]), torch.cat([Y[:20], Y[:3]]), "3 of 23 rows repeat another one, inputs and target"),
        (torch.cat([X[:20], X[:3]]), torch.cat([Y[:20], Y[:3] + 0.1]), ""),
        (torch.cat([X[:20], X[:1]]), torch.cat([Y[:20], Y[:1]]), ""),  # a few by chance
    ):
        note = model().fit(A, y, steps=1, samples=2).note
        assert words in note
        assert bool(words) == ("repeat" in note)


def test_inputs_are_not_changed() -> None:
    A, b, known = X.clone(), Y.clone(), torch.full_like(Y, 0.1)
    gp, kernel = model(standardise=True), Scale(Linear(), 2.0)
    plain_fit(gp, A, b, known, steps=4, samples=2, features=16, initialise="data")
    assert torch.equal(A, X)
    assert torch.equal(b, Y)
    assert torch.equal(known, torch.full_like(Y, 0.1))
    other = pathgp.GP(kernel)
    plain_fit(other, A, b, steps=3, samples=2, features=16)
    assert kernel.signal.item() == pytest.approx(2.0)
    before = gp.posterior.mean(XS)
    A.zero_()
    b.zero_()
    assert torch.equal(gp.posterior.mean(XS), before)


def test_a_step_that_leaves_the_numbers_ends_the_fit_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hyperparameters and solutions of the last good step are kept, and the report says what happened."""
    evaluate, calls = Iterative.evaluate, []

    def fails_late(self: Iterative, *args: Any) -> GradientEstimate:
        calls.append(args)
        if len(calls) > 3:
            raise NumericalFailure("the solve left the range of numbers")
        return evaluate(self, *args)

    monkeypatch.setattr(Iterative, "evaluate", fails_late)
    gp = model()
    report = plain_fit(gp, X, Y, steps=20, generator=seeded())
    assert len(report.history) == 3
    assert report.stopped == "the solve left the range of numbers; the previous step was kept"
    kept = report.history[-1].values
    assert {name: value.flatten().tolist() for name, value in gp.hyperparameters().items()} == kept
    assert gp.posterior.report.solution.converged
    monkeypatch.setattr(Iterative, "evaluate", lambda self, *args: fails_late(self, *args))
    with pytest.raises(NumericalFailure):
        plain_fit(model(), X, Y, generator=seeded())


def test_a_fit_that_fails_leaves_its_last_whole_step() -> None:
    gp = model(mean=pathgp.means.Constant())
    plain_fit(gp, X, Y, steps=2, samples=2, features=16)
    seen = []

    def failing(step: Any) -> None:
        seen.append(step)
        if step.step == 3:
            raise RuntimeError("out of patience")

    with pytest.raises(RuntimeError, match="out of patience"):
        plain_fit(gp, X, Y, samples=2, features=16, callback=failing)
    assert {name: value.flatten().tolist() for name, value in gp.hyperparameters().items()} == seen[-1].values
    assert torch.equal(gp.posterior.model.noise, gp.noise)
    assert all(p.grad is None for p in gp.parameters())
