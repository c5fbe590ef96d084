"""Posteriors that are saved and loaded, and what it means that two of them are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pathgp
from grid_cases import Grid
from pathgp import GP, LatentKroneckerGP
from pathgp import kernels as K

BUDGET: dict[str, Any] = {"samples": 6, "features": 128, "tol": 1e-6}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(n: int, d: int = 2, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=seeded(seed), dtype=torch.float64)


def small(**options: Any) -> pathgp.Posterior:
    X = uniform(20)
    options = {**BUDGET, "samples": 2, "features": 8, "generator": seeded(), **options}
    return GP(K.Scale(K.Matern(1.5, 0.4), 1.3), noise=0.2).condition(X, X.sum(1).sin(), **options)


def grid_posterior(k: int = 2, **options: Any) -> Any:
    grid = Grid(k, 0.3)
    of_condition = {name: options.pop(name) for name in ("noise",) if name in options}
    model = LatentKroneckerGP(grid.model.sides, 0.2, **options)
    return model.condition(grid.factors, grid.Y, **BUDGET, **of_condition, generator=seeded())


def again(posterior: Any, path: Path, **options: Any) -> Any:
    posterior.save(path, **options)
    return pathgp.load(path)


def assert_same(found: Any, expected: Any) -> None:
    """The same kind, dtype, device and bits."""
    assert type(found) is type(expected)
    if isinstance(expected, Tensor):
        assert found.device == expected.device
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def assert_same_posterior(found: Any, expected: Any, X: Any, y: Any) -> None:
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)
    assert repr(found.model) == repr(expected.model)
    for post in (found, expected):
        assert not any(p.requires_grad for p in post.model.parameters())
    assert_same(found.mean(X), expected.mean(X))
    assert_same(found.covariance(X), expected.covariance(X))
    assert_same(found.sample(X, 3, seeded()), expected.sample(X, 3, seeded()))
    for method in (None, "neighbours", "samples", "solve") if expected.num_samples else (None, "solve"):
        assert_same(found.variance(X, method=method), expected.variance(X, method=method))
    if expected.num_samples:
        assert_same(found.paths(X), expected.paths(X))
    assert found.log_marginal_likelihood(generator=seeded()) == expected.log_marginal_likelihood(generator=seeded())
    assert_same(found.leave_one_out().means, expected.leave_one_out().means)
    updated, longer = (post.update(X, y, generator=seeded(3)) for post in (found, expected))
    assert_same(updated.mean(X), longer.mean(X))
    assert_same(updated.variance(X), longer.variance(X))
