"""The tools must accept what is right, refuse what is wrong, and have the false-alarm rate they state."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

import reference
from statistics_tools import assert_mean_and_covariance, assert_unbiased, moment_p_values

M = 12
X = torch.linspace(0, 3, M, dtype=torch.float64)[:, None]
MEAN = torch.sin(X[:, 0])
COVARIANCE = reference.matern(X, X, nu=1.5, lengthscale=0.8)
ROOT = torch.linalg.cholesky(COVARIANCE)
LONGER = torch.linalg.cholesky(reference.matern(X, X, nu=1.5, lengthscale=0.9))


def gaussian_samples(s: int, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return MEAN + torch.randn(s, M, generator=g, dtype=torch.float64) @ ROOT.T


def feature_samples(s: int, seed: int, frequencies: int, shared: bool) -> torch.Tensor:
    """Prior functions of random features: each function has its own frequencies, or all share them."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    draws = 1 if shared else s
    # Matern-3/2 has Student-t frequencies with 3 degrees of freedom.
    chi2 = normal(draws, frequencies, 3).square().sum(-1)
    phase = normal(draws, frequencies) * (3 / chi2).sqrt() / 0.8
    angles = phase[:, :, None] * X[:, 0]
    phi = torch.cat([angles.sin(), angles.cos()], dim=1) / math.sqrt(frequencies)
    return MEAN + (normal(s, 2 * frequencies)[:, :, None] * phi).sum(1)


@pytest.mark.statistical
@pytest.mark.parametrize("s", [2, 5, 40, 300])
def test_right_samples_are_accepted(s: int) -> None:
    for seed in range(50):
        assert_mean_and_covariance(gaussian_samples(s, seed), MEAN, COVARIANCE)


@pytest.mark.statistical
@pytest.mark.parametrize("s", [5, 40])
def test_false_alarm_rate_is_the_stated_one(s: int) -> None:
    """Each p-value is below 5 % in 5 % of the cases, or in fewer where it is corrected for many tests."""
    runs = 600
    results = [moment_p_values(gaussian_samples(s, seed), MEAN, COVARIANCE) for seed in range(runs)]
    for name in results[0]:
        alarms = sum(p[name] < 0.05 for p in results)
        assert alarms <= stats.binom.ppf(1 - 1e-5, runs, 0.05), f"{name}: {alarms} alarms in {runs}"
        if name in ("mean", "total variance", "all correlations"):
            assert alarms >= stats.binom.ppf(1e-5, runs, 0.05), f"{name}: {alarms} alarms in {runs}"


@pytest.mark.statistical
def test_false_alarm_rate_with_measured_tails() -> None:
    """Few features for each function: the moments are right and the tails heavy."""
    runs = 200
    alarms = {True: 0, False: 0}
    for seed in range(runs):
        samples = feature_samples(500, seed, frequencies=32, shared=False)
        for gaussian in alarms:
            p = moment_p_values(samples, MEAN, COVARIANCE, gaussian=gaussian)
            alarms[gaussian] += min(p.values()) < 0.01 / len(p)
    assert alarms[False] <= 0.05 * runs  # approximate: not one in a hundred, but not far from it
    assert alarms[True] > 0.5 * runs  # which is why the option exists


@pytest.mark.statistical
@pytest.mark.parametrize("gaussian", [True, False])
def test_features_of_their_own_are_accepted(gaussian: bool) -> None:
    for seed in range(5):
        samples = feature_samples(500, seed, frequencies=512, shared=False)
        assert_mean_and_covariance(samples, MEAN, COVARIANCE, gaussian=gaussian)


LAST = torch.eye(M, dtype=torch.float64)[-1]
FAULTS = {
    "covariance times 1.2": lambda right: MEAN + (right - MEAN) * math.sqrt(1.2),
    "covariance divided by 1.2": lambda right: MEAN + (right - MEAN) / math.sqrt(1.2),
    "mean shifted everywhere": lambda right: right + 0.2,
    "mean shifted at one point": lambda right: right + 0.2 * LAST,
    "one point too uncertain": lambda right: MEAN + (right - MEAN) * (1 + 0.2 * LAST),
    "columns in another order": lambda right: MEAN + (right - MEAN)[:, torch.arange(M).roll(1)],
    "another length scale": lambda right: MEAN + (right - MEAN) @ torch.linalg.solve(ROOT.T, LONGER.T),
    "shared frequencies": lambda right: feature_samples(len(right), 0, frequencies=100, shared=True),
}


@pytest.mark.statistical
@pytest.mark.parametrize("gaussian", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_samples_are_refused(fault: str, gaussian: bool) -> None:
    samples = FAULTS[fault](gaussian_samples(2000, seed=0))
    with pytest.raises(AssertionError, match="do not have the stated mean and covariance"):
        assert_mean_and_covariance(samples, MEAN, COVARIANCE, gaussian=gaussian)


def test_samples_in_a_subspace() -> None:
    """A singular covariance: right samples are accepted, samples that leave its range are not."""
    g = torch.Generator().manual_seed(0)
    root = torch.randn(M, 3, generator=g, dtype=torch.float64)
    samples = torch.randn(100, 3, generator=g, dtype=torch.float64) @ root.T
    zero = torch.zeros(M, dtype=torch.float64)
    assert_mean_and_covariance(samples, zero, root @ root.T)
    noise = 0.1 * torch.randn(100, M, generator=g, dtype=torch.float64)
    with pytest.raises(AssertionError, match="null directions"):
        assert_mean_and_covariance(samples + noise, zero, root @ root.T)


def test_single_precision_and_a_single_point() -> None:
    samples = gaussian_samples(500, seed=3)
    assert_mean_and_covariance(samples.float(), MEAN.float(), COVARIANCE.float())
    assert_mean_and_covariance(samples[:, :1], MEAN[:1], COVARIANCE[:1, :1])


def test_values_that_are_not_finite_are_refused() -> None:
    samples = gaussian_samples(50, seed=0)
    samples[3, 4] = math.nan
    with pytest.raises(AssertionError, match="not finite"):
        assert_mean_and_covariance(samples, MEAN, COVARIANCE)


@pytest.mark.statistical
def test_unbiased_estimates() -> None:
    expected = torch.tensor([[1.0, -2.0], [0.0, 1e-3]], dtype=torch.float64)
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        estimates = expected + torch.randn(50, 2, 2, generator=g, dtype=torch.float64)
        assert_unbiased(estimates, expected)
        with pytest.raises(AssertionError, match="entry 1"):
            assert_unbiased(estimates + torch.tensor([[0.0, 3.0], [0.0, 0.0]]), expected)
    assert_unbiased(expected.expand(5, 2, 2), expected)
