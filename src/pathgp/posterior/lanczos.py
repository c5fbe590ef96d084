"""Gauss quadrature over the spectrum of a matrix by Lanczos iterations: z^T f(M) z for many vectors z at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pathgp.solvers.run import column_norms


class Lanczos:
    """Tridiagonal matrices T of the Krylov spaces of M, one for every column of Z; one product per step for all.

    Without re-orthogonalisation, in the memory of three blocks (n, s). Lost orthogonality repeats Ritz values and
    divides their weight among the copies, which does not change integrals over the spectrum; they converge a little
    later (Greenbaum 1989; Chen, Trogdon and Ubaru 2021).
    """

    def __init__(self, product: Callable[[Tensor], Tensor], Z: Tensor) -> None:
        self._product = product
        norms = column_norms(Z)
        self._mass = norms.square()
        self._alive = norms > 0
        self._v = Z / torch.where(self._alive, norms, 1.0)
        self._before = torch.zeros_like(Z)
        self.alphas: list[Tensor] = []
        self._betas: list[Tensor] = [torch.zeros_like(norms)]
        self._spectrum: tuple[Tensor, Tensor] | None = None

    def step(self) -> None:
        w = self._product(self._v) - self._betas[-1] * self._before
        # A column whose space is exhausted continues with eigenvalue one and weight zero.
        alpha = torch.where(self._alive, (self._v * w).sum(0), 1.0)
        w -= alpha * self._v
        beta = column_norms(w)
        self._alive = self._alive & (beta > 1e-12 * alpha.abs())
        beta = torch.where(self._alive, beta, 0.0)
        self.alphas.append(alpha)
        self._betas.append(beta)
        self._before, self._v = self._v, torch.where(self._alive, w / beta, 0.0)
        self._spectrum = None

    def integrate(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """z^T f(M) z for every column: |z|^2 sum_i U_1i^2 f(theta_i) with T = U theta U^T."""
        theta, U = self._decompose()
        return self._mass * (U[:, 0].square() * function(theta)).sum(1).to(self._mass)

    def remainder(self) -> Tensor:
        """A bound on the truncation error of z^T M^-1 z, for every column.

        It is e^T M^-1 e for the residual e of the k-th conjugate gradient iterate, |e| = |z| beta_k |(T^-1)_k1|. The
        least eigenvalue of M is estimated by the least one of all T.
        """
        theta, U = self._decompose()
        last = (U[:, -1] * U[:, 0] / theta).sum(1).to(self._mass)
        return self._mass * (self._betas[-1] * last).square() / float(theta.min())

    def _decompose(self) -> tuple[Tensor, Tensor]:
        """theta (s, k) and U (s, k, k)."""
        if self._spectrum is not None:
            return self._spectrum
        # On the CPU, which is faster for many small matrices.
        T = torch.diag_embed(torch.stack(self.alphas, 1)).cpu()
        if len(self.alphas) > 1:
            off = torch.diag_embed(torch.stack(self._betas[1:-1], 1).cpu(), 1)
            T = T + off + off.mT
        theta, U = torch.linalg.eigh(T)
        if not float(theta.min()) > 0:
            raise ValueError(
                "the noise is so small beside the signal that rounding makes H indefinite: the likelihood cannot be "
                "estimated; compare models on at most 10,000 rows, where it is exact"
            )
        self._spectrum = theta, U
        return theta, U


def controlled_mean(values: Tensor, control: Tensor) -> tuple[float, float]:
    """Mean of values by linear regression on controls of mean zero, and its standard error."""
    s = len(values)
    spread = float((control - control.mean()).square().sum())
    slope, leverage = 0.0, 0.0
    if spread > 0:
        slope = float(((control - control.mean()) * values).sum()) / spread
        leverage = float(control.mean().square()) / spread
    rest = values - slope * control
    variance = float((rest - rest.mean()).square().sum()) / (s - 2)
    return float(rest.mean()), math.sqrt(variance * (1.0 / s + leverage))
