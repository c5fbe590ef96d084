"""Kernels, inputs and errors for the tests of fused products."""

from __future__ import annotations

import torch
from torch import Tensor

import kernel_cases
from pathgp import Compute, kernels
from pathgp.operators import KernelOperator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N = 150
KERNELS = {name: build for name, build in kernel_cases.KERNELS.items() if name not in kernel_cases.GENERAL}


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
