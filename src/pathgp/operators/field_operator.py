"""The operator of a field: products in n log n in one to three dimensions."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from pathgp.compute.settings import Compute
from pathgp.kernels import Kernel
from pathgp.operators.kernel import KernelOperator


class FieldOperator(KernelOperator):
    """H = K + diag(noise^2) for a stationary kernel at inputs X (n, d), d <= 3, with products in n log n.

    K = W T W^T + C. T is a smooth part of the kernel on a regular grid, and is multiplied by fast Fourier transforms. W
    spreads points to the grid by Kaiser-Bessel windows of w points per dimension. C is what the smooth part lacks
    between close points, in dense tiles of blocks of neighbours. Grid and radius are chosen for the smallest predicted
    time: long length scales need no near part. Points on a regular grid, with or without holes, need neither windows
    nor a near part: products are then exact for every stationary kernel.

    Kernels: sums, products and scales of Matern, SquaredExponential and RationalQuadratic, with a length scale per
    dimension. A rough kernel (Matern-1/2) must see all columns, except for points on a regular grid.

    The error of products is measured on 64 rows, and kept as ``product_error``. Rows, columns and blocks are exact.

    Time O(n w^d s + m log(m) s + e s) for m nodes of the grid and e entries of near tiles. Memory: six grids per column
    in progress, the near tiles if they fit into a quarter of the budget, 8 n d w bytes.
    Barnett, Magland and af Klinteberg (2019) for windows; Greengard, Rachh and Barnett (2022) for kernel matrices.

    Args:
        kernel, X, noise, compute: as for `KernelOperator`; the backend is "field".
        accuracy: relative error of a product with white noise.

    Raises:
        ValueError: if the kernel, the inputs or the accuracy do not allow such products; it says why.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        noise: float | Tensor = 0.1,
        accuracy: float = 1e-5,
        compute: Compute | None = None,
    ) -> None:
        if accuracy == 0.0:
            raise ValueError("accuracy must be positive: use KernelOperator for exact products")
        super().__init__(kernel, X, noise, replace(Compute.read(compute), backend="field"), accuracy=accuracy)
