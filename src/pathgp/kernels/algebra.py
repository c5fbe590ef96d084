"""Kernel algebra: scale, sum, product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathgp.kernels.base import Kernel
from pathgp.kernels.parameters import Positive


class Scale(Kernel):
    """signal^2 k(x, z); ``signal`` is a standard deviation."""

    def __init__(self, kernel: Kernel, signal: float | Tensor = 1.0, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(active_dims)
        self.kernel = kernel
        self._signal = Positive(signal, "signal")
        if self._signal.raw.ndim != 0:
            raise ValueError("signal must be one number")

    @property
    def signal(self) -> Tensor:
        """The standard deviation that multiplies the kernel: a scalar, float64."""
        return self._signal.value

    @signal.setter
    def signal(self, value: float | Tensor) -> None:
        self._signal.assign(value)

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        return _scaled(self.kernel(X, Z), self.signal)

    def _gram(self, X: Tensor) -> Tensor:
        return _scaled(self.kernel(X), self.signal)

    def _diagonal(self, X: Tensor) -> Tensor:
        return self.kernel.diag(X) * self.signal.square().to(X)


def _scaled(K: Tensor, signal: Tensor) -> Tensor:
    variance = signal.square().to(K)
    if torch.is_grad_enabled():
        return K * variance
    return K.mul_(variance)


class _Combination(Kernel):
    """Common part of sums and products: a flat list of kernels."""

    def __init__(self, *kernels: Kernel, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(active_dims)
        if not kernels:
            raise ValueError(f"{type(self).__name__} needs at least one kernel")
        for kernel in kernels:
            if not isinstance(kernel, Kernel):
                raise TypeError(f"{type(self).__name__} combines kernels, got {type(kernel).__name__}")
        flat: list[Kernel] = []
        for kernel in kernels:
            nested = isinstance(kernel, type(self)) and kernel.active_dims is None
            flat.extend(kernel.kernels if nested else [kernel])  # type: ignore[arg-type]
        self.kernels = nn.ModuleList(flat)


class Sum(_Combination):
    """k_1(x, z) + k_2(x, z) + ..."""

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        return _total([kernel(X, Z) for kernel in self.kernels])

    def _gram(self, X: Tensor) -> Tensor:
        return _total([kernel(X) for kernel in self.kernels])

    def _diagonal(self, X: Tensor) -> Tensor:
        return _total([kernel.diag(X) for kernel in self.kernels])


class Product(_Combination):
    """k_1(x, z) k_2(x, z) ..."""

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        return _multiplied([kernel(X, Z) for kernel in self.kernels])

    def _gram(self, X: Tensor) -> Tensor:
        return _multiplied([kernel(X) for kernel in self.kernels])

    def _diagonal(self, X: Tensor) -> Tensor:
        return _multiplied([kernel.diag(X) for kernel in self.kernels])


def _total(terms: list[Tensor]) -> Tensor:
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def _multiplied(terms: list[Tensor]) -> Tensor:
    result = terms[0]
    for term in terms[1:]:
        result = result * term
    return result
