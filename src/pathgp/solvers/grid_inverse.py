"""A preconditioner for grids, with or without holes: the inverse on the whole grid, and the holes filled to suit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from pathgp.operators import LatentKroneckerOperator, Operator
from pathgp.operators.kronecker import along_side, scattered, unravelled
from pathgp.solvers.base import Run
from pathgp.solvers.preconditioners import Preconditioner

# What an application leaves of the residual, relative to the tolerance; where that is zero; and where many follow.
_PART, _FINEST, _LINEAR = 0.5, 1e-7, 1e-3
# Iterations before the first look at the residual, and the most until the next one.
_FIRST, _MOST = 3, 10
# Holes that are looked at, and observed cells beside each along every side.
_HOLES, _NEAR = 64, 8

_Weights = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class GridInverse(Preconditioner):
    """H^-1 by way of the whole grid, to a part of the tolerance.

        M = (K_1 x ... x K_k + sigma^2)^-1 = (I - U D U^T) / sigma^2,    D = Lambda / (Lambda + sigma^2)

    from the eigenvectors U = U_1 x ... x U_k of the factors. Where nothing is missing M is H^-1 (thesis, section
    2.2.3). Otherwise the holes h are given values v that make the weights there vanish; the others are then H^-1 b:

        M_hh v = -M_ho b  by conjugate gradients,    H^-1 b = M_oo b + M_oh v

    M_hh^-1 is the covariance of observations in the holes given those outside. Its condition number is at most one plus
    the largest posterior variance of all directions in the holes over the noise, however large the prior's is: a few
    iterations where holes are scattered, many where they are wide. What is left in the holes, e = M_ho b + M_hh v, is a
    residual of K_oh e outside, which decides when to stop. It is large at first: with a budget of few epochs nothing is
    won. In float64: M is as ill-conditioned as H.

    An iteration takes as many multiplications as a product, for sides without a root twice as many, in float64. Noise
    that differs between cells is replaced by its mean.
    """

    def cost(self, H: Operator) -> float:
        return 0.0

    def apply_cost(self, H: Operator) -> float:
        """The least: none or one iteration."""
        H = _grid(H)
        return _iteration(H) * (1.0 if H.shape[0] == math.prod(H.sizes) else 2.0)

    def build(self, run: Run) -> tuple[Callable[[Tensor], Tensor], str]:
        H = _grid(run.H)
        weights, holes = _weights(H), _holes(H)

        def apply(R: Tensor) -> Tensor:
            parts = R.split(H.columns_at_once(), 1)
            found = [_filled(run, H, weights, holes, B, B.shape[1] / R.shape[1]) for B in parts]
            return torch.cat(found, 1).to(R.dtype)

        missing = len(holes) / math.prod(H.sizes)
        return apply, f"inverse on the whole grid, {100 * missing:.0f} % of it missing"

    def _pivots(self, run: Run, left: Tensor, num: int) -> Tensor:
        raise NotImplementedError("GridInverse has no pivots")


def _grid(H: Operator) -> LatentKroneckerOperator:
    if not isinstance(H, LatentKroneckerOperator):
        raise ValueError(f"GridInverse is for grids, not for {type(H).__name__}")
    return H


def _filled(run: Run, H: LatentKroneckerOperator, weights: _Weights, holes: Tensor, B: Tensor, share: float) -> Tensor:
    """H^-1 B: (n, s), float64, with the holes filled by conjugate gradients; these are a share of all columns."""
    b, each, check = B.to(torch.float64), share * _iteration(H), share * H.cost()

    def split(grid: Tensor) -> tuple[Tensor, Tensor]:
        cells = grid.reshape(-1, grid.shape[-1])
        return cells[H.cells], cells[holes]

    target = torch.full_like(b[0], _PART * float(run.goal.min()) if run.tol > 0 else _FINEST)
    if H.noise.ndim:
        # The noise of M is not that of H: more than one application follows, and they must be linear.
        target = target.minimum(_LINEAR * torch.linalg.vector_norm(b, dim=0))
    x, e = split(weights(H.scatter(b)))
    run.epochs += each
    d, energy = -e, e.square().sum(0)
    iterations, look, last, seen = 0, _FIRST, 0, energy
    while len(holes) and run.affords(each + check):
        outside, inside = split(weights(scattered(d, holes, H.sizes)))
        run.epochs += each
        step = _ratio(energy, (d * inside).sum(0))
        x += step * outside
        e += step * inside
        before, energy = energy, e.square().sum(0)
        d = _ratio(energy, before) * d - e
        iterations += 1
        if iterations < look:
            continue
        # Scaled to one: processors take long over the subnormal numbers that small ones lead to.
        size = energy.sqrt()
        left = H.gather(H.multiply(scattered((e * _ratio(torch.ones_like(size), size)).to(H.dtype), holes, H.sizes)))
        run.epochs += check
        residual = size * torch.linalg.vector_norm(left, dim=0, dtype=torch.float64)
        excess = float((residual / target).max())
        if not excess > 1.0:
            break
        # The residual falls faster than |e|: look again after half the iterations that |e| would take.
        fall = -math.log(max(float(_ratio(energy, seen).max()), 1e-300)) / (iterations - last)
        look = iterations + (min(_MOST, max(1, round(math.log(excess) / fall))) if fall > 0 else _MOST)
        seen, last = energy, iterations
    return x


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, zero where b is."""
    return torch.where(b > 0, a / b, 0.0)


