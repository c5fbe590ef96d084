"""The UCI data sets of the thesis with its splits and hyperparameters, and the linear systems for solver benchmarks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.datasets import find, load
from pathgp import kernels
from pathgp.compute.random import normal
from pathgp.operators import KernelOperator
from pathgp.pathwise import PriorPaths

UCI = ("pol", "elevators", "bike", "protein", "keggdirected")


@dataclass(frozen=True)
class Split:
    """One split of a table, standardised with its training rows."""

    name: str
    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor


@dataclass(frozen=True)
class Regression(Split):
    """One split of a UCI set, and the authors' hyperparameters."""

    noise: float
    signal: float
    lengthscale: Tensor

    def kernel(self) -> kernels.Kernel:
        """The Matern-3/2 kernel of the thesis's inference tables."""
        return kernels.Scale(kernels.Matern(1.5, self.lengthscale), self.signal)


def hyperparameters(name: str, split: int = 0) -> dict[str, Any]:
    """Noise, signal and length scales that the authors of the thesis found."""
    found: dict[str, Any] = json.loads(find("uci_hyperparameters.json").read_text())[name][str(split)]
    return found


def uci_split(
    name: str, split: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu", rows: int | None = None
) -> Split:
    """One of the ten official splits; ``rows`` keeps only the first training rows."""
    X, y, X_test, y_test = (values.astype(np.float64) for values in load(name).split(split))
    centre, scale = X.mean(0), X.std(0)
    scale[scale == 0] = 1.0

    def inputs(values: np.ndarray) -> Tensor:
        return torch.tensor((values - centre) / scale, dtype=dtype, device=device)

    def targets(values: np.ndarray) -> Tensor:
        return torch.tensor((values - y.mean()) / y.std(), dtype=dtype, device=device)

    return Split(name, inputs(X[:rows]), targets(y[:rows]), inputs(X_test), targets(y_test))


def uci(
    name: str, split: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu", rows: int | None = None
) -> Regression:
    """A split for which the authors' hyperparameters are known: one of the first five."""
    chosen = hyperparameters(name, split)
    return Regression(
        **vars(uci_split(name, split, dtype, device, rows)),
        noise=float(chosen["noise"]),
        signal=float(chosen["signal"]),
        lengthscale=torch.tensor(chosen["lengthscale"], dtype=torch.float64),
    )


def system(data: Regression, samples: int = 64) -> tuple[KernelOperator, Tensor]:
    """H and the right-hand sides of the solver benchmarks: y, and prior draws plus noise."""
    kernel = data.kernel().requires_grad_(False).to(data.X.device)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        draws = PriorPaths.draw(kernel, samples, 512, data.X.shape[1], generator)(data.X).T
    noise = data.noise * normal(tuple(draws.shape), generator, data.X.dtype, data.X.device)
    return KernelOperator(kernel, data.X, data.noise), torch.cat([data.y.unsqueeze(1), draws + noise], 1)
