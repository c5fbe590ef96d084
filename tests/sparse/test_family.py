"""Every sparse method against its dense formula, against the exact GP, and against the other methods."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import pathgp
import reference
import sparse_reference
from pathgp import Compute, InducingGP, InducingPosterior
from pathgp.kernels import Kernel, Matern, Scale
from posterior_cases import CASES, Case
from sparse_reference import METHODS

NOISE = 0.2
every_method = pytest.mark.parametrize("method", METHODS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(n: int = 300) -> tuple[Tensor, Tensor, Tensor]:
    return CASES[2].data(n, 24)


def condition(gp: InducingGP, X: Tensor, y: Tensor, **options: Any) -> InducingPosterior:
    return gp.condition(X, y, **{"solver": "cholesky", "samples": 0, **options})


def kernel() -> Kernel:
    return Scale(Matern(1.5, lengthscale=torch.tensor([0.3, 0.6])), 1.2)


def covariance(X: Tensor, Z: Tensor) -> Tensor:
    return 1.2**2 * reference.matern(X, Z, 1.5, torch.tensor([0.3, 0.6]))


def blocks_of(gp: InducingGP, X: Tensor, y: Tensor) -> list[Tensor]:
    """The blocks of PITC, in numbers of rows."""
    rows = gp.prepare_data(X, y)
    parts = condition(gp, X, y).model.problem(rows, Compute()).blocks()
    return [part if isinstance(part, Tensor) else torch.arange(len(y))[part] for part in parts]


@every_method
def test_against_the_dense_formulas(method: str) -> None:
    X, y, Xs = data()
    Z = X[::8] + 0.01
    gp = InducingGP(kernel(), NOISE, Z, method)
    post = condition(gp, X, y)
    blocks = blocks_of(gp, X, y) if method == "pitc" else []
    assert method != "pitc" or len(blocks) == 2
    mean, expected = sparse_reference.posterior(method, covariance, Z, X, y, NOISE, Xs, blocks)
    assert torch.allclose(post.mean(Xs), mean, rtol=0, atol=1e-7)
    assert torch.allclose(post.covariance(Xs), expected, rtol=0, atol=1e-7)
    assert torch.allclose(post.variance(Xs), expected.diagonal(), rtol=0, atol=1e-7)
    with_noise = post.variance(Xs, noise=True)
    assert torch.allclose(with_noise, expected.diagonal() + NOISE**2, rtol=0, atol=1e-7)
    value = sparse_reference.objective(method, covariance, Z, X, y, NOISE, blocks)
    assert post.log_marginal_likelihood().value == pytest.approx(float(value), abs=1e-5)


@every_method
def test_known_noise_of_every_row(method: str) -> None:
    X, y, Xs = data(100)
    Z, known = X[::5], torch.linspace(0.1, 0.5, 100, dtype=torch.float64)
    post = condition(InducingGP(kernel(), NOISE, Z, method), X, y, noise=known)
    total = (NOISE**2 + known.square()).sqrt()
    mean, expected = sparse_reference.posterior(method, covariance, Z, X, y, total, Xs, [torch.arange(100)])
    assert torch.allclose(post.mean(Xs), mean, rtol=0, atol=1e-7)
    assert torch.allclose(post.covariance(Xs), expected, rtol=0, atol=1e-7)


@every_method
@pytest.mark.parametrize("case", [CASES[i] for i in (0, 2, 5)], ids=str)
def test_all_rows_as_inducing_points_are_the_exact_gp(method: str, case: Case) -> None:
    """At new inputs SoR has less variance than the exact GP even then; at the inducing points it has the same."""
    X, y, Xs = case.data(80, 24)
    post = condition(InducingGP(case.kernel, 0.3, X, method), X, y)
    Xs = X[:24] if method == "sor" else Xs
    mean, expected = reference.posterior(case.covariance, X, y, 0.3, Xs)
    assert torch.allclose(post.mean(Xs), mean, rtol=0, atol=1e-6)
    assert torch.allclose(post.covariance(Xs), expected, rtol=0, atol=1e-6)
    evidence = reference.log_marginal_likelihood(case.covariance, X, y, 0.3)
    assert post.log_marginal_likelihood().value == pytest.approx(float(evidence), abs=1e-4)


def test_the_bound_is_below_the_evidence_and_grows_with_the_points() -> None:
    X, y, _ = data()
    order = torch.randperm(300, generator=seeded())
    exact = float(reference.log_marginal_likelihood(covariance, X, y, NOISE))
    bounds = []
    for m in (5, 20, 60, 150, 300):
        post = InducingGP(kernel(), NOISE, X[order[:m]]).condition(X, y, samples=0)
        bounds.append(post.log_marginal_likelihood().value)
    assert all(low < high for low, high in itertools.pairwise(bounds))
    assert bounds[-2] < exact - 0.1
    assert bounds[-1] == pytest.approx(exact, abs=1e-4)


def test_a_small_budget_changes_nothing() -> None:
    """Blocks of a few rows: the same numbers as one block."""
    X, y, Xs = data()
    for method in ("sgpr", "fitc"):
        gp = InducingGP(kernel(), NOISE, X[::10], method)
        whole = gp.condition(X, y, samples=0)
        tiled = gp.condition(X, y, samples=0, compute=Compute(memory=130_000))
        assert "blocks of 11 rows" in tiled.report.backend
        assert torch.allclose(tiled.mean(Xs), whole.mean(Xs), rtol=0, atol=1e-10)
        assert torch.allclose(tiled.variance(Xs), whole.variance(Xs), rtol=0, atol=1e-10)


def test_the_mean_of_dtc_minimises_the_objective_of_the_thesis() -> None:
    """v = argmin |y - K_XZ v|^2 + sigma^2 v^T K_ZZ v (section 3.2.3)."""
    X, y, _ = data()
    Z = X[::10]
    post = InducingGP(kernel(), NOISE, Z, "dtc").condition(X, y, samples=0)
    K, C = covariance(Z, Z), covariance(X, Z)
    v = post.weights[:, 0]
    gradient = C.T @ (C @ v - y) + NOISE**2 * K @ v
    assert float(gradient.abs().max()) < 1e-8 * float((C.T @ y).abs().max())


@every_method
def test_gradients_in_the_inputs(method: str) -> None:
    X, y, Xs = data(60)
    gp = InducingGP(kernel(), NOISE, X[::4], method)
    post = condition(gp, X, y, samples=2, features=8, generator=seeded())
    inputs = Xs[:2].clone().requires_grad_()
    for function in (post.mean, post.variance, post.paths):
        assert torch.autograd.gradcheck(lambda A, f=function: f(A), (inputs,), atol=1e-6)


def test_components_add_up() -> None:
    X, y, Xs = data(80)
    sum_of_two = Scale(Matern(1.5, 0.3), 1.0) + Scale(Matern(2.5, 1.0), 0.5)
    post = InducingGP(sum_of_two, NOISE, 40).condition(X, y, generator=seeded())
    parts = post.components().values()
    assert torch.allclose(sum(part.mean(Xs) for part in parts), post.mean(Xs))
    assert torch.allclose(sum(part.paths(Xs) for part in parts), post.paths(Xs))
    assert all(bool((part.variance(Xs) > 0).all()) for part in parts)


def test_the_exact_gp_and_its_sparse_version_agree_with_standardised_data() -> None:
    X, y, Xs = data(100)
    X, y, Xs = 1e3 + 50.0 * X, 20.0 + 5.0 * y, 1e3 + 50.0 * Xs
    options = {"mean": 3.0, "standardise": True}
    exact = pathgp.GP(kernel(), NOISE, **options).condition(X, y, solver="cholesky", samples=0)
    post = InducingGP(kernel(), NOISE, X, **options).condition(X, y, samples=0)
    assert torch.allclose(post.mean(Xs), exact.mean(Xs), rtol=1e-6)
    assert torch.allclose(post.variance(Xs, noise=True), exact.variance(Xs, noise=True), rtol=1e-5)
    assert post.noise_std == pytest.approx(exact.noise_std)
    assert torch.allclose(post.Z, X)
    evidence = exact.log_marginal_likelihood().value
    assert post.log_marginal_likelihood().value == pytest.approx(evidence, abs=1e-4)
