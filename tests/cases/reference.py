"""A dense Gaussian process in float64: the textbook, written once, and independent of the package it checks.

Kernels are functions of two sets of inputs, (n, d) and (m, d), and return (n, m). Distances are taken from
explicit differences. Everything is differentiable in torch, except a Matern kernel of general smoothness.

    k = lambda X, Z: 1.5**2 * matern(X, Z, nu=1.5, lengthscale=0.3)
    mean, covariance = posterior(k, X, y, noise=0.1, Xs=Xs)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import gamma, kv
from torch import Tensor

Covariance = Callable[[Tensor, Tensor], Tensor]


def as_float64(value: object) -> Tensor:
    # In one step: a Python number would otherwise be rounded to float32 on the way.
    return torch.as_tensor(value, dtype=torch.float64)


def squared_distance(X: Tensor, Z: Tensor, lengthscale: float | Tensor = 1.0) -> Tensor:
    """r^2 = sum_k (x_k - z_k)^2 / l_k^2."""
    X, Z, lengthscale = as_float64(X), as_float64(Z), as_float64(lengthscale)
    return ((X[:, None, :] - Z[None, :, :]) / lengthscale).square().sum(-1)


def distance(X: Tensor, Z: Tensor, lengthscale: float | Tensor = 1.0) -> Tensor:
    """r, with gradient zero (not NaN) where r = 0."""
    r2 = squared_distance(X, Z, lengthscale)
    zero = r2 == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, r2).sqrt())


def squared_exponential(X: Tensor, Z: Tensor, lengthscale: float | Tensor = 1.0) -> Tensor:
    """exp(-r^2 / 2)."""
    return torch.exp(-squared_distance(X, Z, lengthscale) / 2)


def matern(X: Tensor, Z: Tensor, nu: float, lengthscale: float | Tensor = 1.0) -> Tensor:
    """2^(1-nu) / Gamma(nu) * a^nu K_nu(a), a = sqrt(2 nu) r; in closed form for nu = 1/2, 3/2, 5/2."""
    a = math.sqrt(2 * nu) * distance(X, Z, lengthscale)
    if nu == 0.5:
        return torch.exp(-a)
    if nu == 1.5:
        return (1 + a) * torch.exp(-a)
    if nu == 2.5:
        return (1 + a + a.square() / 3) * torch.exp(-a)
    return matern_by_bessel(a, nu)


def matern_by_bessel(a: Tensor, nu: float) -> Tensor:
    """The Matern formula for any nu > 0, as a function of a = sqrt(2 nu) r. No gradient."""
    values = a.detach().numpy()
    safe = np.where(values > 0, values, 1.0)
    k = 2 ** (1 - nu) / gamma(nu) * safe**nu * kv(nu, safe)
    return torch.from_numpy(np.where(values > 0, k, 1.0))


def rational_quadratic(X: Tensor, Z: Tensor, alpha: float | Tensor, lengthscale: float | Tensor = 1.0) -> Tensor:
    """(1 + r^2 / (2 alpha))^(-alpha)."""
    alpha = as_float64(alpha)
    return (1 + squared_distance(X, Z, lengthscale) / (2 * alpha)) ** (-alpha)


def periodic(X: Tensor, Z: Tensor, period: float | Tensor, lengthscale: float | Tensor = 1.0) -> Tensor:
    """prod_k exp(-2 sin^2(pi (x_k - z_k) / p_k) / l_k^2): a product over dimensions, not a function of r."""
    X, Z, period, lengthscale = map(as_float64, (X, Z, period, lengthscale))
    angle = math.pi * (X[:, None, :] - Z[None, :, :]) / period
    return torch.exp((-2 * (torch.sin(angle) / lengthscale).square()).sum(-1))


def linear(X: Tensor, Z: Tensor, variance: float | Tensor = 1.0) -> Tensor:
    """variance * x . z."""
    return as_float64(variance) * (as_float64(X) @ as_float64(Z).T)


def gneiting(
    X: Tensor,
    Z: Tensor,
    nu: float,
    lengthscale: float | Tensor,
    timescale: float,
    alpha: float,
    beta: float,
    decay: float,
) -> Tensor:
    """psi^-(decay + beta d / 2) matern(h / psi^(beta / 2)), psi = 1 + |u / timescale|^(2 alpha); time is last."""
    X, Z = as_float64(X), as_float64(Z)
    psi = 1 + ((X[:, -1:] - Z[:, -1:].T).abs() / timescale) ** (2 * alpha)
    a = math.sqrt(2 * nu) * distance(X[:, :-1], Z[:, :-1], lengthscale) / psi ** (beta / 2)
    return psi ** -(decay + beta * (X.shape[1] - 1) / 2) * matern_by_bessel(a, nu)


def on_sphere(X: Tensor) -> Tensor:
    """Points (n, 3) on the unit sphere, for latitudes and longitudes (n, 2) in degrees."""
    lat, lon = torch.deg2rad(as_float64(X)).T
    return torch.stack([torch.cos(lat) * torch.cos(lon), torch.cos(lat) * torch.sin(lon), torch.sin(lat)], 1)


def tanimoto(X: Tensor, Z: Tensor) -> Tensor:
    """sum_k min(x_k, z_k) / sum_k max(x_k, z_k) on non-negative inputs; T(0, 0) = 1."""
    X, Z = as_float64(X)[:, None, :], as_float64(Z)[None, :, :]
    lower, upper = torch.minimum(X, Z).sum(-1), torch.maximum(X, Z).sum(-1)
    return torch.where(upper == 0, 1.0, lower / torch.where(upper == 0, 1.0, upper))


def task(X: Tensor, Z: Tensor, factor: Tensor, diagonal: Tensor) -> Tensor:
    """Entry (x, z) of B B^T + diag(kappa); X and Z have one column of task numbers 0..q-1."""
    factor = as_float64(factor)
    between = factor @ factor.T + torch.diag(as_float64(diagonal))
    return between[X[:, 0].long()][:, Z[:, 0].long()]


def system(k: Covariance, X: Tensor, noise: float | Tensor) -> Tensor:
    """H = K + diag(noise^2); ``noise`` is a standard deviation, one for all points or one per point."""
    return k(X, X) + torch.diag(as_float64(noise).square().expand(X.shape[0]))


def posterior(
    k: Covariance, X: Tensor, y: Tensor, noise: float | Tensor, Xs: Tensor, mean: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Mean (m,) and covariance (m, m) of the noise-free function at Xs.

    mean + K_* H^-1 (y - mean)  and  K_** - K_* H^-1 K_*^T, through one Cholesky factor.
    """
    L = torch.linalg.cholesky(system(k, X, noise))
    A = torch.linalg.solve_triangular(L, k(X, Xs), upper=False)
    b = torch.linalg.solve_triangular(L, (as_float64(y) - mean)[:, None], upper=False)
    return mean + (A.T @ b)[:, 0], k(Xs, Xs) - A.T @ A


