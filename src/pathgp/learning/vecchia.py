"""Vecchia's approximation of the likelihood: a product of conditional densities of single rows, and its gradient.

    log p(y) ~ sum_i log p(y_i | y_c),    c: of the rows before row i, in a random order, the m nearest to it

Every factor is an exact conditional density. Therefore, for every m, the gradient has expectation zero at the true
hyperparameters. The first m + 1 rows A of the order are conditioned on all rows before them: the product of their
factors is the joint density N(y_A | 0, H[A, A]), and for n <= m + 1 it is the exact likelihood. These rows lie far
apart: they determine the signal and long length scales. With H[A, A] = L L^T and v = H[A, A]^-1 y_A:

    log p(y_A) = -log |L| - y_A^T v / 2 - (m + 1) log(2 pi) / 2
    d log p(y_A) = sum_ab W_ab dH_ab,    W = (v v^T - H[A, A]^-1) / 2

For a later row i let S be the rows c followed by row i, e the last unit vector and H[S, S] = L L^T. With u = L^-T e,
whose last entry is u_i, q = u^T y_S and z = H[S, S]^-1 y_S:

    log p(y_i | y_c) = log u_i - q^2 / 2 - log(2 pi) / 2
    d log p(y_i | y_c) = sum_ab W_ab dH_ab,    W = -(1 + q^2) u u^T / 2 + q (u z^T + z u^T) / 2

If only k of the n - m - 1 later factors are evaluated, their sum is multiplied by s = (n - m - 1) / k:

    log p(y) ~ log p(y_A) + s sum_i log p(y_i | y_c)

With a trend B the likelihood is the restricted one (see `pathgp.posterior.trend`): y is replaced by y - B beta, and
-1/2 log |G| is added, G = B_A^T H[A, A]^-1 B_A + s sum_i g g^T with g = B_S^T u. The derivative of this term adds
-(g^T G^-1 g) u u^T / 2 + (u w^T + w u^T) / 2 to W of a later row, with w = H[S, S]^-1 B_S G^-1 g, and
w_A G^-1 w_A^T / 2 to W of the first rows, with w_A = H[A, A]^-1 B_A.

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

# Kernel entries that are evaluated together; on a CPU those of each thread must fit into the cache.
_AT_ONCE, _AT_ONCE_GPU = {"cpu": 2**17}, 2**26
# Neighbours are searched again if the length scale of one column relative to that of another changes by about this
# factor.
_RATIO = 1.5
# Seed of the order of the rows. It differs from seeds that users choose: if this order were that of the fit's subsets,
# a stage on the first rows would use only rows without close earlier neighbours.
_SEED = 2_718_281_828
# Added to the diagonal of H[S, S], relative to it.
_RIDGE = 1e-12


class FitData(NamedTuple):
    """The data of an evaluation, float64.

    kernel: the kernel of the columns of X.  X: (n, d).  targets: [y, B] (n, 1 + p), p = 0 without a trend.
    noise: variances (n,).
    """

    kernel: Kernel
    X: Tensor
    targets: Tensor
    noise: Tensor


class TrendEstimate(NamedTuple):
    """combination: [1, -beta] (1 + p,), so that [y, B] combination = y - B beta.  covariance: G^-1 (p, p).

    log_determinant: log |G|.
    """

    combination: Tensor
    covariance: Tensor
    log_determinant: float


class Factors(NamedTuple):
    """The factors of an evaluation, as rows of the data.

    first: A (1, m + 1).  later: the sets S (k, m + 1), in batches that are evaluated together.  scale: s.
    """

    first: Tensor
    later: list[Tensor]
    scale: float


class BatchSums(NamedTuple):
    """Sums over a batch of conditional densities, or the density of the first rows.

    value: sum of log u_i - q^2 / 2, or -log |L| - y^T v / 2.  misfit: sum of q^2, or y^T v.  weights: q u (k, m + 1),
    or v (1, m + 1).  noise_gradient: derivatives in the noise variances (k, m + 1).  gradients: in the learned
    parameters of the kernel.
    """

    value: Tensor
    misfit: Tensor
    weights: Tensor
    noise_gradient: Tensor
    gradients: list[Tensor]


@dataclass(frozen=True)
class VecchiaLikelihood:
    """The gradient of Vecchia's likelihood, for stationary kernels of few columns.

    neighbours: m; with n - 1 or more it is the exact likelihood. A stage with fewer rows uses the joint density of the
    first rows and the later factors of its own rows, whose neighbours are still chosen among all rows. The value per
    row is then an estimate of that of all rows.

    Time O(n m^3), and n m^2 entries of K, per evaluation. Memory O(n m).
    """

    approximation = "by Vecchia's approximation"

    neighbours: int
    # The cache of `_search`.
    _neighbours_by_ratios: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def description(self) -> str:
        """The estimator in words, for reports."""
        return f"Vecchia's likelihood, {self.neighbours} neighbours"

    def draw(self, model: Learnable, data: Data, state: State, generator: torch.Generator) -> None:
        """Nothing depends on the generator: the order of the rows has a seed of its own."""

    def evaluate(self, model: Learnable, data: Data, state: State, request: StepRequest) -> GradientEstimate:
        mean, deviation = model.mean_at(data.X_raw), model.deviation(data).to(torch.float64)
        fit_data = _read_data(model, data, mean, deviation)
        device = fit_data.X.device
        factors = self._factors(fit_data, state, request.settings.compute.budget(data.device))
        trend = None if data.basis is None else _fit_trend(fit_data, factors)
        learned = [parameter for parameter in fit_data.kernel.parameters() if parameter.requires_grad]
        value, misfit = torch.zeros(2, dtype=torch.float64, device=device)
        weights, noise_gradient = torch.zeros_like(fit_data.noise), torch.zeros_like(fit_data.noise)
        gradients = [torch.zeros_like(parameter) for parameter in learned]

        def add(S: Tensor, batch: BatchSums, scale: float) -> None:
            value.add_(batch.value, alpha=scale)
            misfit.add_(batch.misfit, alpha=scale)
            weights.index_add_(0, S.flatten(), batch.weights.flatten(), alpha=scale)
            noise_gradient.index_add_(0, S.flatten(), batch.noise_gradient.flatten(), alpha=scale)
            for total, gradient in zip(gradients, batch.gradients, strict=True):
                total.add_(gradient, alpha=scale)

        add(factors.first, _differentiate_first(fit_data, factors.first, trend, learned), 1.0)
        run_in_order(
            factors.later,
            lambda S: _differentiate(fit_data, S, trend, learned),
            lambda S, batch: add(S, batch, factors.scale),
            device,
        )
        objective = (noise_gradient * deviation.square()).sum() + mean_term(weights, mean, data)
        for parameter, gradient in zip(learned, gradients, strict=True):
            objective = objective + (parameter * gradient).sum()
        n = len(data.y)
        log_likelihood = float(value) - 0.5 * n * math.log(2 * math.pi)
        if trend is not None:
            log_likelihood += 0.5 * (len(trend.covariance) * math.log(2 * math.pi) - trend.log_determinant)
        # The fit divides by the number of rows of the stage.
        share = 1.0 if state.rows is None else len(state.rows) / n
        return GradientEstimate(share * objective, share * log_likelihood, None, 0.0, float(misfit) / n)

    def _factors(self, fit_data: FitData, state: State, memory: int) -> Factors:
        """The first rows of the order, and the factors of the later rows of the stage."""
        m, device = self.neighbours, fit_data.X.device
        order, near = self._search(fit_data, memory)
        # Positions in the random order.
        positions = torch.arange(len(order), device=device) if state.rows is None else order.argsort()[state.rows]
        positions = positions[positions > m]
        at_once = max(1, min(_AT_ONCE.get(device.type, _AT_ONCE_GPU), memory // 512) // (m + 1) ** 2)
        batches = (positions[span] for span in spans(len(positions), at_once))
        later = [torch.cat([order[near[batch - m - 1].long()], order[batch].unsqueeze(1)], 1) for batch in batches]
        return Factors(order[: m + 1].unsqueeze(0), later, len(near) / max(1, len(positions)))

    def _search(self, fit_data: FitData, memory: int) -> tuple[Tensor, Tensor]:
        """The order of the rows (n,), and the neighbours of those after the first m + 1, as positions in it.

        They depend on the hyperparameters only through the rounded ratios of the columns' extents in length scales. The
        result for each set of ratios is cached.
        """
        with torch.no_grad():
            C = fit_data.kernel.coordinates(fit_data.X)
        extent = C.std(0, correction=0)
        extent = torch.where(extent > 0, extent, 1.0)
        exponents = (extent / extent[0]).log().div(math.log(_RATIO)).round()
        key = tuple(int(exponent) for exponent in exponents.tolist())
        if key not in self._neighbours_by_ratios:
            order = permutation(len(C), torch.Generator().manual_seed(_SEED), C.device)
            scaled = C / extent * _RATIO**exponents
            self._neighbours_by_ratios[key] = order, earlier_neighbours(scaled[order], self.neighbours, memory)
        return self._neighbours_by_ratios[key]


def is_suitable(kernel: Kernel, dim: int, largest: int) -> bool:
    """Whether a kernel of ``dim`` columns is a function of differences in at most ``largest`` columns.

    Latitude and longitude count as three.
    """
    embedding = Embedding(kernel, dim)
    columns = stationary_columns(embedding.kernel, embedding.dim)
    return columns is not None and len(columns) <= largest


def _read_data(model: Learnable, data: Data, mean: Tensor, deviation: Tensor) -> FitData:
    embedding = Embedding(model.product(data.widths), data.columns)
    X = embedding(data.inputs()).to(torch.float64)
    y = data.targets(mean.detach()).to(torch.float64).unsqueeze(1)
    basis = y[:, :0] if data.basis is None else orthonormal(data.basis)
    return FitData(embedding.kernel, X, torch.cat([y, basis], 1), deviation.detach().square().expand(len(X)))


@torch.no_grad()
def _factorise(fit_data: FitData, S: Tensor) -> Tensor:
    """The lower factors L (k, m + 1, m + 1) of H[S, S]."""
    H = stationary_blocks(fit_data.kernel, fit_data.X[S])
    H.diagonal(dim1=1, dim2=2).mul_(1.0 + _RIDGE).add_(fit_data.noise[S])
    L, info = torch.linalg.cholesky_ex(H)
    if bool(info.any()):
        raise NumericalFailure(
            "the kernel matrix of neighbouring rows is not positive definite: raise the noise, or merge rows with "
            "equal inputs"
        )
    return L


def _last_column(L: Tensor) -> Tensor:
    """u (k, m + 1), the last column of L^-T."""
    last = torch.zeros(L.shape[1], 1, dtype=torch.float64, device=L.device)
    last[-1] = 1.0
    return torch.linalg.solve_triangular(L.mT, last, upper=True).squeeze(2)


def _differentiate_first(
    fit_data: FitData, A: Tensor, trend: TrendEstimate | None, learned: Sequence[Tensor]
) -> BatchSums:
    """The joint density of the first rows A (1, m + 1) and its derivatives."""
    with torch.no_grad():
        L = _factorise(fit_data, A)
        targets = fit_data.targets[A]
        solved = torch.cholesky_solve(targets, L)
        W = -torch.cholesky_inverse(L)
        if trend is None:
            y, v = targets[..., 0], solved[..., 0]
        else:
            y, v = targets @ trend.combination, solved @ trend.combination
            W += solved[..., 1:] @ trend.covariance @ solved[..., 1:].mT
        W = 0.5 * (W + v.unsqueeze(2) * v.unsqueeze(1))
        misfit = (y * v).sum()
        value = -L.diagonal(dim1=1, dim2=2).log().sum() - 0.5 * misfit
    return BatchSums(value, misfit, v, W.diagonal(dim1=1, dim2=2), _contract(fit_data, A, W, learned))


def _differentiate(fit_data: FitData, S: Tensor, trend: TrendEstimate | None, learned: Sequence[Tensor]) -> BatchSums:
    """The conditional densities of the sets S (k, m + 1) and their derivatives."""
    with torch.no_grad():
        L = _factorise(fit_data, S)
        u = _last_column(L)
        targets = fit_data.targets[S]
        solved = torch.cholesky_solve(targets, L)
        products = (u.unsqueeze(2) * targets).sum(1)
        if trend is None:
            q, z = products[:, 0], solved[..., 0]
            curvature = 1.0 + q.square()
            right = q.unsqueeze(1) * z
        else:
            q, g = products @ trend.combination, products[:, 1:]
            G_inverse_g = g @ trend.covariance
            curvature = 1.0 + q.square() + (G_inverse_g * g).sum(1)
            right = q.unsqueeze(1) * (solved @ trend.combination) + (solved[..., 1:] * G_inverse_g.unsqueeze(1)).sum(2)
        right = right - 0.5 * curvature.unsqueeze(1) * u
        # W = u right^T is not symmetric; only its symmetric part counts, because K is symmetric.
        W = u.unsqueeze(2) * right.unsqueeze(1)
        value = u[:, -1].log().sum() - 0.5 * q.square().sum()
    # The diagonal of W: derivatives in the noise variances.
    noise_gradient = u * right
    gradients = _contract(fit_data, S, W, learned)
    return BatchSums(value, q.square().sum(), q.unsqueeze(1) * u, noise_gradient, gradients)


def _contract(fit_data: FitData, S: Tensor, W: Tensor, learned: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of sum_ab W_ab K_ab, W (k, m + 1, m + 1), in the learned parameters of the kernel."""
    with torch.enable_grad():
        total = (W * stationary_blocks(fit_data.kernel, fit_data.X[S])).sum()
    grads = torch.autograd.grad(total, learned, allow_unused=True) if learned else ()
    return [torch.zeros_like(p) if grad is None else grad for p, grad in zip(learned, grads, strict=True)]


def _fit_trend(fit_data: FitData, factors: Factors) -> TrendEstimate:
    """The coefficients of the trend by generalised least squares."""
    # [y, B]^T H^-1 [y, B] by the approximation, beginning with the first rows.
    whitened = torch.linalg.solve_triangular(
        _factorise(fit_data, factors.first), fit_data.targets[factors.first], upper=False
    ).squeeze(0)
    gram = whitened.T @ whitened

    def compute(S: Tensor) -> Tensor:
        u = _last_column(_factorise(fit_data, S))
        products = (u.unsqueeze(2) * fit_data.targets[S]).sum(1)
        return products.T @ products

    run_in_order(
        factors.later, compute, lambda S, products: gram.add_(products, alpha=factors.scale), fit_data.X.device
    )
    factor = torch.linalg.cholesky(gram[1:, 1:])
    covariance = torch.cholesky_inverse(factor)
    combination = torch.cat([gram.new_ones(1), -covariance @ gram[1:, 0]])
    return TrendEstimate(combination, covariance, 2.0 * float(factor.diagonal().log().sum()))
