"""The Matern kernel with a learned smoothness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathgp.kernels.bessel import evaluate_bessel
from pathgp.kernels.parameters import Positive, PositiveValue, Values
from pathgp.kernels.quantiles import gamma_quantile
from pathgp.kernels.stationary import Stationary

# Smoother functions than those of nu = 10 cannot be told from those of the squared exponential kernel.
_BOUNDS = (0.2, 10.0)
# Nodes of the tables per unit of log(r^2), and the largest a = sqrt(2 nu) r: beyond, k is less than 1e-34.
_NODES, _LARGEST = 16, 80.0
# The smallest 1 - k in the tables: below, k is one up to rounding.
_SMALLEST = 1e-17
# Relative step of the differences in nu: their error is about 1e-11.
_STEP = 1e-3


class LearnedMatern(Stationary):
    """`Matern` with a learned nu: k(x, z) = 2^(1-nu)/Gamma(nu) a^nu K_nu(a), a = sqrt(2 nu) |(x - z) / lengthscale|.

    k and its derivatives in r^2 and nu come from tables in log r^2, which are made anew whenever nu changes: quintic
    pieces through values and two derivatives of the Bessel functions, within 1e-11 of them. An evaluation takes about
    four times as long as that of ``Matern(1.5)``, and runs on every device.

    The smoothness decides how fast predictions become uncertain away from the data. It needs data at short distances:
    with few or noisy ones nu is hardly determined, and a fixed ``Matern(nu)`` is the better choice.

    Args:
        nu: the smoothness at the start, between 0.2 and 10, the bounds of a fit; narrow them by
            ``gp.constrain("nu", bounds=...)``.
        lengthscale: one number, or a tensor or list with one length scale per dimension.
        active_dims: the columns the kernel sees; all by default.
    """

    nu = PositiveValue("The smoothness: a scalar, float64.")

    def __init__(
        self, nu: float | Tensor = 1.5, lengthscale: Values = 1.0, active_dims: Sequence[int] | None = None
    ) -> None:
        super().__init__(lengthscale, active_dims)
        self._nu = Positive(nu, "nu", scalar=True)
        if not _BOUNDS[0] <= (start := float(self.nu.detach())) <= _BOUNDS[1]:
            raise ValueError(f"nu must lie between {_BOUNDS[0]:g} and {_BOUNDS[1]:g}, got {start:g}")
        self._nu.bounds = _BOUNDS

    def shape_parameters(self) -> tuple[Tensor, ...]:
        return (self.nu,)

    def profile(self, sq: Tensor, *shape: Tensor) -> Tensor:
        tables = self._tables(sq.device)
        return tables("value", sq).masked_fill_(sq <= tables.least, 1.0).to(sq.dtype)

    def slope(self, sq: Tensor, *shape: Tensor) -> Tensor:
        tables = self._tables(sq.device)
        slope = tables("slope", sq)
        if torch.is_grad_enabled() and shape[0].requires_grad:
            # Zero, with the derivative in nu.
            slope = slope + (shape[0] - shape[0].detach()) * tables("slope, nu", sq)
        slope = slope / sq.to(torch.float64).clamp_min(tables.least)
        return (slope.masked_fill(sq == 0, 0.0) if float(self.nu.detach()) <= 1.0 else slope).to(sq.dtype)

    def shape_slopes(self, sq: Tensor, *shape: Tensor) -> tuple[Tensor, ...]:
        tables = self._tables(sq.device)
        slope = tables("nu", sq)
        if torch.is_grad_enabled() and shape[0].requires_grad:
            slope = slope + (shape[0] - shape[0].detach()) * tables("nu, nu", sq)
        return (slope.masked_fill(sq <= tables.least, 0.0).to(sq.dtype),)

    @property
    def smoothness(self) -> float:
        """min(nu, 1)."""
        return min(float(self.nu.detach()), 1.0)

    @property
    def tail(self) -> float:
        """As for `Matern`, at the present nu."""
        return max(1.0, min(5.0, 10.0 * float(self.nu.detach()) / 3.0))

    def mixing(self, uniform: Tensor) -> Tensor:
        """sqrt(nu / q), q the quantile of Gamma(nu, 1): 2 q is chi-square with 2 nu degrees of freedom."""
        return (self.nu / gamma_quantile(self.nu, uniform, upper=False)).sqrt()

    def _tables(self, device: torch.device) -> Tables:
        return _make_tables(float(self.nu.detach()), device)


class Tables:
    """k and its derivatives as functions of x = log r^2, as polynomials of degree five between nodes.

    Names: "value", "slope" for d/dx = r^2 d/d(r^2), "nu" for d/dnu at fixed distances, and the second derivatives
    "slope, nu" and "nu, nu".
    """

    def __init__(self, nu: float, device: torch.device) -> None:
        # Near zero 1 - k falls as r^2 or as r^(2 nu).
        low = math.log(_SMALLEST) / min(nu, 1.0)
        high = math.log(_LARGEST**2 / (2.0 * nu))
        count = math.ceil((high - low) * _NODES)
        nodes = high - np.arange(count + 1)[::-1] / _NODES
        self.least, self._first, self._count = math.exp(nodes[0]), float(nodes[0]), count
        step = _STEP * nu
        far_below, below, k, above, far_above = (_derivatives(nodes, nu + j * step) for j in range(-2, 3))
        in_nu = (8.0 * (above - below) - (far_above - far_below)) / (12.0 * step)
        twice = (16.0 * (above + below) - (far_above + far_below) - 30.0 * k) / (12.0 * step**2)
        tables = {"value": k[:3], "slope": k[1:], "nu": in_nu[:3], "slope, nu": in_nu[1:], "nu, nu": twice[:3]}
        self._pieces = {name: torch.from_numpy(_pieces(values)).to(device) for name, values in tables.items()}

    def __call__(self, name: str, sq: Tensor) -> Tensor:
        """The function with this name at squared distances: float64, differentiable in them."""
        pieces = self._pieces[name]
        x = (sq.to(torch.float64).clamp_min(self.least).log() - self._first).mul(_NODES).clamp(0.0, self._count)
        index = x.detach().long().clamp_max_(self._count - 1)
        t = x - index
        value = pieces[5][index]
        for coefficients in pieces[:5].flip(0):
            value = value * t + coefficients[index]
        return value


@lru_cache(maxsize=8)
def _make_tables(nu: float, device: torch.device) -> Tables:
    return Tables(nu, device)


def _derivatives(x: NDArray[np.float64], nu: float) -> NDArray[np.float64]:
    """k and its first three derivatives in x = log r^2: (4, nodes).

    With q = 2 nu r^2 and g_mu = a^mu K_mu(a), dg_mu/dq = -g_{mu-1} / 2 and so q d/dq (q^j g_{nu-j}) =
    j q^j g_{nu-j} - q^(j+1) g_{nu-j-1} / 2.
    """
    q = 2.0 * nu * np.exp(x)
    log_factor = (1.0 - nu) * math.log(2.0) - math.lgamma(nu)
    terms = [(-0.5 * q) ** j * evaluate_bessel(q, nu - j, log_factor) for j in range(4)]
    return np.stack([terms[0], terms[1], terms[1] + terms[2], terms[1] + 3.0 * terms[2] + terms[3]])


def _pieces(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients (6, pieces) of the quintic polynomials in t = 0..1 through values and derivatives (3, nodes)."""
    f, g, h = values * (1.0 / _NODES) ** np.arange(3)[:, None]
    rest = f[1:] - f[:-1] - g[:-1] - 0.5 * h[:-1]
    slope = g[1:] - g[:-1] - h[:-1]
    bend = h[1:] - h[:-1]
    higher = [
        10.0 * rest - 4.0 * slope + 0.5 * bend,
        -15.0 * rest + 7.0 * slope - bend,
        6.0 * rest - 3.0 * slope + 0.5 * bend,
    ]
    return np.stack([f[:-1], g[:-1], 0.5 * h[:-1], *higher])
