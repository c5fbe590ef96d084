"""The family of sparse methods in one table: what each assumes about training rows and about test inputs.

With K_ZZ = L L^T, V = L^-1 K_ZX and Q = V^T V = K_XZ K_ZZ^-1 K_ZX, every method replaces the covariance of the data,
K + Sigma, by Q + Lambda, and the posterior of the whitened inducing values u = L^-1 f(Z) is normal,

    B = I + V Lambda^-1 V^T,    E[u] = B^-1 V Lambda^-1 (y - mu),    Var(u) = B^-1.

At test inputs, with v = L^-1 K_Z*, the mean is mu + v^T E[u]. The methods differ in two places:

    method      Lambda                            covariance at test inputs
    sor         Sigma                             v^T B^-1 v
    dtc         Sigma                             K_** - v^T v + v^T B^-1 v
    fitc        Sigma + diag(K - Q)               K_** - v^T v + v^T B^-1 v
    pitc        Sigma + blockdiag(K - Q)          K_** - v^T v + v^T B^-1 v
    sgpr        Sigma                             K_** - v^T v + v^T B^-1 v

sgpr is dtc with another objective for the hyperparameters: a lower bound of the evidence, log N(y | mu, Q + Sigma) -
tr(Sigma^-1 (K - Q)) / 2. svgp maximises the same bound by mini-batches, and sgd finds the same mean by gradient
descent. With Z = X all methods are the exact Gaussian process.

Thesis, section 2.2.1; Quinonero-Candela and Rasmussen (2005); Snelson and Ghahramani (2005); Titsias (2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pathgp.kernels import Kernel
from pathgp.solvers.solution import NumericalFailure

# Rows of a block of PITC.
BLOCK_ROWS = 256


@dataclass(frozen=True)
class Method:
    """One sparse method.

    correction: the part of K - Q in Lambda: "none", "diagonal" or "blocks".  is_low_rank: whether test inputs have the
    prior Q, too.  is_bound: whether the objective subtracts the trace.  approximation: in words, for reports.
    """

    correction: str
    is_low_rank: bool
    is_bound: bool
    approximation: str


_NYSTROM = "the data see the Nyström prior Q = K_XZ K_ZZ^-1 K_ZX in place of K"

METHODS = {
    "sor": Method("none", True, False, f"{_NYSTROM}, and so do predictions: variances vanish far from Z"),
    "dtc": Method("none", False, False, f"{_NYSTROM}; predictions have the exact prior variance"),
    "fitc": Method("diagonal", False, False, f"{_NYSTROM}, with exact variances on the diagonal"),
    "pitc": Method("blocks", False, False, f"{_NYSTROM}, with exact covariances within blocks of {BLOCK_ROWS} rows"),
    "sgpr": Method("none", False, True, f"{_NYSTROM}; learned by a lower bound of the evidence"),
    "svgp": Method("none", False, True, f"{_NYSTROM}; learned by a lower bound of the evidence, in mini-batches"),
    "sgd": Method("none", False, True, f"{_NYSTROM}; solved by stochastic gradient descent"),
}


class WhitenedRows(NamedTuple):
    """A block of rows after division by the root of Lambda: Lambda^-1/2 V^T as V (m, b), residuals r (b,).

    logdet: log|Lambda|.  trace: tr(Sigma^-1 (K - Q)) for a bound, else zero.
    """

    V: Tensor
    r: Tensor
    logdet: Tensor
    trace: Tensor


def whiten_rows(method: Method, kernel: Kernel, X: Tensor, V: Tensor, r: Tensor, noise: Tensor) -> WhitenedRows:
    """Divide V (m, b) = L^-1 K(Z, X) and residuals r (b,) = y - mu by the root of Lambda; differentiable in all.

    ``noise``: variances (b,).  Time O(m b), with blocks O(m b^2).
    """
    zero = noise.new_zeros(())
    if method.correction == "blocks":
        root, failed = torch.linalg.cholesky_ex(kernel(X) - V.T @ V + noise.diag_embed())
        if int(failed):
            raise NumericalFailure("the noise is too small beside the signal for pitc: raise it, or use sgpr")
        white = torch.linalg.solve_triangular(root, torch.cat([V.T, r.unsqueeze(1)], 1), upper=False)
        return WhitenedRows(white[:, :-1].T, white[:, -1], 2.0 * root.diagonal().log().sum(), zero)
    # Rounding of V^T V may exceed the prior variance.
    missing = (kernel.diag(X) - V.square().sum(0)).clamp_min(0.0)
    variance = noise + missing if method.correction == "diagonal" else noise
    trace = (missing / noise).sum() if method.is_bound else zero
    deviation = variance.sqrt()
    return WhitenedRows(V / deviation, r / deviation, variance.log().sum(), trace)
