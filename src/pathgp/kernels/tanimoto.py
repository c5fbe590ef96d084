"""The Tanimoto kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.compute.counts import CountRows, are_counts
from pathgp.kernels.base import Kernel

_LEVELS = 64  # dense counts up to here are compared as sets of tokens
# Whole numbers up to here, and their sums, are exact in float16, which a GPU multiplies fastest.
_EXACT_HALF = 2048


class Tanimoto(Kernel):
    """k(x, z) = sum_k min(x_k, z_k) / sum_k max(x_k, z_k) for non-negative inputs, k(0, 0) = 1.

    The similarity of molecular fingerprints, binary or counts (also known as Jaccard, MinMax or Ruzicka).
    Exact for counts, which are compared as sets: the count c in column k is the c tokens (k, 1), ..., (k, c), and the
    sum of the minima is the number of common tokens. Time O(n m tokens of a row) on a CPU; matrix products of all
    tokens on a GPU. Memory O(n m). Sparse inputs (`compute.counts.CountRows`) stay sparse. Inputs that are not counts
    take O(n m d). Thesis, section 4.3.3; Ralaivola et al. (2005).
    """

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        check_non_negative(X, "X")
        check_non_negative(Z, "Z")
        if X.requires_grad or Z.requires_grad or not (_are_counts(X) and _are_counts(Z)):
            totals = X.sum(1), Z.sum(1)
            overlap = 0.5 * (totals[0].unsqueeze(1) + totals[1] - torch.cdist(X, Z, p=1.0))
        else:
            left = as_count_rows(X)
            right = left if Z is X else as_count_rows(Z)
            totals = left.totals(), right.totals()
            overlap = _count_common_tokens(left, right).to(X.dtype)
        union = (totals[0].unsqueeze(1) + totals[1]).sub_(overlap)
        if bool((totals[0] == 0).any()) and bool((totals[1] == 0).any()):
            empty = union == 0
            return (overlap / union.masked_fill(empty, 1.0)).masked_fill(empty, 1.0)
        return overlap / union if overlap.requires_grad else overlap.div_(union)

    def _diagonal(self, X: Tensor) -> Tensor:
        check_non_negative(X, "X")
        return X.new_ones(len(X))


def check_non_negative(X: Tensor, name: str) -> None:
    """Refuse negative entries and NaN, by row and column."""
    if not isinstance(X, CountRows) and X.numel() and not bool(X.min() >= 0):
        row, column = (int(i) for i in torch.nonzero(~(X >= 0))[0])
        raise ValueError(
            f"Tanimoto compares non-negative inputs, but {name} is {float(X[row, column]):g} "
            f"in row {row}, column {column}"
        )


def as_count_rows(X: Tensor) -> CountRows:
    """Counts as sparse rows."""
    return X if isinstance(X, CountRows) else CountRows.from_dense(X)


def _are_counts(X: Tensor) -> bool:
    return isinstance(X, CountRows) or X.numel() == 0 or (bool(X.max() <= _LEVELS) and are_counts(X))


def _count_common_tokens(X: CountRows, Z: CountRows) -> Tensor:
    """sum_k min(x_k, z_k) for all pairs of rows (n, m): float32, or float16 on a GPU if that is exact."""
    (token, row), (other, column) = ((rows.tokens, rows.rows()) for rows in (X, Z))
    # Tokens of X are numbered; those of Z that X does not have cannot be common.
    numbers = token.new_zeros(1 + max([0, *(int(tokens.max()) for tokens in (token, other) if len(tokens))]))
    numbers[token] = 1
    is_common = numbers[other] > 0
    size = int(numbers.sum())
    numbers = numbers.cumsum(0) - 1
    token, other, column = numbers[token], numbers[other[is_common]], column[is_common]
    multiply = _sum_of_rows if X.device.type == "cpu" else _matrix_product
    return multiply(X, Z, (row, token), (other, column), size)


def _sum_of_rows(
    X: CountRows, Z: CountRows, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], size: int
) -> Tensor:
    """L R for 0/1 matrices with ones at ``left`` and ``right``: row i is the sum of the rows of R where L_i is one."""
    table = torch.zeros(size, len(Z))
    table[right] = 1.0
    return torch.nn.functional.embedding_bag(left[1], table, X.ends[:-1], mode="sum")


def _matrix_product(
    X: CountRows, Z: CountRows, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], size: int
) -> Tensor:
    """The same as one matrix product; float16 if all sums are exact in it."""
    largest = float(min(X.totals().max(), Z.totals().max())) if len(X) and len(Z) else 0.0
    dtype = torch.float16 if largest <= _EXACT_HALF else torch.float32
    L = torch.zeros(len(X), size, dtype=dtype, device=X.device)
    R = torch.zeros(size, len(Z), dtype=dtype, device=X.device)
    L[left], R[right] = 1.0, 1.0
    return L @ R
