"""The level of a standardising model: a learned constant in place of the average of biased observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pathgp
from pathgp import kernels
from pathgp.decisions import ThompsonSampler
from pathgp.decisions.surrogate import Surrogate
from pathgp.means import Constant

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
SMALL: dict[str, Any] = {
    "search": {"starts": 2, "proposals": 50, "steps": 5},
    "condition": {"features": 64},
    "fit": {"steps": 20},
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(**options: Any) -> pathgp.GP:
    kernel = kernels.Scale(kernels.SquaredExponential([1.0, 1.0]), 1.0)
    return pathgp.GP(kernel, 0.1, **({"standardise": True} | options))


def near_the_top(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Observations of a bump of height one on a plain at zero, all of them near its top."""
    X = 0.5 + 0.1 * torch.randn(n, 2, generator=seeded(), dtype=torch.float64)
    return X, (-0.5 * ((X - 0.5) / 0.2).square().sum(1)).exp()


def test_learned_level_is_below_the_average_of_the_best() -> None:
    X, y = near_the_top(40)
    sampler = ThompsonSampler(model(), BOX, generator=seeded(), **SMALL)
    sampler.tell(X, y)
    sampler.ask(4)
    assert isinstance(sampler.gp.mean, Constant)
    # The average is 0.76, the level of the plain is zero.
    assert float(sampler.gp.mean.value.detach()) < float(y.mean()) - 0.2
    assert sampler.posterior is not None
    # A corner is far from all data: the mean returns to the level.
    corner = torch.zeros(1, 2, dtype=torch.float64)
    assert float(sampler.posterior.mean(corner).detach()) < 0.5


def test_level_is_the_average_before_the_first_fit() -> None:
    """Three observations are too few for a fit."""
    X, y = near_the_top(3)
    sampler = ThompsonSampler(model(), BOX, generator=seeded(), **SMALL)
    sampler.tell(X, 100.0 + y)
    sampler.ask(4)
    assert isinstance(sampler.gp.mean, Constant)
    assert float(sampler.gp.mean.value.detach()) == pytest.approx(100.0 + float(y.mean()), rel=1e-12)


def test_level_of_other_models_is_not_learned() -> None:
    X, y = near_the_top(10)
    own = Constant(0.3)
    own.value.requires_grad_(False)
    for gp, options in ((model(standardise=False), {}), (model(), {"refit": None}), (model(mean=own), {})):
        before = gp.mean
        sampler = ThompsonSampler(gp, BOX, generator=seeded(), **SMALL | options)
        sampler.tell(X, y)
        sampler.ask(4)
        assert gp.mean is before
    assert float(own.value) == 0.3
    # A pool of `screen` has no domain.
    gp = model()
    Surrogate(gp, 1.5, None, None, None, seeded())
    assert gp.mean == 0.0


def test_checkpoint_contains_the_level(tmp_path: Path) -> None:
    X, y = near_the_top(10)
    file = tmp_path / "run.pathgp"
    sampler = ThompsonSampler(model(), BOX, checkpoint=file, generator=seeded(), **SMALL)
    sampler.tell(X, y)
    sampler.ask(4)
    again = ThompsonSampler(model(), BOX, checkpoint=file, generator=seeded(), **SMALL)
    assert isinstance(sampler.gp.mean, Constant)
    assert isinstance(again.gp.mean, Constant)
    assert float(again.gp.mean.value.detach()) == float(sampler.gp.mean.value.detach()) != pytest.approx(0.0)
