"""A preconditioner for complete grids and scattered holes: the inverse on the whole grid, with values for the holes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from pathgp.compute.conjugate_directions import ConjugateDirections
from pathgp.compute.hardware import Rates
from pathgp.compute.memory import spans
from pathgp.operators.base import Operator, Preconditioner, Solve, SolveInProgress
from pathgp.operators.grid_base import GridOperator, multiply_side, scatter, unravel
from pathgp.operators.grid_lines import invert_lines

# The residual that an application may leave: relative to the tolerance, without a tolerance, and if many follow.
_PART, _FINEST, _LINEAR = 0.5, 1e-7, 1e-3
# Iterations before the first check of the residual, and the most between two checks.
_FIRST_CHECK, _MAX_BETWEEN = 3, 10
# Number of holes from which their variance is estimated, and of observed cells near each along every side.
_HOLES, _NEIGHBOURS = 64, 8


@dataclass(frozen=True)
class GridInverse(Preconditioner):
    """H^-1 through the inverse on the whole grid, to a part of the tolerance.

        M = (K_1 x ... x K_k + sigma^2)^-1 = (I - U D U^T) / sigma^2,    D = Lambda / (Lambda + sigma^2)

    from the eigenvectors U = U_1 x ... x U_k of the factors. Without holes M is H^-1 (thesis, section 2.2.3). Otherwise
    the holes h get values v that make the weights there vanish; the other weights are then H^-1 b:

        M_hh v = -M_ho b  by block conjugate gradients,    H^-1 b = M_oo b + M_oh v

    M_hh^-1 is the covariance of observations in the holes given those outside. Its condition number is at most one plus
    the largest posterior variance of all directions in the holes over the noise, independent of the prior variance. The
    preconditioner of these conjugate gradients is the inverse along the lines of the grid, see `invert_lines`: about
    ten iterations for scattered holes, about twenty for wide ones. The remainder in the holes, e = M_ho b + M_hh v,
    causes a residual K_oh e outside, which decides when to stop. It is large at first: a budget of few epochs gains
    nothing. In float64: M is as ill-conditioned as H.

    An iteration takes as many multiplications as a product, for sides without a root twice as many, in float64. Noise
    that differs between cells is replaced by its mean.
    """

    label = "on the whole grid"
    # Filling scattered holes takes 13 to 225 epochs, wide ones hundreds.
    epochs = 20.0

    def apply_cost(self, H: Operator) -> float:
        """The smallest possible cost: no iteration or one."""
        H = _as_grid(H)
        return _iteration_cost(H) * (1.0 if H.is_complete else 2.0)

    def build(self, run: SolveInProgress) -> tuple[Solve, str]:
        H = _as_grid(run.H)
        M, precondition = _whole_inverse(H)

        def apply(R: Tensor) -> Tensor:
            s = R.shape[1]
            filled = []
            for part in spans(s, H.columns_at_once()):
                share, rest = (part.stop - part.start) / s, 1.0 - part.stop / s
                filled.append(_fill(run, H, M, precondition, R[:, part], share, rest))
            return torch.cat(filled, 1).to(R.dtype)

        missing = len(H.holes) / math.prod(H.sizes)
        return apply, f"inverse on the whole grid, {100 * missing:.0f} % of it missing"

    def needs_trial(self, H: Operator) -> bool:
        return not _as_grid(H).is_complete

    def predict_seconds(self, H: Operator, s: int, epochs: float, product: float, rates: Rates) -> float:
        """Ten cubes of every side for its eigenvectors, and iterations in float64 that fill the holes."""
        cubes = sum(r**3 for r in _as_grid(H).ranks)
        return 10.0 * cubes / rates.factorise + epochs * 2 * H.entries * s / rates.multiply64


def _as_grid(H: Operator) -> GridOperator:
    if not isinstance(H, GridOperator):
        raise ValueError(f"GridInverse is for grids, not for {type(H).__name__}")
    return H


def _fill(
    run: SolveInProgress, H: GridOperator, M: Solve, precondition: Solve, B: Tensor, share: float, rest: float
) -> Tensor:
    """H^-1 B: (n, s), float64, with the holes filled by preconditioned block conjugate gradients.

    ``share``: that of B among all columns.  ``rest``: that of the columns still to come, each at least one application.
    """
    b, cost, check_cost = B.to(torch.float64), share * _iteration_cost(H), share * H.cost()
    reserved = rest * _iteration_cost(H)

    def split(grid: Tensor) -> tuple[Tensor, Tensor]:
        cells = grid.reshape(-1, grid.shape[-1])
        return cells[H.cells], cells[H.holes]

    target = torch.full_like(b[0], _PART * float(run.goal.min()) if run.tol > 0 else _FINEST)
    if H.noise.ndim:
        # The noise of M is not that of H: more than one application follows, and they must be linear.
        target = target.minimum(_LINEAR * torch.linalg.vector_norm(b, dim=0))
    x, e = split(M(H.scatter(b)))
    run.epochs += cost
    if not len(H.holes):
        return x
    directions = ConjugateDirections(e, precondition(e))
    iterations, next_check, last_check, checked_norm = 0, _FIRST_CHECK, 0, directions.squared_norms
    while run.affords(cost + check_cost + reserved):
        outside, inside = split(M(scatter(directions.P, H.holes, H.sizes)))
        run.epochs += cost
        x.addmm_(outside, directions.step(inside), alpha=-1.0)
        directions.update(precondition(directions.W))
        iterations += 1
        if iterations < next_check:
            continue
        excess, norm = float((_outside_residual(H, directions.R) / target).max()), directions.squared_norms
        run.epochs += check_cost
        if not excess > 1.0:
            break
        # The residual falls faster than this norm: check again after half the iterations that the norm would take.
        rate = -math.log(max(float(_ratio(norm, checked_norm).max()), 1e-300)) / (iterations - last_check)
        wait = min(_MAX_BETWEEN, max(1, round(math.log(excess) / rate))) if rate > 0 else _MAX_BETWEEN
        next_check, last_check, checked_norm = iterations + wait, iterations, norm
    return x


def _outside_residual(H: GridOperator, e: Tensor) -> Tensor:
    """|K_oh e| of every column, (s,); e is scaled to norm one, because subnormal numbers are slow."""
    norms = torch.linalg.vector_norm(e, dim=0)
    unit = (e * _ratio(torch.ones_like(norms), norms)).to(H.dtype)
    residual = H.gather(H.multiply(scatter(unit, H.holes, H.sizes)))
    return norms * torch.linalg.vector_norm(residual, dim=0, dtype=torch.float64)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, zero where b is zero."""
    return torch.where(b > 0, a / b, 0.0)


