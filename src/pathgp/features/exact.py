"""Deterministic features: products of finite maps and Fourier series."""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import Tensor

from pathgp.features.harmonics import Harmonics
from pathgp.kernels import Finite, Periodic
from pathgp.kernels.expression import Term


def finite_columns(term: Term, share: int, dim: int | None, width: int = 1) -> int:
    """The number of columns of the product of the finite maps of a term; ``share`` features allow ``width`` of each."""
    total = 1
    for leaf in term.of(Finite):
        assert isinstance(leaf.kernel, Finite)
        columns = leaf.kernel.num_exact_features(dim if leaf.columns is None else len(leaf.columns))
        if columns is None:
            raise ValueError(
                f"the number of features of {type(leaf.kernel).__name__} depends on the number of columns "
                "of X: give dim to features(), or active_dims to the kernel"
            )
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
