"""The posterior against the dense float64 textbook, for every kernel."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
import reference
from pathgp.kernels import Linear, Matern, Scale
from pathgp.posterior import exact_covariance as exact_module
from pathgp.solvers import AP, CG, SDD, Solver
from posterior_cases import CASES, Case

NOISE = 0.15

every_kernel = pytest.mark.parametrize("case", CASES, ids=str)


def largest(error: Tensor) -> float:
    return float(error.abs().max())


@every_kernel
@pytest.mark.parametrize(("solver", "tol"), [("cholesky", 1e-2), ("cg", 1e-10)])
def test_mean(case: Case, solver: str, tol: float) -> None:
    X, y, Xs = case.data(150, 40)
    expected, _ = reference.posterior(case.covariance, X, y, NOISE, Xs)
    post = pathgp.GP(case.kernel, NOISE).condition(X, y, solver=solver, tol=tol, samples=0)
    assert largest(post.mean(Xs) - expected) <= 1e-6


@every_kernel
def test_mean_in_float32(case: Case) -> None:
    X, y, Xs = (a.to(torch.float32) for a in case.data(150, 40))
    expected, _ = reference.posterior(case.covariance, X.double(), y.double(), NOISE, Xs.double())
    mean = pathgp.GP(case.kernel, NOISE).condition(X, y, solver="cholesky", samples=0).mean(Xs)
    assert mean.dtype == torch.float32
    assert largest(mean - expected) <= 1e-3


@every_kernel
@pytest.mark.parametrize("tol", [0.1, 0.01])
@pytest.mark.parametrize(
    "solver", [AP(block_size=32), CG(preconditioner=None), SDD(batch_size=50)], ids=lambda s: type(s).__name__
)
@pytest.mark.filterwarnings("ignore::pathgp.ConvergenceWarning")
def test_mean_is_inside_its_certificate(case: Case, solver: Solver, tol: float) -> None:
    X, y, Xs = case.data(150, 40)
    expected, _ = reference.posterior(case.covariance, X, y, NOISE, Xs)
    generator = torch.Generator().manual_seed(0)
    post = pathgp.GP(case.kernel, NOISE).condition(
        X, y, solver=solver, tol=tol, samples=0, max_epochs=200, generator=generator
    )
    # The certificate is about x with k(x, x) no larger than at the data.
    within = case.kernel.diag(Xs) <= case.kernel.diag(X).max()
    assert largest((post.mean(Xs) - expected)[within]) <= post.report.error_bound


def test_the_certificate_is_the_stated_formula() -> None:
    X, y, _ = CASES[3].data(100, 1)
    noise = torch.linspace(0.1, 0.6, 100, dtype=torch.float64)
    gp = pathgp.GP(Scale(Matern(1.5, 0.4), 2.0), NOISE, standardise=True)
    post = gp.condition(X, y, noise=noise, solver=CG(preconditioner=None), tol=0.05, samples=0)
    unit = float(y.std(correction=0))
    sigma = math.hypot(NOISE, 0.1 / unit)
    residual = post.report.mean_residual * float((y - y.mean()).norm()) / unit
    assert post.report.error_bound == pytest.approx(unit * 2.0 * residual / (2 * sigma), rel=1e-10)


@every_kernel
def test_variance_and_covariance(case: Case) -> None:
    X, y, Xs = case.data(120, 30)
    _, expected = reference.posterior(case.covariance, X, y, NOISE, Xs)
    post = pathgp.GP(case.kernel, NOISE).condition(X, y, samples=0)
    assert largest(post.covariance(Xs) - expected) <= 1e-8
    assert largest(post.variance(Xs) - expected.diagonal()) <= 1e-8
    assert largest(post.variance(Xs, noise=True) - expected.diagonal() - NOISE**2) <= 1e-8
    assert largest(post.covariance(Xs, noise=True) - expected - NOISE**2 * torch.eye(30)) <= 1e-8


def test_covariance_beyond_the_budget() -> None:
    """32 bytes an entry: a budget of 100 kB holds a covariance of 55 inputs."""
    X, y, Xs = CASES[2].data(20, 60)
    post = pathgp.GP(CASES[2].kernel, NOISE).condition(X, y, samples=0, compute=pathgp.Compute(memory=100_000))
    assert post.covariance(Xs[:55]).shape == (55, 55)
    for quantity in (post.covariance, post.sample):
        with pytest.raises(ValueError, match=r"covariance of 60 inputs needs .* enough for 55 inputs"):
            quantity(Xs)


@pytest.mark.parametrize("case", [CASES[2], CASES[8], CASES[9]], ids=str)
@pytest.mark.parametrize("memory", [None, 2_000_000], ids=["at once", "in parts"])
@pytest.mark.parametrize("rows", [0, 10_000], ids=["iterative", "factor"])
def test_covariance_by_every_route(case: Case, memory: int | None, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_module, "FACTOR_ROWS", rows)
    X, y, Xs = case.data(120, 30)
    _, expected = reference.posterior(case.covariance, X, y, NOISE, Xs)
    post = pathgp.GP(case.kernel, NOISE).condition(X, y, samples=0)
    # Only prediction gets the small budget, one that holds a dozen columns of K(X, Xs) at once.
    post.settings = replace(post.settings, compute=pathgp.Compute(memory=memory))
    if memory is not None:
        monkeypatch.setattr(exact_module, "_NUMBERS_PER_SOLVE", 40)
        assert post._exact._columns_at_once < 30
    assert largest(post.covariance(Xs) - expected) <= 1e-6
    assert largest(post.variance(Xs, method="solve") - expected.diagonal()) <= 1e-8


@pytest.mark.parametrize("backend", ["dense", "streamed"])
@pytest.mark.parametrize("solver", ["auto", "cholesky", "cg", "ap"])
def test_noise_of_every_point(backend: str, solver: str) -> None:
    case = CASES[2]
    X, y, Xs = case.data(120, 30)
    known = torch.linspace(0.0, 0.8, 120, dtype=torch.float64)
    total = (NOISE**2 + known.square()).sqrt()
    mean, covariance = reference.posterior(case.covariance, X, y, total, Xs)
    post = pathgp.GP(case.kernel, NOISE).condition(
        X, y, noise=known, solver=solver, tol=1e-8, samples=0, compute=pathgp.Compute(backend)
    )
    assert largest(post.mean(Xs) - mean) <= 1e-6
    assert largest(post.covariance(Xs) - covariance) <= 1e-8
    # A new observation has the model's noise: what is known of the old ones says nothing about it.
    assert largest(post.variance(Xs, noise=True) - covariance.diagonal() - NOISE**2) <= 1e-8


def test_mean_number_and_mean_function() -> None:
    case = CASES[2]
    X, y, Xs = case.data(100, 30)
    expected, _ = reference.posterior(case.covariance, X, y + 5.0, NOISE, Xs, mean=5.0)
    assert largest(pathgp.GP(case.kernel, NOISE, mean=5.0).condition(X, y + 5.0).mean(Xs) - expected) <= 1e-6

    def slope(Z: Tensor) -> Tensor:
        return 3.0 * Z[:, 0] - 1.0

    residuals, _ = reference.posterior(case.covariance, X, y, NOISE, Xs)
    gp = pathgp.GP(case.kernel, NOISE, mean=slope)
    post = gp.condition(X, y + slope(X), samples=4, generator=torch.Generator().manual_seed(0))
    assert largest(post.mean(Xs) - residuals - slope(Xs)) <= 1e-6
    plain = pathgp.GP(case.kernel, NOISE).condition(X, y, samples=4, generator=torch.Generator().manual_seed(0))
    assert largest(post.paths(Xs) - plain.paths(Xs) - slope(Xs)) <= 1e-6
    draws = post.sample(Xs, 3, torch.Generator().manual_seed(1))
    assert largest(draws - plain.sample(Xs, 3, torch.Generator().manual_seed(1)) - slope(Xs)) <= 1e-6


def test_standardise_is_what_one_does_by_hand() -> None:
    generator = torch.Generator().manual_seed(3)
    X = 1e3 + 50.0 * torch.rand(100, 3, generator=generator, dtype=torch.float64)
    X[:, 2] = 7.0
    y = 200.0 + 30.0 * torch.sin(X[:, 0] / 10.0) + torch.randn(100, generator=generator, dtype=torch.float64)
    known = torch.linspace(0.0, 9.0, 100, dtype=torch.float64)
    Xs = X[:20] + 1.0
    shift, scale = X.mean(0), X.std(0, correction=0)
    scale[2] = 1.0
    centre, unit = y.mean(), y.std(correction=0)

    kernel = Matern(1.5, lengthscale=torch.tensor([0.5, 1.0, 2.0]))
    seeds = [torch.Generator().manual_seed(5) for _ in range(2)]
    post = pathgp.GP(kernel, NOISE, standardise=True).condition(X, y, noise=known, samples=8, generator=seeds[0])
    by_hand = pathgp.GP(kernel, NOISE).condition(
        (X - shift) / scale, (y - centre) / unit, noise=known / unit, samples=8, generator=seeds[1]
    )
    Zs = (Xs - shift) / scale
    assert largest(post.mean(Xs) - (centre + unit * by_hand.mean(Zs))) <= 1e-8
    assert largest(post.paths(Xs) - (centre + unit * by_hand.paths(Zs))) <= 1e-8
    for noise in (False, True):
        for method in ("samples", "solve"):
            error = post.variance(Xs, noise, method) - unit**2 * by_hand.variance(Zs, noise, method)
            assert largest(error) <= 1e-8
    assert largest(post.covariance(Xs) - unit**2 * by_hand.covariance(Zs)) <= 1e-8
    # An update keeps the units of the first data.
    more = post.update(Xs, 200.0 + torch.zeros(20, dtype=torch.float64), generator=torch.Generator().manual_seed(6))
    more_by_hand = by_hand.update(Zs, ((200.0 - centre) / unit).expand(20), generator=torch.Generator().manual_seed(6))
    assert largest(more.mean(Xs) - (centre + unit * more_by_hand.mean(Zs))) <= 1e-8


def test_a_large_offset_of_y_is_not_lost_in_float32() -> None:
    """y = 1e8 + signal given in float64 with inputs in float32: the mean is subtracted before y is rounded."""
    X, y, _ = CASES[2].data(100, 1)
    plain = pathgp.GP(Matern(1.5, 0.4), NOISE).condition(X.float(), y, samples=0)
    for gp in (
        pathgp.GP(Matern(1.5, 0.4), NOISE, mean=1e8),
        pathgp.GP(Matern(1.5, 0.4), NOISE, mean=lambda Z: Z[:, 0].double() * 0 + 1e8),
    ):
        shifted = gp.condition(X.float(), y + 1e8, samples=0)
        assert largest(shifted.weights - plain.weights) <= 1e-4 * largest(plain.weights)


def test_a_large_offset_of_the_inputs() -> None:
    X, y, Xs = CASES[2].data(100, 30)
    gp = pathgp.GP(Matern(1.5, 0.4), NOISE)
    expected = gp.condition(X, y, samples=0).mean(Xs)
    assert largest(gp.condition(X + 1e6, y, samples=0).mean(Xs + 1e6) - expected) <= 1e-6
    # float32 has steps of 1/16 there: the answer is the one for the rounded inputs.
    rounded, rounded_s = (X + 1e6).float(), (Xs + 1e6).float()
    expected = gp.condition(rounded.double() - 1e6, y, samples=0).mean(rounded_s.double() - 1e6)
    assert largest(gp.condition(rounded, y, samples=0).mean(rounded_s) - expected) <= 1e-3


def test_tiny_noise_in_float32() -> None:
    """Noise of 1e-6 is below the rounding of K in float32: the systems are solved in float64, results stay float32."""
    X, _, Xs = (None if part is None else part.float() for part in CASES[2].data(100, 30))
    smooth = torch.sin(3.0 * X.sum(1))
    post = pathgp.GP(Matern(1.5, 0.4), 1e-6).condition(X, smooth, samples=4)
    points = (X.double(), smooth.double(), 1e-6, Xs.double())
    exact, _ = reference.posterior(lambda A, B: reference.matern(A, B, 1.5, 0.4), *points)
    assert post.mean(Xs).dtype == torch.float32
    assert largest(post.mean(Xs) - exact) <= min(post.report.error_bound, 1e-6)
    assert post.paths(Xs).dtype == torch.float32
    assert post.report.precision == "float64"
    assert "float64, for the noise is too small" in post.report.solution.note


def test_an_update_with_tiny_noise_in_float32() -> None:
    """As `test_tiny_noise_in_float32`: the new rows have much less noise than the old ones."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(400, 1, generator=generator)
    y = torch.sin(6.0 * X[:, 0])
    noise = torch.where(torch.arange(400) < 30, 0.3, 0.0)
    gp = pathgp.GP(Matern(2.5, 0.2), noise=1e-3)
    first = gp.condition(X[:30], y[:30], noise=noise[:30], samples=8, generator=generator)
    found = first.update(X[30:], y[30:], noise=noise[30:], generator=generator)
    assert (first.report.precision, found.report.precision) == ("float32", "float64")
    assert "float64, for the noise is too small" in found.report.solution.note
    Xs = torch.linspace(0.0, 1.0, 20).unsqueeze(1)
    expected = gp.condition(X, y, noise=noise, samples=0)
    assert found.mean(Xs).dtype == torch.float32
    assert torch.allclose(found.mean(Xs), expected.mean(Xs), atol=1e-4)
    paths = found.paths(X)[:, 30:]
    assert float((paths - y[30:]).abs().max()) < 0.01


