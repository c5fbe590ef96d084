"""A small optimisation with ask and tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import pathgp
from pathgp import kernels
from pathgp.decisions import ThompsonSampler

BOX = np.array([[0.0, 0.0], [1.0, 1.0]])
SMALL: dict[str, Any] = {"starts": 2, "proposals": 100, "steps": 15}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def hill(X: Any) -> Any:
    """Largest, one, at (0.6, 0.3)."""
    return np.exp(-8 * ((np.asarray(X) - [0.6, 0.3]) ** 2).sum(1))


def sampler(place: Any = BOX, **options: Any) -> ThompsonSampler:
    gp = pathgp.GP(kernels.Scale(kernels.Matern(2.5, [0.5, 0.5]), 0.7), 0.02)
    options = {"refit": None, "generator": seeded(), "search": SMALL, "condition": {"features": 64}} | options
    return ThompsonSampler(gp, place, **options)
