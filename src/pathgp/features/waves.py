"""Sums of many sines, the inner loop of prior paths, in tiles that fit the cache or the memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.distinct import Combination, find_combination
from pathgp.compute.memory import spans
from pathgp.compute.recompute import recompute
from pathgp.compute.threads import count_threads, run_separately
from pathgp.compute.triton import missing

# Entries of a temporary tensor. On a CPU it must stay in the cache, which decides the speed; on a GPU it must be large
# enough to keep all cores busy.
_ENTRIES = {"cpu": 2**18, "cuda": 2**25}
# With fewer paths per thread, threads also share the rows of a path.
_PATHS_PER_THREAD = 4
# From this number of sines on, rows are searched for few sites with few values of one column.
_LEAST_SINES = 2**24


def tile_entries(device: torch.device) -> int:
    """The number of entries that a temporary tensor should have."""
    return _ENTRIES.get(device.type, _ENTRIES["cpu"])


def tiled(function: Callable[..., Tensor], rows: list[Tensor], width: int, stores_little: bool = False) -> Tensor:
    """``function`` (s, n) of tensors with n rows each, in tiles of rows; ``width`` numbers are in memory per row.

    With gradients enabled, the backward pass computes a tile again instead of storing it, unless the function stores
    nothing large (``stores_little``).
    """
    count = max(1, tile_entries(rows[0].device) // width)
    tiles = zip(*(tensor.split(count) for tensor in rows), strict=True)
    return torch.cat([function(*tile) if stores_little else recompute(function, *tile) for tile in tiles], 1)


def angles(X: Tensor, turns: Tensor, dtype: torch.dtype) -> Tensor:
    """2 pi times the fractional part of X @ turns, (n, d) and (s, d, pairs) in float64, rounded to ``dtype``.

    Frequencies with heavy tails (Matern-1/2) give angles of many turns; float32 would keep no digit of their fractions.
    """
    return torch.matmul(X, turns).frac_().to(dtype).mul_(2.0 * math.pi)


def runs_fused(weight: Tensor) -> bool:
    """Whether sums with these weights are computed by one Triton kernel, without a temporary tensor."""
    return weight.device.type == "cuda" and not missing(weight.device)


class _SineSum(torch.autograd.Function):
    """f_j(x_i) = sum_k weight_jk sin(2 pi x_i . turns_jk), or f_j(x_ji); gradients compute the angles again."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, turns: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(X, turns, weight)
        if X.ndim == 3:
            return torch.matmul(angles(X, turns, weight.dtype).sin_(), weight.unsqueeze(2)).squeeze(2)
        if len(X) == 0:
            return weight.new_empty(len(weight), 0)
        if runs_fused(weight):
            from pathgp.features.sines import fused_sine_sum

            return fused_sine_sum(X, turns, weight)
        pairs = find_combination(X) if X.device.type == "cpu" and len(X) * weight.numel() >= _LEAST_SINES else None
        return _tile_by_tile(X, turns, weight) if pairs is None else _by_sites(X, turns, weight, pairs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        X, turns, weight = ctx.saved_tensors
        grad = grads[0]
        angle = angles(X, turns, weight.dtype)
        grad_X = grad_turns = grad_weight = None
        if ctx.needs_input_grad[2]:
            grad_weight = torch.matmul(grad.unsqueeze(1), angle.sin()).squeeze(1)
        if ctx.needs_input_grad[0]:
            slope = (2.0 * math.pi * weight).unsqueeze(2) * turns.to(weight.dtype).transpose(1, 2)
            directions = torch.matmul(angle.cos(), slope)
            rows = "snd" if X.ndim == 3 else "nd"
            grad_X = torch.einsum(f"sn,snd->{rows}", grad, directions).to(X.dtype)
        if ctx.needs_input_grad[1]:
            pulled = angle.cos() * (2.0 * math.pi * weight).unsqueeze(1) * grad.unsqueeze(2)
            grad_turns = torch.matmul(X.mT, pulled.to(X.dtype))
        return grad_X, grad_turns, grad_weight


def _tile_by_tile(X: Tensor, turns: Tensor, weight: Tensor) -> Tensor:
    """The sums in tiles: on a CPU each thread takes the rows of one path.

    A task allocates two temporary tensors once: allocating them for every tile would cost as much as the sines.
    """
    (s, _, pairs), n, threads = turns.shape, len(X), count_threads(X.device)
    group = max(1, min(s, tile_entries(X.device) // (pairs * n)))
    rows = max(1, min(n, tile_entries(X.device) // (pairs * group)))
    result = weight.new_empty(s, n)

    def compute(task: tuple[slice, slice]) -> None:
        J, all_rows = task
        turned = X.new_empty(group, rows, pairs)
        values = weight.new_empty(group, rows, pairs)
        for part in spans(all_rows.stop - all_rows.start, rows):
            I = slice(all_rows.start + part.start, all_rows.start + part.stop)
            here = (slice(J.stop - J.start), slice(I.stop - I.start))
            # One path at a time, which takes less time than a batched product.
            for place, j in enumerate(range(J.start, J.stop)):
                torch.mm(X[I], turns[j], out=turned[place, here[1]])
            torch.mul(turned[here].frac_(), 2.0 * math.pi, out=values[here]).sin_()
            for place, j in enumerate(range(J.start, J.stop)):
                torch.mv(values[place, here[1]], weight[j], out=result[j, I])

    paths = list(spans(s, group))
    # Few paths share their rows among the threads.
    parts = 1 if len(paths) >= _PATHS_PER_THREAD * threads else _PATHS_PER_THREAD * threads
    run_separately([(J, I) for J in paths for I in spans(n, -(-n // parts))], compute, X.device)
    return result


def _by_sites(X: Tensor, turns: Tensor, weight: Tensor, pairs: Combination) -> Tensor:
    """The sums at rows that combine p sites and t values of one column, by sin(a + b) = sin a cos b + cos a sin b.

    For every path, one product of matrices (p, 2 pairs) and (2 pairs, t), and (p + t) pairs sines instead of n pairs.
    """
    column, dtype = pairs.column, weight.dtype
    sites = X[pairs.sites].clone()
    sites[:, column] = 0.0
    values = pairs.values.unsqueeze(1)
    result = weight.new_empty(len(turns), len(X))

    def compute(j: int) -> None:
        a = angles(sites, turns[j], dtype)
        b = angles(values, turns[j, column : column + 1], dtype)
        left = torch.cat([a.sin().mul_(weight[j]), a.cos().mul_(weight[j])], 1)
        grid = left @ torch.cat([b.cos(), b.sin()], 1).T
        torch.index_select(grid.flatten(), 0, pairs.cell, out=result[j])

    run_separately(range(len(turns)), compute, X.device)
    return result


def sine_sum(X: Tensor, turns: Tensor, weight: Tensor) -> Tensor:
    """sum_k weight[j, k] sin(2 pi x_i . turns[j, :, k]): (s, n) for (n, d), (s, d, pairs) and (s, pairs).

    X may be (s, n, d), separate rows for every function; this case does not use tiles.
    """
    result: Tensor = _SineSum.apply(X, turns, weight)
    return result
