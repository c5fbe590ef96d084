"""Kernel algebra: scale, sum, product."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import reduce
from itertools import chain

import torch
from torch import Tensor, nn

from pathgp.kernels.base import Kernel
from pathgp.kernels.parameters import Positive, PositiveValue, short

# Without gradients the terms are accumulated in place: two tiles exist at once, not one per kernel.


def _add(K: Tensor, other: Tensor) -> Tensor:
    return K + other if K.requires_grad or other.requires_grad else K.add_(other)


def _multiply(K: Tensor, other: Tensor) -> Tensor:
    return K * other if K.requires_grad or other.requires_grad else K.mul_(other)


class Scale(Kernel):
    """signal^2 k(x, z); ``signal`` is a standard deviation."""

    signal = PositiveValue("The standard deviation that multiplies the kernel: a scalar, float64.")

    def __init__(self, kernel: Kernel, signal: float | Tensor = 1.0, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(active_dims)
        self.kernel = kernel
        self._signal = Positive(signal, "signal", scalar=True)

    def around(self, kernel: Kernel, active_dims: Sequence[int] | None = None) -> Scale:
        """signal^2 times another kernel, with the parameter of this scale."""
        result = Scale(kernel, active_dims=active_dims)
        # The parameter itself: its value, sent through the softplus once more, would differ in the last digit.
        result._signal = self._signal
        return result

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        return _multiply(self.kernel(X, Z), self.signal.square().to(X))

    def _diagonal(self, X: Tensor) -> Tensor:
        return _multiply(self.kernel.diag(X), self.signal.square().to(X))

    def _contract(self, W: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        return self.signal.square().to(W.device) * self.kernel.contract(W, X, Z)

    def _coordinates(self, X: Tensor) -> Tensor:
        return self.kernel.coordinates(X)

    def __repr__(self) -> str:
        return _with_dims(f"{short(self.signal)}^2 * {_factor(self.kernel)}", self)


class _Combination(Kernel):
    """Common part of sums and products: a flat list of kernels, and how two values combine."""

    @staticmethod
    @abstractmethod
    def _combine(K: Tensor, other: Tensor) -> Tensor:
        """K + other or K * other; without gradients in the memory of K."""

    def __init__(self, *kernels: Kernel, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(active_dims)
        if not kernels:
            raise ValueError(f"{type(self).__name__} needs at least one kernel")
        for kernel in kernels:
            if not isinstance(kernel, Kernel):
                raise TypeError(f"{type(self).__name__} combines kernels, got {type(kernel).__name__}")
        parts = (k.parts if isinstance(k, type(self)) and k.active_dims is None else [k] for k in kernels)
        self.kernels = nn.ModuleList(chain.from_iterable(parts))

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        return reduce(self._combine, (kernel(X, Z) for kernel in self.parts))

    def _diagonal(self, X: Tensor) -> Tensor:
        return reduce(self._combine, (kernel.diag(X) for kernel in self.parts))

    def _coordinates(self, X: Tensor) -> Tensor:
        return torch.cat([kernel.coordinates(X) for kernel in self.parts], 1)


class Sum(_Combination):
    """k_1(x, z) + k_2(x, z) + ..."""

    _combine = staticmethod(_add)

    def _contract(self, W: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        return reduce(_add, (kernel.contract(W, X, Z) for kernel in self.parts))

    def __repr__(self) -> str:
        return _with_dims(" + ".join(repr(kernel) for kernel in self.parts), self)


class Product(_Combination):
    """k_1(x, z) k_2(x, z) ..."""

    _combine = staticmethod(_multiply)

    def _contract(self, W: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        """Contract each factor with the others in its weights: equal values, each with the gradient of one factor."""
        with torch.no_grad():
            factors = [kernel(X, Z) for kernel in self.parts]
        results: list[Tensor] = []
        for number, kernel in enumerate(self.parts):
            if not results or any(p.requires_grad for p in kernel.parameters()):
                others = factors[:number] + factors[number + 1 :]
                results.append(kernel.contract(reduce(torch.mul, others, W), X, Z))
        return results[0] + sum(result - result.detach() for result in results[1:])

    def __repr__(self) -> str:
        return _with_dims(" * ".join(_factor(kernel) for kernel in self.parts), self)


def _factor(kernel: Kernel) -> str:
    bare_sum = isinstance(kernel, Sum) and kernel.active_dims is None
    return f"({kernel!r})" if bare_sum else repr(kernel)


def _with_dims(text: str, kernel: Kernel) -> str:
    return text if kernel.active_dims is None else f"({text})[active_dims={list(kernel.active_dims)}]"
