"""Kernel sums of several functions, each at its own points: g_j(x) = sum_i k(x, z_i) V_ij at X[j], in tiles.

`cross_product` evaluates all s functions at all s q points, although each function is needed at q of them: s^2 q n
multiplications. Here the work is the s q n entries of K. A value depends on one point only, so that its gradient is
computed in the same pass over K. On a GPU the entries exist only inside a generated kernel, see `fused/own_points.py`.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from pathgp.compute import triton
from pathgp.compute.memory import even_spans, halve_on_failure, limit_edge, memory_budget, tile_edge
from pathgp.compute.threads import run_in_order
from pathgp.kernels import Kernel
from pathgp.kernels.sphere import Embedding
from pathgp.operators.fused import OwnPoints

Task = tuple[slice, slice, slice]


class _OwnProduct(torch.autograd.Function):
    """Values (s, q) and, if X needs a gradient, their derivatives (s, q, d), in one pass over K."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, memory: int, backend: str) -> Tensor:
        ctx.kernel = kernel
        with_slopes = ctx.needs_input_grad[1]
        fused = _prepare_fused(kernel, X, Z, with_slopes, backend)
        values, slopes = fused.sums(V) if fused else _sum_tiles(kernel, X, Z, V, with_slopes, memory)
        ctx.save_for_backward(X, Z, V, slopes)
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        X, Z, V, slopes = ctx.saved_tensors
        outer = grads[0].unsqueeze(2)
        if torch.is_grad_enabled():
            # With create_graph the derivatives are differentiated in turn: all of K is kept.
            tile = _tile(ctx.kernel, X, Z)
            (slopes,) = torch.autograd.grad(tile, X, V.T.unsqueeze(1).expand_as(tile), create_graph=True)
        return None, outer * slopes, None, None, None, None


def _prepare_fused(kernel: Kernel, X: Tensor, Z: Tensor, with_slopes: bool, backend: str) -> OwnPoints | None:
    """The prepared points of a fused sum; None where tiles are asked for, or where no fused kernel is possible."""
    if not (backend == "fused" or (backend in ("auto", "exact") and triton.preferred(X.device))):
        return None
    if min(*X.shape[:2], len(Z)) == 0:
        return None
    try:
        return OwnPoints.prepare(kernel, X, Z, with_slopes)
    except ValueError:
        if backend == "fused":
            raise
        return None


def _sum_tiles(
    kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, with_slopes: bool, memory: int
) -> tuple[Tensor, Tensor | None]:
    """Values (s, q) and, if asked for, their derivatives (s, q, d), in tiles of K."""
    weights = V.T.contiguous()
    if with_slopes:
        # With learned hyperparameters the backward pass of a tile would compute gradients in these and in Z as well.
        kernel = deepcopy(kernel).requires_grad_(False)

    def evaluate(task: Task) -> tuple[Tensor, Tensor | None]:
        J, I, C = task
        points, own = X[J, I].detach(), weights[J, C]
        if not with_slopes:
            return _contract(_tile(kernel, points, Z[C]), own), None
        with torch.enable_grad():
            points.requires_grad_()
            tile = _tile(kernel, points, Z[C])
        values = _contract(tile.detach(), own)
        return values, torch.autograd.grad(tile, points, own.unsqueeze(1).expand_as(tile))[0]

    def compute(edge: int) -> tuple[Tensor, Tensor | None]:
        values = V.new_zeros(X.shape[:2])
        slopes = torch.zeros_like(X) if with_slopes else None

        def add(task: Task, part: tuple[Tensor, Tensor | None]) -> None:
            J, I, _ = task
            values[J, I] += part[0]
            if slopes is not None and part[1] is not None:
                slopes[J, I] += part[1]

        run_in_order(_tasks(X, len(Z), edge), evaluate, add, X.device)
        return values, slopes

    # The tile of a gradient has about twice the temporaries.
    edge = tile_edge(memory, X.dtype, X.device) // (2 if with_slopes else 1)
    return halve_on_failure(compute, max(1, edge))[0]


def _tile(kernel: Kernel, points: Tensor, Z: Tensor) -> Tensor:
    """K of the points (g, r, d) of g functions: (g, r, columns)."""
    return kernel(points.flatten(0, 1), Z).unflatten(0, points.shape[:2])


def _contract(tile: Tensor, weights: Tensor) -> Tensor:
    # A row of weights times the transposed tile: several times faster on a CPU than the tile times a column.
    return torch.matmul(weights.unsqueeze(1), tile.mT).squeeze(1)


def _tasks(X: Tensor, n: int, edge: int) -> list[Task]:
    """Tiles of at most edge^2 entries: functions, points of each and rows of Z."""
    s, q = X.shape[:2]
    edge = limit_edge(edge, s * q * n, X.device)
    height, width = (edge * edge // max(1, min(edge, other)) for other in (n, s * q))
    functions, points = max(1, height // max(1, q)), max(1, min(q, height))
    return [
        (J, I, C) for J in even_spans(s, functions) for I in even_spans(q, points) for C in even_spans(n, max(1, width))
    ]


def own_product(
    kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, memory: float | None = None, backend: str = "auto"
) -> Tensor:
    """sum_i k(X[j, k], z_i) V[i, j]: (s, q) for X (s, q, d), Z (n, d), V (n, s); differentiable in X.

    Time O(s q n d) for values and first derivatives. Memory X and the output, beside one tile for every thread and a
    copy of V; fused, a copy of at most 1 GB of V. Second derivatives keep all s q n entries.

    ``backend``: "streamed", in tiles; "fused", ValueError if that is not possible; "auto" or "exact", fused on a GPU
    where possible: float32, at most 64 columns that are not too many length scales apart, and the kernels of fused
    products except Tanimoto.
    """
    if backend not in ("auto", "streamed", "fused", "exact"):
        raise ValueError(f"backend must be 'auto', 'exact', 'streamed' or 'fused', got {backend!r}")
    embedding = Embedding(kernel, Z.shape[1])
    kernel, Z = embedding.kernel, embedding(Z, "Z")
    X = embedding(X.flatten(0, 1)).unflatten(0, X.shape[:2])
    result: Tensor = _OwnProduct.apply(kernel, X, Z, V, memory_budget(memory, X.device), backend)
    return result
