"""Sums of many sines, the inner loop of prior paths, in tiles that fit the cache or the memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pathgp.compute.memory import spans
from pathgp.compute.triton import missing

# Entries of a temporary. On a CPU it has to stay in the cache, which decides the speed; on a GPU it has to be
# large enough to fill the machine.
_ENTRIES = {"cpu": 2**18, "cuda": 2**25}


def tile_entries(device: torch.device) -> int:
    """How many numbers a temporary should hold."""
    return _ENTRIES.get(device.type, _ENTRIES["cpu"])


def tiled(function: Callable[..., Tensor], rows: list[Tensor], width: int, recompute: bool = True) -> Tensor:
    """``function`` (s, n) of tensors with n rows each, in tiles of rows; a row takes ``width`` numbers of memory.

    With gradients enabled, the backward pass computes a tile again instead of storing it, unless the function itself
    stores nothing large (``recompute=False``).
    """
    count = max(1, tile_entries(rows[0].device) // width)
    tiles = zip(*(tensor.split(count) for tensor in rows), strict=True)
    if not (recompute and torch.is_grad_enabled()):
        return torch.cat([function(*tile) for tile in tiles], 1)
    return torch.cat([checkpoint(function, *tile, use_reentrant=False, preserve_rng_state=False) for tile in tiles], 1)


def angles(X: Tensor, turns: Tensor, dtype: torch.dtype) -> Tensor:
    """2 pi times the fractional part of X @ turns, (n, d) and (s, d, pairs) in float64, rounded to ``dtype``.

    Frequencies with heavy tails (Matern-1/2) make phases of many turns, of which float32 would keep no digit.
    """
    return torch.matmul(X, turns).frac_().to(dtype).mul_(2.0 * math.pi)


def runs_fused(weight: Tensor) -> bool:
    """Whether sums with these weights are made by one kernel on the GPU, without a temporary."""
    return weight.device.type == "cuda" and weight.dtype == torch.float32 and not missing(weight.device)


class _SineSum(torch.autograd.Function):
    """f_j(x_i) = sum_k weight_jk sin(2 pi x_i . turns_jk), or f_j(x_ji); gradients compute the angles again."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, turns: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(X, turns, weight)
        if X.ndim == 3:
            return torch.matmul(angles(X, turns, weight.dtype).sin_(), weight.unsqueeze(2)).squeeze(2)
        if runs_fused(weight):
            from pathgp.features.sines import fused_sine_sum

            return fused_sine_sum(X, turns, weight)
        return _tile_by_tile(X, turns, weight)

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
    """The sums in tiles whose two temporaries are allocated once: fresh ones cost as much as the sines in them."""
    (s, _, pairs), n = turns.shape, len(X)
    rows = max(1, min(n, tile_entries(X.device) // pairs))
    group = max(1, min(s, tile_entries(X.device) // (pairs * rows)))
    turned, values = X.new_empty(group, rows, pairs), weight.new_empty(group, rows, pairs)
    result = weight.new_empty(s, n)
    for J in spans(s, group):
        for I in spans(n, rows):
            paths, part = range(J.start, J.stop), (slice(J.stop - J.start), slice(I.stop - I.start))
            # One path at a time: small products in a batch take longer.
            for place, j in enumerate(paths):
                torch.mm(X[I], turns[j], out=turned[place, part[1]])
            torch.mul(turned[part].frac_(), 2.0 * math.pi, out=values[part]).sin_()
            for place, j in enumerate(paths):
                torch.mv(values[place, part[1]], weight[j], out=result[j, I])
    return result


def sine_sum(X: Tensor, turns: Tensor, weight: Tensor) -> Tensor:
    """sum_k weight[j, k] sin(2 pi x_i . turns[j, :, k]): (s, n) for (n, d), (s, d, pairs) and (s, pairs).

    X may be (s, n, d), the rows of every function for itself; this case has no tiles.
    """
    result: Tensor = _SineSum.apply(X, turns, weight)
    return result
