"""Sums of many sines on the GPU, without the angles ever being written to memory."""

# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _PAIRS = 32, 128


@triton.jit(do_not_specialize=["n", "d", "pairs"])
def _sines(X, turns, weight, out, n, d, pairs, M: tl.constexpr, P: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    path = tl.program_id(1).to(tl.int64)
    turns += path * d * pairs
    weight += path * pairs
    total = tl.zeros((M, P), tl.float32)
    for start in range(0, pairs, P):
        pair = start + tl.arange(0, P)
        angle = tl.zeros((M, P), tl.float64)
        for c in range(d):
            x = tl.load(X + row.to(tl.int64) * d + c, mask=row < n, other=0.0)
            angle += x[:, None] * tl.load(turns + c * pairs + pair, mask=pair < pairs, other=0.0)[None, :]
        turn = (angle - tl.floor(angle + 0.5)).to(tl.float32)
        # By its symmetries the sine of u in [0, 1/4] turns: its series, to 1e-9.
        u = tl.minimum(tl.abs(turn), 0.5 - tl.abs(turn))
        square = u * u
        value = 3.8199525848482803 * square - 15.094642576822984
        value = value * square + 42.058693944897634
        value = value * square - 76.70585975306136
        value = value * square + 81.60524927607504
        value = value * square - 41.341702240399755
        value = value * square + 6.283185307179586
        value = tl.where(turn < 0.0, -value, value) * u
        total += value * tl.load(weight + pair, mask=pair < pairs, other=0.0)[None, :]
    tl.store(out + path * n + row, tl.sum(total, 1), mask=row < n)


def fused_sine_sum(X: Tensor, turns: Tensor, weight: Tensor) -> Tensor:
    """sum_k weight[j, k] sin(2 pi x_i . turns[j, :, k]): (s, n), float32, for (n, d), (s, d, pairs) and (s, pairs).

    Angles are float64, sines and sums float32. Time O(n s pairs d), no memory beside the result.
    """
    (n, d), (s, pairs) = X.shape, weight.shape
    out = torch.empty(s, n, dtype=torch.float32, device=X.device)
    if out.numel():
        grid = (-(-n // _ROWS), s)
        arguments = (X.contiguous(), turns.contiguous(), weight.contiguous(), out, n, d, pairs)
        _sines[grid](*arguments, _ROWS, _PAIRS, num_warps=4, num_stages=1, enable_fp_fusion=True)
    return out
