"""Vecchia's approximation of the likelihood: a product of conditional densities of single rows, and its gradient.

    log p(y) ~ sum_i log p(y_i | y_c),    c: the m rows nearest to row i among those before it, in a random order

Every factor is exact, so that the gradient has expectation zero at the true hyperparameters, whatever m. Let S be the
rows c and, last, i. With u = L^-T e_i for H[S, S] = L L^T, q = u^T y_S and z = H[S, S]^-1 y_S:

    log p(y_i | y_c) = log u_i - q^2 / 2 - log(2 pi) / 2
    d log p(y_i | y_c) = sum_ab W_ab dH_ab,    W = -(1 + q^2) u u^T / 2 + q (u z^T + z u^T) / 2

With a trend B the likelihood is the restricted one (see `pathgp.posterior.trend`): y is replaced by y - B beta, and
-1/2 log |G| is added, G = sum_i g g^T with g = B_S^T u. The second adds -(g^T G^-1 g) u u^T / 2 + (u w^T + w u^T) / 2
to W, with w = H[S, S]^-1 B_S G^-1 g.

Vecchia (1988); Katzfuss and Guinness (2021). The posterior after a fit is exact: only its hyperparameters come from
this approximation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.compute.neighbours import earlier_neighbours
from pathgp.compute.random import permutation
from pathgp.compute.threads import run_in_order
from pathgp.data.observations import Data
from pathgp.kernels import Kernel
from pathgp.kernels.blocks import stationary_blocks, stationary_columns
from pathgp.kernels.sphere import Embedding
from pathgp.learning.estimators import GradientEstimate, State, StepRequest, mean_term
from pathgp.learning.model import Learnable
from pathgp.posterior.trend import orthonormal
from pathgp.solvers.solution import NumericalFailure

# Entries of the sets of rows that are evaluated together; on a CPU each thread has its own, in the cache.
_AT_ONCE, _AT_ONCE_GPU = {"cpu": 2**17}, 2**26
# Neighbours are searched again if the ratio of two columns' extents, in length scales, changes by this factor.
_RATIO = 1.5
# Seed of the order of the rows: not one that users choose. With the order of a fit's subsets, the first rows of both
# would be the same, and would have no close neighbours.
_SEED = 2_718_281_828
# Added to the diagonal of H[S, S], relative to it.
_RIDGE = 1e-12


class Rows(NamedTuple):
    """The data of an evaluation, float64.

    kernel: on the columns of X.  X: (n, d).  targets: [y, B] (n, 1 + p), p = 0 without a trend.  noise: variances (n,).
    """

    kernel: Kernel
    X: Tensor
    targets: Tensor
    noise: Tensor


class Trend(NamedTuple):
    """combination: [1, -beta] (1 + p,), so that [y, B] combination = y - B beta.  covariance: G^-1 (p, p).

    log_determinant: log |G|.
    """

    combination: Tensor
    covariance: Tensor
    log_determinant: float


class Part(NamedTuple):
    """What some conditional densities contribute to the sums over all rows.

    value: sum of log u_i - q^2 / 2.  misfit: sum of q^2.  weights: q u (k, m + 1).  on_noise: derivatives in the noise
    variances (k, m + 1).  gradients: in the learned parameters of the kernel.
    """

    value: Tensor
    misfit: Tensor
    weights: Tensor
    on_noise: Tensor
    gradients: list[Tensor]


@dataclass(frozen=True)
class VecchiaLikelihood:
    """The gradient of Vecchia's likelihood, for stationary kernels of few columns.

    neighbours: m. The first m rows of the order are conditioned on, and have no factors. A stage with fewer rows uses
    the factors of these rows; their neighbours are still chosen among all rows.

    Time O(n m^3), and n m^2 entries of K, per evaluation. Memory O(n m).
    """

    neighbours: int
    _searches: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def description(self) -> str:
        """The estimator in words, for reports."""
        return f"Vecchia's likelihood, {self.neighbours} neighbours"

    def draw(self, model: Learnable, data: Data, state: State, generator: torch.Generator) -> None:
        """Nothing depends on the generator: the order of the rows has a seed of its own."""

    def evaluate(self, model: Learnable, data: Data, state: State, request: StepRequest) -> GradientEstimate:
        mean, deviation = model.mean_at(data.X_raw), model.deviation(data).to(torch.float64)
        rows = _read_rows(model, data, mean, deviation)
        sets = self._sets(rows, state, request.settings.compute.budget(data.device))
        trend = None if data.basis is None else _fit_trend(rows, sets)
        learned = [parameter for parameter in rows.kernel.parameters() if parameter.requires_grad]
        value, misfit = torch.zeros(2, dtype=torch.float64, device=rows.X.device)
        weights, on_noise = torch.zeros_like(rows.noise), torch.zeros_like(rows.noise)
        gradients = [torch.zeros_like(parameter) for parameter in learned]

        def add(S: Tensor, part: Part) -> None:
            value.add_(part.value)
            misfit.add_(part.misfit)
            weights.index_add_(0, S.flatten(), part.weights.flatten())
            on_noise.index_add_(0, S.flatten(), part.on_noise.flatten())
            for total, gradient in zip(gradients, part.gradients, strict=True):
                total += gradient

        run_in_order(sets, lambda S: _differentiate(rows, S, trend, learned), add, rows.X.device)
        objective = (on_noise * deviation.square()).sum() + mean_term(weights, mean, data)
        for parameter, gradient in zip(learned, gradients, strict=True):
            objective = objective + (parameter * gradient).sum()
        count = sum(map(len, sets))
        log_likelihood = float(value) - 0.5 * count * math.log(2 * math.pi)
        if trend is not None:
            log_likelihood += 0.5 * (len(trend.covariance) * math.log(2 * math.pi) - trend.log_determinant)
        # As if all rows of the stage had a factor.
        share = (len(data.y) if state.rows is None else len(state.rows)) / count
        return GradientEstimate(share * objective, share * log_likelihood, None, 0.0, float(misfit) / count)

    def _sets(self, rows: Rows, state: State, memory: int) -> list[Tensor]:
        """The sets S (k, m + 1) of all factors of the stage, as many together as are evaluated at once."""
        m, device = self.neighbours, rows.X.device
        order, near = self._search(rows, memory)
        if state.rows is None:
            places = torch.arange(m + 1, len(order), device=device)
        else:
            places = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=device))[state.rows]
            places = places[places > m]
        at_once = max(1, min(_AT_ONCE.get(device.type, _AT_ONCE_GPU), memory // 512) // (m + 1) ** 2)
        batches = (places[part] for part in spans(len(places), at_once))
        return [torch.cat([order[near[batch - m - 1].long()], order[batch].unsqueeze(1)], 1) for batch in batches]

    def _search(self, rows: Rows, memory: int) -> tuple[Tensor, Tensor]:
        """The order of the rows (n,), and the neighbours of those after the first m + 1, as places in it.

        Both depend on the hyperparameters through rounded ratios alone, and are kept for each of them.
        """
        with torch.no_grad():
            C = rows.kernel.coordinates(rows.X)
        extent = C.std(0)
        extent = torch.where(extent > 0, extent, 1.0)
        ratios = (extent / extent[0]).log().div(math.log(_RATIO)).round()
        key = tuple(int(ratio) for ratio in ratios.tolist())
        if key not in self._searches:
            order = permutation(len(C), torch.Generator().manual_seed(_SEED), C.device)
            scaled = C / extent * _RATIO**ratios
            self._searches[key] = order, earlier_neighbours(scaled[order], self.neighbours, memory)
        return self._searches[key]


def is_suitable(kernel: Kernel, dim: int, largest: int) -> bool:
    """Whether a kernel of ``dim`` columns is a function of differences in at most ``largest`` columns.

    Latitude and longitude count as three.
    """
    embedding = Embedding(kernel, dim)
    columns = stationary_columns(embedding.kernel, embedding.dim)
    return columns is not None and len(columns) <= largest


def _read_rows(model: Learnable, data: Data, mean: Tensor, deviation: Tensor) -> Rows:
    embedding = Embedding(model.product(data.widths), data.columns)
    X = embedding(data.inputs()).to(torch.float64)
    y = data.targets(mean.detach()).to(torch.float64).unsqueeze(1)
    basis = y[:, :0] if data.basis is None else orthonormal(data.basis)
    return Rows(embedding.kernel, X, torch.cat([y, basis], 1), deviation.detach().square().expand(len(X)))


@torch.no_grad()
def _condition(rows: Rows, S: Tensor) -> tuple[Tensor, Tensor]:
    """The lower factors L (k, m + 1, m + 1) of H[S, S], and u (k, m + 1)."""
    H = stationary_blocks(rows.kernel, rows.X[S])
    H.diagonal(dim1=1, dim2=2).mul_(1.0 + _RIDGE).add_(rows.noise[S])
    L, info = torch.linalg.cholesky_ex(H)
    if bool(info.any()):
        raise NumericalFailure("the kernel matrix of neighbouring rows is not positive definite")
    last = torch.zeros(S.shape[1], 1, dtype=torch.float64, device=S.device)
    last[-1] = 1.0
    return L, torch.linalg.solve_triangular(L.mT, last, upper=True).squeeze(2)


def _differentiate(rows: Rows, S: Tensor, trend: Trend | None, learned: Sequence[Tensor]) -> Part:
    """The conditional densities of the sets S (k, m + 1) and their derivatives."""
    with torch.no_grad():
        L, u = _condition(rows, S)
        targets = rows.targets[S]
        solved = torch.cholesky_solve(targets, L)
        products = (u.unsqueeze(2) * targets).sum(1)
        if trend is None:
            q, z, curvature = products[:, 0], solved[..., 0], 1.0 + products[:, 0].square()
            w = q.unsqueeze(1) * z
        else:
            q, g = products @ trend.combination, products[:, 1:]
            back = g @ trend.covariance
            curvature = 1.0 + q.square() + (back * g).sum(1)
            w = q.unsqueeze(1) * (solved @ trend.combination) + (solved[..., 1:] * back.unsqueeze(1)).sum(2)
        left = w - 0.5 * curvature.unsqueeze(1) * u
        W = u.unsqueeze(2) * left.unsqueeze(1)
        value = u[:, -1].log().sum() - 0.5 * q.square().sum()
    with torch.enable_grad():
        # W need not be symmetric: K is.
        total = (W * stationary_blocks(rows.kernel, rows.X[S])).sum()
    found = torch.autograd.grad(total, learned, allow_unused=True) if learned else ()
    gradients = [torch.zeros_like(p) if grad is None else grad for p, grad in zip(learned, found, strict=True)]
    return Part(value, q.square().sum(), q.unsqueeze(1) * u, u * left, gradients)


def _fit_trend(rows: Rows, sets: list[Tensor]) -> Trend:
    """The coefficients of the trend by generalised least squares."""
    p = rows.targets.shape[1] - 1
    gram = torch.zeros(p + 1, p + 1, dtype=torch.float64, device=rows.X.device)

    def compute(S: Tensor) -> Tensor:
        _, u = _condition(rows, S)
        products = (u.unsqueeze(2) * rows.targets[S]).sum(1)
        return products.T @ products

    run_in_order(sets, compute, lambda S, part: gram.add_(part), rows.X.device)
    factor = torch.linalg.cholesky(gram[1:, 1:])
    covariance = torch.cholesky_inverse(factor)
    combination = torch.cat([gram.new_ones(1), -covariance @ gram[1:, 0]])
    return Trend(combination, covariance, 2.0 * float(factor.diagonal().log().sum()))
