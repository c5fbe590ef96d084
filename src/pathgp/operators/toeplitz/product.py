"""Exact products K V for sites x regular times, by Fourier transforms in time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.compute.threads import count_threads, run_in_order, run_separately
from pathgp.kernels import Kernel
from pathgp.operators.toeplitz.layout import Layout

Values = tuple[Tensor, list[Tensor]]

# Entries of K, at all lags, that a thread evaluates at once; on a CPU they stay in the cache.
_AT_ONCE = {"cpu": 2**19}
_AT_ONCE_GPU = 2**26
# Bytes per such entry while it is evaluated and transformed.
BYTES_PER_ENTRY = 64
# Series that a thread of a CPU transforms at once.
_SERIES = 512
# Share of the memory budget for the transforms of columns.
_SHARE = 0.25
# Copies of a column that its transforms need.
COPIES = 6


class ToeplitzProduct:
    """K[(s, t), (s', t')] = k(s, s', t - t') on p sites x T times; every row of a table is in one cell.

    In time K is Toeplitz. It is a part of a periodic matrix with N >= 2 T - 1 times, which the Fourier transform makes
    block diagonal: K_f (p, p), real and symmetric, for each of N / 2 + 1 frequencies f. A product scatters V to the
    cells, transforms, multiplies by K_f, and transforms back. It is exact up to rounding. The longitudes of a whole
    circle are periodic without an extension: N = T.

    Evaluates T p^2 / 2 entries of K once. A product with s columns takes 2 N p^2 s operations and the transforms,
    O(N log(N) p s). Memory (N / 2 + 1) p^2 numbers. Wood and Chan (1994) for the periodic extension.

    Args:
        kernel: a function of the differences of times.
        layout: the sites and times of the rows.
        memory: budget in bytes.
        dtype: dtype of the products.
        into: the tensor K of a product that is no longer needed, to be overwritten.
    """

    def __init__(
        self, kernel: Kernel, layout: Layout, memory: int, dtype: torch.dtype, into: Tensor | None = None
    ) -> None:
        self.kernel, self.layout, self.memory = kernel, layout, memory
        p, device = len(layout.sites), layout.sites.device
        shape = (layout.frequencies, p, p)
        is_usable = into is not None and (into.shape, into.dtype, into.device) == (shape, dtype, device)
        self.K = into if into is not None and is_usable else torch.empty(shape, dtype=dtype, device=device)
        to_frequencies = cosines(layout, device).to(dtype)
        with torch.no_grad():
            run_separately(self._tiles(), lambda pair: self._fill(pair, to_frequencies), device)

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        """start + K V (n, s), in the memory of start."""
        with torch.no_grad():
            for columns in self.batches(V):
                spectrum = transform(self.layout, V[:, columns])
                multiply(self.K, spectrum)
                start[:, columns] += gather(self.layout, spectrum)
        return start

    def bilinear(self, L: Tensor, R: Tensor, learned: list[Tensor], symmetric: bool = False) -> Values:
        """sum_j L_j^T K R_j and its gradient in the learned parameters; ``symmetric``: whether L R^T is symmetric.

        The form is linear in the values of k at all pairs of sites and all lags. Products of the spectra of L and R
        give the coefficients, tile by tile. Time of a product, and of a gradient of T p^2 / 2 entries of K.
        """
        layout, device = self.layout, L.device
        with torch.no_grad():
            left, right = transform(layout, L), transform(layout, R)
            back = cosines(layout, device) * multiplicities(layout.size, device).unsqueeze(1)
            back = (back / layout.size).T.to(L.dtype).contiguous()
        value = torch.zeros((), dtype=torch.float64, device=device)
        grads = [torch.zeros_like(parameter) for parameter in learned]

        def contract(pair: tuple[slice, slice]) -> Values:
            I, J = pair
            with torch.no_grad():
                W = torch.bmm(left[:, J], right[:, I].mT)
                if I != J:
                    W = 2.0 * W if symmetric else W.baddbmm_(right[:, J], left[:, I].mT)
                W = (back @ W.flatten(1)).view(-1, I.stop - I.start)
            with torch.enable_grad():
                part = self.kernel.contract(W, layout.at_lags(layout.sites[J]), layout.sites[I])
            has_gradient = bool(learned) and part.requires_grad
            of_part = torch.autograd.grad(part, learned, allow_unused=True) if has_gradient else ()
            return part.detach(), [
                torch.zeros_like(p) if grad is None else grad for p, grad in zip(learned, of_part, strict=False)
            ]

        def add(pair: tuple[slice, slice], tile: Values) -> None:
            value.add_(tile[0])
            for grad, part in zip(grads, tile[1], strict=False):
                grad += part

        run_in_order(self._tiles(), contract, add, device)
        return value, grads

    def _fill(self, pair: tuple[slice, slice], to_frequencies: Tensor) -> None:
        """Evaluate K between two sets of sites at all lags, and transform it to all frequencies."""
        I, J = pair
        tile = self.kernel(self.layout.at_lags(self.layout.sites[J]), self.layout.sites[I])
        block = (to_frequencies @ tile.view(self.layout.lags, -1)).view(-1, J.stop - J.start, I.stop - I.start)
        self.K[:, J, I] = block
        if I != J:
            self.K[:, I, J] = block.mT

    def _tiles(self) -> list[tuple[slice, slice]]:
        """Pairs of sets of sites: the lower half of K, in tiles."""
        device = self.layout.sites.device
        allowed = int(self.memory / 4 / count_threads(device)) // BYTES_PER_ENTRY
        entries = min(_AT_ONCE.get(device.type, _AT_ONCE_GPU), allowed) // self.layout.frequencies
        parts = list(spans(len(self.layout.sites), max(1, math.isqrt(entries))))
        return [(I, J) for number, I in enumerate(parts) for J in parts[: number + 1]]

    def batches(self, V: Tensor) -> Iterator[slice]:
        """Sets of the columns of V (n, s), each of which is transformed at once."""
        per_column = COPIES * self.layout.size * len(self.layout.sites) * V.element_size()
        return spans(V.shape[1], max(1, int(_SHARE * self.memory) // per_column))


def transform(layout: Layout, V: Tensor) -> Tensor:
    """The spectra of columns V (n, s) at all sites: (N / 2 + 1, p, 2 s), real and imaginary parts interleaved."""
    p, s = len(layout.sites), V.shape[1]
    G = V.new_zeros(layout.times * p, s)
    G = G.index_copy_(0, layout.cell, V) if layout.is_unique else G.index_add_(0, layout.cell, V)
    G = G.view(layout.times, p * s)
    result = torch.empty(layout.frequencies, p * s, dtype=_complex(V.dtype), device=V.device)

    def compute(part: slice) -> None:
        result[:, part] = torch.fft.rfft(G[:, part], n=layout.size, dim=0)

    run_separately(_series(p * s, V), compute, V.device)
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

    def compute(part: slice) -> None:
        G[:, part] = torch.fft.irfft(series[:, part], n=layout.size, dim=0)[: layout.times]

    run_separately(_series(p * s, spectrum), compute, spectrum.device)
    return G.view(-1, s)[layout.cell]


def _series(count: int, like: Tensor) -> list[slice]:
    """Parts of ``count`` series that are transformed at once."""
    return list(spans(count, _SERIES if like.device.type == "cpu" else max(1, count)))


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
    """How often each frequency of a real transform of N numbers, N even, occurs in a complex one: (N / 2 + 1,)."""
    twice = torch.full((size // 2 + 1,), 2.0, dtype=torch.float64, device=device)
    twice[[0, -1]] = 1.0
    return twice


def _complex(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype == torch.float64 else torch.complex64