def _whole_inverse(H: GridOperator) -> tuple[Solve, Solve]:
    """M, applied to a grid (p_1, ..., p_k, s) in float64, and the preconditioner of the systems of the holes."""
    values, vectors = zip(*H.basis, strict=True)
    spectrum = reduce(lambda left, right: left.unsqueeze(-1) * right, values)
    noise = max(float(H.noise.mean()), 1e-12 * float(spectrum.max()))
    D = (spectrum / (spectrum + noise)).unsqueeze(-1)
    order, precondition = H.by_reduction(), invert_lines(H, D.squeeze(-1)) if len(H.holes) else lambda R: R

    def apply(grid: Tensor) -> Tensor:
        latent = grid
        for side in order:
            latent = multiply_side(vectors[side].T, side, latent)
        latent = D * latent
        for side in reversed(order):
            latent = multiply_side(vectors[side], side, latent)
        return (grid - latent) / noise

    return apply, precondition


def _iteration_cost(H: GridOperator) -> float:
    """Multiplications of M, in epochs."""
    shape, total = list(H.sizes), 0
    for side in H.by_reduction():
        total += 2 * math.prod(shape) * H.ranks[side]
        shape[side] = H.ranks[side]
    return total / H.entries


def hole_variance(H: GridOperator) -> float:
    """The mean variance of holes given observed cells near them, relative to the noise.

    Estimated from a few holes, the same in every call, and the observed cells with the largest covariance along every
    side of each.
    """
    noise = float(H.noise.mean())
    order = torch.randperm(len(H.holes), generator=torch.Generator().manual_seed(0))
    places = unravel(H.holes[order[:_HOLES].to(H.device)], H.sizes)
    neighbours, is_observed = _nearest_observed(H, places)
    cells, t = is_observed.shape
    prior, cross, joint = (torch.ones((), dtype=torch.float64, device=H.device) for _ in range(3))
    for factor, place, beside in zip(H.factors, places, neighbours, strict=True):
        prior = prior * factor.diagonal()[place].to(torch.float64)
        cross = cross * factor.between(place, beside.flatten()).view(cells, cells, t).diagonal().T.to(torch.float64)
        blocks = factor.between(beside.flatten(), beside.flatten()).view(cells, t, cells, t)
        joint = joint * blocks.diagonal(dim1=0, dim2=2).movedim(-1, 0).to(torch.float64)
    cross = cross * is_observed
    joint = joint * is_observed.unsqueeze(1) * is_observed.unsqueeze(2)
    joint = joint + noise * torch.eye(t, dtype=torch.float64, device=H.device)
    joint.diagonal(dim1=1, dim2=2).clamp_min_(1e-12 * float(prior.max()))
    explained = (cross * torch.linalg.solve(joint, cross.unsqueeze(2)).squeeze(2)).sum(1)
    return float((prior - explained).mean()) / max(noise, 1e-12 * float(prior.max()))


def _nearest_observed(H: GridOperator, places: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Coordinates along every side (cells, t) of the cells nearest to given ones along a side, and whether each is
    observed (cells, t): a side may have too few."""
    observed = torch.ones(math.prod(H.sizes), dtype=torch.bool, device=H.device)
    observed[H.holes] = False
    observed = observed.view(H.sizes)
    near: list[list[Tensor]] = [[] for _ in H.sizes]
    is_observed = []
    for side, (p, factor) in enumerate(zip(H.sizes, H.factors, strict=True)):
        line = tuple(place for m, place in enumerate(places) if m != side)
        covariance = factor.between(places[side], torch.arange(p, device=H.device)).abs()
        best = torch.where(observed.movedim(side, -1)[line], covariance, -1.0).topk(min(_NEIGHBOURS, p), dim=1)
        is_observed.append(best.values >= 0)
        for m, place in enumerate(places):
            near[m].append(best.indices if m == side else place.unsqueeze(1).expand_as(best.indices))
    return [torch.cat(parts, 1) for parts in near], torch.cat(is_observed, 1)
