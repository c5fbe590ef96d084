"""K(X, Z) V for predictions at sites x times, by Fourier transforms in time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pathgp.compute.hardware import Rates, rates
from pathgp.compute.memory import spans
from pathgp.compute.threads import count_threads, run_separately
from pathgp.kernels import Kernel
from pathgp.operators.structured import MUCH_LESS, predict_exact_rows
from pathgp.operators.toeplitz.layout import Layout, find_layouts
from pathgp.operators.toeplitz.product import BYTES_PER_ENTRY, COPIES, cosines, gather, transform

# Smallest number of entries of K(X, Z) for which these products are considered.
_LEAST_ENTRIES = 2**24


@torch.no_grad()
def toeplitz_cross(kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, memory: int, backend: str) -> Tensor | None:
    """K(X, Z) V, (m, s), exact up to rounding; None if this is not possible, or not predicted to take half the time.

    X and Z must be sites x regular times. They may have different sites and different times, on the same spacing. With
    q and p sites and T lags the kernel is evaluated at T p q pairs, tile by tile; the product is that of
    `ToeplitzProduct`. ``backend``: the alternative, "streamed" or "fused".
    """
    m, n, s = len(X), len(Z), V.shape[1]
    if m * n < _LEAST_ENTRIES or not s:
        return None
    layout = next(iter(find_layouts(kernel, torch.cat([X, Z]))), None)
    if layout is None:
        return None
    targets, sources = layout.restrict(slice(0, m)), layout.restrict(slice(m, m + n))
    seconds = _predict(targets, sources, s, rates(X.device, X.dtype))
    if seconds > MUCH_LESS * predict_exact_rows(m, s, backend, Z):
        return None
    per_column = COPIES * layout.size * len(layout.sites) * X.element_size()
    result = V.new_empty(m, s)
    for columns in spans(s, max(1, int(memory / 4) // per_column)):
        result[:, columns] = _multiply(kernel, targets, sources, V[:, columns], memory)
    return result


def _multiply(kernel: Kernel, targets: Layout, sources: Layout, V: Tensor, memory: int) -> Tensor:
    spectrum = transform(sources, V)
    result = spectrum.new_zeros(targets.frequencies, len(targets.sites), spectrum.shape[2])
    to_frequencies = cosines(targets, V.device).to(V.dtype)
    points = targets.at_lags(sources.sites)
    # The number of target sites whose entries, for all sources and lags, fit into a share of the budget.
    allowed = int(memory / 4 / count_threads(V.device)) // (BYTES_PER_ENTRY * targets.frequencies * len(sources.sites))
    step = max(1, min(allowed, -(-len(targets.sites) // (4 * count_threads(V.device)))))

    def compute(I: slice) -> None:
        tile = kernel(points, targets.sites[I]).view(targets.lags, -1)
        block = (to_frequencies @ tile).view(targets.frequencies, len(sources.sites), -1)
        result[:, I] = torch.bmm(block.mT, spectrum)

    run_separately(list(spans(len(targets.sites), step)), compute, V.device)
    return gather(targets, result)


def _predict(targets: Layout, sources: Layout, s: int, r: Rates) -> float:
    """Seconds of the product with s columns."""
    pairs, N = len(targets.sites) * len(sources.sites), targets.size
    evaluate = targets.lags * pairs * (1.0 / r.evaluate + 2.0 * targets.frequencies / r.multiply)
    multiply = 2.0 * targets.frequencies * pairs * 2 * s / r.multiply
    series = s * (len(targets.sites) + len(sources.sites))
    return evaluate + multiply + series * 2.5 * N * math.log2(N) / r.fourier + r.latency
