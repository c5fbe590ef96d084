"""Random signs for the Tanimoto kernel: consistent weighted sampling, hashed to -1 or 1.

For one hash, per dimension r, c ~ Gamma(2, 1) and beta ~ U(0, 1); with t = floor(log x / r + beta), the hash of
x is the pair (k, t_k) of the non-zero dimension k that minimises log c - r (t - beta) - r. Two inputs agree
with probability T(x, z), their Tanimoto similarity. A pair is mapped to an independent random sign, hence
E[sign(x) sign(z)] = T(x, z). Ioffe (2010); Tripp et al. (2023); thesis, section 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pathgp.features.expansion import Atom
from pathgp.kernels.tanimoto import check_non_negative

_TILE = 2**22  # entries of a temporary

# The finaliser of SplitMix64 (Steele et al. 2014); products wrap around in int64.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


class Hashes:
    """``paths`` x ``num`` random hashes for one Tanimoto kernel, made again from seeds when they are used.

    Their parameters, three numbers per hash and dimension, would be the largest thing in memory.
    """

    def __init__(self, atom: Atom, paths: int, num: int, seed: int) -> None:
        self.atom = atom
        self.num = num
        generator = torch.Generator().manual_seed(seed)
        self.seeds = torch.randint(2**63 - 1, (paths,), generator=generator).tolist()

    def signs(self, dim: int, paths: Iterable[int]) -> Signs:
        """The hashes of some paths for inputs with ``dim`` columns."""
        active = dim if self.atom.columns is None else len(self.atom.columns)
        return Signs(self.atom, [_parameters(self.num, active, self.seeds[j]) for j in paths])


class Signs:
    """The hashes of some paths with their parameters; ``signs(X)`` is (paths, n, num), of -1 and 1."""

    def __init__(self, atom: Atom, parameters: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> None:
        self.atom = atom
        self.parameters = parameters

    @torch.no_grad()
    def __call__(self, X: Tensor) -> Tensor:
        points = self.atom.select(X).to(torch.float64)
        check_non_negative(points, "X")
        # Only the non-zero entries of a row compete: gather them, padded to the longest row.
        active = points > 0
        width = int(active.sum(1).max()) if active.any() else 1
        dims = active.to(torch.uint8).topk(width, dim=1).indices
        logs = points.gather(1, dims).log()
        return torch.stack([_signs(dims, logs, *self._on(p, X.device)) for p in self.parameters]).to(X.dtype)

    def _on(self, parameters: tuple[Tensor, ...], device: torch.device) -> list[Tensor]:
        return [p.to(device) for p in parameters]


def _parameters(num: int, dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """r, log c and beta, (num, dim) each, and one salt per hash."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(5, num, dim, generator=generator, dtype=torch.float64).clamp_min_(2.0**-54)
    r = -(uniform[0] * uniform[1]).log()
    log_c = (-(uniform[2] * uniform[3]).log()).log()
    salt = torch.randint(-(2**63), 2**63 - 1, (num,), generator=generator)
    return r, log_c, uniform[4], salt


def _signs(dims: Tensor, logs: Tensor, r: Tensor, log_c: Tensor, beta: Tensor, salt: Tensor) -> Tensor:
    """The signs of n rows, given by the dimensions and logarithms of entries (-inf: padding): (n, num)."""
    rows = max(1, _TILE // (r.shape[0] * dims.shape[1]))
    result = []
    for index, log_x in zip(dims.split(rows), logs.split(rows), strict=True):
        r_k, beta_k = r[:, index], beta[:, index]
        t = (log_x / r_k + beta_k).floor()
        rank = log_c[:, index] - r_k * (t - beta_k) - r_k
        best = rank.masked_fill(log_x == -torch.inf, torch.inf).min(2, keepdim=True).indices
        empty = (log_x == -torch.inf).all(1)
        # All rows of zeros share one hash, of a dimension that does not exist.
        dim = index.expand(r.shape[0], -1, -1).gather(2, best).squeeze(2).masked_fill(empty, -1)
        level = t.gather(2, best).squeeze(2).masked_fill(empty, 0.0).long()
        bits = _mixed(_mixed(_mixed(dim + salt.unsqueeze(1)) + level) + salt.unsqueeze(1))
        result.append((1 - 2 * (bits & 1)).T)
    return torch.cat(result)


def _mixed(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """The logical right shift; the one of int64 copies the sign bit."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
