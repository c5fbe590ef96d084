"""From the structure of an expression to Triton source: the code generator.

Three kernels are written for every structure. ``product`` accumulates K V, ``pull`` the gradient of sum_ij W_ij K_ij
with W = L R^T: in both a program holds M rows and walks over tiles of N columns. ``evaluate`` writes K itself, one tile
per program. Hyperparameters are run-time values, in ``theta``: the factor of the tree in a product, its numbers, floors
and gains, and the coefficient of K.

A leaf's points come in one of five forms:

- differences: float32, one dimension after the other; exact for close points, 2 operations per entry and dimension.
- split: x = high + low, both half precision. ``high`` is a multiple of a power of two h, at most 2048 of them long, so
  that |high_i|^2 + |high_j|^2 - 2 high_i.high_j is free of rounding errors: all its terms are integers below 2^24 in
  units of h^2. What ``low`` adds is h / |x| times smaller, and so are its errors. Four tensor-core products.
- triple: x = high + low + last, for points that lie far out. ``low`` is a multiple of h / 512, so that its products
  with ``high`` are free of rounding errors too. Eight tensor-core products.
- coarse: ``high`` alone, the squared distance of the rounded points. One tensor-core product.
- levels: counts as bits, one for every level from 1 to the largest count of a column. Two counts have the lesser of
  them in common, sum_k min(x_k, z_k), which is the inner product of their bits: whole numbers, free of errors.

Tensor cores multiply half-precision numbers. A float32 factor is a sum of two of them, 22 bits, and a product takes
three passes: low.high + high.low + high.high. Both factors are scaled to at most 2^15, so that ``low`` is no subnormal
number unless it is 2^-40 of the largest.
"""

from __future__ import annotations

import linecache
import math
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from pathgp.operators.fused.expression import Tree

_LN2 = math.log(2.0)
# Powers of two below this exponent come near the subnormal numbers: kernels decay to 2^-110 and stay there.
_LOWEST = 110.0
# Bits of counts that are read and multiplied at a time, and how many of its rows' a program holds in shared memory.
LEVELS = 256
HELD_LEVELS = 2048
# Rows of x that stay in registers; more are read again for every tile.
_HELD = 8


class Leaf(NamedTuple):
    """kind: the profile.  form: as above.  columns: of the prepared points; 0 for levels.

    width: columns padded to a power of two.  offset: the first column, of the float32 points for differences, of the
    half-precision points or of the bits otherwise.  norm: the row of |high|^2, or of the sums of counts.  shape: the
    place of its shape parameter, or -1.  levels: bits of counts, with zeros behind.
    """

    kind: str
    form: str
    columns: int
    width: int
    offset: int
    norm: int
    shape: int
    levels: int

    @property
    def parts(self) -> int:
        """Half-precision numbers that make up a coordinate."""
        return {"coarse": 1, "split": 2, "triple": 3}.get(self.form, 0)


class Structure(NamedTuple):
    """All that the source depends on. width: columns of the half-precision points.  numbers: of the tree."""

    tree: Tree
    leaves: tuple[Leaf, ...]
    width: int
    numbers: int

    @property
    def levels(self) -> int:
        """Bits of all leaves."""
        return sum(leaf.levels for leaf in self.leaves)

    @property
    def parts(self) -> int:
        """The most half-precision numbers that make up a coordinate."""
        return max(2, *(leaf.parts for leaf in self.leaves))

    def floor(self, leaf: int) -> int:
        """Where theta holds the squared distance below which points count as equal."""
        return 1 + self.numbers + leaf

    def gain(self, leaf: int) -> int:
        """Where theta holds the factor that brings the leaf's gradients into the range of half precision."""
        return 1 + self.numbers + len(self.leaves) + leaf

    def coefficient(self) -> int:
        """Where theta holds the coefficient of K."""
        return 1 + self.numbers + 2 * len(self.leaves)

    def pulled(self) -> list[int]:
        """The first column of every leaf in the result of ``pull``, and their number."""
        starts = [0]
        for leaf in self.leaves:
            starts.append(starts[-1] + leaf.width)
        return starts


@cache
def product_kernel(structure: Structure) -> Any:
    """The kernel out = K V for a structure."""
    body = _PRODUCT.format(
        load=_indented(_loads(structure), 4),
        tile=_indented([*_tile(structure), f"K = theta_0 * {_value(structure.tree, '')}"], 8),
    )
    return _compiled(body, "product")


