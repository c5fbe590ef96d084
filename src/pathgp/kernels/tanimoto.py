"""The Tanimoto kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.kernels.base import Kernel

_LEVELS = 64  # counts up to here go through matrix products


class Tanimoto(Kernel):
    """k(x, z) = sum_k min(x_k, z_k) / sum_k max(x_k, z_k) for non-negative inputs, k(0, 0) = 1.

    The similarity of molecular fingerprints, binary or counts (also known as Jaccard, MinMax or Ruzicka).
    Exact for counts. Time O(n m d) and memory O(n m). Counts take one matrix product per level, over the
    columns that reach it. Thesis, section 4.3.3; Ralaivola et al. (2005).
    """

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        check_non_negative(X, "X")
        check_non_negative(Z, "Z")
        total = X.sum(1, keepdim=True) + Z.sum(1)
        if X.requires_grad or Z.requires_grad or not (_are_counts(X) and _are_counts(Z)):
            overlap = 0.5 * (total - torch.cdist(X, Z, p=1.0))
        else:
            overlap = _common_counts(X, Z)
        union = total - overlap
        empty = union == 0
        return (overlap / union.masked_fill_(empty, 1.0)).masked_fill_(empty, 1.0)

    def _diagonal(self, X: Tensor) -> Tensor:
        check_non_negative(X, "X")
        return torch.ones_like(X[:, 0])


def check_non_negative(X: Tensor, name: str) -> None:
    """Refuse negative entries and NaN, by row and column."""
    if X.numel() and not bool(X.min() >= 0):
        row, column = (int(i) for i in torch.nonzero(~(X >= 0))[0])
        raise ValueError(
            f"Tanimoto compares non-negative inputs, but {name} is {float(X[row, column]):g} "
            f"in row {row}, column {column}"
        )


def _are_counts(X: Tensor) -> bool:
    return X.numel() == 0 or (bool(X.max() <= _LEVELS) and bool(X.round().eq(X).all()))


def _common_counts(X: Tensor, Z: Tensor) -> Tensor:
    """sum_k min(x_k, z_k) = sum over levels t = 1, 2, ... of the number of k with x_k >= t and z_k >= t."""
    result = X.new_zeros(X.shape[0], Z.shape[0])
    if X.numel() and Z.numel():
        largest = torch.minimum(X.amax(0), Z.amax(0))
        for level in range(1, int(largest.max()) + 1):
            columns = largest >= level
            left, right = (A[:, columns].ge(level).to(A) for A in (X, Z))
            result.addmm_(left, right.T)
    return result
