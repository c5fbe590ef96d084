"""The leaves of a fused kernel and their source lines: points, value, gradient.

A leaf's points come in one of six forms:

- differences: float32, one dimension after the other; exact for close points, 2 operations per entry and dimension.
- double: differences of x = high + low, both float32, for points whose coordinates are too large for one of them; 4
  operations.
- split: x = high + low, both half precision. ``high`` is a multiple of a power of two h, at most 2048 of them long, so
  that |high_i|^2 + |high_j|^2 - 2 high_i.high_j is free of rounding errors: all its terms are integers below 2^24 in
  units of h^2. What ``low`` adds is h / |x| times smaller, and so are its errors. Four tensor-core products.
- triple: x = high + low + last, for distant points. ``low`` is a multiple of h / 512, so that its products
  with ``high`` are free of rounding errors too. Eight tensor-core products.
- coarse: ``high`` alone, the squared distance of the rounded points. One tensor-core product.
- levels: counts as bits, one for every level from 1 to the largest count of a column. Two counts have the lesser of
  them in common, sum_k min(x_k, z_k), which is the inner product of their bits: whole numbers, free of errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

from pathgp.operators.fused.expression import Node

# Bits of counts that are read and multiplied at a time, and how many of its rows' a program holds in shared memory.
LEVELS = 256
HELD_LEVELS = 2048
_LN2 = math.log(2.0)
# Kernels decay to 2^-110 and stay there, clear of subnormal numbers.
_LOWEST = 110.0
# Columns of x that stay in registers; more are read again for every tile.
_HELD = 8


class Leaf(NamedTuple):
    """kind: the profile.  form: one of the six above.  columns: of the prepared points; 0 for levels.

    width: columns padded to a power of two.  offset: the first column, of the float32 points for differences and
    double, of the half-precision points or of the bits otherwise.  norm: the row of |high|^2, or of the sums of counts.
    shape: the place of its shape parameter, or -1.  levels: bits of counts, with zeros behind.
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
    def fine_parts(self) -> int:
        """float32 numbers that make up a coordinate."""
        return {"differences": 1, "double": 2}.get(self.form, 0)

    @property
    def parts(self) -> int:
        """Half-precision numbers that make up a coordinate."""
        return {"coarse": 1, "split": 2, "triple": 3}.get(self.form, 0)


class Structure(NamedTuple):
    """All that the source depends on: the tree of an expression, and its leaves.

    width: columns of the half-precision points.  numbers: of the tree.
    """

    tree: Node
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

    def gradient_columns(self) -> list[int]:
        """The first column of every leaf in the result of ``pull``, and their number."""
        starts = [0]
        for leaf in self.leaves:
            starts.append(starts[-1] + leaf.width)
        return starts


def load_rows(structure: Structure, l: int) -> Iterator[str]:
    """Before the loop: the rows' part of a leaf, which a program holds."""
    leaf = structure.leaves[l]
    if leaf.shape >= 0:
        yield f"shape_{l} = theta_{leaf.shape + 1}"
    if leaf.fine_parts:
        if leaf.columns <= _HELD:
            for d in range(leaf.fine_parts * leaf.columns):
                yield f"x{l}_{d} = {fine('X', leaf, d)}"
    elif leaf.form == "levels":
        yield f"x{l}n = tl.load(Xn + {leaf.norm} * m + i + row)"
    else:
        yield f"floor_{l} = tl.load(theta + {structure.floor(l)})"
        yield f"gain_{l} = tl.load(theta + {structure.gain(l)})"
        yield from _half_points(structure, l, "x", "X", "i", "row", "m")


def value(structure: Structure, l: int) -> Iterator[str]:
    """Inside the loop: q, the squared distance or inner product, and the value k."""
    leaf = structure.leaves[l]
    if leaf.fine_parts:
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
    yield from (line.format(l=l) for line in PROFILES[leaf.kind])


def pull(structure: Structure, l: int, weight: str) -> Iterator[str]:
    """Inside the loop: G = weight * slope, and sums of G_ij (x_i - z_j), or of G_ij z_j and of G_ij separately."""
    leaf = structure.leaves[l]
    if leaf.form == "levels":
        return
    slope = SLOPES[leaf.kind][0].format(l=l)
    if leaf.shape >= 0:
        yield f"number_{leaf.shape} += tl.sum({weight} * k{l} * (u{l} / (1.0 + u{l}) - log_{l}), 1)"
    yield f"G = {weight} * ({slope})" if slope else f"G = {weight}"
    if leaf.fine_parts:
        for d in range(leaf.columns):
            z = f"{fine('Z', leaf, d)}[None, :]"
            yield f"pulled = tl.sum(G * ({z if leaf.kind == 'linear' else _difference(l, leaf, d, held=False)}), 1)"
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


def gradient(l: int, leaf: Leaf) -> Iterator[str]:
    """After the loop: the gradient in the rows' points from these sums, in float64 because it is a difference."""
    yield f"factor = {1.0 if leaf.kind == 'linear' else 2.0} * scale" + (
        f" / gain_{l}.to(tl.float64)" if leaf.parts else ""
    )
    yield f"gradient = pull_{l}.to(tl.float64)"
    if leaf.parts and leaf.kind != "linear":
        point = " + ".join(f"x{l}{part}.to(tl.float64)" for part in "hlt"[: leaf.parts])
        yield f"gradient = weight_{l}.to(tl.float64)[:, None] * ({point}) - gradient"
    yield "gradient = gradient * factor"