@cache
def evaluate_kernel(structure: Structure) -> Any:
    """The kernel out = K for a structure."""
    body = _EVALUATE.format(
        load=_indented(_loads(structure), 4),
        tile=_indented([*_tile(structure), f"K = {_value(structure.tree, '')}"], 4),
        coefficient=structure.coefficient(),
    )
    return _compiled(body, "evaluate")


@cache
def pull_kernel(structure: Structure, chunks: tuple[int, ...]) -> Any:
    """The kernel of the gradient for a structure, with the columns of L and R cut into chunks of these widths."""
    load, tile, store = list(_loads(structure)), [], []
    depth = sum(chunks)
    for c, width in enumerate(chunks):
        first = sum(chunks[:c])
        load += [
            f"span_{c} = {first} + tl.arange(0, {width})",
            f"a{c}h = tl.load(Lh + i * {depth} + row[:, None] * {depth} + span_{c}[None, :])",
            f"a{c}l = tl.load(Ll + i * {depth} + row[:, None] * {depth} + span_{c}[None, :])",
        ]
        tile += [
            f"b{c}h = tl.trans(tl.load(Rh + j * {depth} + column[:, None] * {depth} + span_{c}[None, :]))",
            f"b{c}l = tl.trans(tl.load(Rl + j * {depth} + column[:, None] * {depth} + span_{c}[None, :]))",
        ]
    lows = [("l", "h"), ("h", "l")]
    low = [f"W = tl.dot(a{c}{p}, b{c}{q}, W)" for c in range(len(chunks)) for p, q in lows]
    high = [f"W = tl.dot(a{c}h, b{c}h, W)" for c in range(len(chunks))]
    tile += ["W = tl.zeros((M, N), tl.float32)", *low, *high]

    tile += [*_tile(structure), f"value += tl.sum(W * {_value(structure.tree, '')}, 1)"]
    tile += _reverse(structure, structure.tree, "", "W")
    load.append("value = tl.zeros((M,), tl.float32)")
    store.append("tl.store(sums, scale * tl.sum(value.to(tl.float64), 0))")
    for k in range(structure.numbers):
        load.append(f"number_{k} = tl.zeros((M,), tl.float32)")
        store.append(f"tl.store(sums + {k + 1}, scale * tl.sum(number_{k}.to(tl.float64), 0))")
    total = structure.pulled()[-1]
    for l, (leaf, start) in enumerate(zip(structure.leaves, structure.pulled(), strict=False)):
        if leaf.form == "levels":
            continue
        load.append(f"pull_{l} = tl.zeros((M, {leaf.width}), tl.float32)")
        if leaf.parts > 1:
            # |W_ij| is at most depth times the largest products.
            load += [f"gain_{l} = gain_{l} * {1 / depth}", f"weight_{l} = tl.zeros((M,), tl.float32)"]
        columns = f"({start} + tl.arange(0, {leaf.width}))[None, :]"
        store += [*_gradient(l, leaf), f"tl.store(pulls + row[:, None] * {total} + {columns}, gradient)"]
    body = _PULL.format(
        load=_indented(load, 4),
        tile=_indented(tile, 8),
        store=_indented(store, 4),
        pulls=total,
        sums=1 + structure.numbers,
    )
    return _compiled(body, "pull")


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
    Xf, Xh, Xl, Xt, Xb, Xn, m, Zf, Zh, Zl, Zt, Zb, Zn, n, theta, out, rows, columns,
    M: tl.constexpr, N: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * M
    j = tl.program_id(1).to(tl.int64) * N
    row, column = tl.arange(0, M), tl.arange(0, N)
{load}
{tile}
    inside = (i + row < rows)[:, None] & (j + column < columns)[None, :]
    out += i * columns + j
    tl.store(out + row[:, None] * columns + column[None, :], tl.load(theta + {coefficient}) * K, mask=inside)
