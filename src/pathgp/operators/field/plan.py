"""Choose the grid and the radii of the near part so that both take about the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathgp.compute.hardware import Rates, rates
from pathgp.kernels import Kernel, Periodic
from pathgp.kernels.expression import expand, leaves
from pathgp.kernels.stationary import Stationary
from pathgp.operators.field.grid import LEVEL, Grid
from pathgp.operators.field.near import KEPT_SHARE, Blocks, estimate_entries
from pathgp.operators.field.split import Split, leaf_range
from pathgp.operators.field.window import OVERSAMPLING, good_size, window_width
from pathgp.operators.spacing import find_spacing

LARGEST_DIM = 3
# Columns of the product for which the time is divided evenly, and products after which kept tiles have paid off.
_COLUMNS, _PRODUCTS = 32, 8
# Radii that are tried: from this part of the extent downwards, by this factor.
_LARGEST_RADIUS, _RADIUS_STEP, _RADII = 0.25, 2.0**-0.5, 24
# A smaller radius must leave at most this part of the entries: blocks always have themselves as neighbours.
_LESS = 0.95
# Nodes of a regular grid of data, per point: with more, most of the grid would be holes.
_HOLES = 64


@dataclass(frozen=True)
class Plan:
    """A grid, the radii of the near part, and the predicted work.

    entries: of the near tiles, each used twice if K is symmetric.  points: targets and sources.
    """

    grid: Grid
    split: Split
    entries: float
    points: int
    is_symmetric: bool

    def seconds(self, s: int, r: Rates, memory: float, itemsize: int) -> float:
        """Of a product with s columns."""
        grid = self.grid.transform.operations / r.fourier
        windows = self.points * self.grid.window / r.gather
        near = 2.0 * (1 + self.is_symmetric) * self.entries / r.small_products
        kept = min(self.entries, KEPT_SHARE * memory / itemsize)
        evaluate = (self.entries - kept + kept / _PRODUCTS) / r.evaluate_small
        return s * (grid + windows + near) + evaluate + r.latency


def unsuitable(kernel: Kernel, X: Tensor) -> str:
    """Why a kernel or inputs have no products by a grid, or an empty string."""
    if X.shape[1] > LARGEST_DIM:
        return f"field products need at most {LARGEST_DIM} columns, X has {X.shape[1]}"
    for part, _ in leaves(kernel, range(X.shape[1])):
        if not isinstance(part, Stationary | Periodic):
            return f"field products need a stationary kernel, {type(part).__name__} is not"
    if not bool((X[:1] != X).any()):
        return "field products need at least two different points"
    return ""


def nodes_of(X: Tensor, others: Sequence[Tensor] = ()) -> Grid | None:
    """The regular grid on whose nodes all points lie; None if there is none, or one that is mostly holes."""
    columns, lower, steps, counts = [], [], [], []
    points = torch.cat([X, *others])
    for column, values in enumerate(points.unbind(1)):
        spacing = find_spacing(values, _HOLES * len(X))
        if spacing is None:
            return None
        if spacing.count > 1:
            columns.append(column)
            lower.append(spacing.first)
            steps.append(spacing.step)
            counts.append(spacing.count)
    if not columns or math.prod(counts) > _HOLES * len(X):
        return None
    shape = tuple(good_size(2 * count - 1) for count in counts)
    return Grid(
        tuple(columns), tuple(lower), tuple(steps), shape, 0, tuple(float(count - 1) for count in counts), tuple(counts)
    )


def plan_products(
    kernel: Kernel,
    targets: Blocks,
    sources: Blocks | None,
    accuracy: float,
    spectral_accuracy: float,
    memory: int,
    dtype: torch.dtype,
) -> Plan | None:
    """The grid and radii with the smallest predicted time; None if no grid fits into the memory budget."""
    dim = targets.points.shape[2]
    boxes = [blocks.boxes for blocks in (targets, sources) if blocks is not None]
    lower = torch.stack([box.lower.amin(0) for box in boxes]).amin(0)
    extent = torch.stack([box.upper.amax(0) for box in boxes]).amax(0) - lower
    split = Split(accuracy, spectral_accuracy, dim)
    r = rates(targets.points.device, dtype)
    points = targets.count + (sources or targets).count
    best: Plan | None = None
    least = most = math.inf
    for radius in (0.0, *(_LARGEST_RADIUS * _RADIUS_STEP**k for k in range(_RADII))):
        tried = split.with_radius(kernel, radius * extent)
        grid = _fit_grid(kernel, tried, lower, extent)
        if grid is None or grid.column_bytes(dtype) > memory / 4:
            if radius and best is not None:
                break
            continue
        far = Plan(grid, tried, 0.0, points, sources is None)
        if far.seconds(_COLUMNS, r, memory, dtype.itemsize) > least:
            if radius:
                break
            continue
        entries = estimate_entries(kernel, tried, targets, sources) if radius else 0.0
        if radius and entries > _LESS * most:
            break
        most = entries if radius else most
        plan = replace(far, entries=entries)
        seconds = plan.seconds(_COLUMNS, r, memory, dtype.itemsize)
        if seconds < least:
            best, least = plan, seconds
    return best


def _fit_grid(kernel: Kernel, split: Split, lower: Tensor, extent: Tensor) -> Grid | None:
    """The coarsest grid that resolves the smooth part of a kernel; None if none does."""
    dim = len(extent)
    steps = [math.inf] * dim
    for leaf, columns in leaves(kernel, range(dim)):
        assert isinstance(leaf, Stationary)
        scales = leaf.lengthscales(len(columns), torch.device("cpu")).detach().expand(len(columns))
        reach = float((extent[list(columns)].cpu() / scales).norm())
        if not reach:
            continue
        frequency = split.bandwidth(leaf, reach)
        for column, scale in zip(columns, scales.tolist(), strict=True):
            steps[column] = min(steps[column], math.pi * scale / (OVERSAMPLING * frequency))
    ranges = _ranges(kernel, split, dim)
    width = window_width(split.accuracy / 3.0)
    room_to_level = 2.0 * LEVEL * (3.0 - math.log(split.accuracy))
    found = []
    for column in range(dim):
        if not float(extent[column]) > 0.0:
            continue
        step = min(steps[column], float(extent[column]))
        if not step > 0.0 or float(extent[column]) / step > 2**26:
            return None
        count = float(extent[column]) / step
        # Lags of a kernel that does not vanish within the extent level off.
        room = min(ranges[column] / step, count + room_to_level)
        size = good_size(max(count + room, count + width) + width + 2)
        first = float(lower[column]) - (width / 2 + 1) * step
        box = math.ceil(count) + width + 2
        found.append((column, first, step, size, count if room >= count else size / 2.0, box))
    columns, firsts, widths, sizes, extents, boxes = zip(*found, strict=True)
    return Grid(columns, firsts, widths, sizes, width, extents, boxes)


def _ranges(kernel: Kernel, split: Split, dim: int) -> list[float]:
    """The distance in every column beyond which the kernel is negligible; infinite if a term does not depend on it."""
    result = [0.0] * dim
    for term in expand(kernel):
        own = [math.inf] * dim
        for leaf, columns in term.leaves:
            assert isinstance(leaf, Stationary)
            seen = range(dim) if columns is None else columns
            scales = leaf.lengthscales(len(seen), torch.device("cpu")).detach().expand(len(seen))
            reach = leaf_range(leaf, split.accuracy)
            for column, scale in zip(seen, scales.tolist(), strict=True):
                own[column] = min(own[column], reach * scale)
        result = [max(a, b) for a, b in zip(result, own, strict=True)]
    return result
