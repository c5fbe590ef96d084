"""The structure of a kernel expression: one walk over its nodes, and what follows from it.

`fold` visits every node together with the columns of X that it sees. `leaves` lists the elementary kernels. `expand`
multiplies out sums inside products, k_1 (k_2 + k_3) = k_1 k_2 + k_1 k_3: the result is a sum of products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pathgp.kernels.algebra import Product, Scale, Sum
from pathgp.kernels.base import Kernel

T = TypeVar("T")
Columns = Sequence[Any] | None


def fold(kernel: Kernel, visit: Callable[[Kernel, Columns, Iterator[T]], T], columns: Columns = None) -> T:
    """The value of ``visit(node, columns, parts)`` at the root of a kernel expression.

    ``columns``: a number, a name or any other value for each column of X, of which a node gets those that it sees; None
    means all columns. ``parts``: iterator over the values of the kernels that the node combines. They are computed on
    demand: a node is visited before its parts, and parts that are not read are not visited.
    """
    dims = kernel.active_dims
    if dims is not None and columns is not None:
        if max(dims) >= len(columns):
            raise ValueError(
                f"{type(kernel).__name__} acts on column {max(dims)}, but X has only {len(columns)} columns"
            )
        columns = tuple(columns[i] for i in dims)
    seen = dims if columns is None else columns
    return visit(kernel, seen, (fold(part, visit, seen) for part in kernel.parts))


class Leaf(NamedTuple):
    """An elementary kernel and the columns of X that it sees (None: all)."""

    kernel: Kernel
    columns: tuple[int, ...] | None

    def columns_of(self, dim: int) -> Sequence[int]:
        """The columns that the kernel sees of inputs with ``dim`` columns."""
        return range(dim) if self.columns is None else self.columns

    def select(self, X: Tensor) -> Tensor:
        """The columns of X that the kernel sees."""
        return X if self.columns is None else X[:, list(self.columns)]


@dataclass
class Term:
    """A product of elementary kernels, times the squared signals of the scales around them."""

    scales: list[Scale]
    leaves: list[Leaf]

    @property
    def signal(self) -> Tensor:
        """The product of the signal standard deviations, float64."""
        return math.prod((scale.signal for scale in self.scales), start=torch.ones((), dtype=torch.float64))

    def of(self, *kinds: type[Kernel]) -> list[Leaf]:
        """The elementary kernels of these classes."""
        return [leaf for leaf in self.leaves if isinstance(leaf.kernel, kinds)]


def leaves(kernel: Kernel, columns: Sequence[int]) -> list[tuple[Kernel, tuple[int, ...]]]:
    """The elementary kernels of an expression, each with those of the given columns of X that it sees."""

    def visit(node: Kernel, seen: Columns, parts: Iterator[Any]) -> list[tuple[Kernel, tuple[int, ...]]]:
        return list(chain.from_iterable(parts)) if node.parts else [(node, tuple(seen or ()))]

    return fold(kernel, visit, columns)


def expand(kernel: Kernel) -> list[Term]:
    """The terms whose sum is the kernel, in the order of the expression."""

    def visit(node: Kernel, columns: Columns, parts: Iterator[list[Term]]) -> list[Term]:
        if isinstance(node, Scale):
            return [Term([node, *term.scales], term.leaves) for term in next(parts)]
        if isinstance(node, Sum):
            return list(chain.from_iterable(parts))
        if isinstance(node, Product):
            return [
                Term(
                    [scale for term in terms for scale in term.scales], [leaf for term in terms for leaf in term.leaves]
                )
                for terms in product(*parts)
            ]
        return [Term([], [Leaf(node, None if columns is None else tuple(columns))])]

    return fold(kernel, visit)
