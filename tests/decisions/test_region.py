"""What makes batches of Thompson sampling useful in many columns: a region, a prior, and paths that explore."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import pathgp
from pathgp import kernels
from pathgp.decisions import maximise_paths
from pathgp.decisions.domain import Domain
from pathgp.decisions.region import best_region, count_local_paths
from pathgp.decisions.surrogate import default_priors
from pathgp.kernels.parameters import LogNormal, positive


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def box(columns: int, **options: Any) -> Domain:
    bounds = torch.tensor([[0.0] * columns, [1.0] * columns], dtype=torch.float64)
    return Domain.read(bounds, options.get("choices"), options.get("constraint"), torch.device("cpu"))


def observations(n: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.rand(n, columns, generator=seeded(), dtype=torch.float64)
    return X, -(X - 0.3).square().sum(1)


def test_region_is_the_box_of_the_ten_best() -> None:
    X, y = observations(200, 3)
    region = best_region(box(3), X, y, seeded())
    assert region is not None
    best = X[y.argsort(descending=True)[:10]]
    lower, upper = best.amin(0), best.amax(0)
    torch.testing.assert_close(
        region, torch.stack([lower - (upper - lower) / 4, upper + (upper - lower) / 4]).clamp(0, 1)
    )
    assert best_region(box(3), X[:19], y[:19], seeded()) is None


def test_region_keeps_choices_and_a_width() -> None:
    X, y = observations(40, 2)
    X[y.topk(10).indices, 0] = 0.3
    region = best_region(box(2, choices={1: [0.0, 0.5, 1.0]}), X, y, seeded())
    assert region is not None
    torch.testing.assert_close(region[:, 0], torch.tensor([0.3 - 1e-4, 0.3 + 1e-4], dtype=torch.float64))
    assert region[:, 1].tolist() == [0.0, 1.0]


def test_no_region_where_the_constraint_forbids_nearly_all() -> None:
    X, y = observations(100, 2)
    assert best_region(box(2, constraint=lambda X: X[:, 0] > 0.99), X, y, seeded()) is None
    assert best_region(box(2, constraint=lambda X: X[:, 0] < 0.5), X, y, seeded()) is not None


@pytest.mark.parametrize(("columns", "share"), [(1, 1 / 7), (6, 1 / 2), (20, 20 / 26)])
def test_more_columns_more_paths_in_the_region(columns: int, share: float) -> None:
    assert count_local_paths(1000, columns) == round(1000 * share)


def test_priors_of_length_scales_are_for_the_fit_only() -> None:
    X, _ = observations(50, 4)
    gp = pathgp.GP(kernels.Matern(2.5, torch.ones(4)) + kernels.Matern(1.5, 1.0, active_dims=[0]), 0.1)
    free, own = (positive(part, "lengthscale") for part in gp.kernel.parts)
    own.prior = LogNormal(2.0, 0.5)
    with default_priors(gp, X, torch.full((4,), 10.0, dtype=torch.float64)):
        assert isinstance(free.prior, LogNormal)
        # A fifth of sqrt(4) box widths.
        assert free.prior.median == pytest.approx(0.2 * math.sqrt(4) * 10.0)
        assert own.prior == LogNormal(2.0, 0.5)
    assert free.prior is None
    assert own.prior == LogNormal(2.0, 0.5)
    with default_priors(gp, X, None):
        assert free.prior is None


def test_paths_that_would_tell_nothing_explore() -> None:
    """With a hundred observations near the top all maxima are known: nine of ten paths return another point."""
    generator = seeded()
    X = torch.rand(100, 1, generator=generator, dtype=torch.float64)
    y = 1 - (X[:, 0] - 0.5).square()
    post = pathgp.GP(kernels.SquaredExponential(0.4), 1e-3).condition(
        X, y, samples=10, features=64, tol=1e-6, generator=generator
    )
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    # Paths share the best proposals: ten rounds have one for each of ten paths.
    small: dict[str, Any] = {"starts": 10, "proposals": 100, "steps": 0, "distinct": True}
    known, _ = maximise_paths(post, bounds, generator=seeded(1), **small)
    explored, _ = maximise_paths(post, bounds, min_gain=0.1, generator=seeded(1), **small)
    assert bool(((known[:, 0] - 0.5).abs() < 0.2).all())
    near = (explored[:, 0] - 0.5).abs() < 0.2
    assert bool(near[0])
    # Nine uniform points: all are near with probability 0.4^9 = 3e-4, for a fixed seed.
    assert not bool(near.all())
