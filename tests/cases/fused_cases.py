"""Kernels, inputs and errors for the tests of fused products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import kernel_cases
from pathgp import Compute, Devices, kernels
from pathgp.operators import KernelOperator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# One block of rows: Triton's interpreter takes a second for a hundred tiles. SEVERAL rows are two blocks.
N, SEVERAL = 100, 150
KERNELS = {name: build for name, build in kernel_cases.KERNELS.items() if name not in kernel_cases.GENERAL}
FORMS = ("differences", "split", "triple")
# Every kernel by differences, and every kind of leaf in all forms: composite kernels combine what their leaves compute.
_LEAVES = ("SE", "Matern-1/2", "Matern-3/2", "RQ", "Periodic", "nested")
KERNELS_AND_FORMS = [(name, form) for name in KERNELS for form in FORMS if form == "differences" or name in _LEAVES]


class InTurn(Devices):
    """Members one after the other: Triton's interpreter does not bear threads."""

    def each(self, compute: Callable[[int], Any]) -> dict[int, Any]:
        return {member: compute(member) for member in range(self.size)}


def normal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def error(found: Tensor, expected: Tensor) -> float:
    return float(((found.double() - expected).norm() / expected.norm()).detach())


def check_product(
    kernel: kernels.Kernel, X: Tensor, s: int, bound: float = 2e-6, precision: str = "high"
) -> tuple[KernelOperator, Tensor]:
    """H V with all of H, and some of its entries; returns H and its dense twin."""
    H = KernelOperator(kernel, X, 0.3, Compute(backend="fused", precision=precision)).low_precision
    with torch.no_grad():
        dense = kernel(X.double())
        K = dense[:20].clone()
        dense.diagonal().add_(0.09)
    V, index = normal(len(X), s, 1), torch.arange(len(X), device=DEVICE)
    assert H.backend == "fused"
    assert error(H @ V, dense @ V.double()) < bound
    assert error(H.between(index[:20], index), K) < 2e-6
    return H, dense


def check_products(kernel: kernels.Kernel, X: Tensor, s: int) -> None:
    """All of H, and rows and columns in any order, with repetitions."""
    H, dense = check_product(kernel, X, s)
    V, index = normal(len(X), s, 1), torch.randint(len(X), (37,), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    D = normal(len(index), s, 3)
    assert error(H.rows(index, V), dense[index] @ V.double()) < 2e-6
    assert error(H.columns(index, D), dense[:, index] @ D.double()) < 2e-6
    dense.diagonal().sub_(0.09)
    assert error(H.between(index[:20], index), dense[index[:20]][:, index]) < 2e-6


def counts(n: int, d: int, rate: float, seed: int) -> Tensor:
    """Fingerprints, the first two empty."""
    X = torch.poisson(torch.full((n, d), rate), generator=torch.Generator().manual_seed(seed))
    X[:2] = 0.0
    return X.to(DEVICE)