"""


def _loads(structure: Structure) -> Iterator[str]:
    """Before the loop: the numbers, and what a program holds of its rows."""
    for k in range(structure.numbers):
        yield f"theta_{k + 1} = tl.load(theta + {k + 1})"
    for l, leaf in enumerate(structure.leaves):
        if leaf.shape >= 0:
            yield f"shape_{l} = theta_{leaf.shape + 1}"
        if leaf.form == "differences":
            if leaf.columns <= _HELD:
                for d in range(leaf.columns):
                    yield f"x{l}_{d} = {_fine('X', leaf, d)}"
            continue
        if leaf.form == "levels":
            yield f"x{l}n = tl.load(Xn + {leaf.norm} * m + i + row)"
            continue
        yield f"floor_{l} = tl.load(theta + {structure.floor(l)})"
        yield f"gain_{l} = tl.load(theta + {structure.gain(l)})"
        yield from _half_points(structure, l, "x", "X", "i", "row", "m")


def _half_points(structure: Structure, l: int, x: str, X: str, start: str, place: str, count: str) -> Iterator[str]:
    leaf, width = structure.leaves[l], structure.width
    at = f"{start} * {width} + {place}[:, None] * {width} + ({leaf.offset} + tl.arange(0, {leaf.width}))[None, :]"
    for part in "hlt"[: leaf.parts]:
        yield f"{x}{l}{part} = tl.load({X}{part} + {at})"
    if leaf.kind != "linear":
        for p in range(leaf.parts):
            yield f"{x}{l}n{p} = tl.load({X}n + {leaf.norm + p} * {count} + {start} + {place})"


def _tile(structure: Structure) -> Iterator[str]:
    """Inside the loop: q, the squared distance or inner product of every leaf, its value k, and the tree's."""
    for l, leaf in enumerate(structure.leaves):
        if leaf.form == "differences":
            yield from _differences(l, leaf)
        elif leaf.form == "levels":
            yield from _common(structure, l)
        else:
            yield from _half_points(structure, l, "z", "Z", "j", "column", "n")
            for p, pairs in enumerate(_PRODUCTS[leaf.form]):
                yield "dot = tl.zeros((M, N), tl.float32)"
                for pair in pairs:
                    yield f"dot = tl.dot(x{l}{pair[0]}, tl.trans(z{l}{pair[1]}), dot)"
                term = "dot" if leaf.kind == "linear" else f"(x{l}n{p}[:, None] + z{l}n{p}[None, :]) - 2.0 * dot"
                yield f"q{l} = {term}" if p == 0 else f"q{l} += {term}"
            if leaf.kind != "linear":
                yield f"q{l} = tl.where(q{l} > floor_{l}, q{l}, 0.0)"
        yield from _PROFILES[leaf.kind](l)
    yield from _forward(structure.tree, "")


# Which parts of x and z are multiplied, in sums of their own: the first of each form is free of rounding errors, and so
# is the second of "triple".
_PRODUCTS = {
    "coarse": (("hh",),),
    "split": (("hh",), ("ll", "lh", "hl")),
    "triple": (("hh",), ("lh", "hl"), ("ll", "tl", "lt", "th", "ht")),
}


def _differences(l: int, leaf: Leaf) -> Iterator[str]:
    # One line per dimension: with a loop inside the pipelined one Triton 3.6 met an illegal access on large inputs.
    yield f"q{l} = tl.zeros((M, N), tl.float32)"
    for d in range(leaf.columns):
        x = f"x{l}_{d}" if leaf.columns <= _HELD else _fine("X", leaf, d)
        if leaf.kind == "linear":
            yield f"q{l} += {x}[:, None] * {_fine('Z', leaf, d)}[None, :]"
        else:
            yield f"delta = {x}[:, None] - {_fine('Z', leaf, d)}[None, :]"
            yield f"q{l} += delta * delta"


def _common(structure: Structure, l: int) -> Iterator[str]:
    """What counts have in common, in whole numbers, and what they have together."""
    leaf, width, chunk = structure.leaves[l], structure.levels, LEVELS
    yield "common = tl.zeros((M, N), tl.int32)"
    # The compiler moves what does not depend on j out of the loop. A condition that is always true keeps it there.
    mask = "" if width <= HELD_LEVELS else ", mask=(j + row < n + M)[:, None], other=0"
    for start in range(leaf.offset, leaf.offset + leaf.levels, chunk):
        place = f"({start} + tl.arange(0, {chunk}))[None, :]"
        yield f"xb = tl.load(Xb + i * {width} + row[:, None] * {width} + {place}{mask})"
        yield f"zb = tl.load(Zb + j * {width} + column[:, None] * {width} + {place})"
        yield "common = tl.dot(xb, tl.trans(zb), common, out_dtype=tl.int32)"
    yield f"q{l} = common.to(tl.float32)"
    yield f"z{l}n = tl.load(Zn + {leaf.norm} * n + j + column)"
    yield f"union_{l} = (x{l}n[:, None] + z{l}n[None, :]) - q{l}"