def log_marginal_likelihood(
    k: Covariance, X: Tensor, y: Tensor, noise: float | Tensor, mean: float | Tensor = 0.0
) -> Tensor:
    """log N(y | mean, H), differentiable in whatever ``k``, ``noise`` and ``mean`` depend on."""
    L = torch.linalg.cholesky(system(k, X, noise))
    b = torch.linalg.solve_triangular(L, (as_float64(y) - mean)[:, None], upper=False)
    return -b.square().sum() / 2 - L.diagonal().log().sum() - X.shape[0] / 2 * math.log(2 * math.pi)


def universal_kriging(
    k: Covariance, X: Tensor, y: Tensor, noise: float | Tensor, Xs: Tensor, B: Tensor, Bs: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean (m,) and covariance (m, m) at Xs, coefficients (p,) and their covariance (p, p), for y = B beta + f + eps.

    From the kriging system [[H, B], [B^T, 0]] of the weights and Lagrange multipliers of each point.
    """
    n, p = B.shape
    zero = torch.zeros(p, p, dtype=torch.float64)
    inverse = torch.linalg.inv(torch.cat([torch.cat([system(k, X, noise), B], 1), torch.cat([B.T, zero], 1)]))
    right = torch.cat([k(X, Xs), Bs.T])
    mean = right.T @ inverse[:, :n] @ y
    return mean, k(Xs, Xs) - right.T @ inverse @ right, inverse[n:, :n] @ y, -inverse[n:, n:]


def restricted_likelihood(k: Covariance, X: Tensor, y: Tensor, noise: float | Tensor, B: Tensor) -> Tensor:
    """The log density of n - p orthonormal contrasts A^T y, A^T B = 0; differentiable as `log_marginal_likelihood`."""
    A = torch.linalg.qr(B, mode="complete")[0][:, B.shape[1] :]
    L = torch.linalg.cholesky(A.T @ system(k, X, noise) @ A)
    b = torch.linalg.solve_triangular(L, (A.T @ as_float64(y))[:, None], upper=False)
    return -b.square().sum() / 2 - L.diagonal().log().sum() - A.shape[1] / 2 * math.log(2 * math.pi)
