"""Prepared points as the tiles read them: centred, rounded, padded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.operators.fused.expression import Expression, bounds
from pathgp.operators.fused.leaves import LEVELS, SLOPES, Leaf, Structure

# Rows are padded to a multiple of the largest tile, so that no tile needs a mask.
BLOCK = 128
# Half-precision factors are scaled to at most 2^15.
TOP = 15
# Dimensions up to which differences cost no more than tensor-core products.
_FEW = 4
# Points from whose median the centre is estimated.
_MIDDLE = 2048
# Half-precision integers are exact up to here.
_INTEGERS = 2048.0
# In prepared units: the radius up to which float32 or two parts, and three parts, give results as accurate as float32.
_SPLIT_RADIUS = 32.0
_TRIPLE_RADIUS = 2048.0
# The relative error of products that coarse points may cause, and |k'| / k at most where k > 1e-3, in prepared units:
# below, k weighs little beside the diagonal, which is free of errors.
_COARSE_ERROR = 4e-3
_DECAYS = {"squared_exponential": 4.38, "matern32": 0.625, "matern52": 0.582, "rational_quadratic": 3.72}
# For a linear kernel the farthest point sets the scale of all values. Multiples of the median length up to which tensor
# cores, and fused products at all, keep the digits of the other points.
_LINEAR_SPLIT = 64.0
_LINEAR_RATIO = 2048.0
# Columns up to which differences of two parts pay: with 64 they take 38 s to compile and are slower than streaming.
DOUBLE_COLUMNS = 16
# A gradient is a difference of sums, whose errors grow with the square of the typical radius: a few distant points have
# no neighbours to sum over.
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
    |high|^2 and the increment by each further part; or the sum of the counts.
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
        """The points at an index, in its order; at an index (g, b) g sets of points, each padded."""
        rows = torch.nn.functional.pad(index, (0, -index.shape[-1] % BLOCK)).flatten()
        halves = self.high[rows], self.low[rows], self.last[rows], self.bits[rows]
        return Points(index.shape[-1], self.fine[:, rows], *halves, self.norms[:, rows])

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]:
        """The arguments of a Triton kernel, in its order."""
        return self.fine, self.high, self.low, self.last, self.bits, self.norms, self.padded


@dataclass(frozen=True)
class Extent:
    """The location of sets of prepared points and the hyperparameters, read from the device in one transfer.

    centres: of the last set, for every leaf.  radii: of all sets about them.  spreads: the fourth root of the mean
    fourth power of the distances from them; for linear leaves the median length of points that are not zero.  For
    counts the centre holds the largest of every column in the last set, radius and spread their sum.
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
                centre = parts[-1].amax(0)
                radius = spread = centre.sum()
            else:
                centre = torch.zeros_like(parts[-1][0]) if kind == "linear" else middle(parts[-1])
                lengths = torch.cat([(part - centre).norm(dim=1) for part in parts])
                radius, spread = lengths.max(), lengths.pow(4).mean().pow(0.25)
                if kind == "linear":
                    spread = lengths.where(lengths > 0.0, torch.nan).nanmedian().nan_to_num(1.0)
            centres.append(centre)
            radii.append(radius)
            spreads.append(spread)
        numbers = [number.to(centres[0]) for number in (*expression.numbers(), expression.coefficient())]
        found = torch.stack([*radii, *spreads, *numbers]).tolist()
        leaves = len(centres)
        return cls(expression, centres, found[:leaves], found[leaves : 2 * leaves], found[2 * leaves : -1], found[-1])


