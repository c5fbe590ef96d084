"""Data that is almost a grid: scattered points moved to the nearest cell of one, and what that costs in accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.inputs import Array, read_matrix, read_vector, result_dtype, whole_number
from pathgp.compute.memory import spans
from pathgp.data.grid import break_even
from pathgp.kernels import Kernel

# Points may lie this little beyond half a spacing outside of given centres: what rounding does to the last cell.
_ROUNDING = 1e-6


@dataclass(frozen=True, repr=False)
class Snapped:
    """A grid with holes made of scattered points, ready for `LatentKroneckerGP`; prints as a small table.

    Args:
        factors: the centres of the cells along each side, (p_i,).
        Y: the mean of the values in each cell (p_1, ..., p_d), NaN where there is none.
        noise: known standard deviation of each cell's mean (p_1, ..., p_d), NaN where there is none; or None.
        counts: number of points in each cell (p_1, ..., p_d).
        points: the points as they were (m, d).
        moved: the centres they were moved to (m, d).
        largest: largest displacement along each side, in spacings: at most one half.
        rms: root mean square of the displacements, likewise.
        scatter: standard deviation of values within a cell, pooled over all cells: noise, and what the function does
            inside a cell. NaN where no cell has two values.
    """

    factors: list[Array]
    Y: Array
    noise: Array | None
    counts: Array
    points: Array
    moved: Array
    largest: tuple[float, ...]
    rms: tuple[float, ...]
    scatter: float

    @property
    def merged(self) -> int:
        """How many points were lost by averaging: points less cells with a value."""
        return len(self.points) - int((self.counts > 0).sum())

    @property
    def empty(self) -> int:
        """Number of cells without a value."""
        return int((self.counts == 0).sum())

    def error(self, kernels: Sequence[Kernel]) -> Array:
        """What moving each point changes in the function, as a standard deviation under the prior (m,).

            E (f(x) - f(x'))^2 = k(x, x) + k(x', x') - 2 k(x, x'),    k = k_1 k_2 ... k_d

        Harmless where it is small against the noise. Kernels are one per side, in the units of the points. An upper
        limit for the mean of a cell, in which displacements partly cancel. Time O(m).
        """
        if len(kernels) != len(self.factors):
            raise ValueError(f"{len(kernels)} kernels for a grid with {len(self.factors)} sides")
        read = read_matrix(self.points, "points")
        X, Z = read.X.detach().to(torch.float64), read_matrix(self.moved, "moved").X.to(torch.float64)
        own = other = both = torch.ones(len(X), dtype=torch.float64, device=X.device)
        with torch.no_grad():
            for kernel, x, z in zip(kernels, X.split(1, 1), Z.split(1, 1), strict=True):
                own, other = own * kernel.diag(x), other * kernel.diag(z)
                # Only the diagonal is wanted: small blocks waste little.
                both = both * torch.cat([kernel(x[part], z[part]).diagonal() for part in spans(len(X), 64)])
        return read.to_caller((own + other - 2.0 * both).clamp_min(0.0).sqrt())

    def __repr__(self) -> str:
        sizes = tuple(self.Y.shape)
        cells, limit = math.prod(sizes), 100 * break_even(*sizes).time
        share = 100 * self.empty / cells
        advice = "  <- a GP on the points themselves costs less" if share > limit else ""
        lines = [
            f"points    {len(self.points)}, on {' x '.join(map(str, sizes))} cells",
            f"merged    {self.merged} points into cells that had one already",
            f"empty     {self.empty} cells, {share:.1f} %; break-even at {limit:.1f} %{advice}",
            f"moved     at most {', '.join(f'{x:.2g}' for x in self.largest)} spacings along each side",
            f"          rms {', '.join(f'{x:.2g}' for x in self.rms)}",
        ]
        if not math.isnan(self.scatter):
            lines.append(f"scatter   {self.scatter:.3g} within cells")
        return "\n".join(lines)


def snap(
    points: Array, values: Array, sizes: Sequence[int | Array | None], noise: float | Array | None = None
) -> Snapped:
    """Move scattered points to the nearest cells of a grid, one side per column, and average what falls together.

    This is an approximation: every point is moved by up to half a spacing. The result says how far, and
    `Snapped.error` what that means for the function. Time O(m log p_i), memory O(m d + p_1 ... p_d).

    Args:
        points: (m, d).
        values: (m,).
        sizes: for every column the number of cells, with centres equally spaced from the least to the largest value
            (one cell where they are equal); or the centres themselves, increasing, not necessarily regular; or None
            for all distinct values, which moves nothing: for columns that are a grid already, or hold task numbers.
        noise: known standard deviation of the values, one number or (m,). A cell's mean weighs its values by their
            precision, and ``Snapped.noise`` is that of the mean. Without it, ``Snapped.noise`` is the scatter within
            cells over the root of the count, where there is a cell with two values.

    A model adds its own learned noise to ``Snapped.noise``, the same in every cell: start that small.
    """
    read = read_matrix(points, "points")
    X = read.X.detach().to(torch.float64)
    m, d = X.shape
    if m == 0:
        raise ValueError("there are no points to snap")
    y = read_vector(values, m, "values", X)
    if len(sizes) != d:
        raise ValueError(f"sizes must have one entry per column, got {len(sizes)} for {d} columns")
    columns = X.T.contiguous()
    centres = [_centres(x, size, i) for i, (x, size) in enumerate(zip(columns, sizes, strict=True))]
    places, relative = zip(*(_nearest(columns[i], c, i) for i, c in enumerate(centres)), strict=True)
    shape = torch.Size([len(c) for c in centres])
    cell = torch.zeros(m, dtype=torch.int64, device=X.device)
    for place, p in zip(places, shape, strict=True):
        cell = cell * p + place

    def total(weights: Tensor) -> Tensor:
        return weights.new_zeros(shape.numel()).index_add_(0, cell, weights)

    def on_grid(values: Tensor, dtype: torch.dtype) -> Array:
        return read.to_caller(values.reshape(shape).to(dtype))

    counts = total(torch.ones_like(y))
    # Relative to the overall mean: a large offset must not eat the digits of the averages.
    offset = y.mean()
    mean = total(y - offset) / counts
    spare = m - int((counts > 0).sum())
    scatter = math.sqrt(float((y - offset - mean[cell]).square().sum()) / spare) if spare else math.nan
    deviation = scatter / counts.sqrt()
    if noise is not None:
        sigma = torch.full_like(y, noise) if isinstance(noise, (int, float)) else read_vector(noise, m, "noise", X)
        if not bool((sigma > 0).all()):
            raise ValueError("noise must hold positive standard deviations")
        precision = total(sigma.square().reciprocal())
        mean = total((y - offset) / sigma.square()) / precision
        deviation = precision.rsqrt()
    deviation = torch.where(counts > 0, deviation, math.nan)
    dtype, results = read.X.dtype, result_dtype(read.X, y)
    return Snapped(
        [read.to_caller(c.to(dtype)) for c in centres],
        on_grid(mean + offset, results),
        None if noise is None and not spare else on_grid(deviation, results),
        on_grid(counts, torch.int64),
        points,
        read.to_caller(torch.stack([c[place] for c, place in zip(centres, places, strict=True)], 1).to(dtype)),
        tuple(float(r.max()) for r in relative),
        tuple(float(r.square().mean().sqrt()) for r in relative),
        scatter,
    )


def _centres(x: Tensor, size: int | Array | None, column: int) -> Tensor:
    """The centres of the cells along one side (p,), increasing, float64."""
    if size is None:
        return x.unique()
    if getattr(size, "ndim", 0) == 0 and not isinstance(size, (list, tuple)):
        count = whole_number(size, f"the number of cells of column {column}", 1)
        low, high = float(x.min()), float(x.max())
        if count == 1 or low == high:
            return x.new_tensor([(low + high) / 2])
        return torch.linspace(low, high, count, dtype=x.dtype, device=x.device)
    given = torch.as_tensor(size).to(x)
    if given.ndim != 1 or not len(given) or not bool((given.diff() > 0).all()):
        raise ValueError(f"the centres of column {column} must be increasing numbers, one dimension")
    return given


def _nearest(x: Tensor, centres: Tensor, column: int) -> tuple[Tensor, Tensor]:
    """The nearest centre of every value (m,), and the distance to it in spacings (m,)."""
    if len(centres) == 1:
        spread = float((x - centres[0]).abs().max())
        return torch.zeros_like(x, dtype=torch.int64), (x - centres[0]).abs() / (2 * spread or 1.0)
    place = torch.bucketize(x, (centres[1:] + centres[:-1]) / 2)
    left = torch.bucketize(x, centres[1:-1])  # the gap the value lies in; the outermost ones reach to infinity
    relative = (x - centres[place]).abs() / centres.diff()[left]
    if float(relative.max()) > 0.5 + _ROUNDING:
        row = int(relative.argmax())
        raise ValueError(
            f"points[{row}, {column}] = {float(x[row]):g} lies more than half a spacing outside of the centres "
            f"{float(centres[0]):g} to {float(centres[-1]):g}: add centres, or leave the point out"
        )
    return place, relative
