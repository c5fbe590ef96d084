"""Random features of a product: frozen frequencies, hash signs and the columns of exact maps together.

A term of the kernel is a product of stationary, periodic, Tanimoto and finite kernels. Each of its ``pairs`` of
features is amplitude * sign(x) * column(x) * [sin, cos](omega . x), with

    omega      the sum of one frequency of each stationary kernel, plus one harmonic of the periodic ones,
    sign       the product of one random hash in {-1, 1} of each Tanimoto kernel,
    column     one column of the product of the finite maps,

every pair with its own frequencies and hashes. The pairs are dealt out over the columns, and over the harmonics
in proportion to their weight; an amplitude 1/sqrt(count) makes the sum an average, unbiased for every count.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pathgp.features.exact import check_share, finite_columns, finite_features
from pathgp.features.expansion import Term
from pathgp.features.fourier import Frequencies
from pathgp.features.harmonics import Harmonics
from pathgp.features.hashing import Hashes, Signs
from pathgp.features.tiles import tile_entries, tiled
from pathgp.kernels.finite import Finite
from pathgp.kernels.periodic import Periodic
from pathgp.kernels.stationary import Stationary
from pathgp.kernels.tanimoto import Tanimoto


class RandomMap:
    """``paths`` independent draws of at most ``share`` features of one term."""

    def __init__(self, term: Term, share: int, dim: int | None, paths: int, source: torch.Generator) -> None:
        self.term = term
        self.paths = paths
        self.has_waves = bool(term.of(Stationary, Periodic))
        self.has_columns = bool(term.of(Finite))
        width = 2 if self.has_waves else 1
        columns = finite_columns(term, dim)
        check_share(term, width * columns, share)
        each = share // (width * columns)
        self.harmonics = Harmonics(term.of(Periodic), dim, limit=each) if term.of(Periodic) else None
        self.column, self.harmonic, self.count = _dealt(each, columns, self.harmonics)
        self.pairs = each * columns
        self.num = width * self.pairs
        self.frequencies = [
            Frequencies(atom, paths, self.pairs, _seed(source)) for atom in term.of(Stationary)
        ]
        self.hashes = [Hashes(atom, paths, self.pairs, _seed(source)) for atom in term.of(Tanimoto)]

    def __call__(self, X: Tensor) -> Tensor:
        """(paths, n, num)."""
        amplitude = self._amplitude(X.device).to(X)
        modulation = self._modulation(
            X, [hashes.signs(X.shape[1], range(self.paths)) for hashes in self.hashes]
        )
        modulation = amplitude if modulation is None else modulation * amplitude
        if not self.has_waves:
            return modulation.expand(self.paths, X.shape[0], self.pairs)
        turns = torch.matmul(X.to(torch.float64), self._turns(X, slice(None)))
        angle = turns.frac_().to(X.dtype) * (2.0 * math.pi)
        return torch.cat([angle.sin() * modulation, angle.cos() * modulation], 2)

    def weighted(self, X: Tensor, W: Tensor) -> Tensor:
        """sum_f phi_j(x_i)_f W[j, f]: (paths, n), in tiles.

        Since a sin + b cos is one sine with a phase, every pair costs one sine. Time O(n paths pairs (d + 1)),
        memory O(n paths) beside a tile; gradients recompute each tile instead of storing it.
        """
        parameters = nn.ModuleList([*self.term.scales, *(atom.kernel for atom in self.term.atoms)])
        rows = max(1, min(X.shape[0], tile_entries(X.device) // self.pairs))
        group = max(1, tile_entries(X.device) // (self.pairs * rows))
        result = []
        for start in range(0, self.paths, group):
            paths = slice(start, min(start + group, self.paths))
            contract = self._contraction(X, W[paths].to(torch.float64), paths)
            result.append(tiled(contract, X, group * self.pairs, parameters))
        return torch.cat(result)

    def _contraction(self, X: Tensor, W: Tensor, paths: slice) -> Callable[[Tensor], Tensor]:
        """The function (rows, d) -> (some paths, rows) behind ``weighted``."""
        amplitude = self._amplitude(X.device)
        signs = [h.signs(X.shape[1], range(paths.start, paths.stop)) for h in self.hashes]
        if self.has_waves:
            a, b = W[:, : self.pairs] * amplitude, W[:, self.pairs :] * amplitude
            # a sin(t) + b cos(t) = |(a, b)| sin(t + atan2(b, a)); the phase is one more row of the product.
            phase = torch.atan2(b, a) / (2.0 * math.pi)
            turns = torch.cat([self._turns(X, paths), phase.unsqueeze(1)], 1)
            weight = torch.hypot(a, b).to(X.dtype).unsqueeze(2)
        else:
            weight = (W * amplitude).to(X.dtype).unsqueeze(2)

        def contract(part: Tensor) -> Tensor:
            modulation = self._modulation(part, signs)
            if self.has_waves:
                augmented = torch.cat([part.to(torch.float64), part.new_ones(len(part), 1).double()], 1)
                wave = torch.matmul(augmented, turns).frac_().to(part.dtype).mul_(2.0 * math.pi).sin_()
                modulation = wave if modulation is None else wave * modulation
            assert modulation is not None
            return torch.matmul(modulation.expand(weight.shape[0], -1, -1), weight).squeeze(2)

        return contract

    def _turns(self, X: Tensor, paths: slice) -> Tensor:
        """The frequencies in turns per unit, so that their fractional part is the range reduction: (s, d, pairs)."""
        dim, device = X.shape[1], X.device
        total = torch.zeros(1, dim, self.pairs, dtype=torch.float64, device=device)
        for frequencies in self.frequencies:
            total = total + frequencies(dim, device)[paths] / (2.0 * math.pi)
        if self.harmonics is not None:
            total = total + self.harmonics.turns(dim, device)[:, self.harmonic.to(device)]
        return total

    def _modulation(self, X: Tensor, signs: list[Signs]) -> Tensor | None:
        """What multiplies the waves, signs times columns: (1 or s, n, pairs); None if nothing does."""
        result = None
        if self.has_columns:
            result = finite_features(self.term, X)[:, self.column.to(X.device)].unsqueeze(0)
        for sign in signs:
            values = sign(X)
            result = values if result is None else result * values
        return result

    def _amplitude(self, device: torch.device) -> Tensor:
        """(pairs,), float64."""
        amplitude = self.term.signal.to(device) * self.count.to(device).rsqrt()
        if self.harmonics is None:
            return amplitude
        return amplitude * self.harmonics.weights(device).sqrt()[self.harmonic.to(device)]


def _dealt(each: int, columns: int, harmonics: Harmonics | None) -> tuple[Tensor, Tensor, Tensor]:
    """For every pair its column, its harmonic, and how many pairs share both; ``each`` pairs per column."""
    counts = torch.tensor([each])
    if harmonics is not None:
        with torch.no_grad():
            weights = harmonics.weights(torch.device("cpu"))
        counts = 1 + ((each - harmonics.num) * weights).floor().long()
        counts[int(weights.argmax())] += each - counts.sum()
    column = torch.arange(columns).repeat_interleave(each)
    harmonic = torch.arange(len(counts)).repeat_interleave(counts)
    return column, harmonic.repeat(columns), counts[harmonic].double().repeat(columns)


def _seed(source: torch.Generator) -> int:
    return int(torch.randint(2**63 - 1, (), generator=source))
