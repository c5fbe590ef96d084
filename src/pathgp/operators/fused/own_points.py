"""Sums of s functions, each at its own points, whose entries of K exist only inside a generated kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.counts import CountRows
from pathgp.compute.memory import spans
from pathgp.compute.triton import missing
from pathgp.kernels import Kernel
from pathgp.operators.fused.expression import Expression
from pathgp.operators.fused.leaves import Structure
from pathgp.operators.fused.own_source import own_kernel
from pathgp.operators.fused.points import Extent, Frame, Points, middle

# Prepared columns of all leaves: a thread holds the coordinates of its points, and sums for their gradients.
_COLUMNS = 64
# Points of a program, and the most numbers that the coordinates of its points may take.
_POINTS = (8, 4, 2, 1)
_HELD = 64
# Reading a row costs about as much as two entries of K.
_READING = 2
# Threads of a program, and rows of a tile.
_THREADS = 128
# Programs that fill the chip several times over, the rows that one of them should at least walk over, and at most: its
# sums are float32.
_PROGRAMS = 8192
_SHORTEST, _LONGEST = 1024, 2**18
# Weights that are copied at a time, and the multiple of functions that keeps pointers to their points aligned.
_COPIED = 2**28
_ALIGNED = 4


@dataclass(frozen=True)
class OwnPoints:
    """Prepared points of s functions with q points each, and of the n rows over which the sums go.

    inputs: points (s q, d) of which ``prepared``, (s q, c) float64 for every leaf, has the graph.
    """

    shape: torch.Size
    inputs: Tensor
    prepared: list[Tensor]
    frame: Frame
    left: Points
    right: Points

    @classmethod
    def prepare(cls, kernel: Kernel, X: Tensor, Z: Tensor, with_gradient: bool) -> OwnPoints:
        """For X (s, q, d) and Z (n, d); ValueError with the reason if these sums have no fused kernel."""
        expression = _check(kernel, X, Z)
        centre = middle(Z.to(torch.float64))
        with torch.set_grad_enabled(with_gradient):
            inputs = X.detach().flatten(0, 1).requires_grad_(with_gradient)
            prepared = expression.points(inputs, centre)
        with torch.no_grad():
            rows = expression.points(Z, centre)
            columns = sum(part.shape[1] for part in rows)
            if columns > _COLUMNS:
                raise ValueError(f"{columns} prepared columns are too many for fused sums at own points")
            frame = Frame.around(Extent.of(expression, prepared, rows), by_differences=True)
            return cls(X.shape, inputs, prepared, frame, frame.pack(prepared), frame.pack(rows))

    def sums(self, V: Tensor) -> tuple[Tensor, Tensor | None]:
        """sum_i k(x_jk, z_i) V_ij (s, q), and the gradient of each in x_jk (s, q, d) if prepared for it: float32.

        Time O(s q n d), memory a copy of at most 1 GB of V (n, s), or of four of its columns.
        """
        with_gradient = self.inputs.requires_grad
        n, s = V.shape
        group = max(_ALIGNED, _COPIED // n // _ALIGNED * _ALIGNED)
        parts = [self._launch(V[:, J].T.contiguous(), J.start, with_gradient) for J in spans(s, group)]
        found = torch.cat(parts)
        values = found[:, 0].view(self.shape[:2]).to(torch.float32)
        if not with_gradient:
            return values, None
        outer = found[:, 1:].split([part.shape[1] for part in self.prepared], 1)
        (grad,) = torch.autograd.grad(self.prepared, self.inputs, outer)
        return values, grad.view(self.shape)

    def _launch(self, weights: Tensor, first: int, with_gradient: bool) -> Tensor:
        """Values and gradients in the prepared points for weights (s, n) of s functions from number ``first`` on:
        (s q, 1 + columns) or (s q, 1), float64.
        """
        (s, n), q, structure = weights.shape, self.shape[1], self.frame.structure
        points = points_at_once(structure, q)
        blocks = -(-q // points)
        parts, span = split_rows(s * blocks, n)
        width = 1 + (sum(leaf.columns for leaf in structure.leaves) if with_gradient else 0)
        out = torch.empty(parts, s * q, width, dtype=torch.float32, device=weights.device)
        sides = self.left.fine[:, first * q :], self.left.padded, self.right.fine, self.right.padded
        options: dict[str, Any] = {"num_warps": _THREADS // 32, "num_stages": 1, "enable_fp_fusion": True}
        kernel = own_kernel(structure, with_gradient)
        kernel[(s * blocks, parts)](
            *sides, weights, self.frame.theta, out, q, blocks, n, span, M=points, N=_THREADS, **options
        )
        return out.sum(0, dtype=torch.float64)


def _check(kernel: Kernel, X: Tensor, Z: Tensor) -> Expression:
    """The expression of a kernel with fused sums at these inputs; ValueError with the reason if there are none."""
    if X.dtype != torch.float32 or Z.dtype != torch.float32:
        raise ValueError(f"fused products are for float32 inputs, these are {X.dtype} and {Z.dtype}")
    if isinstance(Z, CountRows):
        raise ValueError("fused products are for dense inputs, these are sparse")
    if reason := missing(X.device):
        raise ValueError(reason)
    expression = Expression(kernel, X.shape[2])
    if not expression.differentiable:
        raise ValueError("no fused sums at own points for Tanimoto")
    return expression


def points_at_once(structure: Structure, q: int) -> int:
    """The number of points that a program holds: as few entries and readings of rows for q points as possible."""
    held = sum(leaf.fine_parts * leaf.columns for leaf in structure.leaves)
    fitting = [points for points in _POINTS if points * held <= _HELD] or [1]
    return min(fitting, key=lambda points: -(-q // points) * (points + _READING))


def split_rows(programs: int, n: int) -> tuple[int, int]:
    """The number of parts of the rows with which the programs fill the chip, and the length of a part.

    Every part is summed by its own program, and the parts by torch: the same numbers at every call.
    """
    parts = max(1, -(-n // _LONGEST), min(-(-_PROGRAMS // programs), n // _SHORTEST))
    span = -(-n // (parts * _THREADS)) * _THREADS
    return -(-n // span), span