@dataclass(frozen=True)
class Frame:
    """The rounding of points: for every leaf a centre and the unit h of its high part, and what follows from them.

    structure: what the source depends on.  bound: the largest value of the tree.  theta: hyperparameters and what
    depends on them, in the layout of `Structure`: float32.
    """

    extent: Extent
    structure: Structure
    units: list[float]
    bound: float
    theta: Tensor

    @classmethod
    def around(
        cls, extent: Extent, precision: str = "high", exact: bool = False, by_differences: bool = False
    ) -> Frame:
        """The frame that holds sets of prepared points; ValueError if there is none.

        ``exact``: for entries and gradients.  ``by_differences``: no leaf uses tensor cores, except for counts.
        """
        expression = extent.expression
        leaves: list[Leaf] = []
        units, floors, largest = [], [], []
        fine = width = norm = levels = 0
        parts = zip(expression.kinds, expression.shapes, extent.centres, extent.radii, extent.spreads, strict=True)
        few = max(map(len, extent.centres)) if by_differences else _FEW
        for kind, shape, centre, radius, spread in parts:
            columns = len(centre)
            form, unit = _choose_form(expression, kind, columns, few, radius, spread, precision, exact)
            if form == "levels":
                count = max(1, -(-int(radius) // LEVELS)) * LEVELS
                leaf = Leaf(kind, form, 0, 0, levels, norm, shape, count)
                levels, norm = levels + count, norm + 1
            elif form in ("differences", "double"):
                leaf = Leaf(kind, form, columns, half_width(columns), fine, norm, shape, 0)
                fine += leaf.fine_parts * columns
            else:
                leaf = Leaf(kind, form, columns, half_width(columns), width, norm, shape, 0)
                width, norm = width + leaf.width, norm + leaf.parts
            leaves.append(leaf)
            units.append(unit)
            # The size of the terms that are not free of rounding errors.
            inexact = {"split": radius * unit, "triple": unit * (unit + _SECOND * radius)}
            floors.append(_FLOOR * inexact.get(form, 0.0))
            largest.append(radius**2 if kind == "linear" else 1.0)
        bound, gains = bounds(expression.tree, largest, extent.numbers)
        structure = Structure(expression.tree, tuple(leaves), max(16, width), len(extent.numbers))
        slopes = [gains[l] * SLOPES[leaf.kind][1] for l, leaf in enumerate(leaves)]
        # Slopes times weights of at most 2^30 become half-precision numbers; differences do without.
        factors = [1.0 if slope in (0.0, math.inf) else 2.0**-TOP / slope for slope in slopes]
        theta = [2.0**TOP / bound, *extent.numbers, *floors, *factors, extent.coefficient]
        device = extent.centres[0].device
        return cls(extent, structure, units, bound, torch.tensor(theta, dtype=torch.float32, device=device))

    def pack(self, prepared: list[Tensor]) -> Points:
        """Points of all leaves, (n, c) float64 each, in this frame."""
        n, device = len(prepared[0]), prepared[0].device
        padded, width = n + -n % BLOCK, self.structure.width
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
                bits[:n, leaf.offset : leaf.offset + used] = _reach_levels(points, centre, used)
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
    """The median of every column (c,), of about two thousand points: distant outliers do not move it."""
    return points.detach()[:: max(1, len(points) // _MIDDLE)].median(0).values


def half_width(columns: int) -> int:
    """Columns of half-precision points, padded with zeros for the tensor cores."""
    return max(16, 1 << (columns - 1).bit_length())


def _choose_form(
    expression: Expression,
    kind: str,
    columns: int,
    few: int,
    radius: float,
    spread: float,
    precision: str,
    exact: bool,
) -> tuple[str, float]:
    """The form of a leaf's points and the unit of their high part; ValueError if no form keeps enough digits.

    ``few``: columns up to which points are differences.
    """
    if kind == "tanimoto":
        return "levels", 1.0
    if kind == "linear" and radius > _LINEAR_RATIO * spread:
        raise ValueError(
            f"one input of a Linear kernel is {radius / spread:.0f} times larger than most: fused products "
            "would lose the digits of the others"
        )
    unit = 2.0 ** max(-12, math.ceil(math.log2(max(radius, 1e-30) / _INTEGERS)))
    # Differences of two parts cost little with few columns; with many they are for distant points.
    limit = _SPLIT_RADIUS if columns <= few else _TRIPLE_RADIUS
    form = "differences" if radius <= limit or kind == "linear" else "double"
    if columns > few and kind == "linear":
        if radius < 2.0**14 and radius <= _LINEAR_SPLIT * spread:
            form = "split"
    # The square root of Matern-1/2 magnifies the errors of small distances without a bound.
    elif columns > few and kind != "matern12":
        if precision == "low" and _coarse_error(expression, kind, unit) <= _COARSE_ERROR:
            form = "coarse"
        elif radius <= _SPLIT_RADIUS:
            form = "split"
        elif radius <= _TRIPLE_RADIUS and not (exact and spread > _GRADIENT_SPREAD):
            form = "triple"
    if form == "double" and columns > DOUBLE_COLUMNS:
        raise ValueError(
            f"inputs lie {radius:.1g} length scales apart in {columns} columns: streamed products are faster"
        )
    return form, unit


def _coarse_error(expression: Expression, kind: str, unit: float) -> float:
    """The relative error of products if the points of all leaves are rounded to this unit.

    Two rounded points change their distance by unit / sqrt(6) in the root mean square, in any number of dimensions: a
    coordinate is off by unit / sqrt(12), and only the part along their difference counts. The errors of factors add up.
    """
    return math.sqrt(len(expression.kinds) / 6.0) * _DECAYS.get(kind, math.inf) * unit


def _reach_levels(counts: Tensor, tops: Tensor, levels: int) -> Tensor:
    """Whether the counts (n, d) reach the levels from 1 to the top of their column: (n, sum of the tops)."""
    column = torch.arange(len(tops), device=tops.device).repeat_interleave(tops.long(), output_size=levels)
    level = torch.arange(1, levels + 1, device=tops.device) - (tops.cumsum(0) - tops)[column]
    return counts.clamp(max=255.0).to(torch.uint8)[:, column] >= level.to(torch.uint8)


def _padded_rows(parts: list[Tensor], n: int, padded: int, device: torch.device) -> Tensor:
    """Rows of length n one below the other, in float32 with zeros behind; one row of zeros if there are none."""
    result = torch.zeros(max(1, sum(len(part) for part in parts)), padded, dtype=torch.float32, device=device)
    if parts:
        result[:, :n] = torch.cat(parts)
    return result
