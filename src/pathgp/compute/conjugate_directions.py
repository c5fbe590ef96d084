"""Directions of block conjugate gradients: those of all columns together."""

from __future__ import annotations

import torch
from torch import Tensor

# Rows whose inner products are taken in float64 together: bounds the memory of the conversion.
_ROWS = 16_384


class ConjugateDirections:
    """Directions D of block conjugate gradients for A X = B, an iteration after the other:

        Q = A D;  C = (D^T Q)^-1 D^T R;  X += D C;  R -= Q C        ``step(Q, R)`` returns C
        D = basis(Z - D (D^T Q)^-1 Q^T Z)                           ``update(Z)``, with Z = P^-1 R

    X is optimal for every column in the space of all directions so far. O'Leary (1980); Dubrulle (2001).
    Small matrices are in float64 and on the CPU.
    """

    def __init__(self, Z: Tensor) -> None:
        self.D = basis(Z)

    def step(self, Q: Tensor, R: Tensor) -> Tensor:
        """C = (D^T Q)^-1 D^T R for Q = A D: coefficients (k, s) of the k directions."""
        self._Q, self._inverse = Q, _pseudo_inverse(_inner(self.D, Q))
        return (self._inverse @ _inner(self.D, R)).to(Q)

    def update(self, Z: Tensor) -> None:
        """Continue with directions from the preconditioned residuals Z, conjugate to the previous ones."""
        self.D = basis(Z - self.D @ (self._inverse @ _inner(self._Q, Z)).to(Z))

    @property
    def are_definite(self) -> bool:
        """Whether D^T A D of the last step had a positive eigenvalue; if not, A is numerically indefinite."""
        return bool(self._inverse.any())


def basis(Z: Tensor) -> Tensor:
    """Orthonormal columns that span the columns of Z up to rounding, at most as many as Z has.

    Z V / sqrt(w) with the eigenvectors V and eigenvalues w of Z^T Z, for columns of length 1. Directions below the
    rounding errors of Z are left out. One column of zeros if Z is zero. Stathopoulos and Wu (2002).
    """
    gram = _inner(Z, Z)
    scale = _inverse_root(gram.diagonal())
    w, V = torch.linalg.eigh(scale.unsqueeze(1) * gram * scale)
    rounding = max(torch.finfo(Z.dtype).eps ** 2, len(w) * torch.finfo(torch.float64).eps)
    is_known = w >= rounding * w[-1]
    return Z @ (scale.unsqueeze(1) * V[:, is_known] * _inverse_root(w[is_known])).to(Z)


def _inverse_root(values: Tensor) -> Tensor:
    """1 / sqrt(v), zero where v is not positive."""
    return torch.where(values > 0.0, values.rsqrt(), 0.0)


def _inner(A: Tensor, B: Tensor) -> Tensor:
    """A^T B in float64, on the CPU."""
    total = torch.zeros(A.shape[1], B.shape[1], dtype=torch.float64, device=A.device)
    for a, b in zip(A.split(_ROWS), B.split(_ROWS), strict=True):
        total.addmm_(a.to(torch.float64).T, b.to(torch.float64))
    return total.cpu()


def _pseudo_inverse(A: Tensor) -> Tensor:
    """The inverse of A on the space of its positive eigenvalues; in exact arithmetic all of them are."""
    w, V = torch.linalg.eigh((A + A.T) / 2)
    is_positive = w > len(w) * torch.finfo(torch.float64).eps * w[-1].clamp_min(0.0)
    return (V[:, is_positive] / w[is_positive]) @ V[:, is_positive].T