def _weights(H: LatentKroneckerOperator) -> _Weights:
    """M, applied to a grid (p_1, ..., p_k, s) in float64."""
    values, vectors = zip(*H.basis, strict=True)
    spectrum = reduce(lambda left, right: left.unsqueeze(-1) * right, values)
    noise = max(float(H.noise.mean()), 1e-12 * float(spectrum.max()))
    D = (spectrum / (spectrum + noise)).unsqueeze(-1)
    order = _order(H)

    def weights(grid: Tensor) -> Tensor:
        inner = grid
        for side in order:
            inner = along_side(vectors[side].T, side, inner)
        inner = D * inner
        for side in reversed(order):
            inner = along_side(vectors[side], side, inner)
        return (grid - inner) / noise

    return weights


def _order(H: LatentKroneckerOperator) -> list[int]:
    """The strongest reduction first."""
    return sorted(range(len(H.sizes)), key=lambda side: H.ranks[side] / H.sizes[side])


def _iteration(H: LatentKroneckerOperator) -> float:
    """Multiplications of M in epochs."""
    shape, total = list(H.sizes), 0
    for side in _order(H):
        total += 2 * math.prod(shape) * H.ranks[side]
        shape[side] = H.ranks[side]
    return total / H.entries


def _holes(H: LatentKroneckerOperator) -> Tensor:
    """The numbers of the cells without an observation."""
    missing = torch.ones(math.prod(H.sizes), dtype=torch.bool, device=H.device)
    missing[H.cells] = False
    return missing.nonzero().flatten()


def hole_variance(H: LatentKroneckerOperator) -> float:
    """The average variance of holes given some observed cells near them, relative to the noise.

    Looks at a few holes and at the nearest observed cells, by covariance, along every side of each; always the same.
    """
    holes, noise = _holes(H), float(H.noise.mean())
    source = torch.Generator().manual_seed(0)
    chosen = holes[torch.randperm(len(holes), generator=source)[:_HOLES].to(H.device)]
    places = unravelled(chosen, H.sizes)
    observed = torch.zeros(math.prod(H.sizes), dtype=torch.bool, device=H.device)
    observed[H.cells] = True
    observed = observed.view(H.sizes)
    near: list[list[Tensor]] = [[] for _ in H.sizes]
    there = []
    for side, (p, factor) in enumerate(zip(H.sizes, H.factors, strict=True)):
        line = tuple(place for m, place in enumerate(places) if m != side)
        seen = observed.movedim(side, -1)[line]
        covariance = factor.between(places[side], torch.arange(p, device=H.device)).abs()
        best = torch.where(seen, covariance, -1.0).topk(min(_NEAR, p), dim=1)
        there.append(best.values >= 0)
        for m, place in enumerate(places):
            near[m].append(best.indices if m == side else place.unsqueeze(1).expand_as(best.indices))
    here, inputs = torch.cat(there, 1), [torch.cat(parts, 1) for parts in near]
    cells, t = here.shape
    prior, cross, joint = (torch.ones((), dtype=torch.float64, device=H.device) for _ in range(3))
    for factor, place, beside in zip(H.factors, places, inputs, strict=True):
        prior = prior * factor.diagonal()[place].to(torch.float64)
        cross = cross * factor.between(place, beside.flatten()).view(cells, cells, t).diagonal().T.to(torch.float64)
        blocks = factor.between(beside.flatten(), beside.flatten()).view(cells, t, cells, t)
        joint = joint * blocks.diagonal(dim1=0, dim2=2).movedim(-1, 0).to(torch.float64)
    cross = cross * here
    joint = joint * here.unsqueeze(1) * here.unsqueeze(2) + noise * torch.eye(t, dtype=torch.float64, device=H.device)
    joint.diagonal(dim1=1, dim2=2).clamp_min_(1e-12 * float(prior.max()))
    explained = (cross * torch.linalg.solve(joint, cross.unsqueeze(2)).squeeze(2)).sum(1)
    return float((prior - explained).mean()) / max(noise, 1e-12 * float(prior.max()))
