"""Systems to solve: well behaved ones, and one that is as hard as data sets are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pathgp import Compute, kernels
from pathgp.operators import KernelOperator

System = tuple[KernelOperator, Tensor]


@pytest.fixture
def make() -> Callable[..., System]:
    """make(n, noise, lengthscale, s, dtype): a Matern-3/2 system in two dimensions with draws of its prior."""

    def build(
        n: int = 200,
        noise: float | Tensor = 0.3,
        lengthscale: float = 0.4,
        s: int = 4,
        dtype: torch.dtype = torch.float64,
        backend: str = "auto",
    ) -> System:
        generator = torch.Generator().manual_seed(0)
        X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
        kernel = kernels.Matern(1.5, lengthscale)
        with torch.no_grad():
            root = torch.linalg.cholesky(kernel(X) + 1e-8 * torch.eye(n, dtype=torch.float64))
        f = root @ torch.randn(n, s, generator=generator, dtype=torch.float64)
        deviation = torch.as_tensor(noise, dtype=torch.float64).reshape(-1, 1)
        B = f + deviation * torch.randn(n, s, generator=generator, dtype=torch.float64)
        return KernelOperator(kernel, X.to(dtype), noise, Compute(backend)), B.to(dtype)

    return build
