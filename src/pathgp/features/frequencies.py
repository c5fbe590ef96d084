"""Frozen frequencies of stationary kernels.

Bochner: a stationary kernel is k(x, z) = E cos(omega . (x - z)) for omega from its spectral measure. With
omega = sqrt(tau) g / lengthscale, g normal and tau one number per frequency *vector* (not one per dimension,
which is another kernel), the draws (g, and the uniform behind tau) are made once, at unit scale, and the
hyperparameters are applied at each evaluation: paths move smoothly while the hyperparameters are learned.
A new kernel defines its spectral measure in its own file, by `mixing` and `tail` of `kernels/stationary.py`; nothing
changes here. Thesis, section 2.2.2; Rahimi and Recht (2008).

Dense data determine a function except at its highest frequencies. A plain draw of a few hundred frequencies contains
hardly any of these, so that the posterior variance of a path is right on average but heavy-tailed. For Matern-5/2 it is
up to 25 times too large in one path and too small in most. For the squared exponential, the standard deviation of 64
paths is 0.3 to 1.9 times the true one where the data reduce it a thousandfold. So half of the draws come from a measure
with heavier tails, in tau and in g, and each feature is weighted by sqrt(p / q), p the kernel's measure and q the
mixture of both. This is still unbiased, and the weights are at most sqrt(2).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pathgp.kernels import Stationary
from pathgp.kernels.expression import Leaf

# Heavier tail of g: |g| is increased by this many standard deviations, each about 1 / sqrt(2).
_FARTHER = 2.0


class Frequencies:
    """``paths`` x ``num`` frequency vectors of one stationary kernel.

    Drawn in float64 on the CPU from ``seed`` when the number of columns is first known, so that they are the
    same on every device and in every dtype.
    """

    def __init__(self, leaf: Leaf, paths: int, num: int, seed: int) -> None:
        assert isinstance(leaf.kernel, Stationary)
        self.leaf, self.kernel = leaf, leaf.kernel
        self.shape = (paths, num)
        self.seed = seed
        self.normal: Tensor | None = None
        self.uniform: Tensor | None = None
        self.weight: Tensor | None = None

    def weights(self, dim: int, device: torch.device, paths: slice | Tensor) -> Tensor:
        """sqrt(p / q) of the frequencies of these paths: (paths, num), float64."""
        self._draws(len(self.leaf.columns_of(dim)), device)
        assert self.weight is not None
        return self.weight[paths].to(device)

    def __call__(self, dim: int, device: torch.device, paths: slice | Tensor) -> Tensor:
        """Current frequencies of these paths in the space of all ``dim`` columns: (paths, dim, num), float64."""
        columns = self.leaf.columns_of(dim)
        normal = self._draws(len(columns), device)[paths]
        lengthscale = self.kernel.lengthscales(len(columns), device)
        omega = normal / (lengthscale.unsqueeze(-1) if lengthscale.ndim == 1 else lengthscale)
        if self.uniform is not None:
            omega = omega * self.kernel.mixing(self.uniform[paths]).to(device).unsqueeze(1)
        if self.leaf.columns is None:
            return omega
        full = omega.new_zeros(omega.shape[0], dim, omega.shape[2])
        return full.index_add(1, torch.tensor(columns, device=device), omega)

    def adopt(self, other: Frequencies, places: Tensor) -> None:
        """Copy draws from ``other``: pair i gets those of pair places[i]; negative places are skipped."""
        if other.normal is None:
            return
        kept, origin = torch.nonzero(places >= 0).flatten(), places[places >= 0]
        normal = self._draws(other.normal.shape[1], other.normal.device)
        normal[:, :, kept.to(normal.device)] = other.normal[:, :, origin.to(normal.device)]
        for mine, theirs in ((self.uniform, other.uniform), (self.weight, other.weight)):
            if mine is not None and theirs is not None:
                mine[:, kept] = theirs[:, origin]

    def _draws(self, dim: int, device: torch.device) -> Tensor:
        if self.normal is None:
            generator = torch.Generator().manual_seed(self.seed)
            paths, num = self.shape
            uniform = torch.rand(paths, num, generator=generator, dtype=torch.float64).clamp_min_(2.0**-54)
            heavy = torch.rand(paths, num, generator=generator, dtype=torch.float64) < 0.5
            # Small quantiles are the high frequencies: v = u^a has the density v^(1/a - 1) / a, high near zero.
            uniform = torch.where(heavy, uniform**self.kernel.tail, uniform)
            density = uniform ** (1.0 / self.kernel.tail - 1.0) / self.kernel.tail
            normal = torch.randn(paths, dim, num, generator=generator, dtype=torch.float64)
            # The length of g is about sqrt(d); s g has the density s^-d exp(|g|^2 (1 - 1 / s^2) / 2) relative to g.
            s = 1.0 + _FARTHER / math.sqrt(2.0 * dim)
            normal = torch.where(heavy.unsqueeze(1), s * normal, normal)
            squares = normal.square().sum(1)
            density = density * (0.5 * (1.0 - 1.0 / s**2) * squares - dim * math.log(s)).exp()
            self.weight = (0.5 + 0.5 * density).rsqrt()
            if self.kernel.shape_parameters():
                self.uniform = uniform
            else:
                with torch.no_grad():
                    normal *= self.kernel.mixing(uniform).unsqueeze(1)
            self.normal = normal
        if self.normal.shape[1] != dim:
            raise ValueError(
                f"these features were drawn for {self.normal.shape[1]} columns, but X has {dim} "
                f"for {type(self.kernel).__name__}"
            )
        if self.normal.device != device:
            self.normal = self.normal.to(device)
        return self.normal
