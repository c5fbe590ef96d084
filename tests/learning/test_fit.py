"""GP.fit finds what exact optimisation finds, within its limits, and leaves a posterior behind."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor, nn

import pathgp
import reference
from learning_cases import CASES, SCALED_MATERN, Case, Values
from pathgp.kernels import Kernel, Linear, Matern, Scale, SquaredExponential
from pathgp.kernels.parameters import Positive
from pathgp.learning import initialise, loop
from pathgp.learning.estimators import Estimate, Iterative
from pathgp.operators import KernelOperator
from pathgp.solvers.base import NumericalFailure

TRUTH = {"lengthscale": torch.tensor([0.3, 0.7]), "signal": torch.tensor(1.2), "noise": torch.tensor(0.2)}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(noise: float = 0.5, **options: Any) -> pathgp.GP:
    """The model behind the data, at other hyperparameters."""
    kernel = Scale(Matern(1.5, lengthscale=torch.tensor([0.6, 0.6], dtype=torch.float64)), 1.0)
    return pathgp.GP(kernel, noise, **options)


def drawn(n: int = 80, seed: int = 0) -> tuple[Tensor, Tensor]:
    """X (n, 2) in the unit square, and y (n,) from the model at TRUTH."""
    generator = seeded(seed)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    H = reference.system(SCALED_MATERN.covariance(TRUTH), X, TRUTH["noise"])
    return X, torch.linalg.cholesky(H) @ torch.randn(n, generator=generator, dtype=torch.float64)


X, Y = drawn()
XS = torch.rand(12, 2, generator=seeded(9), dtype=torch.float64)


def optimum(
    function: Callable[[Values], Tensor],
    start: Values,
    fixed: tuple[str, ...] = (),
    bounds: dict[str, tuple[float, float]] | None = None,
) -> Values:
    """The maximum of a function of hyperparameters by scipy; all but those of the mean as logarithms."""
    names = [name for name in start if name not in fixed]
    free = {name for name in names if name.startswith("mean")}
    sizes = [start[name].numel() for name in names]

    def values(flat: Tensor) -> Values:
        parts = zip(names, flat.split(sizes), strict=True)
        return start | {k: (v if k in free else v.exp()).view(start[k].shape) for k, v in parts}

    def loss(numbers: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        flat = torch.tensor(numbers, requires_grad=True)
        value = -function(values(flat))
        (gradient,) = torch.autograd.grad(value, flat)
        return value.item(), gradient.numpy()

    begin = torch.cat([(start[k] if k in free else start[k].log()).flatten() for k in names])
    limits = [(bounds or {}).get(k, (0.0, math.inf)) for k, size in zip(names, sizes, strict=True) for _ in range(size)]
    logs = [(None, None) if limit == (0.0, math.inf) else tuple(map(math.log, limit)) for limit in limits]
    options = {"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-9}
    found = optimize.minimize(loss, begin.numpy(), jac=True, method="L-BFGS-B", bounds=logs, options=options)
    return values(torch.from_numpy(found.x))


def likelihood(theta: Values) -> Tensor:
    return SCALED_MATERN.log_likelihood(theta, X, Y)


def close(found: Values, expected: Values, rel: float) -> bool:
    assert found.keys() == expected.keys()
    return all(torch.allclose(found[name], expected[name], rtol=rel, atol=0.0) for name in expected)


@pytest.fixture(scope="module")
def best() -> Values:
    """The optimum of the reference's likelihood."""
    return optimum(likelihood, model().hyperparameters())


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
    report = gp.fit(A, b, estimator="exact", optimiser="lbfgs", steps=150, min_gain=0.0, samples=1)
    assert close(gp.hyperparameters(), expected, 1e-3)
    value = float(case.log_likelihood(expected, A, b))
    assert report.history[-1].log_likelihood == pytest.approx(value, abs=1e-5)


