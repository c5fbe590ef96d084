"""Deterministic features: products of finite maps and Fourier series of periodic kernels.

In one dimension exp(-2 sin^2(pi t / p) / l^2) = sum_k q_k cos(2 pi k t / p) over all integers k, with
q_k = I_k(1/l^2) exp(-1/l^2), and a product over dimensions is the same sum over integer vectors. It converges
faster than geometrically; which vectors are kept is decided once, the weights follow the hyperparameters.

Short length scales in several dimensions need more vectors than there are features. `RandomMap` then uses random
features of the squared exponential kernel at points on circles, which are unbiased for any number of features.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ive
from torch import Tensor

from pathgp.kernels import Finite, Kernel, Periodic
from pathgp.kernels.expression import Leaf, Term

_NEGLIGIBLE = 1e-12  # share of the variance that a new series may lose
_TOLERABLE = 1e-6  # share that it may lose before it no longer suffices
_MARGIN = 4.0  # the series still converges when the length scales shrink by this factor
_LARGEST_PRECISION = 1e8  # scipy's Bessel functions are NaN from 1e9; no number of harmonics is enough here


def finite_columns(term: Term, share: int, dim: int | None, width: int = 1) -> int:
    """The number of columns of the product of the finite maps of a term; ``share`` features allow ``width`` of each."""
    total = 1
    for leaf in term.of(Finite):
        assert isinstance(leaf.kernel, Finite)
        columns = leaf.kernel.num_exact_features(dim if leaf.columns is None else len(leaf.columns))
        if columns is None:
            raise _unknown_columns(leaf.kernel)
        total *= columns
    if width * total > share:
        names = " * ".join(type(leaf.kernel).__name__ for leaf in term.leaves)
        raise ValueError(
            f"{names} needs {width * total} features, but only {share} are left for it: ask for more features"
        )
    return total


def finite_features(term: Term, X: Tensor) -> Tensor:
    """The product of the finite maps of a term: every product of one column of each, (n, c)."""
    result = X.new_ones(X.shape[0], 1)
    for leaf in term.of(Finite):
        assert isinstance(leaf.kernel, Finite)
        result = _outer(result, leaf.kernel.exact_features(leaf.select(X)))
    return result


class ExactMap:
    """A map with phi(x) . phi(z) = k(x, z): finite kernels times sqrt(w_k) [cos, sin] of the harmonics.

    ``is_exact``: whether ``share`` features suffice for the harmonics.
    """

    def __init__(self, term: Term, share: int, dim: int | None) -> None:
        self.term = term
        self.columns = self.num = finite_columns(term, share, dim)
        self.harmonics: Harmonics | None = None
        if term.of(Periodic):
            self.harmonics = Harmonics(term.of(Periodic), dim, limit=(share // self.columns + 1) // 2)
            self.num = self.columns * (2 * self.harmonics.num - 1)

    @property
    def is_exact(self) -> bool:
        return self.harmonics is None or self.harmonics.suffices

    def labels(self) -> list[tuple[Hashable, ...]]:
        """A name for every feature, the same in another map of the term: column, wave and harmonic."""
        vectors = [()] if self.harmonics is None else [tuple(vector) for vector in self.harmonics.table.tolist()]
        waves = [("cos", vector) for vector in vectors] + [("sin", vector) for vector in vectors[1:]]
        return [(column, *wave) for column in range(self.columns) for wave in waves]

    def __call__(self, X: Tensor) -> Tensor:
        """(1, n, num): the same for every path."""
        result = finite_features(self.term, X)
        if self.harmonics is not None:
            turns = X.to(torch.float64) @ self.harmonics.turns(X.shape[1], X.device)
            angle = turns.frac().to(X.dtype) * (2.0 * math.pi)
            amplitude = self.harmonics.weights(X.device).sqrt().to(X)
            # The sine of harmonic 0, the zero vector, is zero.
            waves = torch.cat([angle.cos() * amplitude, angle[:, 1:].sin() * amplitude[1:]], 1)
            result = _outer(result, waves)
        return (result * self.term.signal.to(X)).unsqueeze(0)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return (left.unsqueeze(2) * right.unsqueeze(1)).flatten(1)


class Harmonics:
    """The kept part of the series of a product of periodic kernels.

    ``table`` (H, D) holds integer vectors over the columns of all the kernels, row 0 the zero vector, and of
    k and -k only one, which then counts twice. There are at most ``limit`` of them, which may be too few (`suffices`).
    """

    def __init__(self, leaves: list[Leaf], dim: int | None, limit: int) -> None:
        self.kernels = [leaf.kernel for leaf in leaves if isinstance(leaf.kernel, Periodic)]
        self.columns = [_columns(leaf, dim) for leaf in leaves]
        with torch.no_grad():
            precision = self._precision().cpu().numpy()
        self.table = _largest_vectors(precision * _MARGIN**2, limit, _NEGLIGIBLE)

    @property
    def suffices(self) -> bool:
        """Whether the harmonics carry the kernel at its present hyperparameters."""
        with torch.no_grad():
            return _lost(self._weights()) <= _TOLERABLE

    @property
    def num(self) -> int:
        """The number H of harmonics."""
        return self.table.shape[0]

    def weights(self, device: torch.device) -> Tensor:
        """The current weight of each harmonic: (H,), float64; their sum is one minus the lost share."""
        weights = self._weights()
        if not _lost(weights) <= _TOLERABLE:
            smallest = float(self._precision().detach().max()) ** -0.5
            raise ValueError(
                f"the length scale of a periodic kernel fell to {smallest:.3g}, where its {self.num} harmonics "
                "no longer suffice: build the features anew"
            )
        # The square root of a weight that underflowed has no derivative.
        return weights.clamp_min(1e-290).to(device)

    def turns(self, dim: int, device: torch.device) -> Tensor:
        """Frequencies of the harmonics in turns per unit, in the space of all columns: (dim, H), float64."""
        result = torch.zeros(dim, self.num, dtype=torch.float64, device=device)
        start = 0
        for kernel, columns in zip(self.kernels, self.columns, strict=True):
            orders = self.table[:, start : start + len(columns)].to(device, torch.float64)
            frequencies = (orders / kernel.period.to(device)).T
            result = result.index_add(0, torch.tensor(columns, device=device), frequencies)
            start += len(columns)
        return result

    def _weights(self) -> Tensor:
        series: Tensor = _ScaledBessel.apply(self._precision(), self.table.abs())
        return torch.where(self.table.any(1), 2.0, 1.0).to(series) * series.prod(1)

    def _precision(self) -> Tensor:
        """1 / lengthscale^2 over the columns of all the kernels: (D,), float64."""
        pairs = zip(self.kernels, self.columns, strict=True)
        return torch.cat([kernel.lengthscale.expand(len(columns)) for kernel, columns in pairs]).pow(-2)


def _lost(weights: Tensor) -> float:
    """The part of the variance that the harmonics do not carry."""
    return float(1.0 - weights.detach().sum())


def _columns(leaf: Leaf, dim: int | None) -> Sequence[int]:
    assert isinstance(leaf.kernel, Periodic)
    for parameter in (leaf.kernel.period, leaf.kernel.lengthscale):
        if parameter.ndim == 1:
            dim = parameter.shape[0]
    if leaf.columns is None and dim is None:
        raise _unknown_columns(leaf.kernel)
    return leaf.columns_of(dim or 0)


def _unknown_columns(kernel: Kernel) -> ValueError:
    return ValueError(
        f"the number of features of {type(kernel).__name__} depends on the number of columns of X: "
        "give dim to features(), or active_dims to the kernel"
    )


def _largest_vectors(precision: NDArray[np.float64], limit: int, lost: float) -> Tensor:
    """At most ``limit`` integer vectors of largest weight, as few as lose no more than ``lost``.

    Built dimension by dimension: the head of one of the largest vectors is itself among the largest heads.
    """
    vectors = np.zeros((1, 0), dtype=np.int64)
    weights = np.ones(1)
    for z in precision.clip(max=_LARGEST_PRECISION):
        # Weights fall with the order: no vector among the largest has an order above their number.
        top = min(math.ceil(8.0 * math.sqrt(z)) + 16, limit)
        orders = np.arange(-top, top + 1)
        heads = np.repeat(vectors, len(orders), axis=0)
        tails = np.tile(orders, len(vectors))
        products = np.repeat(weights, len(orders)) * np.tile(ive(np.abs(orders), z), len(vectors))
        half = heads.any(axis=1) | (tails >= 0)
        best = np.flatnonzero(half)[np.argsort(-products[half], kind="stable")[:limit]]
        vectors, weights = np.column_stack([heads, tails])[best], products[best]
    carried = np.cumsum(np.where(vectors.any(axis=1), 2.0, 1.0) * weights)
    kept = int(np.searchsorted(carried, 1.0 - lost)) + 1
    return torch.from_numpy(vectors[:kept])


class _ScaledBessel(torch.autograd.Function):
    """I_k(z) exp(-z), with derivative (I_{k-1}(z) + I_{k+1}(z)) exp(-z) / 2 - I_k(z) exp(-z)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, orders: Tensor) -> Tensor:
        ctx.save_for_backward(z, orders)
        return torch.from_numpy(ive(orders.numpy(), z.detach().cpu().numpy())).to(z)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        z, orders = ctx.saved_tensors
        k, x = orders.numpy(), z.cpu().numpy()
        slope = 0.5 * (ive(abs(k - 1), x) + ive(k + 1, x)) - ive(k, x)
        return (grads[0] * torch.from_numpy(slope).to(z)).sum(0), None
