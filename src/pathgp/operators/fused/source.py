"""The code generator: Triton source from the structure of an expression.

Three kernels are written for every structure. ``product`` accumulates K V, ``pull`` the gradient of sum_ij W_ij K_ij
with W = L R^T: in both a program holds M rows and walks over tiles of N columns. ``evaluate`` writes K itself, or
diagonal blocks of it, one tile per program. Hyperparameters are run-time values, in ``theta``: the factor of the tree
in a product, its numbers, floors and gains, and the coefficient of K.

Tensor cores multiply half-precision numbers. A float32 factor is a sum of two of them, 22 bits, and a product takes
three passes: low.high + high.low + high.high. Both factors are scaled to at most 2^15, so that ``low`` is no subnormal
number unless it is 2^-40 of the largest.
"""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from pathgp.operators.fused import leaves
from pathgp.operators.fused.expression import Node
from pathgp.operators.fused.leaves import Structure

# The first row and the first column of a tile, and the rows and columns within it.
_BLOCKS = (("i", "row"), ("j", "column"))


@cache
def product_kernel(structure: Structure) -> Any:
    """The kernel out = K V for a structure."""
    body = _PRODUCT.format(
        load=indent(_loads(structure), 4),
        tile=indent([*_tile(structure), f"K = theta_0 * {node_value(structure.tree, '')}"], 8),
    )
    return compile_source(body, "product")


@cache
def evaluate_kernel(structure: Structure) -> Any:
    """The kernel out = K for a structure."""
    body = _EVALUATE.format(
        load=indent(_loads(structure), 4),
        tile=indent([*_tile(structure), f"K = {node_value(structure.tree, '')}"], 4),
        coefficient=structure.coefficient(),
    )
    return compile_source(body, "evaluate")


@cache
def pull_kernel(structure: Structure, chunks: tuple[int, ...]) -> Any:
    """The kernel of the gradient for a structure, with the columns of L and R cut into chunks of these widths."""
    load, tile, store = list(_loads(structure)), [], []
    depth = sum(chunks)
    for c, width in enumerate(chunks):
        left, right = (f"{at} * {depth} + {place}[:, None] * {depth} + span_{c}[None, :]" for at, place in _BLOCKS)
        load.append(f"span_{c} = {sum(chunks[:c])} + tl.arange(0, {width})")
        load += [f"a{c}{part} = tl.load(L{part} + {left})" for part in "hl"]
        tile += [f"b{c}{part} = tl.trans(tl.load(R{part} + {right}))" for part in "hl"]
    tile.append("W = tl.zeros((M, N), tl.float32)")
    tile += [f"W = tl.dot(a{c}{p}, b{c}{q}, W)" for c in range(len(chunks)) for p, q in ("lh", "hl")]
    tile += [f"W = tl.dot(a{c}h, b{c}h, W)" for c in range(len(chunks))]
    tile += [*_tile(structure), f"value += tl.sum(W * {node_value(structure.tree, '')}, 1)"]
    tile += reverse(structure.tree, "", "W", partial(leaves.pull, structure), with_numbers=True)
    load.append("value = tl.zeros((M,), tl.float32)")
    store.append("tl.store(sums, scale * tl.sum(value.to(tl.float64), 0))")
    for k in range(structure.numbers):
        load.append(f"number_{k} = tl.zeros((M,), tl.float32)")
        store.append(f"tl.store(sums + {k + 1}, scale * tl.sum(number_{k}.to(tl.float64), 0))")
    total = structure.gradient_columns()[-1]
    for l, (leaf, start) in enumerate(zip(structure.leaves, structure.gradient_columns(), strict=False)):
        if leaf.form == "levels":
            continue
        load.append(f"pull_{l} = tl.zeros((M, {leaf.width}), tl.float32)")
        if leaf.parts > 1:
            # |W_ij| is at most depth times the largest products.
            load += [f"gain_{l} = gain_{l} * {1 / depth}", f"weight_{l} = tl.zeros((M,), tl.float32)"]
        columns = f"({start} + tl.arange(0, {leaf.width}))[None, :]"
        store += [*leaves.gradient(l, leaf), f"tl.store(pulls + row[:, None] * {total} + {columns}, gradient)"]
    body = _PULL.format(
        load=indent(load, 4), tile=indent(tile, 8), store=indent(store, 4), pulls=total, sums=1 + structure.numbers
    )
    return compile_source(body, "pull")


_PRODUCT = """
import triton
import triton.language as tl


@triton.jit
def product(
    Xf, Xh, Xl, Xt, Xb, Xn, m, Zf, Zh, Zl, Zt, Zb, Zn, n, Vh, Vl, theta, out, span,
    M: tl.constexpr, N: tl.constexpr, S: tl.constexpr, TAIL: tl.constexpr, HIGH: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * M
    part = tl.program_id(1).to(tl.int64)
    row, column = tl.arange(0, M), tl.arange(0, N)
    theta_0 = tl.load(theta)
{load}
    head = tl.arange(0, S)
    total = tl.zeros((M, S), tl.float32)
    if TAIL:
        tail = S + tl.arange(0, TAIL)
        rest = tl.zeros((M, TAIL), tl.float32)
    for j in range(part * span, tl.minimum(part * span + span, n), N):
{tile}
        high = K.to(tl.float16)
        start = j * (S + TAIL)
        at = column[:, None] * (S + TAIL) + head[None, :]
        right = tl.load(Vh + start + at)
        if HIGH:
            # Summed per tile and then in float32: the accumulators of the tensor cores round towards zero.
            low = (K - high.to(tl.float32)).to(tl.float16)
            small = tl.dot(low, right)
            small = tl.dot(high, tl.load(Vl + start + at), small)
            total += tl.dot(high, right, small)
        else:
            total = tl.dot(high, right, total)
        if TAIL:
            at = column[:, None] * (S + TAIL) + tail[None, :]
            right = tl.load(Vh + start + at)
            if HIGH:
                small = tl.dot(low, right)
                small = tl.dot(high, tl.load(Vl + start + at), small)
                rest += tl.dot(high, right, small)
            else:
                rest = tl.dot(high, right, rest)
    out += (part * m + i) * (S + TAIL)
    tl.store(out + row[:, None] * (S + TAIL) + head[None, :], total)
    if TAIL:
        tl.store(out + row[:, None] * (S + TAIL) + tail[None, :], rest)
"""

