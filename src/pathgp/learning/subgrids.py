"""Learning on sub-grids: the exact log marginal likelihood of small parts of a grid, with its gradient.

A sub-grid takes some entries of every side, and so keeps the Kronecker structure of the kernel matrix and the distances
between neighbours. The objective is the sum of the log likelihoods of several sub-grids, as if they were independent (a
composite likelihood, Varin, Reid and Firth 2011). It is known exactly, so that a line search needs few evaluations, and
its optimum is close to that of all cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathgp.compute.random import permutation
from pathgp.data.grid import GridObservations
from pathgp.data.observations import Data
from pathgp.data.standardise import Standardisation
from pathgp.learning.bounds import LEAST_NOISE
from pathgp.learning.hyperparameters import Coordinates, log_prior
from pathgp.learning.model import Learnable
from pathgp.learning.policy import SUBGRID_CELLS, SUBGRIDS_PER_SIDE
from pathgp.operators.grid_base import unravel

# Entries along the long side of a sub-grid, and neighbouring entries that are taken together.
_LONG, _GROUP = 128, 12
# Observed share of the cells below which a sub-grid does not grow further.
_LEAST_OBSERVED = 0.25
# Cells that are tried for every line that is wanted: some lie on the same line.
_TRIALS = 32
# Stop if an iteration improves the objective by less than this number of nats per cell.
_LEAST_GAIN = 1e-5


@dataclass(frozen=True)
class SubGrid:
    """Some entries of every side: their inputs, whether each cell is observed, and the observations.

    factors: (q_i, d_i), float64.  observed: (q_1 ... q_k,) boolean.  rows: the numbers of the observed cells among
    those of the grid.  X_raw, y, noise_std: as in `Data`, of the observed cells.
    """

    factors: list[Tensor]
    observed: Tensor
    rows: Tensor
    X_raw: Tensor
    y: Tensor
    noise_std: Tensor | None
    scaling: Standardisation

    @cached_property
    def places(self) -> list[Tensor]:
        """The entries of every side at the observed cells, (n,) each."""
        return unravel(self.observed.nonzero().flatten(), torch.Size([len(F) for F in self.factors]))

    def log_likelihood(self, model: Learnable) -> tuple[float, Tensor]:
        """The value, and a scalar with its gradient in the hyperparameters. Time O(n^3) for n observed cells."""
        sides = [kernel(F) for kernel, F in zip(model.sides, self.factors, strict=True)]
        deviation = model.noise.to(sides[0].device)
        variance = deviation.square() if self.noise_std is None else deviation.square() + self.noise_std.square()
        mean = model.mean_at(self.X_raw)
        with torch.no_grad():
            parts = [side[place][:, place] for side, place in zip(sides, self.places, strict=True)]
            K = reduce(torch.mul, parts)
            factor, failed = torch.linalg.cholesky_ex(K + torch.diag_embed(variance.expand(len(K))))
            if int(failed):
                return -math.inf, K.new_zeros(()).requires_grad_()
            y = self.scaling.targets(self.y - mean).to(torch.float64).unsqueeze(1)
            v = torch.cholesky_solve(y, factor)
            value = -0.5 * float((y * v).sum()) - float(factor.diagonal().log().sum())
            G = 0.5 * (v @ v.T - torch.cholesky_inverse(factor))
            # The derivatives of the value in the matrices of the sides: no matrix of size n x n in the graph.
            weights = [
                _sum_at(reduce(torch.mul, parts[:i] + parts[i + 1 :], G), place, len(sides[i]))
                for i, place in enumerate(self.places)
            ]
        surrogate = (G.diagonal() * variance).sum() + (v[:, 0] * mean / self.scaling.target_scale).sum()
        for weight, side in zip(weights, sides, strict=True):
            surrogate = surrogate + (weight * side).sum()
        return value - 0.5 * len(y) * math.log(2 * math.pi), surrogate


def _sum_at(W: Tensor, place: Tensor, size: int) -> Tensor:
    """Add up the rows of a symmetric matrix W (n, n) that have the same place, and its columns: (size, size)."""
    rows = W.new_zeros(size, len(W)).index_add_(0, place, W)
    return W.new_zeros(size, size).index_add_(0, place, rows.T)


class SubGridFit(NamedTuple):
    """The optimum of sub-grids: value in nats per cell, number of cells, and the curvature of the loss per cell as
    changes of the position and of the gradient."""

    value: float
    cells: int
    curvature: list[tuple[Tensor, Tensor]]


def choose_subgrids(
    data: GridObservations, cells: int = SUBGRID_CELLS, repeats: int = SUBGRIDS_PER_SIDE
) -> list[SubGrid]:
    """Sub-grids of about ``cells`` observed cells, ``repeats`` that are long along each side; the whole grid if its
    likelihood takes no more operations than theirs.

    Each lies around a random observed cell. The long side has groups of neighbours from everywhere along it, so that it
    has short and long distances; the others have the nearest entries. The draws are the same in every call.
    """
    sizes = data.observed.shape
    everything = [torch.arange(p, device=data.device) for p in sizes]
    long_sides = [i for i, p in enumerate(sizes) if p > 1]
    if len(data.y) ** 3 <= max(1, repeats * len(long_sides)) * cells**3:
        return [_subgrid(data, everything)]
    share = max(_LEAST_OBSERVED, len(data.y) / data.observed.numel())
    generator = torch.Generator().manual_seed(0)
    found = []
    for side in long_sides:
        for centre in permutation(len(data.y), generator, data.device)[:repeats]:
            places = data.observed.nonzero()[centre]
            counts = _counts(sizes, side, cells / share)
            index = []
            for i, (F, count) in enumerate(zip(data.factors, counts, strict=True)):
                pick = _spread if i == side else _nearest
                index.append(pick(F.to(torch.float64), int(places[i]), count, generator).sort().values)
            found.append(_subgrid(data, index))
    return found


def choose_lines(data: GridObservations, side: int, cells: int, count: int) -> list[SubGrid]:
    """``count`` lines along a side through random observed cells, with at most ``cells`` entries each, in groups of
    neighbours; fewer if the grid has fewer lines.

    As sub-grids they count as independent. The draws are the same in every call.
    """
    generator = torch.Generator().manual_seed(0)
    found: dict[tuple[int, ...], SubGrid] = {}
    places = data.observed.nonzero()
    for centre in permutation(len(data.y), generator, data.device)[: _TRIALS * count].tolist():
        line = tuple(place for i, place in enumerate(places[centre].tolist()) if i != side)
        if line in found:
            continue
        index = [places[centre, i : i + 1] for i in range(data.observed.ndim)]
        F = data.factors[side].to(torch.float64)
        index[side] = _spread(F, int(places[centre, side]), min(cells, len(F)), generator)
        found[line] = _subgrid(data, index)
        if len(found) == count:
            break
    return list(found.values())


def _counts(sizes: Sequence[int], side: int, cells: float) -> list[int]:
    """Entries of every side of a sub-grid that is long along one: the shortest sides are served first."""
    counts = [0] * len(sizes)
    others = sorted((i for i in range(len(sizes)) if i != side), key=lambda i: sizes[i])
    remaining = cells / min(sizes[side], _LONG)
    for position, i in enumerate(others):
        counts[i] = max(1, min(sizes[i], round(remaining ** (1.0 / (len(others) - position)))))
        remaining /= counts[i]
    counts[side] = max(1, min(sizes[side], round(cells / math.prod(counts[i] for i in others))))
    return counts


def _nearest(F: Tensor, centre: int, count: int, generator: torch.Generator) -> Tensor:
    """The entries of a side (p, d) nearest to one of them."""
    return (F - F[centre]).square().sum(1).topk(count, largest=False).indices


def _spread(F: Tensor, centre: int, count: int, generator: torch.Generator) -> Tensor:
    """Entries of a side (p, d) in groups of neighbours around random entries, the first around a given one."""
    if count == len(F):
        return torch.arange(count, device=F.device)
    chosen = torch.zeros(len(F), dtype=torch.bool, device=F.device)
    for entry in [centre, *permutation(len(F), generator, F.device).tolist()]:
        left = count - int(chosen.sum())
        if left <= 0:
            break
        distances = (F - F[entry]).square().sum(1).masked_fill(chosen, math.inf)
        chosen[distances.topk(min(_GROUP, left), largest=False).indices] = True
    return chosen.nonzero().flatten()


def _subgrid(data: GridObservations, index: list[Tensor]) -> SubGrid:
    number = torch.full((data.observed.numel(),), -1, device=data.device)
    number[data.cells] = torch.arange(len(data.y), device=data.device)
    rows = number.view(data.observed.shape)[torch.meshgrid(*index, indexing="ij")].flatten()
    observed, rows = rows >= 0, rows[rows >= 0]
    noise_std = None if data.noise_std is None else data.noise_std[rows]
    factors = [F[i].to(torch.float64) for F, i in zip(data.factors, index, strict=True)]
    return SubGrid(factors, observed, rows, data.X_raw[rows], data.y[rows], noise_std, data.scaling)


def fit_subgrids(
    model: Learnable, data: Data, subgrids: list[SubGrid], coordinates: Coordinates, steps: int
) -> SubGridFit:
    """Maximise the likelihood of sub-grids plus the log prior, from the values of the model, which it changes.

    L-BFGS-B within the bounds of the hyperparameters; learned noise without bounds is at least 1e-4 of the standard
    deviation of the targets. The model keeps its values if H is not positive definite there.
    """
    cells, n = sum(len(subgrid.y) for subgrid in subgrids), len(data.y)
    spread = float(data.targets(data.y.mean()).to(torch.float64).std(correction=0)) or 1.0

    def loss(position: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        coordinates.move(torch.from_numpy(position))
        model.zero_grad()
        density = log_prior(model) * (cells / n)
        total, surrogate = float(density.detach()), density
        for subgrid in subgrids:
            value, part = subgrid.log_likelihood(model)
            total, surrogate = total + value, surrogate + part.cpu()
        if not math.isfinite(total):
            return math.inf, np.zeros_like(position)
        (-surrogate / cells).backward()
        return -total / cells, coordinates.gradient().numpy()

    limits: list[tuple[float | None, float | None]] = []
    for parameter in coordinates.positive:
        low, high = parameter.bounds or (LEAST_NOISE * spread if parameter.name == "noise" else 0.0, math.inf)
        limit = (math.log(low) if low > 0 else None, math.log(high) if high < math.inf else None)
        limits += [limit] * parameter.raw.numel()
    limits += [(None, None)] * sum(p.numel() for p, _ in coordinates.free)
    from scipy.optimize import minimize  # `import pathgp` does not wait for it

    start = coordinates.position()
    options: dict[str, Any] = {"maxiter": steps, "ftol": _LEAST_GAIN, "gtol": 1e-5, "maxls": 10}
    found = minimize(loss, start.numpy(), jac=True, method="L-BFGS-B", bounds=limits, options=options)
    is_valid = math.isfinite(found.fun)
    coordinates.move(torch.from_numpy(found.x) if is_valid else start)
    model.zero_grad()
    pairs = zip(found.hess_inv.sk, found.hess_inv.yk, strict=True)
    curvature = [(torch.from_numpy(s), torch.from_numpy(y)) for s, y in pairs]
    return SubGridFit(-float(found.fun), cells, curvature if is_valid else [])
