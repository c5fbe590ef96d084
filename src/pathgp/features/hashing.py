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

from pathgp.compute.counts import CountRows
from pathgp.compute.memory import spans
from pathgp.compute.threads import list_in_order
from pathgp.kernels.expression import Leaf
from pathgp.kernels.tanimoto import check_non_negative

_ENTRIES = 2**22  # of a temporary
# Entries of a block of rows and hashes whose maxima are found together: two of them fit into the cache of a core.
_BLOCK = {"cpu": 2**18, "cuda": 2**26}

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
    lengths: Tensor  # (n,), tokens of every row


class Hashes:
    """``paths`` x ``num`` random hashes for one Tanimoto kernel.

    Their parameters, three numbers per hash and dimension, are not stored: each use computes them again from one seed
    per path, on the device of the inputs. They are the numbers of a SplitMix64 generator with this seed.
    """

    def __init__(self, leaf: Leaf, paths: int, num: int, seed: int) -> None:
        self.leaf = leaf
        self.num = num
        generator = torch.Generator().manual_seed(seed)
        self.seeds = torch.randint(2**63 - 1, (paths,), generator=generator).tolist()

    @torch.no_grad()
    def tokens(self, X: Tensor) -> Tokens:
        """The active columns of X as bags of tokens."""
        points = self.leaf.select(X)
        if isinstance(points, CountRows):
            row, dim, value = points.entries()
        else:
            check_non_negative(points, "X")
            row, dim = points.nonzero(as_tuple=True)
            value = points[row, dim].to(torch.float64)
        levels, level = value.unique(return_inverse=True)
        key, token = (dim * len(levels) + level).unique(return_inverse=True)
        dims = torch.cat([key.new_tensor([-1]), key // max(1, len(levels))])
        logs = torch.cat([value.new_zeros(1), levels.log()[key % max(1, len(levels))]])
        count = torch.bincount(row, minlength=len(points))
        position = torch.arange(len(row), device=X.device) - (count.cumsum(0) - count)[row]
        rows = row.new_zeros(len(points), max([1, *count.tolist()]))
        rows[row, position] = token + 1
        return Tokens(dims, logs, rows, count)

    @torch.no_grad()
    def signs(self, tokens: Tokens, dim: int, paths: range) -> Tensor:
        """The signs of these paths, for inputs of ``dim`` columns: (n, paths, num), int8."""
        active = len(self.leaf.columns_of(dim))
        return torch.stack([self._signs(tokens, active, self.seeds[j], torch.int8) for j in paths], 1)

    @torch.no_grad()
    def weighted(self, tokens: Tokens, dim: int, weights: Tensor, first: int) -> Tensor:
        """The sums of signs times weights (p, num) of p paths from number ``first`` on: (p, n).

        Time O(p n num tokens of a row) for maxima of float32 numbers; memory the signs of one path for every thread.
        """
        active = len(self.leaf.columns_of(dim))

        def contract(path: int) -> Tensor:
            own = weights[path]
            return self._signs(tokens, active, self.seeds[first + path], own.dtype) @ own

        return torch.stack(list_in_order(range(len(weights)), contract, weights.device))

    def _signs(self, tokens: Tokens, dim: int, seed: int, dtype: torch.dtype) -> Tensor:
        """The signs of one path (n, num)."""
        device = tokens.dims.device
        used, place = tokens.dims.unique(return_inverse=True)
        result = torch.empty(len(tokens.rows), self.num, dtype=dtype, device=device)
        step = max(1, _ENTRIES // len(tokens.dims))
        # Rows of similar length together: a block takes as long as its longest row.
        order = tokens.lengths.argsort()
        for hashes in spans(self.num, step):
            number = torch.arange(hashes.start, hashes.stop, device=device)
            # The empty token, of dimension -1, has numbers of its own.
            first = (5 * number.unsqueeze(0) + torch.arange(5, device=device).unsqueeze(1)) * (dim + 1)
            uniform = _uniform(seed, first.unsqueeze(1) + (used + 1).unsqueeze(1))
            salt = _mix(seed + (5 * self.num * (dim + 1) + number) * _GOLDEN)
            ranks = _ranks(tokens.logs, used, place, uniform, salt)
            for block in order.split(max(1, _BLOCK.get(device.type, 2**18) // ranks.shape[1])):
                longest = max(1, int(tokens.lengths[block[-1]])) if len(block) else 1
                winner = _largest(ranks, tokens.rows[block, :longest])
                result[block, hashes] = 1 - 2 * (winner.view(torch.int32) & 1).to(dtype)
        return result


def _uniform(seed: int, number: Tensor) -> Tensor:
    """The numbers of a SplitMix64 generator at these positions, uniform in (0, 1), float64."""
    return (_shift_right(_mix(seed + number * _GOLDEN), 11).to(torch.float64) + 0.5) * 2.0**-53


def _ranks(logs: Tensor, used: Tensor, place: Tensor, uniform: Tensor, salt: Tensor) -> Tensor:
    """For every token and hash, the rank by which tokens compete, with the sign in its last bit: float32.

    (tokens, hashes), from uniform numbers (5, dimensions, hashes).  ``used``: the dimensions.  ``place``: the position
    of every token's dimension in them. Rounding decides between two tokens of a row with a probability of about 1e-6.
    """
    u1, u2, u3, u4, beta = uniform
    r, cost = -(u1 * u2).log(), (-(u3 * u4).log()).log()
    r, beta, cost = r[place], beta[place], cost[place]
    t = (logs.unsqueeze(1) / r).add_(beta).floor_()
    rank = (t - beta).add_(1.0).mul_(r).sub_(cost).to(torch.float32)
    rank[0] = torch.finfo(torch.float32).min  # the empty token wins in rows of zeros only, which all share their hash
    t[0] = 0.0
    bits = _mix(_mix(_mix(used.unsqueeze(1) + salt)[place] + t.long()) + salt)
    rank.view(torch.int32).bitwise_and_(-2).bitwise_or_((bits & 1).int())
    return rank


def _largest(ranks: Tensor, rows: Tensor) -> Tensor:
    """The largest rank of every row (n, hashes), from the numbers of its tokens (n, longest row)."""
    first, *others = rows.T.contiguous()
    best = ranks.index_select(0, first)
    buffer = torch.empty_like(best)
    for token in others:
        torch.maximum(best, torch.index_select(ranks, 0, token, out=buffer), out=best)
    return best


def _mix(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """The logical right shift; the one of int64 copies the sign bit."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
