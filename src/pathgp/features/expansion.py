"""A kernel as a sum of products of elementary kernels.

Sums inside products are multiplied out, k_1 (k_2 + k_3) = k_1 k_2 + k_1 k_3, so that a feature map has to
know only two things: how to concatenate (sums) and how to combine elementary kernels (products).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from pathgp.kernels.algebra import Product, Scale, Sum
from pathgp.kernels.base import Kernel
from pathgp.kernels.finite import Finite
from pathgp.kernels.periodic import Periodic
from pathgp.kernels.stationary import Stationary
from pathgp.kernels.tanimoto import Tanimoto


@dataclass
class Atom:
    """An elementary kernel and the columns of X it sees (None: all)."""

    kernel: Kernel
    columns: tuple[int, ...] | None

    def select(self, X: Tensor) -> Tensor:
        """The columns of X that the kernel sees."""
        return X if self.columns is None else X[:, list(self.columns)]

    def width(self, dim: int) -> int:
        """How many of ``dim`` columns the kernel sees."""
        return dim if self.columns is None else len(self.columns)


@dataclass
class Term:
    """A product of elementary kernels, times the squared signals of the scales around them."""

    scales: list[Scale]
    atoms: list[Atom]

    @property
    def signal(self) -> Tensor:
        """The product of the signal standard deviations, float64."""
        return math.prod((scale.signal for scale in self.scales), start=torch.ones((), dtype=torch.float64))

    @property
    def is_random(self) -> bool:
        """Whether the features of the term are random; finite maps and Fourier series are not."""
        return bool(self.of(Stationary, Tanimoto))

    def of(self, *kinds: type[Kernel]) -> list[Atom]:
        """The elementary kernels of one kind."""
        return [atom for atom in self.atoms if isinstance(atom.kernel, kinds)]


def expand(kernel: Kernel, columns: tuple[int, ...] | None = None) -> list[Term]:
    """The terms whose sum is the kernel; ``columns`` are those of X that reach it."""
    if kernel.active_dims is not None:
        columns = kernel.active_dims if columns is None else tuple(columns[i] for i in kernel.active_dims)
    if isinstance(kernel, Scale):
        inner = expand(kernel.kernel, columns)
        return [Term([kernel, *term.scales], term.atoms) for term in inner]
    if isinstance(kernel, Sum):
        return [term for part in kernel.parts for term in expand(part, columns)]
    if isinstance(kernel, Product):
        factors = product(*(expand(part, columns) for part in kernel.parts))
        return [
            Term(
                [scale for term in terms for scale in term.scales],
                [atom for term in terms for atom in term.atoms],
            )
            for terms in factors
        ]
    known = isinstance(kernel, Finite | Periodic | Tanimoto)
    if not known and not (isinstance(kernel, Stationary) and type(kernel).mixing is not Stationary.mixing):
        raise NotImplementedError(
            f"{type(kernel).__name__} has no random features, because neither its spectral measure nor a "
            "finite feature map is known; means, variances by solves and joint draws (post.sample) need none"
        )
    return [Term([], [Atom(kernel, columns)])]
