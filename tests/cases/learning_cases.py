"""Kernels beside their textbook formulas as functions of their hyperparameters: what learning is checked on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import pathgp
import reference
from pathgp import kernels as K
from pathgp.kernels.parameters import Positive
from pathgp.learning.hyperparameters import hyperparameters, values
from posterior_cases import ARD, FACTOR, OWN, uniform, with_tasks
from reference import Covariance

Values = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A kernel of the package, and the same covariance from the textbook, given hyperparameters by name."""

    name: str
    kernel: K.Kernel
    covariance: Callable[[Values], Covariance]
    inputs: Callable[[int, torch.Generator], Tensor] = uniform

    def __str__(self) -> str:
        return self.name

    def data(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """X (n, d) and y (n,), a function with noise of standard deviation 0.2."""
        generator = torch.Generator().manual_seed(seed)
        X = self.inputs(n, generator)
        signal = torch.sin(3.0 * X.sum(1)) + 0.5 * torch.cos(7.0 * X[:, 0])
        return X, signal + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)

    def log_likelihood(
        self, theta: Values, X: Tensor, y: Tensor, known: Tensor | None = None, mean: float | Tensor = 0.0
    ) -> Tensor:
        """log N(y | mean, K + noise^2 + known^2) at hyperparameters ``theta``."""
        noise = theta["noise"]
        if known is not None:
            noise = (noise.square() + known.square()).sqrt()
        return reference.log_marginal_likelihood(self.covariance(theta), X, y, noise, mean)


SCALED_MATERN = Case(
    "scaled matern 3/2, ard",
    K.Scale(K.Matern(1.5, lengthscale=ARD), 1.2),
    lambda t: lambda X, Z: t["signal"].square() * reference.matern(X, Z, 1.5, t["lengthscale"]),
)

CASES = [
    SCALED_MATERN,
    Case(
        "squared exponential",
        K.SquaredExponential(0.3),
        lambda t: lambda X, Z: reference.squared_exponential(X, Z, t["lengthscale"]),
    ),
    Case(
        "rational quadratic",
        K.Scale(K.RationalQuadratic(0.8, ARD), 0.9),
        lambda t: lambda X, Z: t["signal"].square() * reference.rational_quadratic(X, Z, t["alpha"], t["lengthscale"]),
    ),
    Case(
        "squared exponential + linear",
        K.Scale(K.SquaredExponential(0.2, active_dims=[0]), 0.7) + K.Linear(0.5, bias=0.3, active_dims=[1]),
        lambda t: (
            lambda X, Z: (
                t["0.signal"].square() * reference.squared_exponential(X[:, :1], Z[:, :1], t["0.lengthscale"])
                + reference.linear(X[:, 1:], Z[:, 1:], t["1.scale"].square())
                + t["1.bias"].square()
            )
        ),
    ),
    Case(
        "periodic * matern 5/2",
        K.Scale(K.Periodic(0.6, 1.1, active_dims=[0]) * K.Matern(2.5, 0.8), 1.3),
        lambda t: (
            lambda X, Z: (
                t["signal"].square()
                * reference.periodic(X[:, :1], Z[:, :1], t["0.period"], t["0.lengthscale"])
                * reference.matern(X, Z, 2.5, t["1.lengthscale"])
            )
        ),
    ),
    Case(
        "task * matern 1/2",
        K.Task(3, factor=FACTOR, scale=OWN, active_dims=[2]) * K.Matern(0.5, 0.4, active_dims=[0, 1]),
        lambda t: (
            lambda X, Z: (
                reference.task(X[:, 2:], Z[:, 2:], t["0.factor"], t["0.scale"].square())
                * reference.matern(X[:, :2], Z[:, :2], 0.5, t["1.lengthscale"])
            )
        ),
        with_tasks,
    ),
]


def leaves(model: pathgp.GP) -> Values:
    """The model's hyperparameters as independent tensors with gradients."""
    return {name: value.requires_grad_() for name, value in values(model).items()}


def reference_gradient(model: pathgp.GP, function: Callable[[Values], Tensor]) -> Tensor:
    """The gradient of ``function(hyperparameters)`` in what the model stores behind the softplus, as one vector."""
    theta = leaves(model)
    grads = torch.autograd.grad(function(theta), list(theta.values()))
    return torch.cat(
        [
            (grad * torch.sigmoid(p.raw.detach()) if isinstance(p, Positive) else grad).flatten()
            for grad, p in zip(grads, hyperparameters(model).values(), strict=True)
        ]
    )


def stored_gradient(model: pathgp.GP) -> Tensor:
    """The ``grad`` of all hyperparameters, in the same order; zero where there is none."""
    stored = (p.raw if isinstance(p, Positive) else p for p in hyperparameters(model).values())
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in stored])
