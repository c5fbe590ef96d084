"""Inducing points chosen among the rows of the data.

- "random": rows drawn without replacement.
- "kmeans": rows drawn one after the other with probability proportional to the squared distance to the nearest row
  drawn before, in the coordinates of the kernel: the seeding of k-means++ (Arthur and Vassilvitskii 2007).
- "pivots": rows drawn in small groups with probability proportional to their prior variance given the rows drawn
  before: randomly pivoted Cholesky (Chen et al. 2023). The trace of K - Q that they leave is in the bound of SGPR
  (Burt, Rasmussen and van der Wilk 2020).

Rows that the others determine almost completely add nothing but ill-conditioning: they are left out afterwards.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.compute.random import permutation
from pathgp.data.rows import Rows
from pathgp.kernels import Kernel
from pathgp.operators.low_rank import partial_cholesky, random_pivots
from pathgp.solvers.cholesky import factorise

CHOICES = ("pivots", "kmeans", "random")
# Candidates: a multiple of the number of points, at least this number of rows.
_MULTIPLE, _LEAST_CANDIDATES = 4, 10_000
# Groups in which pivots are drawn, and the least variance of a point given those before it, relative to its own.
_GROUPS, _DUPLICATE = 64, 1e-8


def choose_points(
    kernel: Kernel, data: Rows, num: int, choice: str, generator: torch.Generator, memory: int
) -> tuple[Tensor, str]:
    """At most ``num`` rows of the data as inducing points (m, d), float64; and the choice in words.

    Time O(r num^2) for r candidates, a random subset of max(4 num, 10,000) rows within the memory budget.
    """
    n, device = len(data.y), data.device
    if choice not in CHOICES:
        raise ValueError(f"choice must be one of {', '.join(map(repr, CHOICES))}, got {choice!r}")
    if num >= n:
        chosen, words = data.inputs(), f"all {n:,} rows"
    else:
        # A factor of candidates times points, and a copy while it is cut to size.
        most = max(num, memory // (4 * 8 * num)) if choice == "pivots" else n
        order = permutation(n, generator, device)[: min(max(_MULTIPLE * num, _LEAST_CANDIDATES), most)]
        candidates = data.inputs(order)
        pick = {"random": _first, "kmeans": _spread, "pivots": _pivots}[choice]
        with torch.no_grad():
            chosen = candidates[pick(kernel, candidates, num, generator)]
        words = f"{choice} among {len(candidates):,} rows"
    kept = _distinct(kernel, chosen) if 24 * len(chosen) ** 2 <= memory else _unique(chosen)
    left_out = len(chosen) - len(kept)
    words += f", {left_out} near duplicates left out" if left_out else ""
    return chosen[kept].clone(), f"{len(kept):,} points: {words}"


def _first(kernel: Kernel, X: Tensor, num: int, generator: torch.Generator) -> Tensor:
    return torch.arange(num, device=X.device)


def _spread(kernel: Kernel, X: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Numbers of rows, each drawn proportionally to its squared distance to those before."""
    points = kernel.coordinates(X)
    chosen = [0]
    squares = (points - points[0]).square().sum(1)
    for _ in range(num - 1):
        if not float(squares.sum()) > 0:
            break  # every distinct row is chosen
        draw = float(torch.rand((), generator=generator, dtype=torch.float64, device=generator.device))
        cumulative = squares.cumsum(0)
        index = int(torch.searchsorted(cumulative, draw * cumulative[-1]).clamp_max(len(X) - 1))
        chosen.append(index)
        squares = torch.minimum(squares, (points - points[index]).square().sum(1))
    return torch.tensor(chosen, device=X.device).unique()


def _pivots(kernel: Kernel, X: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Numbers of rows in the order in which they were drawn."""
    draw, drawn = random_pivots(generator, max(1, num // _GROUPS)), []

    def choose(left: Tensor, most: int) -> Tensor:
        pivots = draw(left, most)
        drawn.append(pivots)
        return pivots

    partial_cholesky(lambda index: kernel(X, X[index]), kernel.diag(X), num, choose)
    found = torch.cat(drawn)
    # Several pivots may be the same row where no variance is left.
    first = torch.unique(found, return_inverse=True)[1]
    return found[_first_places(first)]


def _first_places(numbers: Tensor) -> Tensor:
    """Places of the first occurrence of every number, ascending."""
    size = int(numbers.max()) + 1
    places = torch.arange(len(numbers), device=numbers.device)
    first = torch.full((size,), len(numbers), device=numbers.device)
    return first.scatter_reduce(0, numbers, places, "amin").sort().values


def _distinct(kernel: Kernel, Z: Tensor) -> Tensor:
    """Numbers of the rows with variance of their own: L_ii^2 = Var(f(z_i) | f(z_1), ..., f(z_i-1)). Time O(m^3)."""
    kept = _unique(Z)
    with torch.no_grad():
        K = kernel(Z[kept])
        variances = K.diagonal().clone()
        K.diagonal().mul_(1.0 + 0.1 * _DUPLICATE)
        factor, _ = factorise(K, _DUPLICATE)
        return kept[factor.diagonal().square() > _DUPLICATE * variances]


def _unique(Z: Tensor) -> Tensor:
    """Numbers of the rows that equal no row before them."""
    return _first_places(torch.unique(Z, dim=0, return_inverse=True)[1])