def test_adam_with_exact_gradients_agrees_with_scipy(best: Values) -> None:
    gp = model()
    gp.fit(X, Y, estimator="exact", steps=250, min_gain=0.0, samples=1)
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
@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
@pytest.mark.parametrize("estimator", ["pathwise", "standard"])
def test_iterative_estimators_find_the_optimum(best: Values, estimator: str, optimiser: str) -> None:
    """Within what 256 frozen probes allow: a chi-square test, to first order, at a false-alarm rate of 1e-6.

    Random features make pathwise probes vary a little more than normal ones: twice the variance is allowed for.
    """
    gp = model()
    report = gp.fit(
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
        options = {"solver": "cg", "samples": 64, "features": 128, "steps": 40, "generator": seeded(2)}
        runs[warm] = gp.fit(X, Y, warm_start=warm, min_gain=0.0, **options)
        assert float(likelihood(gp.hyperparameters())) > float(likelihood(model().hyperparameters())) + 5.0
    assert runs[True].epochs < 0.8 * runs[False].epochs
    assert "cold starts" in runs[False].estimator


def test_hyperparameters_are_recovered_from_much_data() -> None:
    """From 400 rows: the noise well, signal and length scales, which stand for each other, to their order."""
    A, b = drawn(400, seed=3)
    gp = model()
    gp.fit(A, b, samples=16, features=128, generator=seeded(3))
    found = gp.hyperparameters()
    assert found["noise"] == pytest.approx(0.2, rel=0.15)
    assert found["signal"] == pytest.approx(1.2, rel=0.5)
    assert torch.allclose(found["lengthscale"], TRUTH["lengthscale"].double(), rtol=0.5)


# What learning may do


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_fixed_hyperparameters_stay(optimiser: str, best: Values) -> None:
    gp = model().constrain("noise", fixed=True).constrain("signal", fixed=True)
    start = gp.hyperparameters()
    gp.fit(X, Y, estimator="exact", optimiser=optimiser, steps=150, min_gain=0.0, samples=1)
    found = gp.hyperparameters()
    for name in ("noise", "signal"):
        assert torch.equal(found[name], start[name])
    expected = optimum(likelihood, start, fixed=("noise", "signal"))
    assert torch.allclose(found["lengthscale"], expected["lengthscale"], rtol=1e-2)
    gp.constrain("noise", fixed=False).constrain("signal", fixed=False)
    gp.fit(X, Y, estimator="exact", optimiser="lbfgs", samples=1, min_gain=0.0)
    assert close(gp.hyperparameters(), best, 1e-3)


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_bounds_hold_at_every_step(optimiser: str) -> None:
    bounds = {"noise": (0.3, 0.7), "lengthscale": (0.05, 0.45)}
    gp = model()
    for name, limits in bounds.items():
        gp.constrain(name, bounds=limits)
    report = gp.fit(X, Y, estimator="exact", optimiser=optimiser, steps=150, min_gain=0.0, samples=1)
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
    gp.fit(X, Y, estimator="exact", optimiser="lbfgs", steps=150, min_gain=0.0, samples=1)
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
        report = gp.fit(grid, wave, starts=starts, generator=seeded(4), **options)
        values.append(gp.posterior.log_marginal_likelihood().value)
        assert ("kept" in report.note) == (starts > 1)
    assert values[1] > values[0] + 20.0
    assert f"of 5 kept, log likelihood {values[1]:.1f}" in report.note


def test_starts_at_the_first_are_a_plain_fit() -> None:
    options = {"estimator": "exact", "steps": 5, "samples": 2, "features": 16}
    gp = model()
    report = gp.fit(X, Y, starts=2, generator=seeded(5), **options)
    single = model()
    plain = single.fit(X, Y, generator=seeded(5), **options)
    first = report.history if report.note.startswith("start 1") else None
    assert first is None or [step.values for step in first] == [step.values for step in plain.history]
    exact = float(likelihood(gp.hyperparameters()))
    assert exact >= float(likelihood(single.hyperparameters())) - 1e-9


def test_initialise_from_data() -> None:
    A = torch.cat([100.0 * X[:, :1], 0.01 * X[:, 1:]], 1)
    gp = model(mean=7.0)
    gp.fit(A, 7.0 + 50.0 * Y, steps=0, initialise="data", generator=seeded(6))
    found = gp.hyperparameters()
    # The median distance of two uniform numbers is 1 - 1/sqrt(2); times sqrt(2) for two columns.
    expected = torch.tensor([100.0, 0.01], dtype=torch.float64) * (math.sqrt(2.0) - 1.0)
    assert torch.allclose(found["lengthscale"], expected, rtol=0.5)
    assert found["signal"].item() == pytest.approx(50.0 * Y.std(correction=0).item())
    assert found["noise"].item() == pytest.approx(0.1 * found["signal"].item())


def test_initialise_leaves_what_is_fixed_or_bounded() -> None:
    for how in ("data", "subsets"):
        gp = model().constrain("signal", fixed=True).constrain("noise", bounds=(0.4, 0.6))
        gp.constrain("lengthscale", bounds=(0.01, 0.02))
        gp.fit(X[:20], Y[:20], steps=0, initialise=how, generator=seeded(6))
        found = gp.hyperparameters()
        assert found["signal"].item() == 1.0
        assert 0.4 - 1e-12 <= found["noise"].item() <= 0.6 + 1e-12
        assert bool((found["lengthscale"] <= 0.02 + 1e-12).all())


def test_initialise_from_subsets(best: Values, monkeypatch: pytest.MonkeyPatch) -> None:
    """With subsets of all rows the average of exact optima is the optimum; with fewer it is of its order."""
    monkeypatch.setattr(initialise, "SUBSETS", 2)
    gp = model()
    gp.fit(X, Y, steps=0, initialise="subsets", generator=seeded(7))
    assert close(gp.hyperparameters(), best, 0.05)
    monkeypatch.setattr(initialise, "SUBSETS", 6)
    monkeypatch.setattr(initialise, "SUBSET_ROWS_CPU", 50)
    gp = model()
    gp.fit(X, Y, steps=0, initialise="subsets", generator=seeded(7))
    assert not close(gp.hyperparameters(), best, 0.01)
    # Length scales of a few dozen points are no more than a guess.
    assert float(likelihood(gp.hyperparameters())) > float(likelihood(model().hyperparameters()))


def test_a_second_fit_goes_on_from_the_first() -> None:
    gp = model()
    gp.fit(X, Y, estimator="exact", steps=5, samples=1)
    middle = {name: value.flatten().tolist() for name, value in gp.hyperparameters().items()}
    report = gp.fit(X, Y, estimator="exact", steps=5, samples=1)
    assert report.history[0].values == middle
    gp.noise = 0.9
    assert gp.fit(X, Y, estimator="exact", steps=1, samples=1).history[0].values["noise"] == [gp_noise(0.9)]


def gp_noise(value: float) -> float:
    """A noise as the model stores it."""
    return Positive(value, "noise").value.item()


def test_rows_at_first_few_then_all(best: Values, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LEAST_ROWS", 20)
    gp = model()
    options = {"solver": "cholesky", "tol": 1e-9, "samples": 64, "features": 64, "generator": seeded(8)}
    report = gp.fit(X, Y, coarse=True, steps=120, min_gain=0.0, **options)
    assert [step.rows for step in report.history] == [20] * 60 + [26] * 30 + [80] * 30
    stage = {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in report.history[90].values.items()}
    assert float(likelihood(best)) >= float(likelihood(gp.hyperparameters())) > float(likelihood(stage))
    assert gp.posterior.report.rows == 80
    assert gp.posterior.report.worst_residual < 1e-8


# Means, noise, units


class Trend(nn.Module):
    """A mean function of a user: a line in the first column."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
        self.intercept = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))

    def forward(self, Z: Tensor) -> Tensor:
        return self.intercept + self.slope * Z[:, 0]


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_learned_means(optimiser: str) -> None:
    """Offset and trend as exact optimisation finds them, together with the kernel."""
    steps = {"adam": 400, "lbfgs": 120}[optimiser]
    options = {"estimator": "exact", "optimiser": optimiser, "steps": steps, "min_gain": 0.0, "samples": 1}
    y = Y + 5.0 - 8.0 * X[:, 0]
    gp = model(mean=Trend())

    def objective(theta: Values) -> Tensor:
        line = theta["mean.intercept"] + theta["mean.slope"] * X[:, 0]
        return SCALED_MATERN.log_likelihood(theta, X, y, mean=line)

    expected = optimum(objective, gp.hyperparameters())
    gp.fit(X, y, **options)
    assert close(gp.hyperparameters(), expected, 5e-3)
    gp = model(mean=pathgp.means.Constant())
    expected = optimum(
        lambda t: SCALED_MATERN.log_likelihood(t, X, Y + 5.0, mean=t["mean.value"]), gp.hyperparameters()
    )
    gp.fit(X, Y + 5.0, **options)
    assert close(gp.hyperparameters(), expected, 5e-3)
    assert gp.mean.value.item() == pytest.approx(5.0, abs=1.0)
    assert "Constant(" in repr(gp.mean)


def test_a_constant_mean_is_learned_by_paths_too() -> None:
    gp = model(mean=pathgp.means.Constant())
    gp.fit(X, Y + 5.0, samples=32, features=64, generator=seeded(1), min_gain=0.0)
    assert gp.mean.value.item() == pytest.approx(5.0, abs=1.5)
    far = torch.full((1, 2), 1e3, dtype=torch.float64)
    assert gp.posterior.mean(far).item() == pytest.approx(gp.mean.value.item())


def test_a_learned_mean_and_standardisation_agree_afterwards() -> None:
    """The units must not move with the mean that is learned: conditioning anew gives the fitted posterior."""
    gp = model(standardise=True, mean=pathgp.means.Constant())
    gp.fit(X, 30.0 + 4.0 * Y, steps=30, estimator="exact", optimiser="lbfgs", initialise="data", generator=seeded())
    assert abs(float(gp.mean.value.detach()) - 30.0) < 8.0
    again = gp.condition(X, 30.0 + 4.0 * Y, solver="cholesky", samples=0)
    torch.testing.assert_close(again.mean(XS), gp.posterior.mean(XS), rtol=1e-8, atol=1e-8)


def test_means_that_are_not_learned() -> None:
    """Zero, a number, a function, and a module without gradients: the same fit of the same residuals."""
    frozen = pathgp.means.Constant(3.0)
    frozen.value.requires_grad_(False)
    found = []
    for mean in (0.0, 3.0, lambda Z: torch.full_like(Z[:, 0], 3.0), frozen):
        offset = 0.0 if mean == 0.0 else 3.0
        gp = model(mean=mean)
        gp.fit(X, Y + offset, estimator="exact", steps=10, samples=1)
        found.append((gp.noise.item(), gp.posterior.mean(XS) - offset))
    for noise, mean in found[1:]:
        assert noise == pytest.approx(found[0][0], rel=1e-9)
        assert torch.allclose(mean, found[0][1], atol=1e-6)
    assert frozen.value.item() == 3.0


def test_known_noise_and_a_learned_floor() -> None:
    known = torch.linspace(0.0, 1.0, len(Y), dtype=torch.float64)
    y = Y + known * torch.randn(len(Y), generator=seeded(10), dtype=torch.float64)
    gp = model()
    expected = optimum(lambda t: SCALED_MATERN.log_likelihood(t, X, y, known), gp.hyperparameters())
    gp.fit(X, y, noise=known, estimator="exact", optimiser="lbfgs", steps=150, min_gain=0.0, samples=1)
    assert close(gp.hyperparameters(), expected, 1e-3)
    total = (gp.noise.detach().square() + known.square()).sqrt()
    mean, _ = reference.posterior(SCALED_MATERN.covariance(gp.hyperparameters()), X, y, total, XS)
    assert torch.allclose(gp.posterior.mean(XS), mean, atol=0.05)


@pytest.mark.parametrize("estimator", ["exact", "pathwise"])
def test_standardisation_goes_there_and_back(estimator: str) -> None:
    """The same model in other units: equal hyperparameters, predictions in the units of the data."""
    options = {"estimator": estimator, "steps": 15, "samples": 8, "features": 64, "solver": "cholesky", "tol": 1e-9}
    scale, shift = torch.tensor([1e3, 1e-2], dtype=torch.float64), torch.tensor([-40.0, 7.0], dtype=torch.float64)
    plain, other = model(standardise=True), model(standardise=True, mean=300.0)
    known = torch.linspace(0.0, 0.3, len(Y), dtype=torch.float64)
    plain.fit(X, Y, known, generator=seeded(11), **options)
    other.fit(shift + scale * X, 250.0 + 1e4 * Y, 1e4 * known, generator=seeded(11), **options)
    assert close(other.hyperparameters(), plain.hyperparameters(), 1e-6)
    post, there = plain.posterior, other.posterior
    Z = shift + scale * XS
    assert torch.allclose(there.mean(Z), 250.0 + 1e4 * post.mean(XS), rtol=1e-6)
    assert torch.allclose(there.paths(Z), 250.0 + 1e4 * post.paths(XS), rtol=1e-5)
    assert torch.allclose(there.variance(Z, noise=True), 1e8 * post.variance(XS, noise=True), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_and_kind_of_the_inputs(dtype: torch.dtype) -> None:
    options = {"steps": 8, "samples": 4, "features": 32}
    gp, same = model(), model()
    gp.fit(X.to(dtype), Y.to(dtype), generator=seeded(12), **options)
    assert gp.posterior.mean(XS.to(dtype)).dtype == dtype
    assert gp.noise.dtype == torch.float64
    same.fit(X.to(dtype).numpy(), Y.to(dtype).numpy(), generator=seeded(12), **options)
    assert close(same.hyperparameters(), gp.hyperparameters(), 1e-12)
    assert isinstance(same.posterior.mean(XS.to(dtype).numpy()), np.ndarray)


# The posterior it leaves


def test_prediction_after_a_fit_needs_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    gp = model()
    gp.fit(X, Y, steps=10, samples=64, generator=seeded(13))

    def forbidden(*args: object) -> None:
        raise AssertionError("a product with H")

    for name in ("__init__", "__matmul__", "rows", "columns", "block", "bilinear"):
        monkeypatch.setattr(KernelOperator, name, forbidden)
    assert gp.posterior.mean(XS).shape == (12,)
    assert gp.posterior.paths(XS).shape == (64, 12)


@pytest.mark.parametrize("estimator", ["pathwise", "standard", "exact"])
@pytest.mark.parametrize("solver", ["ap", "cg", "cholesky"])
def test_the_posterior_is_that_of_the_final_hyperparameters(estimator: str, solver: str) -> None:
    gp = model()
    report = gp.fit(X, Y, steps=12, estimator=estimator, solver=solver, samples=8, tol=1e-3, generator=seeded(14))
    post, exact = gp.posterior, gp.condition(X, Y, solver="cholesky", samples=0)
    assert torch.equal(post.model.noise, gp.noise)
    assert report.condition is post.report
    assert post.report.worst_residual <= 1e-3
    assert float((post.mean(XS) - exact.mean(XS)).abs().max()) <= post.report.error_bound + 1e-12
    # The samples: H alpha = f(X) + eps for the prior draws at the final hyperparameters.
    H = reference.system(SCALED_MATERN.covariance(gp.hyperparameters()), X, gp.noise.detach())
    targets = post._prior(X).T + gp.noise.detach() * post._system.noise_draws
    alpha = post._weights[:, 1:]
    error = torch.linalg.vector_norm(H @ alpha - targets, dim=0) / torch.linalg.vector_norm(targets, dim=0)
    assert post.num_samples == 8
    assert float(error.max()) <= 1.01e-3


def test_cold_starts_leave_a_posterior_too() -> None:
    gp = model()
    gp.fit(X, Y, steps=6, warm_start=False, samples=8, tol=1e-4, generator=seeded(15))
    exact = gp.condition(X, Y, solver="cholesky", samples=0)
    assert float((gp.posterior.mean(XS) - exact.mean(XS)).abs().max()) <= gp.posterior.report.error_bound
    assert gp.posterior.num_samples == 8


class Brownian(Kernel):
    """scale^2 min(x, z): a kernel of a user, who knows no features of it."""

    def __init__(self) -> None:
        super().__init__()
        self._scale = Positive(1.0, "scale")

    def features(self, *args: object, **options: object) -> Any:
        raise NotImplementedError("Brownian motion has no features here")

    def _matrix(self, A: Tensor, B: Tensor) -> Tensor:
        return self._scale.value.square() * torch.minimum(A, B.T)

    def _diagonal(self, A: Tensor) -> Tensor:
        return self._scale.value.square() * A[:, 0]


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_a_kernel_without_features_learns_by_the_standard_estimator(optimiser: str) -> None:
    A = torch.linspace(0.05, 2.0, 60, dtype=torch.float64).unsqueeze(1)
    y = 3.0 * torch.randn(60, generator=seeded(16), dtype=torch.float64).cumsum(0) * 0.05**0.5
    gp = pathgp.GP(Brownian(), 0.3)
    expected = optimum(
        lambda t: reference.log_marginal_likelihood(
            lambda P, Q: t["scale"].square() * torch.minimum(P, Q.T), A, y, t["noise"]
        ),
        gp.hyperparameters(),
    )
    report = gp.fit(A, y, optimiser=optimiser, samples=64, generator=seeded(17), solver="cholesky")
    assert report.note == "standard estimator, without paths: Brownian motion has no features here"
    assert report.estimator == "standard, 64 probes, warm starts"
    assert report.note in repr(report)
    assert gp.hyperparameters()["scale"].item() == pytest.approx(expected["scale"].item(), rel=0.2)
    assert gp.posterior.num_samples == 0
    exact = gp.condition(A, y, solver="cholesky")
    assert torch.allclose(gp.posterior.mean(A), exact.mean(A), atol=1e-2)
    with pytest.raises(NotImplementedError, match="Brownian motion has no features here"):
        gp.posterior.paths(A)


def test_copies_of_a_fitted_model() -> None:
    gp = model(mean=pathgp.means.Constant())
    gp.fit(X, Y, steps=5, samples=4, features=16, generator=seeded(18))
    for duplicate in (copy.deepcopy(gp), pickle.loads(pickle.dumps(gp))):
        assert torch.equal(duplicate.posterior.mean(XS), gp.posterior.mean(XS))
        assert torch.equal(duplicate.posterior.paths(XS), gp.posterior.paths(XS))
        duplicate.fit(X, Y, steps=2, samples=4, features=16, generator=seeded(19))
        assert not torch.equal(duplicate.noise, gp.noise)


def test_nothing_drags_an_old_posterior_along() -> None:
    gp = model()
    gp.fit(X, Y, steps=3, samples=4, features=16)
    assert gp.posterior.model._posterior is None
    assert gp.condition(X, Y, samples=0).model._posterior is None
    assert gp.working_copy(torch.device("cpu"))._posterior is None
    first = gp.posterior
    gp.fit(X, Y, steps=3, samples=4, features=16)
    assert gp.posterior is not first
    assert gp.posterior.model._posterior is None
    assert all(p.requires_grad for p in gp.parameters())
    assert not any(p.requires_grad for p in gp.posterior.model.parameters())


def test_there_is_no_posterior_before_a_fit() -> None:
    with pytest.raises(RuntimeError, match=r"there is no posterior yet: call fit"):
        _ = model().posterior


def test_a_fit_of_no_steps_conditions() -> None:
    gp = model()
    report = gp.fit(X, Y, steps=0, samples=4, features=16)
    assert report.history == []
    assert gp.posterior.num_samples == 4
    assert gp.noise.item() == gp_noise(0.5)
    assert "0 steps: all steps done" in repr(report)


# The report


def test_report() -> None:
    gp, seen = model(), []
    generator = seeded(20)
    report = gp.fit(X, Y, steps=7, samples=4, features=16, solver="cg", generator=generator, callback=seen.append)
    assert seen == report.history
    assert [step.step for step in seen] == list(range(7))
    assert report.seed == 20
    assert report.stopped == "all steps done"
    assert all(step.status == "CONVERGED" and step.probe_residual <= 1e-2 and step.epochs > 0 for step in seen)
    assert report.epochs == pytest.approx(sum(step.epochs for step in seen) + report.condition.epochs)
    assert 0.0 < report.solver_seconds <= report.seconds
    text = repr(report)
    for words in ("80 rows, 2 columns", "pathwise, 4 probes, warm starts", "adam at rate 0.1, 7 steps", "lengthscale"):
        assert words in text
    assert "since the first step, estimated" in text
    repeated = model().fit(X, Y, steps=7, samples=4, features=16, solver="cg", generator=seeded(20))
    assert [step.values for step in repeated.history] == [step.values for step in seen]


def test_report_of_an_exact_fit() -> None:
    gp = model()
    report = gp.fit(X, Y, steps=6, estimator="exact", samples=1)
    for step in report.history:
        theta = {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in step.values.items()}
        assert step.log_likelihood == pytest.approx(float(likelihood(theta)), abs=1e-8)
        assert step.gain == pytest.approx(step.log_likelihood - report.history[0].log_likelihood, abs=1e-8)
    assert report.epochs == report.condition.epochs
    assert f"{report.history[0].log_likelihood:.1f} to {report.history[-1].log_likelihood:.1f}" in repr(report)


def test_report_as_a_frame() -> None:
    pytest.importorskip("pandas")
    report = model().fit(X, Y, steps=4, estimator="exact", samples=1)
    frame = report.to_frame()
    assert frame.shape[0] == 4
    assert frame.index.name == "step"
    assert {"noise", "signal", "lengthscale[0]", "lengthscale[1]", "gain", "epochs", "seconds"} <= set(frame.columns)
    assert frame["noise"].tolist() == [step.values["noise"][0] for step in report.history]


def test_the_gain_is_close_to_the_change_of_the_likelihood() -> None:
    report = model().fit(X, Y, steps=60, samples=256, features=128, tol=1e-6, min_gain=0.0, generator=seeded(21))
    values = []
    for step in (report.history[0], report.history[-1]):
        theta = {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in step.values.items()}
        values.append(float(likelihood(theta)))
    change = values[1] - values[0]
    assert change > 10.0
    assert report.history[-1].gain == pytest.approx(change, rel=0.05)


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    gp = model()
    gp.fit(X, Y, steps=3, samples=2, features=16, progress=True)
    told = capsys.readouterr().err
    assert "3/3" in told
    assert "residual" in told
    gp.fit(X, Y, steps=3, samples=2, features=16)
    assert capsys.readouterr().err == ""


# When it ends


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
@pytest.mark.parametrize("estimator", ["exact", "pathwise"])
def test_a_converged_fit_ends(estimator: str, optimiser: str) -> None:
    options = {"estimator": estimator, "optimiser": optimiser, "samples": 16, "features": 64, "solver": "cholesky"}
    gp = model()
    report = gp.fit(X, Y, steps=400, tol=1e-8, generator=seeded(22), **options)
    assert 10 < len(report.history) < 400
    assert report.stopped == "10 steps changed the objective by less than 0.0005 nats a row"
    longer = gp.fit(X, Y, steps=30, tol=1e-8, min_gain=0.0, generator=seeded(22), **options)
    assert len(longer.history) == 30
    assert longer.stopped == "all steps done"


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
        ({"estimator": "hutchinson"}, ValueError, "estimator must be one of 'pathwise', 'standard', 'exact'"),
        ({"optimiser": "sgd"}, ValueError, "optimiser must be 'adam' or 'lbfgs', got 'sgd'"),
        ({"initialise": "random"}, ValueError, "initialise must be None, 'data' or 'subsets', got 'random'"),
        ({"optimiser": "lbfgs", "warm_start": False}, ValueError, "lbfgs needs .* use warm_start=True"),
        ({"solver": "gauss"}, ValueError, "solver"),
        ({"backend": "magic"}, ValueError, "backend must be"),
        ({"estimator": "exact", "memory": 1e5}, ValueError, "exact estimator needs .* use estimator='pathwise'"),
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
        gp.fit(X, Y, **options)
    assert close(gp.hyperparameters(), before, 0.0)
    assert gp._posterior is None


def test_bad_data() -> None:
    gp = model()
    hole = Y.clone()
    hole[3] = math.nan
    with pytest.raises(ValueError, match="y contains nan at row 3"):
        gp.fit(X, hole)
    with pytest.raises(ValueError, match=r"y must have shape \(80,\)"):
        gp.fit(X, Y[:-1])
    with pytest.raises(ValueError, match="at least one observation is needed"):
        gp.fit(X[:0], Y[:0])


def test_nothing_to_learn() -> None:
    gp = model()
    for name in gp.hyperparameters():
        gp.constrain(name, fixed=True)
    with pytest.raises(ValueError, match=r"nothing to learn: every hyperparameter is fixed; use condition\(\)"):
        gp.fit(X, Y)


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_few_and_constant_observations(optimiser: str) -> None:
    """One row, two equal rows, a constant y: nothing to learn from, and no error."""
    for A, y in ((X[:1], Y[:1]), (X[:1].expand(2, 2), Y[:2]), (X[:20], torch.ones(20)), (X[:20], torch.zeros(20))):
        gp = model(standardise=True)
        gp.fit(A, y, steps=5, optimiser=optimiser, samples=2, features=16, initialise="data", generator=seeded(23))
        assert bool(torch.isfinite(gp.posterior.mean(XS)).all())


def test_inputs_are_not_changed() -> None:
    A, b, known = X.clone(), Y.clone(), torch.full_like(Y, 0.1)
    gp, kernel = model(standardise=True), Scale(Linear(), 2.0)
    gp.fit(A, b, known, steps=4, samples=2, features=16, initialise="data")
    assert torch.equal(A, X)
    assert torch.equal(b, Y)
    assert torch.equal(known, torch.full_like(Y, 0.1))
    other = pathgp.GP(kernel)
    other.fit(A, b, steps=3, samples=2, features=16)
    assert kernel.signal.item() == pytest.approx(2.0)
    before = gp.posterior.mean(XS)
    A.zero_()
    b.zero_()
    assert torch.equal(gp.posterior.mean(XS), before)


def test_a_step_that_leaves_the_numbers_ends_the_fit_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hyperparameters and solutions of the last good step are kept, and the report says what happened."""
    evaluate, calls = Iterative.evaluate, []

    def fails_late(self: Iterative, *args: Any) -> Estimate:
        calls.append(args)
        if len(calls) > 3:
            raise NumericalFailure("the solve left the range of numbers")
        return evaluate(self, *args)

    monkeypatch.setattr(Iterative, "evaluate", fails_late)
    gp = model()
    report = gp.fit(X, Y, steps=20, generator=seeded())
    assert len(report.history) == 3
    assert report.stopped == "the solve left the range of numbers; the step before was kept"
    kept = report.history[-1].values
    assert {name: value.flatten().tolist() for name, value in gp.hyperparameters().items()} == kept
    assert gp.posterior.report.solution.converged
    monkeypatch.setattr(Iterative, "evaluate", lambda self, *args: fails_late(self, *args))
    with pytest.raises(NumericalFailure):
        model().fit(X, Y, generator=seeded())


def test_a_fit_that_fails_leaves_the_model_alone() -> None:
    gp = model(mean=pathgp.means.Constant())
    gp.fit(X, Y, steps=2, samples=2, features=16)
    before, post = gp.hyperparameters(), gp.posterior

    def failing(step: Any) -> None:
        if step.step == 3:
            raise RuntimeError("out of patience")

    with pytest.raises(RuntimeError, match="out of patience"):
        gp.fit(X, Y, samples=2, features=16, callback=failing)
    assert close(gp.hyperparameters(), before, 0.0)
    assert gp.posterior is post
    assert all(p.grad is None for p in gp.parameters())
