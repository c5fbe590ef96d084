"""The data of a sparse method as its passes see them: blocks of rows with inputs, residuals and noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pathgp.compute.memory import even_spans
from pathgp.compute.random import neighbourhoods
from pathgp.data.rows import Rows
from pathgp.kernels import Kernel
from pathgp.solvers.cholesky import factorise
from pathgp.sparse.family import BLOCK_ROWS, Method

# Always added to the diagonal of K_ZZ, relative to the largest variance: more than rounding, less than any noise.
JITTER = 1e-12
# Rows of a block: operations on it are long beside their overhead. Bytes per entry of a block (m, rows) of K_ZX: the
# kernel's temporaries, V, its whitened copy, and gradients.
_MOST_ROWS = {"cpu": 1024, "cuda": 8192}
_BYTES_PER_ENTRY = 96
# Matrices (m, m) in float64 that exist at the same time: L, B, a factor, and a copy.
_SQUARES = 4

Block = slice | Tensor


class BlockRows(NamedTuple):
    """Inputs X (b, d), residuals r (b,) = y - mu and variances of the noise (b,), in the model's units, float64."""

    X: Tensor
    r: Tensor
    noise: Tensor


@dataclass(frozen=True)
class Problem:
    """A sparse method on data, at given hyperparameters.

    Z: (m, d), float64, in the model's units.  noise: the standard deviation of the model's noise, a scalar.
    mean_at: the prior mean (b,) or a scalar, at inputs in the units of the caller.  memory: budget in bytes.
    With gradients in the kernel, Z, noise and mean if these have them.
    """

    method: Method
    kernel: Kernel
    Z: Tensor
    data: Rows
    noise: Callable[[], Tensor]
    mean_at: Callable[[Tensor], Tensor]
    memory: int

    def rows(self, block: Block) -> BlockRows:
        """The rows of a block."""
        data = self.data
        r = data.scaling.targets(data.y[block] - self.mean_at(data.X_raw[block]))
        noise = self.noise().square()
        known = 0.0 if data.noise_std is None else data.noise_std[block].square()
        return BlockRows(data.block(block), r, (noise + known).expand(len(r)))

    def blocks(self, rows: int | None = None) -> list[Block]:
        """All rows in blocks that fit into the memory budget; those of PITC are neighbourhoods of fixed size."""
        n = len(self.data.y)
        if self.method.correction == "blocks":
            fixed = torch.Generator().manual_seed(0)
            return (
                list(neighbourhoods(self.data.inputs(), -(-n // BLOCK_ROWS), fixed)) if n > BLOCK_ROWS else [slice(n)]
            )
        return list(even_spans(n, rows or self.block_rows))

    def deviation(self) -> Tensor:
        """Standard deviation of the noise: a scalar, or one per row (n,)."""
        known = self.data.noise_std
        return self.noise() if known is None else (self.noise().square() + known.square()).sqrt()

    @property
    def block_rows(self) -> int:
        """The number of rows of a block."""
        fitting = self.memory // (4 * _BYTES_PER_ENTRY * len(self.Z))
        return int(max(1, min(_MOST_ROWS.get(self.Z.device.type, 1024), fitting)))

    @property
    def fits_memory(self) -> bool:
        """Whether the matrices (m, m) of a direct solution fit into the memory budget."""
        return required_bytes(len(self.Z)) <= self.memory

    def root(self) -> tuple[Tensor, float]:
        """L with L L^T = K_ZZ + jitter I, without gradient, and the jitter."""
        with torch.no_grad():
            return root_of(self.kernel(self.Z))


def required_bytes(m: int) -> int:
    """Bytes of a direct solution with m inducing points."""
    return _SQUARES * 8 * m**2


def root_of(K: Tensor) -> tuple[Tensor, float]:
    """Cholesky factor of K (m, m), float64, plus jitter, and the jitter; K is overwritten."""
    jitter = JITTER * float(K.diagonal().max())
    K.diagonal().add_(jitter)
    root, more = factorise(K, 10.0 * JITTER)
    return root, jitter + more
