"""Sums of many sines on the GPU, without the angles ever being written to memory."""

# mypy: disable-error-code="no-untyped-def"

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 32
# The sine of u turns, u in [0, 1/4], is u times a polynomial in u^2. Its coefficients, the highest first: accurate to
# 1e-9 for float32; for float64 the Taylor series, to 1e-16.
_COEFFICIENTS = {
    torch.float32: (
        3.8199525848482803,
        -15.094642576822984,
        42.058693944897634,
        -76.70585975306136,
        81.60524927607504,
        -41.341702240399755,
        6.283185307179586,
    ),
    torch.float64: tuple((-1.0) ** k * math.tau ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(10, -1, -1)),
}
# Pairs of a tile: as many as fit into the registers.
_PAIRS = {torch.float32: 128, torch.float64: 64}


@triton.jit(do_not_specialize=["n", "d", "pairs"])
def _sines(X, turns, weight, out, n, d, pairs, M: tl.constexpr, P: tl.constexpr, C: tl.constexpr, ORDER: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    path = tl.program_id(1).to(tl.int64)
    turns += path * d * pairs
    weight += path * pairs
    total = tl.zeros((M, P), weight.dtype.element_ty)
    for start in range(0, pairs, P):
        pair = start + tl.arange(0, P)
        angle = tl.zeros((M, P), tl.float64)
        for c in range(d):
            x = tl.load(X + row.to(tl.int64) * d + c, mask=row < n, other=0.0)
            angle += x[:, None] * tl.load(turns + c * pairs + pair, mask=pair < pairs, other=0.0)[None, :]
        turn = (angle - tl.floor(angle + 0.5)).to(total.dtype)
        # By the symmetries of the sine only u in [0, 1/4] is needed.
        u = tl.minimum(tl.abs(turn), 0.5 - tl.abs(turn))
        square = u * u
        value = tl.full((M, P), C[0], total.dtype)
        for k in tl.static_range(1, ORDER):
            value = value * square + C[k]
        value = tl.where(turn < 0.0, -value, value) * u
        total += value * tl.load(weight + pair, mask=pair < pairs, other=0.0)[None, :]
    tl.store(out + path * n + row, tl.sum(total, 1), mask=row < n)


def fused_sine_sum(X: Tensor, turns: Tensor, weight: Tensor) -> Tensor:
    """sum_k weight[j, k] sin(2 pi x_i . turns[j, :, k]): (s, n) for (n, d), (s, d, pairs) and (s, pairs).

    Angles are float64, sines and sums have the dtype of ``weight``. Time O(n s pairs d), no memory beside the result.
    """
    (n, d), (s, pairs) = X.shape, weight.shape
    out = torch.empty(s, n, dtype=weight.dtype, device=X.device)
    if out.numel():
        grid, coefficients = (-(-n // _ROWS), s), _COEFFICIENTS[weight.dtype]
        arguments = (X.contiguous(), turns.contiguous(), weight.contiguous(), out, n, d, pairs)
        shape = (_ROWS, _PAIRS[weight.dtype], coefficients, len(coefficients))
        _sines[grid](*arguments, *shape, num_warps=4, num_stages=1, enable_fp_fusion=True)
    return out
