"""The Tanimoto kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.kernels.base import Kernel


class Tanimoto(Kernel):
    """k(x, z) = sum_k min(x_k, z_k) / sum_k max(x_k, z_k) for non-negative inputs, k(0, 0) = 1.

    The similarity of molecular fingerprints, binary or counts (also known as Jaccard, MinMax or Ruzicka).
    With S = sum(x) + sum(z) and D = |x - z|_1 it is (S - D) / (S + D), exact for counts.
    Time O(n m d), memory O(n m). Thesis, section 4.3; Ralaivola et al. (2005).
    """

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        check_non_negative(X, "X")
        if Z is not X:
            check_non_negative(Z, "Z")
        total = X.sum(1, keepdim=True) + Z.sum(1)
        distance = torch.cdist(X, Z, p=1.0)
        union = total + distance
        empty = union == 0
        return ((total - distance) / union.masked_fill(empty, 1.0)).masked_fill(empty, 1.0)

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
