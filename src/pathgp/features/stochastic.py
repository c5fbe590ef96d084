"""Random features of a product: frozen frequencies, hash signs and the columns of exact maps together.

A term of the kernel is a product of stationary, periodic, Tanimoto and finite kernels. Each of its pairs of
features is amplitude * sign(x) * column(x) * [sin, cos](omega . x), with

    omega      the sum of one frequency of each stationary kernel, plus one harmonic of the periodic ones,
    sign       the product of one random hash in {-1, 1} of each Tanimoto kernel,
    column     one column of the product of the finite maps,

every pair with its own frequencies and hashes. The pairs are dealt out over the columns, and over the
harmonics in proportion to their weight; with an amplitude 1/sqrt(count) their sum is an average, unbiased for
every count. Without stationary and periodic kernels a feature is amplitude * sign(x) * column(x) alone.

Where there are fewer pairs than harmonics, omega . x is extended by a frequency for the position u(x) on the circles
of each periodic kernel, which is the squared exponential kernel there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from functools import reduce

import torch
from torch import Tensor

from pathgp.compute.memory import as_slice, spans
from pathgp.features.exact import Harmonics, finite_columns, finite_features
from pathgp.features.frequencies import Frequencies
from pathgp.features.hashing import Hashes
from pathgp.features.waves import angles, sine_sum, tile_entries, tiled
from pathgp.kernels import Finite, Periodic, SquaredExponential, Stationary, Tanimoto
from pathgp.kernels.expression import Leaf, Term

_SIGNS = 2**25  # entries of the signs held at once, int8
_PREPARED = 2**22  # numbers of the frequencies held at once, float64


class RandomMap:
    """``paths`` independent draws of at most ``share`` features of one term."""

    def __init__(self, term: Term, share: int, dim: int | None, paths: int, source: torch.Generator) -> None:
        self.term = term
        self.paths = paths
        self.has_waves = bool(term.of(Stationary, Periodic))
        self.has_columns = bool(term.of(Finite))
        width = 2 if self.has_waves else 1
        columns = finite_columns(term, share, dim, width)
        self.each = each = share // (width * columns)
        harmonics = Harmonics(term.of(Periodic), dim, limit=each) if term.of(Periodic) else None
        self.harmonics = harmonics if harmonics is not None and harmonics.suffices else None
        self.harmonic, self.count = _assign_harmonics(each, columns, self.harmonics)
        self.pairs = each * columns
        self.num = width * self.pairs
        self.frequencies = [Frequencies(leaf, paths, self.pairs, draw_seed(source)) for leaf in term.of(Stationary)]
        self.hashes = [Hashes(leaf, paths, self.pairs, draw_seed(source)) for leaf in term.of(Tanimoto)]
        self.circles = [] if self.harmonics is not None else term.of(Periodic)
        # Points on the circles are in units of the length scale.
        plane = Leaf(SquaredExponential().requires_grad_(False), None)
        self.circle_frequencies = [Frequencies(plane, paths, self.pairs, draw_seed(source)) for _ in self.circles]

    def labels(self) -> list[tuple[Hashable, ...]]:
        """A name for every feature; features of two maps of the term with the same name can share their draws."""
        pairs = self._pair_labels()
        return [(wave, *pair) for wave in (("sin", "cos") if self.has_waves else ("",)) for pair in pairs]

    def adopt(self, other: RandomMap) -> None:
        """Copy the draws of all pairs that ``other`` has as well."""
        known = {label: i for i, label in enumerate(other._pair_labels())}
        places = torch.tensor([known.get(label, -1) for label in self._pair_labels()])
        if bool((places >= 0).any()):
            mine, theirs = (map_.frequencies + map_.circle_frequencies for map_ in (self, other))
            for frequencies, before in zip(mine, theirs, strict=True):
                frequencies.adopt(before, places)

    def _pair_labels(self) -> list[tuple[Hashable, ...]]:
        """A name for every pair: its column, its harmonic, and a number among the pairs that share both."""
        # Hashes depend on the seeds of this map, and never match those of another.
        kind = id(self) if self.hashes else "circles" if self.circles else "harmonics"
        vectors = [()] * self.pairs
        if self.harmonics is not None:
            vectors = [tuple(vector) for vector in self.harmonics.table[self.harmonic].tolist()]
        shared: Counter[Hashable] = Counter()
        labels: list[tuple[Hashable, ...]] = []
        for i, vector in enumerate(vectors):
            place = (i // self.each, vector)
            labels.append((kind, *place, shared[place]))
            shared[place] += 1
        return labels

    def __call__(self, X: Tensor) -> Tensor:
        """(paths, n, num)."""
        amplitude = self._amplitude(X, slice(None)).to(X.dtype)
        result = amplitude.unsqueeze(1).expand(self.paths, X.shape[0], self.pairs)
        if self.has_columns:
            result = result * finite_features(self.term, X).repeat_interleave(self.each, 1)
        for hashes in self.hashes:
            signs = hashes.signs(hashes.tokens(X), X.shape[1], range(self.paths))
            result = result * signs.transpose(0, 1)
        if not self.has_waves:
            return result
        angle = angles(self._points(X), self._turns(X, slice(None)), X.dtype)
        return torch.cat([angle.sin() * result, angle.cos() * result], 2)

    def weighted(self, X: Tensor, W: Tensor) -> Tensor:
        """sum_f phi_j(x_i)_f W[j, f]: (paths, n), in tiles.

        Since a sin + b cos is one sine with a phase, every pair costs one sine. Time O(n paths pairs d), memory
        O(n paths + n columns) beside a tile.
        """
        # Signs are kept for a block of rows and one group of paths at a time.
        block = max(1, _SIGNS // self.pairs) if self.hashes else max(1, X.shape[0])
        paths = slice(0, self.paths)
        return torch.cat([self._weighted(part, W.to(torch.float64), paths) for part in X.split(block)], 1)

    def weighted_at(self, X: Tensor, W: Tensor, paths: Tensor) -> Tensor:
        """sum_f phi_j(x_ji)_f W[j, f] for paths with these numbers (p,), each at its own points X (p, q, d): (p, q).

        Time O(p q pairs d), memory a tile and the frequencies of its paths.
        """
        W, (p, q, d) = W.to(torch.float64), X.shape
        if self.has_columns or self.hashes:
            numbers = enumerate(paths.tolist())
            return torch.cat([self._weighted(X[i], W[i : i + 1], slice(j, j + 1)) for i, j in numbers])
        rows = max(1, min(q, tile_entries(X.device) // self.pairs))
        group = max(1, min(tile_entries(X.device) // (rows * self.pairs), _PREPARED // ((d + 1) * self.pairs)))
        result = []
        for J in spans(p, group):
            own = as_slice(paths[J])
            contract = self._contraction(X[0], W[J], self._amplitude(X[0], own), own)
            parts = [contract(self._augmented(part), X.new_ones(1, 1)) for part in X[J].split(rows, 1)]
            result.append(torch.cat(parts, 1))
        return torch.cat(result)

    def _weighted(self, X: Tensor, W: Tensor, chosen: slice) -> Tensor:
        tokens = [hashes.tokens(X) for hashes in self.hashes]
        if len(self.hashes) == 1 and not self.has_waves and not self.has_columns:
            weight = (W * self._amplitude(X, chosen)).to(X.dtype)
            return self.hashes[0].weighted(tokens[0], X.shape[1], weight, chosen.start)
        columns = finite_features(self.term, X)
        augmented = self._augmented(X)
        modulated = self.has_columns or bool(self.hashes)
        # Sums of sines have tiles of their own, except with gradients.
        alone = self.has_waves and not modulated and not torch.is_grad_enabled()
        entries = _PREPARED // augmented.shape[1] if alone else tile_entries(X.device) // max(1, X.shape[0])
        group = max(1, entries // self.pairs)
        result = []
        for part in spans(len(W), group):
            paths = slice(chosen.start + part.start, chosen.start + part.stop)
            contract = self._contraction(X, W[part], self._amplitude(X, paths), paths)
            signs = [
                hashes.signs(bags, X.shape[1], range(paths.start, paths.stop))
                for hashes, bags in zip(self.hashes, tokens, strict=True)
            ]
            rows = [augmented, columns, *signs]
            width = group * self.pairs
            result.append(contract(*rows) if alone else tiled(contract, rows, width, stores_little=not modulated))
        return torch.cat(result)

    def _contraction(self, X: Tensor, W: Tensor, amplitude: Tensor, paths: slice | Tensor) -> Callable[..., Tensor]:
        """The function of a tile of rows in ``weighted``, for these paths: (paths, rows)."""
        if self.has_waves:
            a, b = W.split(self.pairs, 1)
            # a sin(t) + b cos(t) = |(a, b)| sin(t + atan2(b, a)); the phase is one more row of the product.
            phase = torch.atan2(b, a) / (2.0 * math.pi)
            turns = torch.cat([self._turns(X, paths).expand(len(W), -1, -1), phase.unsqueeze(1)], 1)
            weight = (torch.hypot(a, b) * amplitude).to(X.dtype)
        else:
            weight = (W * amplitude).to(X.dtype)

        def contract(augmented: Tensor, columns: Tensor, *signs: Tensor) -> Tensor:
            if self.has_waves and not self.has_columns and not signs:
                return sine_sum(augmented, turns, weight)
            factors = [sign.transpose(0, 1) for sign in signs]
            if self.has_waves:
                factors.append(angles(augmented, turns, weight.dtype).sin_())
            values = reduce(torch.mul, factors) * weight.unsqueeze(1)
            # Sum the pairs of each column first: one multiplication by the column instead of one per pair.
            return torch.einsum("snc,nc->sn", values.unflatten(2, (-1, self.each)).sum(3), columns)

        return contract

    def _augmented(self, X: Tensor) -> Tensor:
        """The points of `_points` with a column of ones, for the phase: (..., d + c + 1), float64; without waves only
        the ones.
        """
        if not self.has_waves:
            return X.new_ones(*X.shape[:-1], 1, dtype=torch.float64)
        points = self._points(X.reshape(-1, X.shape[-1])).unflatten(0, X.shape[:-1])
        return torch.cat([points, torch.ones_like(points[..., :1])], -1)

    def _points(self, X: Tensor) -> Tensor:
        """X and the positions on the circles of periodic kernels without a series: (n, d + c), float64."""
        kernels = ((leaf.kernel, leaf.select(X)) for leaf in self.circles)
        circles = [kernel.embed(columns) for kernel, columns in kernels if isinstance(kernel, Periodic)]
        return torch.cat([X.to(torch.float64), *circles], 1)

    def _turns(self, X: Tensor, paths: slice | Tensor) -> Tensor:
        """The frequencies in turns per unit, whose fractional part reduces the range: (s, d + c, pairs)."""
        dim, device = X.shape[1], X.device
        total = torch.zeros(1, dim, self.pairs, dtype=torch.float64, device=device)
        for frequencies in self.frequencies:
            total = total + frequencies(dim, device, paths) / (2.0 * math.pi)
        if self.harmonics is not None:
            total = total + self.harmonics.turns(dim, device)[:, self.harmonic.to(device)]
        for leaf, frequencies in zip(self.circles, self.circle_frequencies, strict=True):
            more = frequencies(2 * len(leaf.columns_of(dim)), device, paths) / (2.0 * math.pi)
            total = torch.cat([total.expand(len(more), -1, -1), more], 1)
        return total

    def _amplitude(self, X: Tensor, paths: slice | Tensor) -> Tensor:
        """(s, pairs), float64."""
        device = X.device
        amplitude = (self.term.signal.to(device) * self.count.to(device).rsqrt()).unsqueeze(0)
        for frequencies in self.frequencies:
            amplitude = amplitude * frequencies.weights(X.shape[1], device, paths)
        for leaf, frequencies in zip(self.circles, self.circle_frequencies, strict=True):
            amplitude = amplitude * frequencies.weights(2 * len(leaf.columns_of(X.shape[1])), device, paths)
        if self.harmonics is None:
            return amplitude
        return amplitude * self.harmonics.weights(device).sqrt()[self.harmonic.to(device)]


def _assign_harmonics(each: int, columns: int, harmonics: Harmonics | None) -> tuple[Tensor, Tensor]:
    """For every pair its harmonic and how many pairs share it; ``each`` pairs for every column in turn."""
    counts = torch.tensor([each])
    if harmonics is not None:
        with torch.no_grad():
            weights = harmonics.weights(torch.device("cpu"))
        counts = 1 + ((each - harmonics.num) * weights).floor().long()
        counts[int(weights.argmax())] += each - counts.sum()
    harmonic = torch.arange(len(counts)).repeat_interleave(counts)
    return harmonic.repeat(columns), counts[harmonic].double().repeat(columns)


def draw_seed(generator: torch.Generator) -> int:
    """A seed for a generator of its own."""
    return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
