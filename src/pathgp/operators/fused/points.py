"""Prepared points as the tiles read them: centred, rounded, padded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.operators.fused.expression import Expression, bounds
from pathgp.operators.fused.leaves import LEVELS, Leaf, Structure, steepest

# Rows are padded to a multiple of the largest tile, so that no tile needs a mask.
BLOCK = 128
# Up to so many dimensions differences cost no more than tensor-core products.
_FEW = 4
# Points whose median is the centre of all.
_MIDDLE = 2048
# Half-precision integers are exact up to here.
_INTEGERS = 2048.0
# In prepared units: up to which radius points in float32, or in two and in three parts, are as good as float32 results.
_SPLIT_RADIUS = 32.0
_TRIPLE_RADIUS = 2048.0
# The relative error of products that coarse points may cause, and |k'| / k at most where k > 1e-3, in prepared units:
# below, k weighs little beside the diagonal, which is free of errors.
_COARSE_ERROR = 4e-3
_DECAYS = {"squared_exponential": 4.38, "matern32": 0.625, "matern52": 0.582, "rational_quadratic": 3.72}
# For a linear kernel the farthest point sets the scale of all values: up to so many times the median length the tensor
# cores, and products at all, keep the digits of the other points.
_LINEAR_SPLIT = 64.0
_LINEAR_RATIO = 2048.0
# Columns up to which differences of two parts pay: with 64 they take 38 s to compile and are slower than streaming.
_DOUBLE_COLUMNS = 16
# A gradient is a difference of sums, whose errors grow with the square of the radius, of most points: a few that lie
# far out have no neighbours to sum over.
_GRADIENT_SPREAD = 40.0
# The second of three parts is a multiple of this share of the unit of the first: at most 256 of them.
_SECOND = 2.0**-9
# Squared distances of split points are sums of terms up to radius * unit, and their errors stay below this share of it.
_FLOOR = 2.0**-21


@dataclass(frozen=True)
class Points:
    """n points of all leaves, padded with zeros to ``padded`` rows.

    fine: (columns, padded), float32, the points of leaves in differences; of double ones the high parts of all columns,
    then the low parts.  high, low, last: (padded, width), half precision; ``last`` has no columns unless a leaf is in
    three parts.  bits: (padded, levels), int8, whether a count reaches a level.  norms: float32, rows of every leaf:
    |high|^2 and what each further part adds to it; or the sum of the counts.
    """

    n: int
    fine: Tensor
    high: Tensor
    low: Tensor
    last: Tensor
    bits: Tensor
    norms: Tensor

    @property
    def padded(self) -> int:
        return self.high.shape[0]

    def take(self, index: Tensor) -> Points:
        """Some of the points, in the order of the index."""
        pad = _padding(len(index))
        rows = torch.nn.functional.pad(index, (0, pad))
        halves = self.high[rows], self.low[rows], self.last[rows], self.bits[rows]
        return Points(len(index), self.fine[:, rows], *halves, self.norms[:, rows])

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]:
        """In the order of a kernel's arguments."""
        return self.fine, self.high, self.low, self.last, self.bits, self.norms, self.padded


@dataclass(frozen=True)
class Extent:
    """Where sets of prepared points lie and what the hyperparameters are, read from the device in one go.

    centres: of the last set, for every leaf.  radii: of all sets about them.  spreads: the fourth root of the mean
    fourth power of the distances from them; for linear leaves the median length of points that are not zero.  For
    counts instead the largest of every column in the last set, and their sum.  numbers: of the tree.
    """

    expression: Expression
    centres: list[Tensor]
    radii: list[float]
    spreads: list[float]
    numbers: list[float]
    coefficient: float

    @classmethod
    def of(cls, expression: Expression, *sets: list[Tensor]) -> Extent:
        """The extent of sets of prepared points."""
        centres, radii, spreads = [], [], []
        for kind, *parts in zip(expression.kinds, *sets, strict=True):
            if kind == "tanimoto":
                centres.append(parts[-1].amax(0))
                radii.append(centres[-1].sum())
                spreads.append(radii[-1])
                continue
            centre = torch.zeros_like(parts[-1][0]) if kind == "linear" else middle(parts[-1])
            lengths = torch.cat([(part - centre).norm(dim=1) for part in parts])
            centres.append(centre)
            radii.append(lengths.max())
            if kind == "linear":
                spreads.append(lengths.where(lengths > 0.0, torch.nan).nanmedian().nan_to_num(1.0))
            else:
                spreads.append(lengths.pow(4).mean().pow(0.25))
        numbers = [number.to(centres[0]) for number in (*expression.numbers(), expression.coefficient())]
        found = torch.stack([*radii, *spreads, *numbers]).tolist()
        leaves = len(centres)
        return cls(expression, centres, found[:leaves], found[leaves : 2 * leaves], found[2 * leaves : -1], found[-1])


