"""The variance estimate from paths: unbiased enough, never less accurate than the mean square, exact far from data."""

from __future__ import annotations

import pytest
import torch

from pathgp.pathwise import variance_from_paths

SAMPLES, REPEATS = 64, 20_000


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.8, 0.99])
def test_relative_error_is_that_of_maximum_likelihood(share: float) -> None:
    """Relative variance 2/s / (1 + (v / (k - v))^2), to 15 % (20,000 repeats: one percent); bias below 1.5 / s."""
    prior, variance = 4.0, 4.0 * share
    generator = torch.Generator().manual_seed(0)
    g = variance**0.5 * torch.randn(SAMPLES, REPEATS, generator=generator, dtype=torch.float64)
    h = (prior - variance) ** 0.5 * torch.randn(SAMPLES, REPEATS, generator=generator, dtype=torch.float64)
    ratio = variance_from_paths(g, h, torch.full((REPEATS,), prior, dtype=torch.float64)) / variance
    expected = 2.0 / SAMPLES / (1.0 + (share / (1.0 - share)) ** 2)
    assert float(ratio.var()) == pytest.approx(expected, rel=0.15)
    assert abs(float(ratio.mean()) - 1.0) < 1.5 / SAMPLES


def test_exact_where_nothing_is_explained() -> None:
    f = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    prior = torch.full((5,), 2.5)
    assert torch.equal(variance_from_paths(f, torch.zeros_like(f), prior), prior)


def test_never_negative_nor_above_the_prior() -> None:
    generator = torch.Generator().manual_seed(1)
    g, h = (torch.randn(2, 1000, generator=generator) * torch.rand(1000, generator=generator) for _ in range(2))
    prior = torch.full((1000,), 0.7)
    variance = variance_from_paths(g, h, prior)
    assert bool((variance >= 0).all())
    assert bool((variance <= prior).all())