def _fine(points: str, leaf: Leaf, d: int) -> str:
    """One dimension of the rows' points X, or of the columns' points Z."""
    count, place = ("m", "i + row") if points == "X" else ("n", "j + column")
    return f"tl.load({points}f + {leaf.offset + d} * {count} + {place})"


def _squared_exponential(l: int) -> list[str]:
    return [f"k{l} = tl.exp2(-tl.minimum(q{l}, {_LOWEST}))"]


def _matern12(l: int) -> list[str]:
    return [f"r{l} = tl.minimum(tl.sqrt(q{l}), {_LOWEST})", f"k{l} = tl.exp2(-r{l})"]


def _matern32(l: int) -> list[str]:
    return [
        f"r{l} = tl.minimum(tl.sqrt(q{l}), {_LOWEST})",
        f"e{l} = tl.exp2(-r{l})",
        f"k{l} = ({_LN2} * r{l} + 1.0) * e{l}",
    ]


def _matern52(l: int) -> list[str]:
    return [
        f"r{l} = tl.minimum(tl.sqrt(q{l}), {_LOWEST})",
        f"e{l} = tl.exp2(-r{l})",
        f"a{l} = {_LN2} * r{l}",
        f"k{l} = (({1 / 3} * a{l} + 1.0) * a{l} + 1.0) * e{l}",
    ]


def _rational_quadratic(l: int) -> list[str]:
    # log(1 + u) = 2 artanh(s): as a series for u < 1, where the logarithm of a rounded 1 + u would lose digits.
    series = f"{1 / 13}"
    for k in (11, 9, 7, 5, 3, 1):
        series = f"({series} * w{l} + {1 / k})"
    return [
        f"u{l} = q{l} * (0.5 / shape_{l})",
        f"s{l} = u{l} / (2.0 + u{l})",
        f"w{l} = s{l} * s{l}",
        f"log_{l} = tl.where(u{l} < 1.0, 2.0 * s{l} * {series}, {_LN2} * tl.log2(1.0 + u{l}))",
        f"k{l} = tl.exp2(-tl.minimum({1 / _LN2} * shape_{l} * log_{l}, {_LOWEST}))",
    ]


_PROFILES: dict[str, Callable[[int], list[str]]] = {
    "squared_exponential": _squared_exponential,
    "matern12": _matern12,
    "matern32": _matern32,
    "matern52": _matern52,
    "rational_quadratic": _rational_quadratic,
    "linear": lambda l: [f"k{l} = q{l}"],
    # Two empty fingerprints are equal as well.
    "tanimoto": lambda l: [f"k{l} = tl.where(q{l} == union_{l}, 1.0, q{l} / tl.maximum(union_{l}, 1.0))"],
}

# dk/dq, and the largest size it has: what half precision must hold.
_SLOPES = {
    "squared_exponential": (f"{-_LN2} * k{{l}}", _LN2),
    "matern12": (f"{-0.5 * _LN2} * k{{l}} / tl.where(r{{l}} > 0.0, r{{l}}, float('inf'))", math.inf),
    "matern32": (f"{-0.5 * _LN2**2} * e{{l}}", 0.5 * _LN2**2),
    "matern52": (f"{-(_LN2**2) / 6} * ((1.0 + a{{l}}) * e{{l}})", _LN2**2 / 6),
    "rational_quadratic": ("-0.5 * k{l} / (1.0 + u{l})", 0.5),
    "linear": ("", 1.0),
    "tanimoto": ("", 0.0),
}


def steepest(kind: str) -> float:
    """The largest slope of a profile, in prepared points."""
    return _SLOPES[kind][1]


def _value(tree: Tree, path: str) -> str:
    """The name of a node's value; ``path``: the way to it from the root."""
    return f"k{tree[1]}" if tree[0] == "leaf" else f"node{path}"


