"""Sparse rows of counts: each operation against the dense matrix, and what becomes dense."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor

from pathgp.compute.counts import CountRows
from pathgp.compute.inputs import read_matrix

COUNTS = np.random.default_rng(0).poisson(0.1, (50, 30)).astype(np.float32)
COUNTS[7] = 0
DENSE = torch.from_numpy(COUNTS)
INDEX, MASK = torch.tensor([3, 3, -1, 7]), torch.arange(50) % 3 == 0

# Operations, and whether their result is sparse.
OPERATIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "itself": (lambda X: X, True),
    "a slice": (lambda X: X[3:9], True),
    "an empty slice": (lambda X: X[9:3], True),
    "every third row": (lambda X: X[::3], True),
    "rows by number": (lambda X: X[INDEX], True),
    "no rows": (lambda X: X[INDEX[:0]], True),
    "rows by a mask": (lambda X: X[MASK], True),
    "another dtype": (lambda X: X.to(torch.float64), True),
    "rows of two": (lambda X: torch.cat([X, X[:3], X[INDEX]]), True),
    "a copy": (lambda X: X.clone(), True),
    "without a graph": (lambda X: X.detach(), True),
    "split": (lambda X: X.split(7)[-1], True),
    "split into three": (lambda X: X.tensor_split(3)[1], True),
    "one row": (lambda X: X[-1], False),
    "sets of rows": (lambda X: X[INDEX.view(2, 2)], False),
    "a column": (lambda X: X[:, 2], False),
    "columns": (lambda X: X[:, [1, 5]], False),
    "sums": (lambda X: X.sum(1), False),
    "a product": (lambda X: X @ torch.arange(60.0).view(30, 2), False),
    "new numbers": (lambda X: X.new_zeros(2, 3), False),
    "arithmetic": (lambda X: (2.0 * X + 1.0).amax(0), False),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    operation, is_sparse = OPERATIONS[name]
    found, expected = operation(CountRows.from_dense(DENSE)), operation(DENSE)
    assert isinstance(found, CountRows) == is_sparse
    dense = found.dense() if isinstance(found, CountRows) else found
    assert dense.dtype == expected.dtype
    assert torch.equal(dense, expected)


def test_of_scipy() -> None:
    for make in (sparse.csr_matrix, sparse.coo_array, sparse.csc_matrix):
        rows = CountRows.from_scipy(make(COUNTS), "X")
        assert rows.dtype == torch.float32
        assert torch.equal(rows.dense(), DENSE)
        assert torch.equal(rows.totals(), DENSE.sum(1))
    assert CountRows.from_scipy(sparse.csr_matrix(COUNTS.astype(np.uint16)), "X").dtype == torch.float64
    # The same place twice, and a stored zero.
    twice = sparse.coo_matrix(([1.0, 2.0, 0.0], ([1, 1, 0], [3, 3, 2])), shape=(2, 5))
    assert torch.equal(CountRows.from_scipy(twice, "X").dense(), torch.from_numpy(twice.toarray()))


@pytest.mark.parametrize("value", [-1.0, 0.5, 1e6, np.nan])
def test_refuses_other_numbers(value: float) -> None:
    matrix = sparse.csr_matrix(([1.0, value], ([0, 2], [1, 4])), shape=(3, 5))
    with pytest.raises(ValueError, match=r"in row 2, column 4: sparse inputs hold counts.*use Xs.toarray\(\)"):
        read_matrix(matrix, "Xs")


def test_refuses_to_be_changed() -> None:
    with pytest.raises(TypeError, match="would change sparse rows"):
        CountRows.from_dense(DENSE).add_(1.0)
    with pytest.raises(IndexError, match="of 50 rows"):
        CountRows.from_dense(DENSE)[torch.tensor([50])]


def test_copies() -> None:
    rows = CountRows.from_dense(DENSE)
    for copied in (pickle.loads(pickle.dumps(rows)), copy.deepcopy(rows)):
        assert isinstance(copied, CountRows)
        assert torch.equal(copied.dense(), DENSE)


def test_dense_counts_become_sparse_beside_sparse_rows() -> None:
    rows = CountRows.from_dense(DENSE)
    assert isinstance(read_matrix(COUNTS, like=rows).X, CountRows)
    other = read_matrix(COUNTS + 0.5, like=rows).X
    assert not isinstance(other, CountRows)