_PULL = """
import triton
import triton.language as tl

from pathgp.operators.fused.columns import exponent, power


@triton.jit
def pull(
    Xf, Xh, Xl, Xt, Xb, Xn, m, Zf, Zh, Zl, Zt, Zb, Zn, n, Lh, Ll, Rh, Rl, left, right, theta, pulls, sums, span,
    M: tl.constexpr, N: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * M
    part = tl.program_id(1).to(tl.int64)
    row, column = tl.arange(0, M), tl.arange(0, N)
{load}
    for j in range(part * span, tl.minimum(part * span + span, n), N):
{tile}
    scale = power(exponent(tl.load(left)) - 15).to(tl.float64) * power(exponent(tl.load(right)) - 15).to(tl.float64)
    pulls += (part * m + i) * {pulls}
    sums += (part * tl.num_programs(0) + tl.program_id(0)) * {sums}
{store}
"""

_EVALUATE = """
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def evaluate(
    Xf, Xh, Xl, Xt, Xb, Xn, m, Zf, Zh, Zl, Zt, Zb, Zn, n, theta, out, rows, columns, row_step, column_step,
    M: tl.constexpr, N: tl.constexpr,
):
    block = tl.program_id(2).to(tl.int64)
    first_row = tl.program_id(0).to(tl.int64) * M
    first_column = tl.program_id(1).to(tl.int64) * N
    i = block * row_step + first_row
    j = block * column_step + first_column
    row, column = tl.arange(0, M), tl.arange(0, N)
{load}
{tile}
    inside = (first_row + row < rows)[:, None] & (first_column + column < columns)[None, :]
    out += block * rows * columns + first_row * columns + first_column
    tl.store(out + row[:, None] * columns + column[None, :], tl.load(theta + {coefficient}) * K, mask=inside)
"""


def load_numbers(structure: Structure) -> Iterator[str]:
    """Before the loop: the numbers of the tree."""
    for k in range(structure.numbers):
        yield f"theta_{k + 1} = tl.load(theta + {k + 1})"


def _loads(structure: Structure) -> Iterator[str]:
    """Before the loop: the numbers, and the rows that a program holds."""
    yield from load_numbers(structure)
    for l in range(len(structure.leaves)):
        yield from leaves.load_rows(structure, l)


def _tile(structure: Structure) -> Iterator[str]:
    """Inside the loop: the value of every leaf, and the tree's."""
    for l in range(len(structure.leaves)):
        yield from leaves.value(structure, l)
    yield from forward(structure.tree, "")


def node_value(tree: Node, path: str) -> str:
    """The name of a node's value; ``path``: the way to it from the root."""
    return f"k{tree.place}" if tree.kind == "leaf" else f"node{path}"


def _children(tree: Node, path: str) -> list[tuple[Node, str]]:
    return [(child, f"{path}_{c}") for c, child in enumerate(tree.children)]


def forward(tree: Node, path: str) -> Iterator[str]:
    """The value of every node, from the leaves up."""
    for child in _children(tree, path):
        yield from forward(*child)
    names = [node_value(*child) for child in _children(tree, path)]
    if tree.kind == "scale":
        yield f"node{path} = theta_{tree.place + 1} * {names[0]}"
    elif tree.kind != "leaf":
        yield f"node{path} = " + (" + " if tree.kind == "sum" else " * ").join(names)


def reverse(
    tree: Node, path: str, weight: str, pull: Callable[[int, str], Iterator[str]], with_numbers: bool
) -> Iterator[str]:
    """The chain rule from a node down, ``weight`` being the derivative of the sum in its value.

    ``pull``: the lines of a leaf with this weight.  ``with_numbers``: with gradients in the numbers of scales.
    """
    if tree.kind == "leaf":
        yield from pull(tree.place, weight)
    children = _children(tree, path)
    for child in children:
        inner = weight if tree.kind == "sum" else f"W{child[1]}"
        if tree.kind == "scale":
            if with_numbers:
                yield f"number_{tree.place} += tl.sum({weight} * {node_value(*child)}, 1)"
            yield f"{inner} = {weight} * theta_{tree.place + 1}"
        elif tree.kind == "product":
            yield f"{inner} = " + " * ".join([weight, *(node_value(*other) for other in children if other != child)])
        yield from reverse(*child, inner, pull, with_numbers)


def indent(lines: Any, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in lines)


def compile_source(text: str, name: str) -> Any:
    """The function ``name`` of a source text. Triton reads the text again, which `linecache` keeps for it."""
    file = f"<fused {name} {zlib.crc32(text.encode()):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, file, "exec"), names)
    return names[name]
