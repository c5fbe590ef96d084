"""The walk over kernel expressions, their leaves and their expansion into a sum of products."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import pytest
import torch

from pathgp import kernels as K
from pathgp.kernels.expression import Columns, expand, fold, leaves

A, B, C = K.Matern(1.5, active_dims=[1]), K.SquaredExponential(0.4), K.Linear(active_dims=[2, 0])
NESTED = K.Scale(K.Product(A + K.Scale(B, 0.5), C, active_dims=[3, 1, 0]), 1.3) + K.Matern(0.5)


def test_leaves_see_their_columns_of_X() -> None:
    assert leaves(NESTED, range(5)) == [(A, (1,)), (B, (3, 1, 0)), (C, (0, 3)), (NESTED.parts[1], (0, 1, 2, 3, 4))]
    assert leaves(C, [7, 8, 9]) == [(C, (9, 7))]


def test_terms_add_up_to_the_kernel() -> None:
    X = torch.rand(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    terms = expand(NESTED)
    assert [[type(leaf.kernel) for leaf in term.leaves] for term in terms] == [
        [K.Matern, K.Linear],
        [K.SquaredExponential, K.Linear],
        [K.Matern],
    ]
    total = 0.0
    for term in terms:
        # A leaf has selected its columns already.
        factors = (leaf.kernel._matrix(leaf.select(X), leaf.select(X)) for leaf in term.leaves)
        total = total + term.signal.square() * prod(factors)
    torch.testing.assert_close(total, NESTED(X))


def test_parts_that_are_not_read_are_not_visited() -> None:
    visited = []

    def visit(node: K.Kernel, columns: Columns, parts: Iterator[None]) -> None:
        visited.append(type(node))
        if isinstance(node, K.Sum):
            list(parts)

    fold(A + K.Scale(B), visit)
    assert visited == [K.Sum, K.Matern, K.Scale]


def test_a_kernel_around_another_is_no_leaf() -> None:
    class Wrapped(K.Kernel):
        def __init__(self) -> None:
            super().__init__([1])
            self.inner = K.Matern()

    kernel = Wrapped()
    assert leaves(kernel, range(3)) == [(kernel.inner, (1,))]


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="Linear acts on column 2, but X has only 2 columns"):
        leaves(C, range(2))
    with pytest.raises(ValueError, match="acts on column 1"):
        expand(K.Scale(A, active_dims=[0]))
