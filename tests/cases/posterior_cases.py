"""Kernels beside their textbook formulas, with inputs that suit them: what the posterior is checked on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp import kernels as K
from reference import (
    Covariance,
    linear,
    matern,
    on_sphere,
    periodic,
    rational_quadratic,
    squared_exponential,
    tanimoto,
    task,
)


def uniform(n: int, generator: torch.Generator) -> Tensor:
    """Two columns in [0, 1]."""
    return torch.rand(n, 2, generator=generator, dtype=torch.float64)


def counts(n: int, generator: torch.Generator) -> Tensor:
    """Sparse counts in six columns, as in molecular fingerprints; one row is empty."""
    X = torch.poisson(torch.ones(n, 6, dtype=torch.float64), generator=generator)
    X[n // 2] = 0.0
    return X


def with_tasks(n: int, generator: torch.Generator) -> Tensor:
    """Two columns in [0, 1] and a task number."""
    tasks = torch.randint(3, (n, 1), generator=generator).to(torch.float64)
    return torch.cat([uniform(n, generator), tasks], 1)


def on_earth(n: int, generator: torch.Generator) -> Tensor:
    """Longitude, time in [0, 1] and latitude."""
    X = torch.rand(n, 3, generator=generator, dtype=torch.float64)
    return X * torch.tensor([360.0, 1.0, 180.0]) - torch.tensor([0.0, 0.0, 90.0])


@dataclass(frozen=True)
class Case:
    """A kernel of the package, the same covariance from the textbook, and a source of inputs."""

    name: str
    kernel: K.Kernel
    covariance: Covariance
    inputs: Callable[[int, torch.Generator], Tensor] = uniform

    def __str__(self) -> str:
        return self.name

    def data(self, n: int, m: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """X (n, d), y (n,) and Xs (m, d), whose first rows are training inputs."""
        generator = torch.Generator().manual_seed(seed)
        X, Xs = self.inputs(n, generator), self.inputs(m, generator)
        Xs[: m // 4] = X[: m // 4]
        signal = torch.sin(3.0 * X.sum(1)) + 0.5 * torch.cos(7.0 * X[:, 0])
        return X, signal + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64), Xs


ARD = torch.tensor([0.3, 0.7], dtype=torch.float64)
FACTOR = torch.tensor([[0.8], [0.5], [-0.4]], dtype=torch.float64)
OWN = torch.tensor([0.3, 0.5, 0.7], dtype=torch.float64)

CASES = [
    Case(
        "squared exponential",
        K.SquaredExponential(lengthscale=0.3),
        lambda X, Z: squared_exponential(X, Z, 0.3),
    ),
    Case("matern 1/2", K.Matern(0.5, lengthscale=0.5), lambda X, Z: matern(X, Z, 0.5, 0.5)),
    Case("matern 3/2, ard", K.Matern(1.5, lengthscale=ARD), lambda X, Z: matern(X, Z, 1.5, ARD)),
    Case("matern 5/2", K.Matern(2.5, lengthscale=0.4), lambda X, Z: matern(X, Z, 2.5, 0.4)),
    Case("matern 0.8", K.Matern(0.8, lengthscale=0.4), lambda X, Z: matern(X, Z, 0.8, 0.4)),
    Case(
        "periodic",
        K.Periodic(period=0.7, lengthscale=0.9),
        lambda X, Z: periodic(X, Z, 0.7, 0.9),
    ),
    Case(
        "rational quadratic, scaled",
        K.Scale(K.RationalQuadratic(alpha=0.8, lengthscale=0.4), signal=1.5),
        lambda X, Z: 2.25 * rational_quadratic(X, Z, 0.8, 0.4),
    ),
    Case("linear", K.Linear(scale=0.8, bias=0.5), lambda X, Z: linear(X, Z, 0.64) + 0.25),
    Case("tanimoto", K.Tanimoto(), tanimoto, counts),
    Case(
        "task * matern",
        K.Task(3, factor=FACTOR, scale=OWN, active_dims=[2]) * K.Matern(1.5, 0.4, active_dims=[0, 1]),
        lambda X, Z: task(X[:, 2:], Z[:, 2:], FACTOR, OWN.square()) * matern(X[:, :2], Z[:, :2], 1.5, 0.4),
        with_tasks,
    ),
    Case(
        "sphere * matern",
        K.Sphere(K.Matern(1.5, 0.5), active_dims=[2, 0]) * K.Matern(0.5, 0.4, active_dims=[1]),
        lambda X, Z: (
            matern(on_sphere(X[:, [2, 0]]), on_sphere(Z[:, [2, 0]]), 1.5, 0.5) * matern(X[:, [1]], Z[:, [1]], 0.5, 0.4)
        ),
        on_earth,
    ),
    Case(
        "sum, active dims",
        K.Scale(K.SquaredExponential(0.2, active_dims=[0]), 0.7) + K.Linear(0.5, active_dims=[1]),
        lambda X, Z: 0.49 * squared_exponential(X[:, :1], Z[:, :1], 0.2) + linear(X[:, 1:], Z[:, 1:], 0.25),
    ),
    Case(
        "periodic * squared exponential",
        K.Periodic(0.5, 1.0, active_dims=[0]) * K.SquaredExponential(0.6),
        lambda X, Z: periodic(X[:, :1], Z[:, :1], 0.5, 1.0) * squared_exponential(X, Z, 0.6),
    ),
]