@pytest.mark.parametrize("samples", [0, 4])
def test_no_prior_variance_at_the_data(samples: int) -> None:
    """A line through the origin, observed there: the data say nothing, and no residual has an effect."""
    X, Xs = torch.zeros(3, 1, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
    post = pathgp.GP(Linear(), noise=0.1).condition(X, torch.ones(3, dtype=torch.float64), samples=samples)
    assert post.mean(Xs).tolist() == [0.0, 0.0]
    assert post.variance(Xs).tolist() == [1.0, 1.0]
    assert post.report.relative_resolution == 0.0


def test_one_row_and_repeated_rows() -> None:
    kernel = Matern(1.5, 0.4)
    x = torch.tensor([[0.3, 0.4]], dtype=torch.float64)
    one = pathgp.GP(kernel, 0.5).condition(x, torch.ones(1, dtype=torch.float64), samples=2)
    assert float(one.mean(x)) == pytest.approx(1 / 1.25)
    assert float(one.variance(x, method="solve")) == pytest.approx(1 - 1 / 1.25)
    many = pathgp.GP(kernel, 0.5).condition(x.expand(50, 2), torch.ones(50, dtype=torch.float64), samples=2)
    assert float(many.mean(x)) == pytest.approx(50 / 50.25)
    assert float(many.variance(x, method="solve")) == pytest.approx(1 - 50 / 50.25)


def test_numpy_gives_the_same_numbers() -> None:
    X, y, Xs = CASES[2].data(100, 30)
    gp = pathgp.GP(CASES[2].kernel, NOISE)
    posts = [
        gp.condition(A, b, samples=4, generator=torch.Generator().manual_seed(0))
        for A, b in ((X, y), (X.numpy(), y.numpy()))
    ]
    for name in ("mean", "variance", "covariance", "paths"):
        ours, theirs = getattr(posts[0], name)(Xs), getattr(posts[1], name)(Xs.numpy())
        assert isinstance(ours, Tensor)
        assert isinstance(theirs, np.ndarray)
        assert np.array_equal(ours.numpy(), theirs), name