def _half_points(structure: Structure, l: int, x: str, X: str, start: str, place: str, count: str) -> Iterator[str]:
    leaf, width = structure.leaves[l], structure.width
    at = f"{start} * {width} + {place}[:, None] * {width} + ({leaf.offset} + tl.arange(0, {leaf.width}))[None, :]"
    for part in "hlt"[: leaf.parts]:
        yield f"{x}{l}{part} = tl.load({X}{part} + {at})"
    if leaf.kind != "linear":
        for p in range(leaf.parts):
            yield f"{x}{l}n{p} = tl.load({X}n + {leaf.norm + p} * {count} + {start} + {place})"


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
        if leaf.kind == "linear":
            x = f"x{l}_{d}" if leaf.columns <= _HELD else fine("X", leaf, d)
            yield f"q{l} += {x}[:, None] * {fine('Z', leaf, d)}[None, :]"
        else:
            yield f"delta = {_difference(l, leaf, d, leaf.columns <= _HELD)}"
            yield f"q{l} += delta * delta"


def _difference(l: int, leaf: Leaf, d: int, held: bool) -> str:
    """x - z in one dimension. High parts of close points have an exact difference, and so have their low parts."""
    parts = []
    for column in range(d, leaf.fine_parts * leaf.columns, leaf.columns):
        x = f"x{l}_{column}" if held else fine("X", leaf, column)
        parts.append(f"({x}[:, None] - {fine('Z', leaf, column)}[None, :])")
    return " + ".join(parts)


def _common(structure: Structure, l: int) -> Iterator[str]:
    """The sums of minima of counts, in integers, and of maxima."""
    leaf, width, chunk = structure.leaves[l], structure.levels, LEVELS
    yield "common = tl.zeros((M, N), tl.int32)"
    # The compiler moves loads that do not depend on j out of the loop. A condition that is always true keeps it there.
    mask = "" if width <= HELD_LEVELS else ", mask=(j + row < n + M)[:, None], other=0"
    for start in range(leaf.offset, leaf.offset + leaf.levels, chunk):
        place = f"({start} + tl.arange(0, {chunk}))[None, :]"
        yield f"xb = tl.load(Xb + i * {width} + row[:, None] * {width} + {place}{mask})"
        yield f"zb = tl.load(Zb + j * {width} + column[:, None] * {width} + {place})"
        yield "common = tl.dot(xb, tl.trans(zb), common, out_dtype=tl.int32)"
    yield f"q{l} = common.to(tl.float32)"
    yield f"z{l}n = tl.load(Zn + {leaf.norm} * n + j + column)"
    yield f"union_{l} = (x{l}n[:, None] + z{l}n[None, :]) - q{l}"


def fine(points: str, leaf: Leaf, d: int) -> str:
    """One dimension of the rows' points X, or of the columns' points Z."""
    count, place = ("m", "i + row") if points == "X" else ("n", "j + column")
    return f"tl.load({points}f + {leaf.offset + d} * {count} + {place})"


# log(1 + u) = 2 artanh(s): as a series in w = s^2 for u < 1, where the logarithm of a rounded 1 + u would lose digits.
_SERIES = reduce(lambda inner, k: f"({inner} * w{{l}} + {1 / k})", (11, 9, 7, 5, 3, 1), f"{1 / 13}")
_RADIUS = f"r{{l}} = tl.minimum(tl.sqrt(q{{l}}), {_LOWEST})"
PROFILES = {
    "squared_exponential": [f"k{{l}} = tl.exp2(-tl.minimum(q{{l}}, {_LOWEST}))"],
    "matern12": [_RADIUS, "k{l} = tl.exp2(-r{l})"],
    "matern32": [_RADIUS, "e{l} = tl.exp2(-r{l})", f"k{{l}} = ({_LN2} * r{{l}} + 1.0) * e{{l}}"],
    "matern52": [
        _RADIUS,
        "e{l} = tl.exp2(-r{l})",
        f"a{{l}} = {_LN2} * r{{l}}",
        f"k{{l}} = (({1 / 3} * a{{l}} + 1.0) * a{{l}} + 1.0) * e{{l}}",
    ],
    "rational_quadratic": [
        "u{l} = q{l} * (0.5 / shape_{l})",
        "s{l} = u{l} / (2.0 + u{l})",
        "w{l} = s{l} * s{l}",
        f"log_{{l}} = tl.where(u{{l}} < 1.0, 2.0 * s{{l}} * {_SERIES}, {_LN2} * tl.log2(1.0 + u{{l}}))",
        f"k{{l}} = tl.exp2(-tl.minimum({1 / _LN2} * shape_{{l}} * log_{{l}}, {_LOWEST}))",
    ],
    "linear": ["k{l} = q{l}"],
    # Two empty fingerprints are equal as well.
    "tanimoto": ["k{l} = tl.where(q{l} == union_{l}, 1.0, q{l} / tl.maximum(union_{l}, 1.0))"],
}

# dk/dq, and its largest absolute value, which half precision must hold.
SLOPES = {
    "squared_exponential": (f"{-_LN2} * k{{l}}", _LN2),
    "matern12": (f"{-0.5 * _LN2} * k{{l}} / tl.where(r{{l}} > 0.0, r{{l}}, float('inf'))", math.inf),
    "matern32": (f"{-0.5 * _LN2**2} * e{{l}}", 0.5 * _LN2**2),
    "matern52": (f"{-(_LN2**2) / 6} * ((1.0 + a{{l}}) * e{{l}})", _LN2**2 / 6),
    "rational_quadratic": ("-0.5 * k{l} / (1.0 + u{l})", 0.5),
    "linear": ("", 1.0),
    "tanimoto": ("", 0.0),
}
