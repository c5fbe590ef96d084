"""Backend for sites x regular times: products use one matrix of all sites for every frequency."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pathgp.compute.hardware import Rates, rates
from pathgp.kernels import Kernel
from pathgp.operators.streamed import Streamed
from pathgp.operators.structured import COLUMNS, Structured, StructureError, ValueAndGradients
from pathgp.operators.toeplitz.inverse import FrequencyInverse
from pathgp.operators.toeplitz.layout import Layout, find_layouts, structure_key
from pathgp.operators.toeplitz.product import ToeplitzProduct

# Smallest number of rows for which "auto" considers these products.
LEAST_ROWS = 4096
# Largest share of the memory budget for the matrices of all frequencies; a preconditioner needs as much again.
_SHARE = 0.4


class Layouts:
    """The layouts of inputs X (n, d). They depend on the structure of a kernel, and not on its hyperparameters."""

    def __init__(self, X: Tensor) -> None:
        self.X = X
        self._by_structure: dict[tuple[tuple[int, ...], ...], Layout | None] = {}

    def find(self, kernel: Kernel) -> Layout | None:
        """The layout with the fewest entries of K; None if no column is regular."""
        key = structure_key(kernel, self.X.shape[1])
        if key not in self._by_structure:
            self._by_structure[key] = next(iter(find_layouts(kernel, self.X)), None)
        return self._by_structure[key]


class Toeplitz(Structured):
    """K of sites x regular times: K[(s, t), (s', t')] = k(s, s', t - t'), see `ToeplitzProduct`.

    Products are exact up to rounding.

    Args:
        exact: the backend that evaluates rows, columns and blocks.
        kernel: the kernel of the inputs as they were given. (The kernel of ``exact`` may be one of points on a sphere.)
        layouts: layouts of the inputs as they were given.
        memory: budget in bytes.
        reuse: a backend that is no longer needed; its memory is overwritten.

    Raises:
        StructureError: if no column is regular, or the budget is too small.
    """

    name = "toeplitz"

    def __init__(self, exact: Streamed, kernel: Kernel, layouts: Layouts, memory: int, reuse: object = None) -> None:
        super().__init__(exact, memory)
        layout = layouts.find(kernel)
        if layout is None:
            raise StructureError(
                "Toeplitz products need a column of equally spaced values, such as times, that most sites share, "
                "and a kernel of differences in this column"
            )
        if not fits(layout, self.X.dtype, memory):
            required = layout.entries * self.X.element_size() / _SHARE
            raise StructureError(f"Toeplitz products need {required / 1e9:.3g} GB, the budget is {memory / 1e9:.3g} GB")
        self.layout = layout
        blocks: Tensor | None = reuse.fast.blocks if isinstance(reuse, Toeplitz) else None
        self.fast: ToeplitzProduct = ToeplitzProduct(kernel, layout, memory, self.X.dtype, blocks)

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        return self.fast.product(V, start)

    def bilinear(self, L: Tensor, R: Tensor, learned: list[Tensor], symmetric: bool = False) -> ValueAndGradients:
        return self.fast.bilinear(L, R, learned, symmetric)

    def choose_preconditioner(self) -> FrequencyInverse | None:
        """The inverse by frequencies, if it is exact; otherwise None."""
        return FrequencyInverse(self.fast) if self.layout.is_closed and self.layout.is_complete else None

    def predict_product(self, s: int) -> float:
        return predict_seconds(self.layout, len(self.X), s, rates(self.X.device, self.X.dtype))


def fits(layout: Layout, dtype: torch.dtype, memory: int) -> bool:
    """Whether the matrices of all frequencies fit into their share of the budget."""
    return layout.entries * dtype.itemsize <= _SHARE * memory


def predict_seconds(layout: Layout, n: int, s: int, r: Rates) -> float:
    """Seconds of a product with s columns for n rows: matrix products, transforms, scatter and gather."""
    p, N = len(layout.sites), layout.size
    multiply = 2.0 * layout.entries * 2 * s / r.multiply
    transforms = 2.0 * s * p * 2.5 * N * math.log2(N) / r.fourier
    return max(multiply, 4.0 * layout.entries / r.read) + transforms + 2.0 * n * s / r.gather + r.latency


def predict_toeplitz(kernel: Kernel, layouts: Layouts, memory: int) -> float:
    """Predicted seconds of a product with 65 columns; infinite if it is not possible, or for fewer than 4,096 rows."""
    X = layouts.X
    layout = layouts.find(kernel) if len(X) >= LEAST_ROWS else None
    if layout is None or not fits(layout, X.dtype, memory):
        return math.inf
    return predict_seconds(layout, len(X), COLUMNS, rates(X.device, X.dtype))
