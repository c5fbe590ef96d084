"""The two fused kernels launched: K V, and the gradient of sum_ij W_ij K_ij in the prepared points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pathgp.operators.fused.expression import Expression
from pathgp.operators.fused.points import Frame, Points
from pathgp.operators.fused.source import Structure, product_kernel, pull_kernel
from pathgp.operators.memory import spans

# Columns of V, or of L and R, in one launch.
_COLUMNS = 128
_WEIGHTS = 96
# Programs that fill the chip several times over, and the columns of K that one of them should at least walk over.
_PROGRAMS = 1024
_SHORTEST = 1024
# Half-precision factors are scaled to at most 2^15.
_TOP = 15


@dataclass(frozen=True)
class Tile:
    """Rows and columns of a tile, warps and pipeline stages of a program."""

    rows: int = 128
    columns: int = 64
    warps: int = 8
    stages: int = 2

    def options(self) -> dict[str, Any]:
        """What the compiler wants to know."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


_TILES = (Tile(), Tile(columns=32), Tile(64, 32, 4), Tile(64, 16, 4), Tile(64, 16, 4, 1))
# Bytes of shared memory that a program may take; Hopper has 227 KB.
_SHARED_MEMORY = 200_000


@dataclass(frozen=True)
class Engine:
    """K = coefficient * tree at points in one frame.

    precision: "high" splits both factors of K V into two half-precision numbers each; "medium" and "low" round them
    to one, 11 bits.
    """

    frame: Frame
    coefficient: float
    numbers: list[float]
    precision: str = "high"
    tile: Tile | None = None

    @classmethod
    def of(cls, expression: Expression, frame: Frame, precision: str = "high") -> Engine:
        """The engine of an expression with its present hyperparameters."""
        numbers = [float(number.detach()) for number in expression.numbers()]
        return cls(frame, float(expression.coefficient().detach()), numbers, precision)

    def product(self, X: Points, Z: Points, V: Tensor) -> Tensor:
        """K(X, Z) V: (m, s), float32, for V (n, s). Time O(m n (d + s)), memory O((m + n) s)."""
        result = torch.zeros(X.n, V.shape[1], dtype=torch.float32, device=V.device)
        if X.n == 0 or Z.n == 0:
            return result
        for part in spans(V.shape[1], _COLUMNS):
            result[:, part] = self._columns(X, Z, V[:, part])
        return result

    def _columns(self, X: Points, Z: Points, V: Tensor) -> Tensor:
        head, tail = column_widths(V.shape[1])
        high, low, exponent = halves(V, Z.padded, head + tail, dim=0)
        tile = self.tile or _fitting(self.frame.structure, held=0, streamed=head + tail)
        parts, span = split(X.padded // tile.rows, Z.padded, tile.columns)
        out = torch.empty(parts, X.padded, head + tail, dtype=torch.float32, device=V.device)
        largest = self.coefficient * self.frame.bound
        kernel = product_kernel(self.frame.structure)
        kernel[(X.padded // tile.rows, parts)](
            *X.arguments(),
            *Z.arguments(),
            high,
            low,
            self._product_theta,
            out,
            span,
            M=tile.rows,
            N=tile.columns,
            S=head,
            TAIL=tail,
            HIGH=self.precision == "high",
            **tile.options(),
        )
        total = out.sum(0) if parts > 1 else out[0]
        total = total[: X.n, : V.shape[1]] * (largest * 2.0**-_TOP)
        return torch.ldexp(total, exponent - _TOP)

    def pull(self, X: Points, Z: Points, L: Tensor, R: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """sum_ij (L R^T)_ij K(x_i, z_j) / coefficient, its gradient in the numbers, and in the prepared points of X.

        Everything in float64: a scalar, (numbers,), and (m, c) for every leaf. Time and memory as for a product.
        """
        value = torch.zeros((), dtype=torch.float64, device=L.device)
        numbers = torch.zeros(len(self.numbers), dtype=torch.float64, device=L.device)
        grads: list[Tensor] = []
        for part in spans(L.shape[1], _WEIGHTS):
            new_value, new_numbers, new_grads = self._pull_columns(X, Z, L[:, part], R[:, part])
            value += new_value
            numbers += new_numbers
            grads = [a + b for a, b in zip(grads, new_grads, strict=True)] if grads else new_grads
        return value, numbers, grads

    def _pull_columns(self, X: Points, Z: Points, L: Tensor, R: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        chunks = chunk_widths(L.shape[1])
        depth = sum(chunks)
        left_high, left_low, left = halves(L, X.padded, depth, dim=None)
        right_high, right_low, right = halves(R, Z.padded, depth, dim=None)
        # |W_ij| is at most the product of the lengths of the rows.
        lengths = [torch.linalg.vector_norm(A, dim=1, dtype=torch.float32).max() for A in (left_high, right_high)]
        longest = max(1.0, 1.01 * float(lengths[0] * lengths[1]))
        gains = [1.0 if g in (0.0, float("inf")) else 2.0**_TOP / (g * longest) for g in self.frame.gains]
        structure = self.frame.structure
        tile = self.tile or _fitting(structure, held=depth, streamed=depth)
        parts, span = split(X.padded // tile.rows, Z.padded, tile.columns)
        starts = structure.pulled()
        options: dict[str, Any] = {"dtype": torch.float32, "device": L.device}
        pulls = torch.empty(parts, X.padded, starts[-1], **options)
        sums = torch.empty(parts, 1 + structure.numbers + len(structure.leaves), X.padded, **options)
        kernel = pull_kernel(structure, chunks)
        kernel[(X.padded // tile.rows, parts)](
            *X.arguments(),
            *Z.arguments(),
            left_high,
            left_low,
            right_high,
            right_low,
            self._theta(1.0, gains),
            pulls,
            sums,
            span,
            M=tile.rows,
            N=tile.columns,
            **tile.options(),
        )
        scale = torch.exp2((left + right).to(torch.float64) - 2 * _TOP)
        rows = sums[:, :, : X.n].to(torch.float64).sum(0) * scale
        pulled = pulls[:, : X.n].to(torch.float64).sum(0) * scale
        grads = []
        for l, (leaf, start) in enumerate(zip(structure.leaves, starts, strict=False)):
            grad = pulled[:, start : start + leaf.columns]
            if leaf.form != "differences":
                grad = grad / gains[l]
                if leaf.kind != "linear":
                    weight = rows[1 + structure.numbers + l].unsqueeze(1) / gains[l]
                    grad = weight * self.frame.rounded(X, l) - grad
            grads.append(grad if leaf.kind == "linear" else 2.0 * grad)
        totals = rows.sum(1)
        return totals[0], totals[1 : 1 + structure.numbers], grads

    @cached_property
    def _product_theta(self) -> Tensor:
        """Kept: making it anew would wait for the device at every product."""
        return self._theta(2.0**_TOP / self.frame.bound, [0.0] * len(self.frame.gains))

    def _theta(self, factor: float, gains: list[float]) -> Tensor:
        device = self.frame.centres[0].device
        return torch.tensor([factor, *self.numbers, *self.frame.floors, *gains], dtype=torch.float32, device=device)


def _fitting(structure: Structure, held: int, streamed: int) -> Tile:
    """The largest tile whose half-precision pairs fit into shared memory.

    ``held``: columns kept for every row beside the points, and ``streamed`` those read with every column of K.
    """
    busy = len(structure.leaves) > 1 or streamed >= 128
    for tile in _TILES[1:] if busy else _TILES:
        rows = tile.rows * (structure.width + held)
        if 4 * (rows + tile.stages * tile.columns * (structure.width + streamed)) <= _SHARED_MEMORY:
            return tile
    raise ValueError(f"{structure.width} prepared columns are too many for fused products: use backend='streamed'")


def column_widths(columns: int) -> tuple[int, int]:
    """Powers of two, or zero for the second, that together hold so many columns: 65 becomes 64 + 16."""
    needed = columns + -columns % 16
    head = 1 << (needed.bit_length() - 1)
    tail = 0 if needed == head else max(16, 1 << (needed - head - 1).bit_length())
    return (2 * head, 0) if tail == head else (head, tail)


def chunk_widths(columns: int) -> tuple[int, ...]:
    """Powers of two from 64 to 16 that hold so many columns."""
    needed = columns + -columns % 16
    rest = needed % 64
    return (64,) * (needed // 64) + tuple(w for w in (32, 16) if rest & w)


def split(blocks: int, columns: int, step: int) -> tuple[int, int]:
    """Into how many parts the columns of K are split so that the programs fill the chip, and the length of a part.

    Every part is summed by its own program, and the parts by torch: the same numbers at every call.
    """
    parts = max(1, min(-(-_PROGRAMS // blocks), columns // _SHORTEST))
    span = -(-columns // (parts * step)) * step
    return -(-columns // span), span


def halves(A: Tensor, rows: int, columns: int, dim: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """A = 2^(exponent - 15) (high + low), both half precision, padded with zeros to (rows, columns).

    One exponent for every column (dim=0) or for all (dim=None).
    """
    largest = A.abs().amax(0) if dim == 0 else A.abs().max()
    exponent = torch.frexp(largest).exponent.clamp_(-110, 128).to(torch.float32)
    scaled = torch.ldexp(A, _TOP - exponent)
    high = torch.zeros(rows, columns, dtype=torch.float16, device=A.device)
    low = torch.zeros_like(high)
    place = (slice(A.shape[0]), slice(A.shape[1]))
    high[place] = scaled.to(torch.float16)
    low[place] = (scaled - high[place]).to(torch.float16)
    return high, low, exponent
