"""Random signs for the Tanimoto kernel: consistent weighted sampling, hashed to -1 or 1.

For one hash, per dimension r, c ~ Gamma(2, 1) and beta ~ U(0, 1); with t = floor(log x / r + beta), the hash of
x is the pair (k, t_k) of the non-zero dimension k that minimises log c - r (t - beta) - r. Two inputs agree
with probability T(x, z), their Tanimoto similarity. A pair is mapped to an independent random sign, hence
E[sign(x) sign(z)] = T(x, z). Ioffe (2010); Tripp et al. (2023); thesis, section 4.3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.kernels.expression import Leaf
from pathgp.kernels.tanimoto import check_non_negative

_ENTRIES = 2**22  # of a temporary

# The finaliser of SplitMix64 (Steele et al. 2014); products wrap around in int64.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


@dataclass
class Tokens:
    """Inputs as bags of tokens: a token is a dimension with a value, and occurs in many rows of counts.

    What a hash makes of a token is computed once per token, not once per row.
    """

    dims: Tensor  # (tokens,), -1 for the empty token, which comes first
    logs: Tensor  # (tokens,), logarithms of the values
    rows: Tensor  # (n, longest row), numbers of tokens, padded with that of the empty one


class Hashes:
    """``paths`` x ``num`` random hashes for one Tanimoto kernel.

    Their parameters, three numbers per hash and dimension, are not stored: each use draws them again from one seed
    per path.
    """

    def __init__(self, leaf: Leaf, paths: int, num: int, seed: int) -> None:
        self.leaf = leaf
        self.num = num
        generator = torch.Generator().manual_seed(seed)
        self.seeds = torch.randint(2**63 - 1, (paths,), generator=generator).tolist()

    @torch.no_grad()
    def tokens(self, X: Tensor) -> Tokens:
        """The active columns of X as bags of tokens."""
        points = self.leaf.select(X).to(torch.float64)
        check_non_negative(points, "X")
        row, dim = points.nonzero(as_tuple=True)
        value = points[row, dim]
        levels, level = value.unique(return_inverse=True)
        key, token = (dim * len(levels) + level).unique(return_inverse=True)
        dims = torch.cat([key.new_tensor([-1]), key // max(1, len(levels))])
        logs = torch.cat([value.new_zeros(1), levels.log()[key % max(1, len(levels))]])
        count = torch.bincount(row, minlength=len(points))
        position = torch.arange(len(row), device=X.device) - (count.cumsum(0) - count)[row]
        rows = row.new_zeros(len(points), max([1, *count.tolist()]))
        rows[row, position] = token + 1
        return Tokens(dims, logs, rows)

    @torch.no_grad()
    def signs(self, tokens: Tokens, dim: int, paths: range) -> Tensor:
        """The signs of these paths, for inputs of ``dim`` columns: (n, paths, num), int8."""
        active = len(self.leaf.columns_of(dim))
        return torch.stack([self._signs(tokens, active, self.seeds[j]) for j in paths], 1)

    def _signs(self, tokens: Tokens, dim: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(5, self.num, dim, generator=generator, dtype=torch.float64).clamp_min_(2.0**-54)
        salts = torch.randint(-(2**63), 2**63 - 1, (self.num,), generator=generator)
        result = []
        step = max(1, _ENTRIES // len(tokens.dims))
        for parameters, salt in zip(uniform.split(step, 1), salts.split(step), strict=True):
            rank, sign = _table(tokens, parameters.to(tokens.dims.device), salt.to(tokens.dims.device))
            # The bag of a row, reduced by the largest rank, says which token won.
            starts = torch.arange(len(tokens.rows), device=rank.device) * tokens.rows.shape[1]
            winner = torch.embedding_bag(rank, tokens.rows.flatten(), starts, mode=2)[3]
            result.append(sign.gather(0, winner))
        return torch.cat(result, 1)


def _table(tokens: Tokens, uniform: Tensor, salt: Tensor) -> tuple[Tensor, Tensor]:
    """For every token and hash, the rank by which tokens compete and the sign: (tokens, hashes) each."""
    u1, u2, u3, u4, beta = uniform[:, :, tokens.dims].transpose(1, 2)
    r = -(u1 * u2).log()
    t = (tokens.logs.unsqueeze(1) / r + beta).floor()
    rank = r * (t - beta) + r - (-(u3 * u4).log()).log()
    rank[0] = -1e300  # the empty token wins in rows of zeros only, which all share their hash
    t[0] = 0.0
    bits = _mix(_mix(_mix(tokens.dims.unsqueeze(1) + salt) + t.long()) + salt)
    return rank, (1 - 2 * (bits & 1)).to(torch.int8)


def _mix(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """The logical right shift; the one of int64 copies the sign bit."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
