"""Launches of the fused kernels: K V, K itself, and the gradient of sum_ij W_ij K_ij in the prepared points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.operators.fused.leaves import Structure
from pathgp.operators.fused.points import BLOCK, TOP, Frame, Points
from pathgp.operators.fused.source import evaluate_kernel, product_kernel, pull_kernel
from pathgp.operators.fused.tiles import TRIAL, Tile, fastest, fitting, known

# Columns of V, or of L and R, in one launch.
_COLUMNS = 128
_WEIGHTS = 96
# Programs that fill the chip several times over, and the columns of K that one of them should at least walk over.
_PROGRAMS = 1024
_SHORTEST = 1024
# Parts of a sum that are added at a time.
_PARTS = 16
# Compiler options of the kernels that only read and write columns.
_PASSING: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}
# Entries of K from which a product is worth compiling several tiles for it.
_WORTHWHILE = 2**34


@dataclass(frozen=True)
class Engine:
    """K = coefficient * tree at points in one frame. No method waits for the device, except to time tiles.

    precision: of products. "high" splits both factors of K V into two half-precision numbers each; "medium" and "low"
    round them to one, 11 bits.  tile: by default chosen for each product.
    """

    frame: Frame
    precision: str = "high"
    tile: Tile | None = None

    def add_product(self, X: Points, Z: Points, V: Tensor, out: Tensor) -> Tensor:
        """out += K(X, Z) V: (m, s), float32, for V (n, s). Time O(m n (d + s)), memory O((m + n) s)."""
        if X.n and Z.n:
            for part in spans(V.shape[1], _COLUMNS):
                self._add_columns(X, Z, V[:, part], out[:, part])
        return out

    def _add_columns(self, X: Points, Z: Points, V: Tensor, out: Tensor) -> None:
        from pathgp.operators.fused.columns import add

        head, tail = column_widths(V.shape[1])
        width = head + tail
        largest = torch.linalg.vector_norm(V, float("inf"), dim=0)
        high, low = halves(V, Z.padded, width, largest)
        kernel = product_kernel(self.frame.structure)

        def launch(tile: Tile, X: Points) -> Tensor:
            parts, span = split(X.padded // tile.rows, Z.padded, tile.columns)
            sums = torch.empty(parts, X.padded, width, dtype=torch.float32, device=V.device)
            arguments = *X.arguments(), *Z.arguments(), high, low, self.frame.theta, sums, span
            constants = {"S": head, "TAIL": tail, "HIGH": self.precision == "high"}
            kernel[(X.padded // tile.rows, parts)](*arguments, **constants, **tile.options())
            return sums

        sums = launch(self._tile(X, Z, 0, width, launch), X)
        parts = len(sums)
        factor = self.frame.extent.coefficient * self.frame.bound * 2.0**-TOP
        # Few rows have many parts: small programs then, so that there are enough of them, with many parts at a time.
        shape = {"R": BLOCK, "P": 1} if parts < _PARTS else {"R": 16, "P": _PARTS}
        add[(X.padded // shape["R"], width // 16)](
            sums, parts, X.padded, width, largest, factor, out, *out.stride(), *out.shape, **shape, **_PASSING
        )

    def evaluate(self, X: Points, Z: Points) -> Tensor:
        """K(X, Z): (m, n), float32, as in a product of high precision. Time O(m n d)."""
        return self._evaluate(X, Z, 1, X.n, Z.n)[0]

    def evaluate_blocks(self, X: Points, count: int, size: int) -> Tensor:
        """K(X_k, X_k) for ``count`` sets of points, ``size`` each: (count, size, size), in one launch."""
        return self._evaluate(X, X, count, size, size)

    def _evaluate(self, X: Points, Z: Points, count: int, m: int, n: int) -> Tensor:
        K = torch.empty(count, m, n, dtype=torch.float32, device=self.frame.theta.device)
        if K.numel():
            tile = fitting(self.frame.structure, held=0, streamed=0, device=K.device)[0]
            kernel = evaluate_kernel(self.frame.structure)
            # From the first point of a set to that of the next.
            steps = X.padded // count, Z.padded // count
            grid = (steps[0] // tile.rows, steps[1] // tile.columns, count)
            arguments = *X.arguments(), *Z.arguments(), self.frame.theta, K, m, n, *steps
            kernel[grid](*arguments, **tile.options())
        return K

    def pull(self, X: Points, Z: Points, L: Tensor, R: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """sum_ij (L R^T)_ij K(x_i, z_j) / coefficient, its gradient in the numbers, and in the prepared points of X.

        Everything in float64: a scalar, (numbers,), and (m, c) for every leaf. Time and memory as for a product.
        """
        found = [self._pull_columns(X, Z, L[:, part], R[:, part]) for part in spans(L.shape[1], _WEIGHTS)]
        sums, pulled = (torch.stack(parts).sum(0) if len(parts) > 1 else parts[0] for parts in zip(*found, strict=True))
        structure = self.frame.structure
        places = zip(structure.leaves, structure.gradient_columns(), strict=False)
        return sums[0], sums[1:], [pulled[: X.n, start : start + leaf.columns] for leaf, start in places]

    def _pull_columns(self, X: Points, Z: Points, L: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
        """The sums (1 + numbers,) and the gradients of all leaves (padded, columns)."""
        structure, width = self.frame.structure, self.frame.structure.gradient_columns()[-1]
        options: dict[str, Any] = {"dtype": torch.float64, "device": L.device}
        if not X.n:
            return torch.zeros(1 + structure.numbers, **options), torch.zeros(0, width, **options)
        chunks = chunk_widths(L.shape[1])
        depth = sum(chunks)
        left, right = (torch.linalg.vector_norm(A, float("inf")) for A in (L, R))
        weights = *halves(L, X.padded, depth, left), *halves(R, Z.padded, depth, right), left, right
        kernel = pull_kernel(structure, chunks)

        def launch(tile: Tile, X: Points) -> tuple[Tensor, Tensor]:
            blocks = X.padded // tile.rows
            parts, span = split(blocks, Z.padded, tile.columns)
            pulls = torch.empty(parts, X.padded, width, **options)
            sums = torch.empty(parts * blocks, 1 + structure.numbers, **options)
            arguments = *X.arguments(), *Z.arguments(), *weights, self.frame.theta, pulls, sums, span
            kernel[(blocks, parts)](*arguments, **tile.options())
            return sums, pulls

        sums, pulls = launch(self._tile(X, Z, depth, depth, launch), X)
        return sums.sum(0), pulls.sum(0) if len(pulls) > 1 else pulls[0]

    def _tile(self, X: Points, Z: Points, held: int, streamed: int, launch: Callable[[Tile, Points], Any]) -> Tile:
        """The largest tile that fits; for large products on other chips than those of `known`, the fastest."""
        if self.tile:
            return self.tile
        structure, device = self.frame.structure, self.frame.theta.device
        tiles = fitting(structure, held, streamed, device)
        if X.n * Z.n < _WORTHWHILE or known(device):
            return tiles[0]

        def prepare() -> Callable[[Tile], Any]:
            # The first rows: the columns held for the rows start with theirs.
            first = X.take(torch.arange(min(X.n, TRIAL), device=device))
            return lambda tile: launch(tile, first)

        return fastest(f"{held} and {streamed} columns, {self.precision}, {structure}", tiles, prepare, device)


def check_room(structure: Structure, device: torch.device) -> None:
    """ValueError where the widest product, or the widest gradient, has no tile that fits into shared memory."""
    fitting(structure, 0, _COLUMNS, device)
    fitting(structure, _WEIGHTS, _WEIGHTS, device)


def column_widths(columns: int) -> tuple[int, int]:
    """Two powers of two, the second possibly zero, whose sum is at least ``columns``: 65 becomes 64 + 16."""
    needed = columns + -columns % 16
    head = 1 << (needed.bit_length() - 1)
    tail = 0 if needed == head else max(16, 1 << (needed - head - 1).bit_length())
    return (2 * head, 0) if tail == head else (head, tail)


def chunk_widths(columns: int) -> tuple[int, ...]:
    """Powers of two from 64 to 16 whose sum is at least ``columns``."""
    needed = columns + -columns % 16
    rest = needed % 64
    return (64,) * (needed // 64) + tuple(w for w in (32, 16) if rest & w)


def split(blocks: int, columns: int, step: int) -> tuple[int, int]:
    """The number of parts of the columns of K with which the programs fill the chip, and the length of a part.

    Every part is summed by its own program, and the parts by torch: the same numbers at every call.
    """
    parts = max(1, min(-(-_PROGRAMS // blocks), columns // _SHORTEST))
    span = -(-columns // (parts * step)) * step
    return -(-columns // span), span


def halves(A: Tensor, rows: int, columns: int, largest: Tensor) -> tuple[Tensor, Tensor]:
    """A = 2^(e - 15) (high + low), both half precision, padded with zeros to (rows, columns).

    e: the exponent of ``largest``, the largest size of a number in every column, or in all of A.
    """
    from pathgp.operators.fused import columns as kernels

    high = torch.empty(rows, columns, dtype=torch.float16, device=A.device)
    low = torch.empty_like(high)
    grid = (rows // BLOCK, columns // 16)
    kernels.halves[grid](A, *A.stride(), *A.shape, largest, largest.ndim, high, low, columns, R=BLOCK, **_PASSING)
    return high, low
