"""Vecchia's likelihood and its gradient against conditional densities from dense matrices, one row at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pathgp
from learning_cases import stored_gradient
from pathgp import kernels as K
from pathgp.compute.random import permutation
from pathgp.data.observations import Observations
from pathgp.learning.estimators import Exact, GradientEstimate, State, StepRequest
from pathgp.learning.vecchia import VecchiaLikelihood, is_suitable
from pathgp.posterior.conditioning import Settings
from statistics_tools import assert_unbiased

N, M = 60, 7
SETTINGS = Settings.read("auto", 0.01, None)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_data(gp: pathgp.GP, d: int, noise: Tensor | None = None, seed: int = 0) -> Observations:
    generator = seeded(seed)
    X = torch.rand(N, d, generator=generator, dtype=torch.float64)
    if any(isinstance(part, K.Sphere) for part in gp.kernel.modules()):
        X = 120.0 * X - 60.0
    y = torch.sin(5.0 * X[:, 0]) + 0.3 * torch.randn(N, generator=generator, dtype=torch.float64)
    return gp.prepare_data(X, y, noise)


def evaluate(gp: pathgp.GP, data: Observations, m: int = M, rows: Tensor | None = None) -> GradientEstimate:
    return VecchiaLikelihood(m).evaluate(gp, data, State(rows=rows), StepRequest(SETTINGS, seeded()))


def expected_value(gp: pathgp.GP, data: Observations, m: int = M, rows: Tensor | None = None) -> Tensor:
    """The sum of log p(y_i | y_c), differentiable in all parameters.

    With ``rows``, those of later rows represent all later rows, and the sum that of the number of ``rows``.
    """
    X = data.inputs()
    y = data.targets(torch.zeros(())) - gp.mean_at(data.X_raw) / data.scaling.target_scale
    H = gp.kernel(X) + gp.deviation(data).square() * torch.eye(N, dtype=torch.float64)
    C = gp.kernel.coordinates(X).detach()
    # Ratios of extents are rounded to powers of 1.5.
    extent = C.std(0)
    C = C / extent * 1.5 ** ((extent / extent[0]).log() / math.log(1.5)).round()
    order = permutation(N, seeded(2_718_281_828), X.device).tolist()
    basis = torch.zeros(N, 0, dtype=torch.float64) if data.basis is None else torch.linalg.qr(data.basis)[0]
    places = [place for place in range(N) if place <= m or rows is None or order[place] in rows.tolist()]
    num_later = sum(place > m for place in places)
    factor = torch.tensor([1.0 if place <= m else (N - m - 1) / num_later for place in places], dtype=torch.float64)
    residuals, scales = [], []
    for place in places:
        i, earlier = order[place], order[:place]
        near = sorted(earlier, key=lambda j: float((C[j] - C[i]).norm()))[:m]
        weights = torch.linalg.solve(H[near][:, near], H[near, i])
        scales.append((H[i, i] - weights @ H[near, i]).sqrt())
        both = torch.cat([y.unsqueeze(1), basis], 1)
        residuals.append((both[i] - weights @ both[near]) / scales[-1])
    Q = torch.stack(residuals) * factor.sqrt().unsqueeze(1)
    q, B = Q[:, 0], Q[:, 1:]
    gram = B.T @ B
    q = q - B @ torch.linalg.solve(gram, B.T @ q)
    value = -0.5 * q @ q - factor @ torch.stack(scales).log() - 0.5 * (N - B.shape[1]) * math.log(2 * math.pi)
    return (1.0 if rows is None else len(rows) / N) * (value - 0.5 * torch.logdet(gram))


CASES: dict[str, tuple[int, Callable[[], pathgp.GP]]] = {
    "rough, one column": (1, lambda: pathgp.GP(K.Scale(K.Matern(0.5, 0.4), 1.3), 0.2)),
    "length scales": (2, lambda: pathgp.GP(K.Scale(K.Matern(1.5, torch.tensor([0.3, 0.5]))), 0.3)),
    "sum": (2, lambda: pathgp.GP(K.Matern(2.5, 0.5) + K.Scale(K.RationalQuadratic(1.5, 0.3), 0.4), 0.3)),
    "latitude and longitude": (2, lambda: pathgp.GP(K.Sphere(K.Matern(1.5, 0.4)), 0.2)),
    "learned mean": (2, lambda: pathgp.GP(K.Matern(1.5, 0.4), 0.3, mean=pathgp.means.Constant(0.5))),
    "trend": (2, lambda: pathgp.GP(K.Matern(1.5, 0.4), 0.3, mean=pathgp.means.Trend("linear"))),
    "gneiting": (3, lambda: pathgp.GP(K.Gneiting(K.Matern(1.5, 0.4)), 0.3)),
}


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient_are_those_of_the_conditional_densities(case: str) -> None:
    d, make = CASES[case]
    gp = make()
    data = make_data(gp, d)
    estimate = evaluate(gp, data)
    estimate.objective.backward()
    found = stored_gradient(gp)
    gp.zero_grad()
    value = expected_value(gp, data)
    assert estimate.value == pytest.approx(float(value.detach()), rel=1e-8)
    value.backward()
    torch.testing.assert_close(found, stored_gradient(gp), rtol=1e-6, atol=1e-7)


def check_some_rows(gp: pathgp.GP, data: Any, rows: Tensor) -> None:
    """Value and gradient of the likelihood by the factors of some rows."""
    estimate = evaluate(gp, data, rows=rows)
    estimate.objective.backward()
    found = stored_gradient(gp)
    gp.zero_grad()
    value = expected_value(gp, data, rows=rows)
    assert estimate.value == pytest.approx(float(value.detach()), rel=1e-8)
    value.backward()
    torch.testing.assert_close(found, stored_gradient(gp), rtol=1e-6, atol=1e-7)


def test_known_noise_and_factors_of_some_rows() -> None:
    gp = pathgp.GP(K.Matern(1.5, 0.4), 0.3)
    data = make_data(gp, 2, noise=torch.linspace(0.1, 0.4, N, dtype=torch.float64))
    rows = torch.arange(0, N, 3)
    check_some_rows(gp, data, rows)


def test_factors_of_some_rows_with_a_trend() -> None:
    gp = CASES["trend"][1]()
    data = make_data(gp, 2)
    rows = torch.arange(0, N, 2)
    check_some_rows(gp, data, rows)


@pytest.mark.parametrize("n", [1, 5, 31, 32])
@pytest.mark.parametrize("case", [*CASES, "known noise"])
def test_as_many_neighbours_as_rows_give_the_exact_likelihood(case: str, n: int) -> None:
    """Value, gradient and misfit; n - 1 neighbours, or more."""
    d, make = CASES.get(case, CASES["length scales"])
    gp = make()
    full = make_data(gp, d)
    noise = torch.linspace(0.1, 0.4, n, dtype=torch.float64) if case == "known noise" else None
    # A trend of three functions needs one row more.
    n = max(n, 4) if case == "trend" else n
    data = gp.prepare_data(full.X_raw[:n], full.y[:n], noise)
    exact = Exact().evaluate(gp, data, State(), StepRequest(SETTINGS, seeded()))
    exact.objective.backward()
    expected = stored_gradient(gp)
    for m in (n - 1, n + 3):
        gp.zero_grad()
        estimate = evaluate(gp, data, m)
        assert estimate.value == pytest.approx(exact.value, rel=1e-8, abs=1e-8)
        assert estimate.misfit == pytest.approx(exact.misfit, rel=1e-8, abs=1e-8)
        estimate.objective.backward()
        torch.testing.assert_close(stored_gradient(gp), expected, rtol=1e-6, atol=1e-7)


def test_misfit() -> None:
    """The mean square of standardised conditional residuals: multiplied by four if y is doubled."""
    gp = pathgp.GP(K.Matern(1.5, 0.4), 0.3)
    data = make_data(gp, 2)
    doubled = gp.prepare_data(data.X_raw, 2.0 * data.y, None)
    assert evaluate(gp, doubled).misfit == pytest.approx(4.0 * evaluate(gp, data).misfit)


def test_the_gradient_is_zero_on_average_at_the_truth() -> None:
    """With few neighbours, too. False-alarm rate: 1e-6 (`assert_unbiased`)."""
    gp = pathgp.GP(K.Scale(K.Matern(1.5, 0.4), 1.0), 0.5)
    X = make_data(gp, 2).X_raw
    L = torch.linalg.cholesky(gp.kernel(X).detach() + 0.25 * torch.eye(N, dtype=torch.float64))
    gradients = []
    for seed in range(300):
        y = L @ torch.randn(N, generator=seeded(seed), dtype=torch.float64)
        gp.zero_grad()
        evaluate(gp, gp.prepare_data(X, y, None), m=3).objective.backward()
        gradients.append(stored_gradient(gp))
    found = torch.stack(gradients)
    assert_unbiased(found, torch.zeros_like(found[0]))


@pytest.mark.parametrize(
    ("kernel", "d", "is_field"),
    [
        (K.Matern(1.5, 0.5), 3, True),
        (K.Matern(1.5, 0.5), 4, False),
        (K.Matern(1.5, 0.5, active_dims=[0, 3]), 4, True),
        (K.Sphere(K.Matern(1.5, 0.5)), 2, True),
        (K.Sphere(K.Matern(1.5, 0.5), active_dims=[0, 1]) * K.Matern(0.5, 0.5, active_dims=[2]), 3, False),
        (K.Matern(1.5, 0.5) + K.Linear(1.0), 2, False),
    ],
    ids=str,
)
def test_which_kernels_are_fields(kernel: K.Kernel, d: int, is_field: bool) -> None:
    assert is_suitable(kernel, d, 3) == is_field


def test_a_default_fit_of_a_field_uses_it_and_finds_the_hyperparameters(tmp_path: Path) -> None:
    generator = seeded()
    X = torch.rand(1500, 2, generator=generator, dtype=torch.float64)
    kernel = K.Scale(K.Matern(1.5, 0.2), 1.0)
    L = torch.linalg.cholesky(kernel(X).detach() + 0.01 * torch.eye(1500, dtype=torch.float64))
    y = L @ torch.randn(1500, generator=generator, dtype=torch.float64)
    gp = pathgp.GP(K.Scale(K.Matern(1.5, 1.0)), 1.0)
    report = gp.fit(X, y, samples=4, features=64, generator=generator)
    assert "Vecchia's likelihood, 30 neighbours" in report.estimator
    assert {step.method for step in report.history} == {"Vecchia"}
    items = dict(report.summary_items())
    assert "solves" not in items
    assert items["log likelihood"].endswith(", by Vecchia's approximation")
    gp.posterior.to_html(tmp_path / "page.html", fit=report)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "explains the data, by Vecchia&#x27;s approximation." in page
    (matern,) = gp.kernel.parts
    values: dict[str, Any] = {"lengthscale": matern.lengthscale, "noise": gp.noise}
    assert float(values["lengthscale"].detach()) == pytest.approx(0.2, rel=0.25)
    assert float(values["noise"].detach()) == pytest.approx(0.1, rel=0.1)
    assert gp.posterior.report.solution.converged
    assert gp.posterior.paths(X[:3]).shape == (4, 3)


def draw_of_the_model(n: int, signal: float, lengthscale: float, noise: float) -> tuple[Tensor, Tensor]:
    """Random points of [0, 4] in increasing order, and values there."""
    generator = seeded(1)
    X = 4.0 * torch.rand(n, 1, generator=generator, dtype=torch.float64).sort(0).values
    H = K.Scale(K.Matern(1.5, lengthscale), signal)(X).detach() + noise**2 * torch.eye(n, dtype=torch.float64)
    return X, torch.linalg.cholesky(H) @ torch.randn(n, generator=generator, dtype=torch.float64)


def exact_value(gp: pathgp.GP, X: Tensor, y: Tensor) -> float:
    estimate = Exact().evaluate(gp, gp.prepare_data(X, y, None), State(), StepRequest(SETTINGS, seeded()))
    assert estimate.value is not None
    return estimate.value


def test_a_fit_with_a_long_length_scale_ends_near_the_exact_optimum() -> None:
    """The first rows of the order, which are far apart, determine the signal and the length scale."""
    X, y = draw_of_the_model(1100, signal=2.0, lengthscale=1.0, noise=0.2)
    settings: dict[str, Any] = {"samples": 2, "features": 16, "stages": "full", "generator": seeded()}
    gps = {}
    for estimator in ("vecchia", "exact"):
        gp = gps[estimator] = pathgp.GP(K.Scale(K.Matern(1.5, 0.5)))
        report = gp.fit(X, y, estimator=estimator, **settings)
        if estimator == "vecchia":
            assert report.history[-1].log_likelihood == pytest.approx(exact_value(gp, X, y), abs=3.0)
    assert exact_value(gps["vecchia"], X, y) > exact_value(gps["exact"], X, y) - 1.0


def test_the_value_is_close_to_the_exact_log_likelihood() -> None:
    X, y = draw_of_the_model(600, signal=2.0, lengthscale=1.0, noise=0.2)
    for signal, lengthscale, noise in ((2.0, 1.0, 0.2), (1.0, 1.0, 0.2), (4.0, 2.0, 0.2), (1.0, 0.5, 0.4)):
        gp = pathgp.GP(K.Scale(K.Matern(1.5, lengthscale), signal), noise)
        value = evaluate(gp, gp.prepare_data(X, y, None), 30).value
        assert value == pytest.approx(exact_value(gp, X, y), abs=3.0)


@pytest.mark.parametrize(
    ("n", "mean"), [(1, 0.0), (3, 0.0), (31, 0.0), (4, pathgp.means.Trend()), (30, pathgp.means.Trend())], ids=str
)
@pytest.mark.filterwarnings("ignore:y has one value:UserWarning")
def test_fits_of_few_rows_take_the_steps_of_exact_fits(n: int, mean: Any) -> None:
    X, y = draw_of_the_model(n, signal=2.0, lengthscale=1.0, noise=0.2)
    values = {}
    for estimator in ("vecchia", "exact"):
        gp = pathgp.GP(K.Scale(K.Matern(1.5, 0.5)), mean=mean)
        report = gp.fit(X, y, estimator=estimator, steps=3, samples=2, features=16, generator=seeded())
        values[estimator] = [step.log_likelihood for step in report.history]
    assert values["vecchia"] == pytest.approx(values["exact"], rel=1e-6, abs=1e-6)


def test_refused() -> None:
    X, y = torch.rand(30, 2, generator=seeded()), torch.zeros(30)
    with pytest.raises(ValueError, match="estimator='vecchia' is for tables and functions of differences"):
        pathgp.GP(K.Linear(1.0), 0.1).fit(X, y, estimator="vecchia")
