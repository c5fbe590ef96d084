"""Any input gives a clear refusal or a right answer, never a silent wrong one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

import pathgp
import reference
from pathgp.compute.inputs import read_matrix
from pathgp.kernels import Matern, Scale

# Derandomised: the same examples in every run, so that a failure is never a matter of luck.
stable = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
T = TypeVar("T")
Problem = tuple[Tensor, Tensor, Tensor, float, float, float]


def attempt(call: Callable[[], T]) -> tuple[T | None, str]:
    """The result, or the words in which it was refused."""
    try:
        return call(), ""
    except (ValueError, TypeError) as error:
        return None, str(error)


@st.composite
def anything(draw: st.DrawFn, dims: int) -> np.ndarray:
    """Arrays of any dtype NumPy knows, of few rows, and of the right number of dimensions more often than not."""
    dimensions = draw(st.sampled_from([dims, dims, dims, 1, 2, 3]))
    shape = draw(hnp.array_shapes(min_dims=dimensions, max_dims=dimensions, min_side=0, max_side=5))
    kinds = st.one_of(
        hnp.floating_dtypes(), hnp.integer_dtypes(), hnp.boolean_dtypes(), hnp.complex_number_dtypes(),
        hnp.unicode_string_dtypes(), hnp.datetime64_dtypes(),
    )  # fmt: skip
    return draw(hnp.arrays(draw(kinds), shape))


@stable
@given(anything(2))
def test_reading_any_array(array: np.ndarray) -> None:
    before = array.copy()
    matrix, refusal = attempt(lambda: read_matrix(array))
    if matrix is None:
        assert "X" in refusal
        return
    assert matrix.X.dtype in (torch.float32, torch.float64)
    assert matrix.X.shape == array.shape
    assert np.array_equal(matrix.X.numpy(), array.astype(matrix.X.numpy().dtype))
    assert np.array_equal(array, before)


@stable
@given(anything(2), anything(1), st.booleans())
def test_conditioning_on_any_array(X: np.ndarray, y: np.ndarray, standardise: bool) -> None:
    before = X.copy(), y.copy()
    gp = pathgp.GP(Matern(1.5), noise=0.5, standardise=standardise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        post, refusal = attempt(lambda: gp.condition(X, y, samples=2, features=8))
        if post is None:
            assert any(name in refusal for name in ("X", "y"))
            return
        mean, paths = post.mean(X), post.paths(X)
    assert mean.shape == y.shape
    assert np.isfinite(mean).all()
    assert np.isfinite(paths).all()
    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in zip(before, (X, y), strict=True))


rows = st.integers(1, 12)
numbers = st.floats(-3, 3, width=32)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Inputs that repeat themselves, targets, noise, length scale, signal: all within reason."""
    n, d = draw(rows), draw(st.integers(1, 3))
    X = draw(hnp.arrays(np.float64, (n, d), elements=st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 0.3, 1.0, 1.5])))
    y = draw(hnp.arrays(np.float64, n, elements=numbers))
    Xs = draw(hnp.arrays(np.float64, (draw(st.integers(0, 4)), d), elements=numbers))
    noise, lengthscale = draw(st.floats(0.05, 2.0)), draw(st.floats(0.1, 10.0))
    return torch.tensor(X), torch.tensor(y), torch.tensor(Xs), noise, lengthscale, draw(st.floats(0.1, 3.0))


@stable
@given(problems())
def test_any_problem_within_reason_is_solved_right(problem: Problem) -> None:
    X, y, Xs, noise, lengthscale, signal = problem
    post = pathgp.GP(Scale(Matern(1.5, lengthscale), signal), noise).condition(X, y, samples=0)
    mean, covariance = reference.posterior(
        lambda A, B: signal**2 * reference.matern(A, B, 1.5, lengthscale), X, y, noise, Xs
    )
    assert torch.allclose(post.mean(Xs), mean, rtol=0, atol=1e-8)
    assert torch.allclose(post.covariance(Xs), covariance, rtol=0, atol=1e-8)
    # A variance is never negative, whatever is rounded.
    assert bool((post.variance(Xs) >= 0).all())
    assert torch.allclose(post.variance(Xs), covariance.diagonal().clamp_min(0), rtol=0, atol=1e-8)


@stable
@given(problems(), st.integers(0, 12), st.floats(-5, 5), st.integers(-6, 6))
def test_symmetries_of_the_posterior(problem: Problem, turn: int, shift: float, power: int) -> None:
    """The order of the rows does not matter, nor the units of y, nor the origin of a stationary kernel."""
    X, y, Xs, noise, lengthscale, signal = problem
    post = pathgp.GP(Scale(Matern(1.5, lengthscale), signal), noise).condition(X, y, samples=0)
    order = torch.arange(len(X)).roll(turn)
    turned = pathgp.GP(Scale(Matern(1.5, lengthscale), signal), noise).condition(X[order], y[order], samples=0)
    assert torch.allclose(turned.mean(Xs), post.mean(Xs), rtol=0, atol=1e-8)
    moved = pathgp.GP(Scale(Matern(1.5, lengthscale), signal), noise).condition(X + shift, y, samples=0)
    assert torch.allclose(moved.mean(Xs + shift), post.mean(Xs), rtol=0, atol=1e-8)
    unit = 10.0**power
    scaled = pathgp.GP(Scale(Matern(1.5, lengthscale), unit * signal), unit * noise).condition(X, unit * y, samples=0)
    assert torch.allclose(scaled.mean(Xs), unit * post.mean(Xs), rtol=0, atol=1e-8 * unit)
    assert torch.allclose(scaled.variance(Xs), unit**2 * post.variance(Xs), rtol=0, atol=1e-8 * unit**2)


@stable
@given(problems(), st.integers(0, 12))
def test_an_update_is_conditioning_on_all(problem: Problem, cut: int) -> None:
    X, y, Xs, noise, lengthscale, signal = problem
    assume(1 <= cut <= len(X))
    gp = pathgp.GP(Scale(Matern(1.5, lengthscale), signal), noise)
    whole = gp.condition(X, y, samples=0, tol=1e-10)
    grown = gp.condition(X[:cut], y[:cut], samples=0, tol=1e-10).update(X[cut:], y[cut:])
    assert torch.allclose(grown.mean(Xs), whole.mean(Xs), rtol=0, atol=1e-7)
    assert torch.allclose(grown.variance(Xs), whole.variance(Xs), rtol=0, atol=1e-8)


@stable
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_noise_is_taken_or_refused(noise: float) -> None:
    X, y = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(1), torch.ones(5, dtype=torch.float64)
    if not (noise > 0 and math.isfinite(noise)):
        with pytest.raises(ValueError, match="noise must be positive and finite"):
            pathgp.GP(Matern(), noise)
        return
    mean, refusal = attempt(lambda: pathgp.GP(Matern(), noise).condition(X, y, samples=1, features=4).mean(X))
    if mean is None:
        assert "noise" in refusal
        return
    expected, _ = reference.posterior(lambda A, B: reference.matern(A, B, 1.5), X, y, noise, X)
    torch.testing.assert_close(mean, expected, rtol=0.0, atol=1e-6)