def _children(tree: Tree, path: str) -> list[tuple[Tree, str]]:
    children = [child for child in tree[1:] if isinstance(child, tuple)]
    return [(child, f"{path}_{c}") for c, child in enumerate(children)]


def _forward(tree: Tree, path: str) -> Iterator[str]:
    """The value of every node, from the leaves up."""
    if tree[0] == "leaf":
        return
    children = _children(tree, path)
    for child in children:
        yield from _forward(*child)
    names = [_value(*child) for child in children]
    if tree[0] == "scale":
        yield f"node{path} = theta_{_number(tree) + 1} * {names[0]}"
    else:
        yield f"node{path} = " + (" + " if tree[0] == "sum" else " * ").join(names)


def _reverse(structure: Structure, tree: Tree, path: str, weight: str) -> Iterator[str]:
    """The chain rule from a node down, ``weight`` being the derivative of the sum in its value."""
    if tree[0] == "leaf":
        yield from _pull_leaf(structure, _number(tree), weight)
        return
    children = _children(tree, path)
    for child in children:
        inner = weight
        if tree[0] == "scale":
            k = _number(tree)
            inner = f"W{child[1]}"
            yield f"number_{k} += tl.sum({weight} * {_value(*child)}, 1)"
            yield f"{inner} = {weight} * theta_{k + 1}"
        elif tree[0] == "product":
            inner = f"W{child[1]}"
            yield f"{inner} = " + " * ".join([weight, *(_value(*other) for other in children if other != child)])
        yield from _reverse(structure, *child, inner)


def _pull_leaf(structure: Structure, l: int, weight: str) -> Iterator[str]:
    """G = weight * slope and what it pulls: sum_j G_ij (x_i - z_j), or sum_j G_ij z_j and sum_j G_ij apart."""
    leaf = structure.leaves[l]
    if leaf.form == "levels":
        return
    slope = _SLOPES[leaf.kind][0].format(l=l)
    if leaf.shape >= 0:
        yield f"number_{leaf.shape} += tl.sum({weight} * k{l} * (u{l} / (1.0 + u{l}) - log_{l}), 1)"
    yield f"G = {weight} * ({slope})" if slope else f"G = {weight}"
    if leaf.form == "differences":
        for d in range(leaf.columns):
            x, z = f"{_fine('X', leaf, d)}[:, None]", f"{_fine('Z', leaf, d)}[None, :]"
            yield f"pulled = tl.sum(G * ({z if leaf.kind == 'linear' else f'{x} - {z}'}), 1)"
            yield f"pull_{l} += tl.where(tl.arange(0, {leaf.width})[None, :] == {d}, pulled[:, None], 0.0)"
        return
    yield f"G = gain_{l} * G"
    yield "high = G.to(tl.float16)"
    yield f"small = tl.dot(high, z{l}l)"
    if leaf.form == "triple":
        yield f"small = tl.dot(high, z{l}t, small)"
    yield f"small = tl.dot((G - high.to(tl.float32)).to(tl.float16), z{l}h, small)"
    yield f"pull_{l} += tl.dot(high, z{l}h, small)"
    yield f"weight_{l} += tl.sum(G, 1)"


def _gradient(l: int, leaf: Leaf) -> Iterator[str]:
    """After the loop: the gradient in the rows' points from what was pulled, in float64 as it is a difference."""
    yield f"factor = {1.0 if leaf.kind == 'linear' else 2.0} * scale" + (
        f" / gain_{l}.to(tl.float64)" if leaf.parts else ""
    )
    yield f"gradient = pull_{l}.to(tl.float64)"
    if leaf.parts and leaf.kind != "linear":
        point = " + ".join(f"x{l}{part}.to(tl.float64)" for part in "hlt"[: leaf.parts])
        yield f"gradient = weight_{l}.to(tl.float64)[:, None] * ({point}) - gradient"
    yield "gradient = gradient * factor"


def _number(tree: Tree) -> int:
    assert isinstance(tree[1], int)
    return tree[1]


def _indented(lines: Any, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in lines)


def _compiled(text: str, name: str) -> Any:
    """The function ``name`` of a source text. Triton reads the text again, which `linecache` keeps for it."""
    file = f"<fused {name} {zlib.crc32(text.encode()):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, file, "exec"), names)
    return names[name]
