"""Prepared points as the tiles read them: centred, rounded, padded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.operators.fused.expression import Expression, bounds
from pathgp.operators.fused.source import Leaf, Structure, steepest

# Rows are padded to a multiple of the largest tile, so that no tile needs a mask.
BLOCK = 128
# Up to so many dimensions differences cost no more than tensor-core products.
FEW = 4
# Half-precision integers are exact up to here.
_INTEGERS = 2048.0
# In prepared units: up to which radius split points are as good as float32, and coarse ones good to three digits.
_SPLIT_RADIUS = 128.0
_COARSE_RADIUS = 32.0
# A gradient is a difference of sums, whose errors grow with the square of the radius.
GRADIENT_RADIUS = 32.0
# Squared distances of split points are sums of terms up to radius * unit, and their errors stay below this share of it.
_FLOOR = 2.0**-21


@dataclass(frozen=True)
class Points:
    """n points of all leaves, padded with zeros to ``padded`` rows.

    fine: (columns, padded), float32, the points of leaves in differences.  high, low: (padded, width), half precision.
    norms: (2 leaves, padded), float32: |high|^2, and what ``low`` adds to it.
    """

    n: int
    fine: Tensor
    high: Tensor
    low: Tensor
    norms: Tensor

    @property
    def padded(self) -> int:
        return self.high.shape[0]

    def take(self, index: Tensor) -> Points:
        """Some of the points, in the order of the index."""
        pad = _padding(len(index))
        rows = torch.nn.functional.pad(index, (0, pad))
        return Points(len(index), self.fine[:, rows], self.high[rows], self.low[rows], self.norms[:, rows])

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """In the order of a kernel's arguments."""
        return self.fine, self.high, self.low, self.norms, self.padded


@dataclass(frozen=True)
class Frame:
    """How points are rounded: for every leaf a centre and the unit h of its high part; and all that follows.

    structure: what the source depends on.  floors: squared distances that count as zero.  bound: the largest value of
    the tree.  gains: by how much at most it magnifies a change in the squared distance of each leaf.
    """

    structure: Structure
    centres: list[Tensor]
    units: list[float]
    floors: list[float]
    bound: float
    gains: list[float]

    @classmethod
    def around(
        cls,
        expression: Expression,
        sets: Sequence[list[Tensor]],
        precision: str = "high",
        widest: float = _SPLIT_RADIUS,
        few: int = FEW,
    ) -> Frame:
        """The frame that holds sets of prepared points, the last of which gives the centre.

        ``widest``: the radius of split points.  ``few``: dimensions up to which differences are taken.
        """
        leaves: list[Leaf] = []
        centres, units, floors, largest = [], [], [], []
        fine = width = norm = 0
        for kind, shape, *parts in zip(expression.kinds, expression.shapes, *sets, strict=True):
            centre = torch.zeros_like(parts[-1][0]) if kind == "linear" else parts[-1].mean(0)
            radius = max(float((part - centre).norm(dim=1).max()) for part in parts if len(part))
            columns = len(centre)
            form = _form(kind, columns, radius, precision, widest, few)
            padded = max(16, 1 << (columns - 1).bit_length())
            leaves.append(Leaf(kind, form, columns, padded, fine if form == "differences" else width, norm, shape))
            if form == "differences":
                fine += columns
            else:
                width, norm = width + padded, norm + 2
            unit = 2.0 ** max(-12, math.ceil(math.log2(max(radius, 1e-30) / _INTEGERS)))
            centres.append(centre)
            units.append(unit)
            floors.append(_FLOOR * radius * unit if form == "split" else 0.0)
            largest.append(radius**2 if kind == "linear" else 1.0)
        numbers = [float(number) for number in expression.numbers()]
        bound, gains = bounds(expression.tree, largest, numbers)
        structure = Structure(expression.tree, tuple(leaves), max(16, width), len(numbers))
        slopes = [gains[l] * steepest(leaf.kind) for l, leaf in enumerate(leaves)]
        return cls(structure, centres, units, floors, bound, slopes)

    def pack(self, prepared: list[Tensor]) -> Points:
        """Points of all leaves, (n, c) float64 each, in this frame."""
        n, device = len(prepared[0]), prepared[0].device
        padded, width = n + _padding(n), self.structure.width
        fine = []
        high = torch.zeros(padded, width, dtype=torch.float16, device=device)
        low = torch.zeros_like(high)
        norms = []
        for leaf, centre, unit, points in zip(self.structure.leaves, self.centres, self.units, prepared, strict=True):
            centred = points.detach() - centre
            if leaf.form == "differences":
                fine.append(centred.T.to(torch.float32))
                continue
            place = slice(leaf.offset, leaf.offset + leaf.columns)
            coarse = (centred / unit).round_().mul_(unit)
            high[:n, place] = coarse.to(torch.float16)
            low[:n, place] = (centred - coarse).to(torch.float16)
            # From the rounded low part: two equal points then have distance zero up to the errors of the sums.
            rest = low[:n, place].to(torch.float64)
            norms += [coarse.square().sum(1), (rest * (2.0 * coarse + rest)).sum(1)]
        return Points(
            n,
            _padded_rows(fine, n, padded, device),
            high,
            low,
            _padded_rows([norm.unsqueeze(0) for norm in norms], n, padded, device),
        )

    def rounded(self, points: Points, leaf: int) -> Tensor:
        """The centred points of a leaf as the tiles see them: (n, c), float64."""
        of = self.structure.leaves[leaf]
        place = slice(of.offset, of.offset + of.columns)
        if of.form == "differences":
            return points.fine[place, : points.n].T.to(torch.float64)
        high = points.high[: points.n, place].to(torch.float64)
        return high if of.form == "coarse" else high + points.low[: points.n, place]


def _form(kind: str, columns: int, radius: float, precision: str, widest: float, few: int) -> str:
    # The square root of Matern-1/2 magnifies the errors of small distances without a bound.
    if columns <= few or kind == "matern12":
        return "differences"
    if kind == "linear":
        return "split" if radius < 2.0**14 else "differences"
    if precision == "low" and radius <= _COARSE_RADIUS:
        return "coarse"
    return "split" if radius <= widest else "differences"


def _padding(n: int) -> int:
    return -n % BLOCK


def _padded_rows(parts: list[Tensor], n: int, padded: int, device: torch.device) -> Tensor:
    """Rows of length n one below the other, in float32 with zeros behind; one row of zeros if there are none."""
    result = torch.zeros(max(1, sum(len(part) for part in parts)), padded, dtype=torch.float32, device=device)
    if parts:
        result[:, :n] = torch.cat(parts)
    return result
