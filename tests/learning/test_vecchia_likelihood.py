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
from pathgp.learning.estimators import GradientEstimate, State, StepRequest
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
    """The sum of log p(y_i | y_c), as if all rows had a factor, differentiable in all parameters."""
    X = data.inputs()
    y = data.targets(torch.zeros(())) - gp.mean_at(data.X_raw) / data.scaling.target_scale
    H = gp.kernel(X) + gp.deviation(data).square() * torch.eye(N, dtype=torch.float64)
    C = gp.kernel.coordinates(X).detach()
    # Ratios of extents are rounded to powers of 1.5.
    extent = C.std(0)
    C = C / extent * 1.5 ** ((extent / extent[0]).log() / math.log(1.5)).round()
    order = permutation(N, seeded(2_718_281_828), X.device).tolist()
    basis = torch.zeros(N, 0, dtype=torch.float64) if data.basis is None else torch.linalg.qr(data.basis)[0]
    residuals, scales = [], []
    for place in range(m + 1, N):
        i, earlier = order[place], order[:place]
        if rows is not None and i not in rows.tolist():
            continue
        near = sorted(earlier, key=lambda j: float((C[j] - C[i]).norm()))[:m]
        weights = torch.linalg.solve(H[near][:, near], H[near, i])
        scales.append((H[i, i] - weights @ H[near, i]).sqrt())
        both = torch.cat([y.unsqueeze(1), basis], 1)
        residuals.append((both[i] - weights @ both[near]) / scales[-1])
    Q = torch.stack(residuals)
    q, B = Q[:, 0], Q[:, 1:]
    gram = B.T @ B
    q = q - B @ torch.linalg.solve(gram, B.T @ q)
    value = -0.5 * q @ q - torch.stack(scales).log().sum() - 0.5 * (len(q) - B.shape[1]) * math.log(2 * math.pi)
    return (N if rows is None else len(rows)) / len(q) * (value - 0.5 * torch.logdet(gram))


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


def test_known_noise_and_factors_of_some_rows() -> None:
    gp = pathgp.GP(K.Matern(1.5, 0.4), 0.3)
    data = make_data(gp, 2, noise=torch.linspace(0.1, 0.4, N, dtype=torch.float64))
    rows = torch.arange(0, N, 3)
    estimate = evaluate(gp, data, rows=rows)
    estimate.objective.backward()
    found = stored_gradient(gp)
    gp.zero_grad()
    value = expected_value(gp, data, rows=rows)
    assert estimate.value == pytest.approx(float(value.detach()), rel=1e-8)
    value.backward()
    torch.testing.assert_close(found, stored_gradient(gp), rtol=1e-6, atol=1e-7)


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


def test_refused() -> None:
    X, y = torch.rand(30, 2, generator=seeded()), torch.zeros(30)
    with pytest.raises(ValueError, match="estimator='vecchia' is for tables and functions of differences"):
        pathgp.GP(K.Linear(1.0), 0.1).fit(X, y, estimator="vecchia")
