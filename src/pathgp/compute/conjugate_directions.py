"""Residuals and directions of block conjugate gradients: those of all columns together."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.compute.memory import spans

# Rows that are converted to float64 together, which bounds the memory, and rows of one matrix product: a GPU computes
# products of few columns by many rows on one of its processors only.
_ROWS, _ROWS_PER_PRODUCT = 65_536, 512


class ConjugateDirections:
    """Directions P and residuals R = W C of block conjugate gradients for A X = B, an iteration after the other:

        Q = W T with Q^T M^-1 Q = I;  Y = M^-1 Q;  P = Y - P a V^T Y                  ``update(M^-1 W)``
        V = A P;  a = (P^T V)^-1;  b = a P^T Q;  X += P b C;  R -= V b C;  W = Q - V b    ``step(A P)`` returns b C

    X is optimal for every column in the space of all directions so far. The columns of R become dependent as they
    converge. Those of Q are independent, which saves up to half of the iterations in float32. Directions below the
    rounding errors of W are left out. Small matrices are in float64 and on the CPU. O'Leary (1980); Dubrulle (2001).
    """

    def __init__(self, R: Tensor, Z: Tensor) -> None:
        """R: the residuals (n, s).  Z: M^-1 R."""
        self.replace(R)
        self.P = self._V = R.new_zeros(len(R), 0)
        self._a = torch.zeros(0, 0, dtype=torch.float64)
        self.update(Z)

    @property
    def R(self) -> Tensor:
        """The residuals (n, s)."""
        return self.W @ self._C.to(self.W)

    def replace(self, R: Tensor) -> None:
        """Continue with these residuals: recomputed ones, or those of some columns."""
        self.W, self._C = R, torch.eye(R.shape[1], dtype=torch.float64)

    def update(self, Z: Tensor) -> None:
        """The next directions, from Z = M^-1 W."""
        T, S = _orthonormalise(_inner(self.W, Z))
        self.W, Y, self._C = self.W @ T.to(Z), Z @ T.to(Z), S @ self._C
        self.P = Y - self.P @ (self._a @ _inner(self._V, Y)).to(Y)

    def step(self, V: Tensor) -> Tensor:
        """The coefficients (k, s) of the directions in the step of X, for V = A P."""
        k = self.P.shape[1]
        curvature, product = _inner(self.P, V, self.W).split([k, self.W.shape[1]], 1)
        self._V, self._a = V, _pseudo_inverse(curvature)
        b = self._a @ product
        coefficients = (b @ self._C).to(V)
        # Columns of W as large as their parts of R: a preconditioner may stop at an error that is small beside R.
        size = torch.linalg.vector_norm(self._C, dim=1)
        size = torch.where(size > 0.0, size, 1.0)
        self.W, self._C = (self.W - V @ b.to(V)) * size.to(V), self._C / size.unsqueeze(1)
        return coefficients

    @property
    def energies(self) -> Tensor:
        """The inner products of R with M^-1 R, column by column (s,), after an update."""
        return self._C.square().sum(0)

    @property
    def are_definite(self) -> bool:
        """Whether P^T A P of the last step had a positive eigenvalue; if not, A is numerically indefinite."""
        return bool(self._a.any())


def _orthonormalise(gram: Tensor) -> tuple[Tensor, Tensor]:
    """T (s, k) and S (k, s) with T^T gram T = I and T S = I on the directions that are kept.

    From the eigenvectors of gram, scaled to a unit diagonal. A zero gram has one direction, with T = 0. Stathopoulos
    and Wu (2002).
    """
    size = gram.diagonal().clamp_min(0.0).sqrt()
    inverse = _inverse_or_zero(size)
    w, V = torch.linalg.eigh(inverse.unsqueeze(1) * (gram + gram.T) / 2 * inverse)
    is_known = w >= max(len(w) * torch.finfo(torch.float64).eps, 1e-14) * w[-1]
    root, V = w[is_known].clamp_min(0.0).sqrt(), V[:, is_known]
    return inverse.unsqueeze(1) * V * _inverse_or_zero(root), root.unsqueeze(1) * V.T * size


def _inverse_or_zero(values: Tensor) -> Tensor:
    return torch.where(values > 0.0, 1.0 / values, 0.0)


def _inner(A: Tensor, *others: Tensor) -> Tensor:
    """A^T [B C ...] in float64, on the CPU."""
    total = torch.zeros(A.shape[1], sum(B.shape[1] for B in others), dtype=torch.float64, device=A.device)
    for rows in spans(len(A), _ROWS):
        a, b = A[rows].to(torch.float64), torch.cat([B[rows] for B in others], 1).to(torch.float64)
        count = len(a) // _ROWS_PER_PRODUCT
        whole = count * _ROWS_PER_PRODUCT
        left, right = (part[:whole].view(count, _ROWS_PER_PRODUCT, part.shape[1]) for part in (a, b))
        total += torch.bmm(left.mT, right).sum(0) + a[whole:].T @ b[whole:]
    return total.cpu()


def _pseudo_inverse(A: Tensor) -> Tensor:
    """The inverse of A on the space of its positive eigenvalues; in exact arithmetic all of them are."""
    w, V = torch.linalg.eigh((A + A.T) / 2)
    is_positive = w > len(w) * torch.finfo(torch.float64).eps * w[-1].clamp_min(0.0)
    return (V[:, is_positive] / w[is_positive]) @ V[:, is_positive].T