@dataclass(frozen=True)
class Frame:
    """How points are rounded: for every leaf a centre and the unit h of its high part; and all that follows.

    structure: what the source depends on.  floors: squared distances that count as zero.  bound: the largest value of
    the tree.  gains: by how much at most it magnifies a change in the squared distance of each leaf.
    """

    extent: Extent
    structure: Structure
    units: list[float]
    floors: list[float]
    bound: float
    gains: list[float]

    @classmethod
    def around(cls, extent: Extent, precision: str = "high", exact: bool = False) -> Frame:
        """The frame that holds sets of prepared points; ValueError where none does. ``exact``: for entries and
        gradients.
        """
        expression = extent.expression
        leaves: list[Leaf] = []
        units, floors, largest = [], [], []
        fine = width = norm = levels = 0
        parts = zip(expression.kinds, expression.shapes, extent.centres, extent.radii, extent.spreads, strict=True)
        for kind, shape, centre, radius, spread in parts:
            if kind == "tanimoto":
                count = max(1, -(-int(radius) // LEVELS)) * LEVELS
                leaves.append(Leaf(kind, "levels", 0, 0, levels, norm, shape, count))
                levels, norm = levels + count, norm + 1
                units.append(1.0)
                floors.append(0.0)
                largest.append(1.0)
                continue
            columns = len(centre)
            far = radius > _TRIPLE_RADIUS or (exact and spread > _GRADIENT_SPREAD)
            if kind == "linear":
                far = radius > _LINEAR_SPLIT * spread
                if radius > _LINEAR_RATIO * spread:
                    raise ValueError(
                        f"one input of a Linear kernel is {radius / spread:.0f} times larger than most: fused products "
                        "would lose the digits of the others"
                    )
            unit = 2.0 ** max(-12, math.ceil(math.log2(max(radius, 1e-30) / _INTEGERS)))
            coarse = precision == "low" and _coarse_error(expression, kind, unit) <= _COARSE_ERROR
            form = _form(kind, columns, radius, coarse, far)
            if form == "double" and columns > _DOUBLE_COLUMNS:
                raise ValueError(
                    f"inputs lie {radius:.1g} length scales apart in {columns} columns: streamed products are faster"
                )
            padded = half_width(columns)
            by_differences = form in ("differences", "double")
            leaf = Leaf(kind, form, columns, padded, fine if by_differences else width, norm, shape, 0)
            leaves.append(leaf)
            if by_differences:
                fine += leaf.fine_parts * columns
            else:
                width, norm = width + padded, norm + leaf.parts
            units.append(unit)
            floors.append(_FLOOR * _largest_error(form, radius, unit))
            largest.append(radius**2 if kind == "linear" else 1.0)
        bound, gains = bounds(expression.tree, largest, extent.numbers)
        structure = Structure(expression.tree, tuple(leaves), max(16, width), len(extent.numbers))
        slopes = [gains[l] * steepest(leaf.kind) for l, leaf in enumerate(leaves)]
        return cls(extent, structure, units, floors, bound, slopes)

    def pack(self, prepared: list[Tensor]) -> Points:
        """Points of all leaves, (n, c) float64 each, in this frame."""
        n, device = len(prepared[0]), prepared[0].device
        padded, width = n + _padding(n), self.structure.width
        fine = []
        high = torch.zeros(padded, width, dtype=torch.float16, device=device)
        low = torch.zeros_like(high)
        last = torch.zeros(padded, width if self.structure.parts > 2 else 0, dtype=torch.float16, device=device)
        bits = torch.zeros(padded, self.structure.levels, dtype=torch.int8, device=device)
        norms = []
        extent = self.extent
        parts = zip(self.structure.leaves, extent.centres, extent.radii, self.units, prepared, strict=True)
        for leaf, centre, radius, unit, points in parts:
            if leaf.form == "levels":
                used = int(radius)
                bits[:n, leaf.offset : leaf.offset + used] = _reached(points, centre, used)
                norms.append(points.sum(1))
                continue
            centred = points.detach() - centre
            if leaf.fine_parts:
                fine.append(centred.T.to(torch.float32))
                if leaf.form == "double":
                    fine.append((centred.T - fine[-1]).to(torch.float32))
                continue
            place = slice(leaf.offset, leaf.offset + leaf.columns)
            coarse = (centred / unit).round_().mul_(unit)
            high[:n, place] = coarse.to(torch.float16)
            norms.append(coarse.square().sum(1))
            rest = centred - coarse
            if leaf.form == "triple":
                second = (rest / (_SECOND * unit)).round_().mul_(_SECOND * unit)
                low[:n, place] = second.to(torch.float16)
                last[:n, place] = (rest - second).to(torch.float16)
                third = last[:n, place].to(torch.float64)
                norms.append(2.0 * (coarse * second).sum(1))
                norms.append((second.square() + third * (2.0 * (coarse + second) + third)).sum(1))
            elif leaf.form == "split":
                low[:n, place] = rest.to(torch.float16)
                # From the rounded part: two equal points then have distance zero up to the errors of the sums.
                rest = low[:n, place].to(torch.float64)
                norms.append((rest * (2.0 * coarse + rest)).sum(1))
        return Points(
            n,
            _padded_rows(fine, n, padded, device),
            high,
            low,
            last,
            bits,
            _padded_rows([norm.unsqueeze(0) for norm in norms], n, padded, device),
        )


def middle(points: Tensor) -> Tensor:
    """The median of every column (c,), of some thousand points: a few that lie far out do not move it."""
    return points.detach()[:: max(1, len(points) // _MIDDLE)].median(0).values


def half_width(columns: int) -> int:
    """Columns of half-precision points with zeros behind, as tensor cores want them."""
    return max(16, 1 << (columns - 1).bit_length())


def _form(kind: str, columns: int, radius: float, coarse: bool, far: bool) -> str:
    # Differences of two parts cost little with few columns; with many they are for what lies far out.
    limit = _SPLIT_RADIUS if columns <= _FEW else _TRIPLE_RADIUS
    by_differences = "differences" if radius <= limit or kind == "linear" else "double"
    # The square root of Matern-1/2 magnifies the errors of small distances without a bound.
    if columns <= _FEW or kind == "matern12":
        return by_differences
    if kind == "linear":
        return "split" if radius < 2.0**14 and not far else by_differences
    if coarse:
        return "coarse"
    if radius <= _SPLIT_RADIUS:
        return "split"
    return by_differences if far else "triple"


def _coarse_error(expression: Expression, kind: str, unit: float) -> float:
    """The relative error of products if the points of all leaves are rounded to this unit.

    Two rounded points change their distance by unit / sqrt(6) in the root mean square, in any number of dimensions: a
    coordinate is off by unit / sqrt(12), and only the part along their difference counts. The errors of factors add up.
    """
    return math.sqrt(len(expression.kinds) / 6.0) * _DECAYS.get(kind, math.inf) * unit


def _largest_error(form: str, radius: float, unit: float) -> float:
    """The size of the terms that are not free of rounding errors."""
    if form == "triple":
        return unit * (unit + _SECOND * radius)
    return radius * unit if form == "split" else 0.0


def _reached(counts: Tensor, tops: Tensor, levels: int) -> Tensor:
    """Whether the counts (n, d) reach the levels from 1 to the top of their column: (n, sum of the tops)."""
    column = torch.arange(len(tops), device=tops.device).repeat_interleave(tops.long(), output_size=levels)
    level = torch.arange(1, levels + 1, device=tops.device) - (tops.cumsum(0) - tops)[column]
    return counts.clamp(max=255.0).to(torch.uint8)[:, column] >= level.to(torch.uint8)


def _padding(n: int) -> int:
    return -n % BLOCK


def _padded_rows(parts: list[Tensor], n: int, padded: int, device: torch.device) -> Tensor:
    """Rows of length n one below the other, in float32 with zeros behind; one row of zeros if there are none."""
    result = torch.zeros(max(1, sum(len(part) for part in parts)), padded, dtype=torch.float32, device=device)
    if parts:
        result[:, :n] = torch.cat(parts)
    return result
