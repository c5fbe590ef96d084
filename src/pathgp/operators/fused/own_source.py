"""The generated kernel of sums of s functions, each at its own points: values and gradients in the points.

A program holds M points x of one function j and walks over its part of the rows, N at a time. N is the number of its
threads, so that every thread computes the M entries of one row and adds to sums of its own; the threads' sums are added
once, after the last row. A row's coordinates and its weight w_ij are read once for M entries, and no number is passed
between threads inside the loop. Points are in differences (see `leaves`): no tensor cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pathgp.operators.fused.leaves import PROFILES, SLOPES, Leaf, Structure, fine
from pathgp.operators.fused.source import compile_source, forward, indent, load_numbers, node_value, reverse


@cache
def own_kernel(structure: Structure, with_gradient: bool) -> Any:
    """The kernel out_k = sum_i w_ij k(x_jk, z_i) and, with gradients, of its gradients in the prepared points x_jk."""
    load, store = list(load_numbers(structure)), []
    tile: list[str] = []
    for l, leaf in enumerate(structure.leaves):
        load += _load_points(l, leaf)
        tile += _value(l, leaf)
    tile += [*forward(structure.tree, ""), f"value += weight * {node_value(structure.tree, '')}"]
    if with_gradient:
        tile += reverse(structure.tree, "", "weight", lambda l, weight: _pull(l, structure.leaves[l], weight), False)
    outputs = ["value"]
    for l, leaf in enumerate(structure.leaves):
        outputs += [f"pull_{l}_{d}" for d in range(leaf.columns if with_gradient else 0)]
    for c, name in enumerate(outputs):
        load.append(f"{name} = tl.zeros((M, N), tl.float32)")
        store.append(f"tl.store(out + {c}, coefficient * tl.sum({name}, 1), mask=inside)")
    body = _OWN.format(
        load=indent(load, 4),
        tile=indent(tile, 8),
        store=indent(store, 4),
        width=len(outputs),
        coefficient=structure.coefficient(),
    )
    return compile_source(body, "own")


_OWN = """
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["q", "blocks", "rows", "span"])
def own(
    Xf, m, Zf, n, weights, theta, out, q, blocks, rows, span,
    M: tl.constexpr, N: tl.constexpr,
):
    function = (tl.program_id(0) // blocks).to(tl.int64)
    part = tl.program_id(1).to(tl.int64)
    point = (tl.program_id(0) % blocks) * M + tl.arange(0, M)
    i = function * q
    row, column = tl.minimum(point, q - 1), tl.arange(0, N)
    coefficient = tl.load(theta + {coefficient})
{load}
    weights += function * rows
    for j in range(part * span, tl.minimum(part * span + span, rows), N):
        weight = tl.load(weights + j + column, mask=j + column < rows, other=0.0)[None, :]
{tile}
    out += ((part * (tl.num_programs(0) // blocks) + function) * q + point) * {width}
    inside = point < q
{store}
"""


def _load_points(l: int, leaf: Leaf) -> Iterator[str]:
    """Before the loop: the points that a program holds."""
    if leaf.shape >= 0:
        yield f"shape_{l} = theta_{leaf.shape + 1}"
    for c in range(leaf.fine_parts * leaf.columns):
        yield f"x{l}_{c} = {fine('X', leaf, c)}[:, None]"


def _value(l: int, leaf: Leaf) -> Iterator[str]:
    """Inside the loop: the rows' points z, q, the squared distance or inner product, and the value k."""
    for c in range(leaf.fine_parts * leaf.columns):
        yield f"z{l}_{c} = {fine('Z', leaf, c)}[None, :]"
    yield f"q{l} = tl.zeros((M, N), tl.float32)"
    for d in range(leaf.columns):
        if leaf.kind == "linear":
            yield f"q{l} += x{l}_{d} * z{l}_{d}"
        else:
            yield f"delta = {_difference(l, leaf, d)}"
            yield f"q{l} += delta * delta"
    yield from (line.format(l=l) for line in PROFILES[leaf.kind])


def _pull(l: int, leaf: Leaf, weight: str) -> Iterator[str]:
    """Inside the loop: sums of weight * dk/dq * dq/dx."""
    if leaf.kind == "linear":
        yield from (f"pull_{l}_{d} += {weight} * z{l}_{d}" for d in range(leaf.columns))
        return
    yield f"G = 2.0 * {weight} * ({SLOPES[leaf.kind][0].format(l=l)})"
    yield from (f"pull_{l}_{d} += G * ({_difference(l, leaf, d)})" for d in range(leaf.columns))


def _difference(l: int, leaf: Leaf, d: int) -> str:
    """x - z in one dimension: high parts of close points have an exact difference, and so have their low parts."""
    return " + ".join(f"(x{l}_{c} - z{l}_{c})" for c in range(d, leaf.fine_parts * leaf.columns, leaf.columns))
