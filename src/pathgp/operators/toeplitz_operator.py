"""The operator of sites x regular times: exact products through one matrix of sites per frequency."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from pathgp.compute.settings import Compute
from pathgp.kernels import Kernel
from pathgp.operators.kernel import KernelOperator


class ToeplitzOperator(KernelOperator):
    """H = K + diag(noise^2) for stations that are observed at regular times: inputs X (n, d), rows in any order.

    One column of X takes equally spaced values, the times. The others take p different values, the sites. Not every
    site needs a row at every time, and a cell may have several rows. The kernel depends on the times through their
    difference alone; it need not be a product of kernels of space and time, nor stationary in space. K is then block
    Toeplitz, k(s, s', t - t'), and a Fourier transform in time makes it one symmetric matrix (p, p) per frequency.

    Kernels: sums, products and scales in which every part that sees the times is a Matern, SquaredExponential,
    RationalQuadratic, LearnedMatern, Periodic or Gneiting kernel. Times may be off by 1e-5 steps. Of several regular
    columns the one that needs the least memory is used.

    Products are exact up to rounding. Rows, columns and blocks are those of the streamed or fused backend.

    With T times, time 4 T p^2 s + O(T log(T) p s) for s columns, where rows of K take (T p)^2 s. Memory
    (T + 1) p^2 numbers, at most 0.4 of the budget. Wood and Chan (1994) for the periodic extension in time.

    Args:
        kernel, X, noise, compute: as for `KernelOperator`; the backend is "toeplitz".

    Raises:
        ValueError: if the kernel, the inputs or the memory budget do not allow such products; it says why.
    """

    def __init__(self, kernel: Kernel, X: Tensor, noise: float | Tensor = 0.1, compute: Compute | None = None) -> None:
        super().__init__(kernel, X, noise, replace(Compute.read(compute), backend="toeplitz"))
