"""The largest value of a function on [0, 1]^d, as far as a long search finds it: the reference of a regret."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]

# Uniform points for every round, and how many of the best of a draw are kept.
_DRAWN, _KEPT = 10_000, 60
# Perturbations of every maximum, their largest standard deviation in length scales, and how many of them ascend.
_COPIES, _SPREAD, _ASCENTS = 60, 1.0, 200
_STEPS, _RATE = 50, 0.1
# Points closer than this in every column are one maximum.
_CELL = 0.02


def largest_value(target: Function, dim: int, lengthscale: float, rounds: int, device: torch.device) -> float:
    """The largest value that basin hopping finds.

    Gradient ascent from the best of uniform points; then ``rounds`` times from the best perturbations of the largest
    maxima so far.

    Args:
        target: values (m,) of inputs (m, d), differentiable.
        dim: number of columns d.
        lengthscale: distance over which the target changes.
        rounds: of perturbations; also the number of draws of uniform points.
        device: of the inputs.
    """
    generator = torch.Generator().manual_seed(99)

    def uniform(rows: int, columns: int) -> Tensor:
        return torch.rand(rows, columns, generator=generator, dtype=torch.float64).to(device)

    def best_of(X: Tensor, count: int) -> Tensor:
        with torch.no_grad():
            return X[target(X).topk(min(count, len(X))).indices]

    starts = torch.cat([best_of(uniform(_DRAWN, dim), _KEPT) for _ in range(rounds)])
    X, values = _ascend(target, starts, _RATE * lengthscale)
    for _ in range(rounds):
        order = values.argsort(descending=True)
        kept = order[_first_of_each((X[order] / _CELL).round())[:_KEPT]]
        parents = X[kept].repeat(_COPIES, 1)
        noise = torch.randn(parents.shape, generator=generator, dtype=torch.float64).to(device)
        changed = parents + _SPREAD * lengthscale * uniform(len(parents), 1) * noise
        found, found_values = _ascend(target, best_of(changed.clamp(0.0, 1.0), _ASCENTS), _RATE * lengthscale)
        X, values = torch.cat([X[kept], found]), torch.cat([values[kept], found_values])
    return float(values.max())


def _ascend(target: Function, X: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Adam with a falling step from all inputs X (m, d) at once: end points and their values."""
    X = X.clone().requires_grad_()
    optimiser = torch.optim.Adam([X], lr=rate, maximize=True, betas=(0.9, 0.99))
    for step in range(_STEPS):
        optimiser.param_groups[0]["lr"] = 0.5 * rate * (1.0 + math.cos(math.pi * step / _STEPS))
        optimiser.zero_grad()
        target(X).sum().backward()
        optimiser.step()
        with torch.no_grad():
            X.clamp_(0.0, 1.0)
    with torch.no_grad():
        return X.detach(), target(X)


def _first_of_each(X: Tensor) -> Tensor:
    """The position of the first of equal rows of X, in ascending order."""
    rows, inverse = torch.unique(X, dim=0, return_inverse=True)
    positions = torch.arange(len(X), device=X.device)
    first = torch.full((len(rows),), len(X), device=X.device).scatter_reduce_(0, inverse, positions, "amin")
    return first.sort().values
