"""Kernels, inputs and errors for the tests of fused products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pathgp import Compute, kernels
from pathgp.operators import KernelOperator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N = 150
KERNELS: dict[str, Callable[[], kernels.Kernel]] = {
    "SE": lambda: kernels.SquaredExponential(torch.tensor([0.4, 0.9])),
    "Matern-1/2": lambda: kernels.Matern(0.5, 0.7),
    "Matern-3/2": lambda: kernels.Scale(kernels.Matern(1.5, torch.tensor([0.5, 0.3])), 1.3),
    "Matern-5/2": lambda: kernels.Scale(kernels.Matern(2.5, 0.8), 0.2),
    "RQ": lambda: kernels.RationalQuadratic(0.9, 0.6),
    "RQ, almost SE": lambda: kernels.RationalQuadratic(200.0, 0.6),
    "Periodic": lambda: kernels.Periodic(torch.tensor([0.7, 1.9]), 1.1),
    "Linear": lambda: kernels.Linear(torch.tensor([0.5, 1.5]), bias=0.3),
    "sum": lambda: kernels.Scale(kernels.SquaredExponential(0.4), 0.8) + kernels.Linear(0.5),
    "product": lambda: kernels.Periodic(0.7, 1.1) * kernels.RationalQuadratic(0.9, 0.6),
    "disjoint": lambda: kernels.Matern(2.5, 0.4, active_dims=[1]) * kernels.Matern(0.5, 0.9, active_dims=[0]),
    "nested": lambda: kernels.Scale(
        kernels.Scale(kernels.Scale(kernels.Matern(1.5, 0.5), 1.2) * kernels.Linear(0.7, active_dims=[1]), 0.8)
        + kernels.Scale(kernels.Scale(kernels.SquaredExponential(1.5), 0.6), 0.9) * kernels.Matern(0.5, 2.0),
        1.1,
    ),
}


def normal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def error(found: Tensor, expected: Tensor) -> float:
    return float(((found.double() - expected).norm() / expected.norm()).detach())


def check_products(kernel: kernels.Kernel, X: Tensor, s: int, bound: float = 2e-6, precision: str = "high") -> None:
    H = KernelOperator(kernel, X, 0.3, Compute(backend="fused", precision=precision)).inner
    with torch.no_grad():
        dense = kernel(X.double())
        dense.diagonal().add_(0.09)
    V = normal(len(X), s, 1)
    index = torch.randint(len(X), (37,), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    D = normal(len(index), s, 3)
    assert H.backend == "fused"
    assert error(H @ V, dense @ V.double()) < bound
    assert error(H.rows(index, V), dense[index] @ V.double()) < bound
    assert error(H.columns(index, D), dense[:, index] @ D.double()) < bound
    dense.diagonal().sub_(0.09)
    assert error(H.between(index[:20], index), dense[index[:20]][:, index]) < 2e-6


def counts(n: int, d: int, rate: float, seed: int) -> Tensor:
    """Fingerprints, the first two empty."""
    X = torch.poisson(torch.full((n, d), rate), generator=torch.Generator().manual_seed(seed))
    X[:2] = 0.0
    return X.to(DEVICE)
