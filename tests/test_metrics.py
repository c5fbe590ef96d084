"""Metrics against their formulas and against independent implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from pathgp.metrics import coverage, crps, nll, rmse


@pytest.fixture
def prediction() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=500), rng.normal(size=500), rng.uniform(0.1, 3.0, size=500)


def test_against_scipy(prediction: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    y, mean, variance = prediction
    predicted = stats.norm(mean, np.sqrt(variance))
    assert rmse(y, mean) == pytest.approx(np.linalg.norm(y - mean) / np.sqrt(500))
    assert nll(y, mean, variance) == pytest.approx(-predicted.logpdf(y).mean())
    for level in (0.5, 0.95):
        low, high = predicted.interval(level)
        assert coverage(y, mean, variance, level) == pytest.approx(np.mean((y >= low) & (y <= high)))


def test_crps_is_the_integral_of_squared_differences() -> None:
    """Of the distribution functions of the prediction and of the value."""
    x = np.linspace(-20.0, 20.0, 400_001)
    for y, mean, std in ((0.3, 0.0, 1.0), (-2.0, 1.0, 0.5), (5.0, 4.9, 2.0)):
        squares = (stats.norm.cdf(x, mean, std) - (x >= y)) ** 2
        assert crps([y], [mean], [std**2]) == pytest.approx(np.trapezoid(squares, x), abs=1e-3)
    assert crps([3.0], [1.0], [1e-12]) == pytest.approx(2.0)


def test_tensors_arrays_and_lists_agree(prediction: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    tensors = [torch.tensor(value, requires_grad=True) for value in prediction]
    assert nll(*tensors) == nll(*prediction) == nll(*(value.tolist() for value in prediction))


def test_computes_in_float64() -> None:
    y = torch.full((1000,), 1e4, dtype=torch.float32)
    assert rmse(y, y + 0.125) == 0.125


@pytest.mark.parametrize("metric", [nll, coverage, crps])
def test_bad_variance_is_refused(metric) -> None:
    with pytest.raises(ValueError, match="noise=True"):
        metric([0.0], [0.0], [0.0])
    with pytest.raises(ValueError, match="noise=True"):
        metric([0.0], [0.0], [float("nan")])


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match=r"y \(3,\), mean \(3, 1\)"):
        rmse(np.zeros(3), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="at least one"):
        rmse([], [])


def test_level_is_checked() -> None:
    with pytest.raises(ValueError, match="level"):
        coverage([0.0], [0.0], [1.0], level=95)
