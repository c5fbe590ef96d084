"""The recurrence of block conjugate gradients: residuals and search directions that many columns share."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.compute.memory import spans

# Rows that are converted to float64 at a time: this bounds the memory.
# Rows of one matrix product: a GPU computes a product of a few columns with many rows on only one of its processors.
_ROWS, _ROWS_PER_PRODUCT = 65_536, 512


class ConjugateDirections:
    """Residuals R and search directions P of block conjugate gradients for A X = B with the preconditioner M.

    One iteration, with the residuals as a product R = W C:

        update(M^-1 W)   find T, S with T S = I such that Q = W T has Q^T M^-1 Q = I
                         W = Q;  C = S C;  Y = M^-1 Q;  P = Y - P a V^T Y
        step(V = A P)    a = (P^T V)^-1;  b = a P^T W
                         W = W - V b;  return b C, with which the caller updates X = X + P b C

    X then minimises the error of every column, in the norm of A, over the span of all directions so far. The columns of
    R become linearly dependent as they converge. Those of Q stay independent, which saves up to half of the iterations
    in float32. Directions smaller than the rounding errors of W are dropped. The small matrices T, S, C, a and
    b are in float64 on the CPU. Time: O(n s^2) per iteration. O'Leary (1980); Dubrulle (2001).
    """

    def __init__(self, R: Tensor, Z: Tensor) -> None:
        """Start with the residuals R (n, s) and Z = M^-1 R."""
        self.replace(R)
        self.P = self._V = R.new_zeros(len(R), 0)
        self._a = torch.zeros(0, 0, dtype=torch.float64)
        self.update(Z)

    @property
    def R(self) -> Tensor:
        """The residuals (n, s)."""
        return self.W @ self._C.to(self.W)

    def replace(self, R: Tensor) -> None:
        """Replace the residuals, by recomputed ones or by those of fewer columns. P stays until the next `update`."""
        self.W, self._C = R, torch.eye(R.shape[1], dtype=torch.float64)

    def update(self, Z: Tensor) -> None:
        """Compute the next directions from Z = M^-1 W."""
        T, S = _orthonormalise(_inner(self.W, Z))
        self.W, Y, self._C = self.W @ T.to(Z), Z @ T.to(Z), S @ self._C
        self.P = Y - self.P @ (self._a @ _inner(self._V, Y)).to(Y)

    def step(self, V: Tensor) -> Tensor:
        """Update the residuals for V = A P; return the coefficients (k, s) of P in the step of X."""
        k = self.P.shape[1]
        curvature, product = _inner(self.P, V, self.W).split([k, self.W.shape[1]], 1)
        self._V, self._a = V, _pseudo_inverse(curvature)
        b = self._a @ product
        coefficients = (b @ self._C).to(V)
        # Scale the columns of W to the size of R: iterative preconditioners may stop at an error relative to R.
        scale = torch.linalg.vector_norm(self._C, dim=1)
        scale = torch.where(scale > 0.0, scale, 1.0)
        self.W, self._C = (self.W - V @ b.to(V)) * scale.to(V), self._C / scale.unsqueeze(1)
        return coefficients

    @property
    def squared_norms(self) -> Tensor:
        """r^T M^-1 r of every column r of R (s,). Valid after `update`."""
        return self._C.square().sum(0)

    @property
    def is_definite(self) -> bool:
        """Whether P^T A P had a positive eigenvalue in the last step. If not, A is numerically indefinite."""
        return bool(self._a.any())


def _orthonormalise(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return T (s, k) and S (k, s) with T^T gram T = I, and T S = I on the space of the directions that are kept.

    Computed from the eigenvectors of gram after scaling it to a unit diagonal. Directions whose eigenvalues are below
    rounding errors are dropped. If gram is zero, one direction is kept, with T = 0. Stathopoulos and Wu (2002).
    """
    scale = gram.diagonal().clamp_min(0.0).sqrt()
    inverse = _inverse_or_zero(scale)
    w, V = torch.linalg.eigh(inverse.unsqueeze(1) * (gram + gram.T) / 2 * inverse)
    is_kept = w >= max(len(w) * torch.finfo(torch.float64).eps, 1e-14) * w[-1]
    root, V = w[is_kept].clamp_min(0.0).sqrt(), V[:, is_kept]
    return inverse.unsqueeze(1) * V * _inverse_or_zero(root), root.unsqueeze(1) * V.T * scale


def _inverse_or_zero(values: Tensor) -> Tensor:
    return torch.where(values > 0.0, 1.0 / values, 0.0)


def _inner(A: Tensor, *others: Tensor) -> Tensor:
    """Return A^T [B C ...] in float64 on the CPU."""
    total = torch.zeros(A.shape[1], sum(B.shape[1] for B in others), dtype=torch.float64, device=A.device)
    for rows in spans(len(A), _ROWS):
        a, b = A[rows].to(torch.float64), torch.cat([B[rows] for B in others], 1).to(torch.float64)
        count = len(a) // _ROWS_PER_PRODUCT
        whole = count * _ROWS_PER_PRODUCT
        left, right = (part[:whole].view(count, _ROWS_PER_PRODUCT, part.shape[1]) for part in (a, b))
        total += torch.bmm(left.mT, right).sum(0) + a[whole:].T @ b[whole:]
    return total.cpu()


def _pseudo_inverse(A: Tensor) -> Tensor:
    """Return the inverse of A on the eigenvectors with positive eigenvalues: in exact arithmetic, all of them."""
    w, V = torch.linalg.eigh((A + A.T) / 2)
    is_positive = w > len(w) * torch.finfo(torch.float64).eps * w[-1].clamp_min(0.0)
    return (V[:, is_positive] / w[is_positive]) @ V[:, is_positive].T
