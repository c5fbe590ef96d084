"""Sparse Gaussian processes as the textbook writes them: dense n x n matrices in float64, explicit inverses.

The joint priors of Quinonero-Candela and Rasmussen (2005), conditioned like any normal distribution, and the bound of
Titsias (2009). Independent of the package that they check.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference import Covariance, as_float64

METHODS = ("sor", "dtc", "fitc", "pitc", "sgpr", "svgp", "sgd")
JITTER = 1e-12


def low_rank(k: Covariance, Z: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """Q(X, Y) = K_XZ K_ZZ^-1 K_ZY."""
    K = k(Z, Z)
    K = K + JITTER * K.diagonal().max() * torch.eye(len(Z), dtype=torch.float64)
    return k(X, Z) @ torch.linalg.solve(K, k(Z, Y))


def training_covariance(
    method: str, k: Covariance, Z: Tensor, X: Tensor, noise: float | Tensor, blocks: list[Tensor]
) -> Tensor:
    """Covariance of y under a method; ``blocks``: numbers of the rows of every block of PITC."""
    Q, K = low_rank(k, Z, X, X), k(X, X)
    H = Q + torch.diag(as_float64(noise).square().expand(len(X)))
    if method == "fitc":
        H = H + torch.diag((K - Q).diagonal())
    for rows in blocks if method == "pitc" else []:
        index = rows.unsqueeze(1), rows.unsqueeze(0)
        H[index] = (K + torch.diag(as_float64(noise).square().expand(len(X))))[index]
    return H


def posterior(
    method: str,
    k: Covariance,
    Z: Tensor,
    X: Tensor,
    y: Tensor,
    noise: float | Tensor,
    Xs: Tensor,
    blocks: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean (m,) and covariance (m, m) at Xs: the joint prior with Q(Xs, X), conditioned on y."""
    H = training_covariance(method, k, Z, X, noise, blocks or [])
    cross = low_rank(k, Z, Xs, X)
    prior = low_rank(k, Z, Xs, Xs) if method == "sor" else k(Xs, Xs)
    gain = torch.linalg.solve(H, cross.T).T
    return gain @ y, prior - gain @ cross.T


def objective(
    method: str, k: Covariance, Z: Tensor, X: Tensor, y: Tensor, noise: float | Tensor, blocks: list[Tensor]
) -> Tensor:
    """log N(y | 0, H), for sgpr, svgp and sgd minus tr(Sigma^-1 (K - Q)) / 2; differentiable."""
    H = training_covariance(method, k, Z, X, noise, blocks)
    value = -0.5 * (y @ torch.linalg.solve(H, y) + torch.logdet(H) + len(y) * math.log(2 * math.pi))
    if method in ("sgpr", "svgp", "sgd"):
        missing = (k(X, X) - low_rank(k, Z, X, X)).diagonal()
        value = value - 0.5 * (missing / as_float64(noise).square()).sum()
    return value


def path_covariance(k: Covariance, Z: Tensor, X: Tensor, noise: float, Xs: Tensor) -> Tensor:
    """Covariance of f + K_*Z (v - alpha) with f(X) + eps on the right-hand side of alpha (thesis, section 3.2.3)."""
    C = torch.linalg.solve(noise**2 * k(Z, Z) + k(Z, X) @ k(X, Z), k(Z, X))
    gain = k(Xs, Z) @ C
    H = k(X, X) + noise**2 * torch.eye(len(X), dtype=torch.float64)
    return k(Xs, Xs) - gain @ k(X, Xs) - k(Xs, X) @ gain.T + gain @ H @ gain.T
