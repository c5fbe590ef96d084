"""Before and after a fused product: columns split into half-precision pairs, partial sums put together."""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def exponent(x):
    """The least e with x < 2^e, kept where 2^(15 - e) and 2^(e - 15) are normal numbers."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.minimum(tl.maximum(((bits >> 23) & 255) - 126, -110), 128)


@triton.jit
def power(e):
    """2^e in float32."""
    return ((e + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["rows", "columns"])
def halves(A, row_stride, column_stride, rows, columns, largest, step, high, low, width, R: tl.constexpr):
    """A = 2^(e - 15) (high + low) with zeros behind, e the exponent of the largest number of a column, or of all."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    column = tl.program_id(1) * 16 + tl.arange(0, 16)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    a = tl.load(A + row[:, None] * row_stride + column[None, :] * column_stride, mask=inside, other=0.0)
    e = exponent(tl.load(largest + column * step, mask=column < columns, other=1.0))
    scaled = a * power(15 - e)[None, :]
    upper = scaled.to(tl.float16)
    at = row[:, None] * width + column[None, :]
    tl.store(high + at, upper)
    tl.store(low + at, (scaled - upper.to(tl.float32)).to(tl.float16))


@triton.jit(do_not_specialize=["parts", "rows", "columns"])
def add(
    sums,
    parts,
    padded,
    width,
    largest,
    factor,
    out,
    row_stride,
    column_stride,
    rows,
    columns,
    R: tl.constexpr,
    P: tl.constexpr,
):
    """out += factor 2^(e - 15) (sum of the parts), P of them at a time, always in the same order."""
    entry = tl.arange(0, R * 16)
    row = tl.program_id(0).to(tl.int64) * R + entry // 16
    column = tl.program_id(1) * 16 + entry % 16
    inside = (row < rows) & (column < columns)
    place = row * width + column
    total = tl.zeros((R * 16,), tl.float32)
    for first in range(0, parts, P):
        part = first + tl.arange(0, P)
        start = part.to(tl.int64) * padded * width
        found = tl.load(sums + start[:, None] + place[None, :], mask=(part < parts)[:, None], other=0.0)
        total += tl.sum(found, 0)
    e = exponent(tl.load(largest + column, mask=column < columns, other=1.0))
    at = out + row * row_stride + column * column_stride
    before = tl.load(at, mask=inside, other=0.0)
    tl.store(at, before + total * (factor * power(e - 15)), mask=inside)
