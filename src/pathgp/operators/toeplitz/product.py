"""Exact products K V for sites x regular times, by Fourier transforms in time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.compute.threads import count_threads, run_in_order, run_separately
from pathgp.kernels import Kernel
from pathgp.operators.structured import ValueAndGradients
from pathgp.operators.toeplitz.layout import Layout

# Entries of K, at all lags, that a thread evaluates at once; on a CPU they stay in the cache.
_AT_ONCE = {"cpu": 2**19}
_AT_ONCE_GPU = 2**26
# Bytes per such entry while it is evaluated and transformed.
BYTES_PER_ENTRY = 64
# Series that a thread of a CPU transforms at once.
_SERIES = 512
# Share of the memory budget for the transforms of columns.
_SHARE = 0.25
# Temporary copies of a column of the grid during its transforms.
COPIES = 6


class ToeplitzProduct:
    """K[(s, t), (s', t')] = k(s, s', t - t') on p sites x T times; every row of a table is in one cell.

    In time K is a Toeplitz matrix, the corner of a circulant matrix of N >= 2 T - 1 times. The Fourier transform makes
    the circulant matrix block diagonal, with a real symmetric block K_f (p, p) for each of N / 2 + 1 frequencies f. A
    product scatters V to the cells, transforms, multiplies by K_f, and transforms back. It is exact up to rounding.
    Longitudes around the whole circle are periodic already: N = T.

    Evaluates T p^2 / 2 entries of K once. A product with s columns takes 2 N p^2 s operations and the transforms,
    O(N log(N) p s). Memory (N / 2 + 1) p^2 numbers. Wood and Chan (1994) for the circulant matrix.

    Args:
        kernel: a function of the differences of times.
        layout: the sites and times of the rows.
        memory: budget in bytes.
        dtype: dtype of the products.
        reuse: the blocks of a product that is no longer needed; their memory is overwritten.
    """

    def __init__(
        self, kernel: Kernel, layout: Layout, memory: int, dtype: torch.dtype, reuse: Tensor | None = None
    ) -> None:
        self.kernel, self.layout, self.memory = kernel, layout, memory
        p, device = len(layout.sites), layout.sites.device
        shape = (layout.frequencies, p, p)
        # The matrices K_f.
        if reuse is not None and (reuse.shape, reuse.dtype, reuse.device) == (shape, dtype, device):
            self.blocks = reuse
        else:
            self.blocks = torch.empty(shape, dtype=dtype, device=device)
        to_frequencies = cosines(layout, device).to(dtype)
        with torch.no_grad():
            run_separately(self._tiles(), lambda pair: self._fill(pair, to_frequencies), device)

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        """start + K V (n, s), in the memory of start."""
        with torch.no_grad():
            for columns in self.batches(V):
                spectrum = transform(self.layout, V[:, columns])
                multiply(self.blocks, spectrum)
                start[:, columns] += gather(self.layout, spectrum)
        return start

    def bilinear(self, L: Tensor, R: Tensor, learned: list[Tensor], symmetric: bool = False) -> ValueAndGradients:
        """sum_j L_j^T K R_j and its gradient in the learned parameters; ``symmetric``: whether L R^T is symmetric.

        The result is a weighted sum of the values of k at all pairs of sites and all lags. The weights follow from
        products of the spectra of L and R, one tile of sites at a time. Takes the time of one product plus that of the
        gradient of T p^2 / 2 entries of K.
        """
        layout, device = self.layout, L.device
        with torch.no_grad():
            left, right = transform(layout, L), transform(layout, R)
            to_lags = cosines(layout, device) * multiplicities(layout.size, device).unsqueeze(1)
            to_lags = (to_lags / layout.size).T.to(L.dtype).contiguous()
        value = torch.zeros((), dtype=torch.float64, device=device)
        grads = [torch.zeros_like(parameter) for parameter in learned]

        def contract(pair: tuple[slice, slice]) -> ValueAndGradients:
            I, J = pair
            with torch.no_grad():
                W = torch.bmm(left[:, J], right[:, I].mT)
                if I != J:
                    # A tile off the diagonal stands for its mirror image, too.
                    W = 2.0 * W if symmetric else W.baddbmm_(right[:, J], left[:, I].mT)
                W = (to_lags @ W.flatten(1)).view(-1, I.stop - I.start)
            with torch.enable_grad():
                tile_value = self.kernel.contract(W, layout.at_lags(layout.sites[J]), layout.sites[I])
            tile_grads: Sequence[Tensor | None] = [None] * len(learned)
            if learned and tile_value.requires_grad:
                tile_grads = torch.autograd.grad(tile_value, learned, allow_unused=True)
            return tile_value.detach(), [
                torch.zeros_like(p) if grad is None else grad for p, grad in zip(learned, tile_grads, strict=True)
            ]

        def add(pair: tuple[slice, slice], tile: ValueAndGradients) -> None:
            value.add_(tile[0])
            for grad, tile_grad in zip(grads, tile[1], strict=True):
                grad += tile_grad

        run_in_order(self._tiles(), contract, add, device)
        return value, grads

    def _fill(self, pair: tuple[slice, slice], to_frequencies: Tensor) -> None:
        """Evaluate K between two sets of sites at all lags, and transform it to all frequencies."""
        I, J = pair
        tile = self.kernel(self.layout.at_lags(self.layout.sites[J]), self.layout.sites[I])
        block = (to_frequencies @ tile.view(self.layout.lags, -1)).view(-1, J.stop - J.start, I.stop - I.start)
        self.blocks[:, J, I] = block
        if I != J:
            self.blocks[:, I, J] = block.mT

    def _tiles(self) -> list[tuple[slice, slice]]:
        """Tiles of the lower triangle of K, as pairs of slices of the sites."""
        device = self.layout.sites.device
        allowed = int(self.memory / 4 / count_threads(device)) // BYTES_PER_ENTRY
        entries = min(_AT_ONCE.get(device.type, _AT_ONCE_GPU), allowed) // self.layout.frequencies
        slices = list(spans(len(self.layout.sites), max(1, math.isqrt(entries))))
        return [(I, J) for number, I in enumerate(slices) for J in slices[: number + 1]]

    def batches(self, V: Tensor) -> Iterator[slice]:
        """Slices of the columns of V (n, s) that are transformed together."""
        per_column = COPIES * self.layout.size * len(self.layout.sites) * V.element_size()
        return spans(V.shape[1], max(1, int(_SHARE * self.memory) // per_column))


def transform(layout: Layout, V: Tensor) -> Tensor:
    """The spectra of columns V (n, s) at all sites: (N / 2 + 1, p, 2 s), real and imaginary parts interleaved."""
    p, s = len(layout.sites), V.shape[1]
    G = V.new_zeros(layout.times * p, s)
    G = G.index_copy_(0, layout.cell, V) if layout.is_unique else G.index_add_(0, layout.cell, V)
    G = G.view(layout.times, p * s)
    result = torch.empty(layout.frequencies, p * s, dtype=_complex(V.dtype), device=V.device)

    def compute(batch: slice) -> None:
        result[:, batch] = torch.fft.rfft(G[:, batch], n=layout.size, dim=0)

    run_separately(_series_batches(p * s, V.device), compute, V.device)
    return torch.view_as_real(result).view(layout.frequencies, p, 2 * s)


def multiply(A: Tensor, spectrum: Tensor) -> None:
    """Multiply spectra (N / 2 + 1, p, 2 s) in place by a matrix A_f (p, p) for every frequency."""
    if spectrum.device.type != "cpu":
        spectrum.copy_(torch.bmm(A, spectrum))
        return

    def compute(f: int) -> None:
        spectrum[f] = A[f] @ spectrum[f]

    run_separately(range(len(A)), compute, spectrum.device)


def gather(layout: Layout, spectrum: Tensor) -> Tensor:
    """The inverse of `transform`, at the cells of the rows: (n, s) from spectra (N / 2 + 1, p, 2 s)."""
    p, s = len(layout.sites), spectrum.shape[2] // 2
    series = torch.view_as_complex(spectrum.view(layout.frequencies, p * s, 2))
    G = spectrum.new_empty(layout.times, p * s)

    def compute(batch: slice) -> None:
        G[:, batch] = torch.fft.irfft(series[:, batch], n=layout.size, dim=0)[: layout.times]

    run_separately(_series_batches(p * s, spectrum.device), compute, spectrum.device)
    return G.view(-1, s)[layout.cell]


def _series_batches(count: int, device: torch.device) -> list[slice]:
    """Slices of ``count`` series that are transformed together."""
    return list(spans(count, _SERIES if device.type == "cpu" else max(1, count)))


def cosines(layout: Layout, device: torch.device) -> Tensor:
    """The matrix (N / 2 + 1, lags), float64, that transforms an even function of period N from lags to frequencies."""
    N = layout.size
    f = torch.arange(N // 2 + 1, dtype=torch.float64, device=device).unsqueeze(1)
    lag = torch.arange(layout.lags, dtype=torch.float64, device=device)
    # Every lag but zero and half of the period occurs twice. Angles are reduced to one turn, because the cosine of a
    # large angle loses digits.
    twice = torch.where((lag > 0) & (2 * lag < N), 2.0, 1.0)
    return twice * torch.cos(2.0 * math.pi * (f * lag / N).frac())


def multiplicities(size: int, device: torch.device) -> Tensor:
    """2 for every frequency whose negative a real transform of ``size`` numbers leaves out, else 1: (N / 2 + 1,).

    That is 1 for the first and the last frequency; the size N is even.
    """
    twice = torch.full((size // 2 + 1,), 2.0, dtype=torch.float64, device=device)
    twice[[0, -1]] = 1.0
    return twice


def _complex(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype == torch.float64 else torch.complex64
