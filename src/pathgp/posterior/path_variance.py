"""Posterior variances from paths, with the posterior given a few observations as the control variate.

Path j has a prior part f_j, observed as u_j = f_j(X) + eps_j, and the weights alpha_j = H^-1 u_j. Its zero-mean part
g_j(x) = f_j(x) - k(x, X) alpha_j is normal, and its variance v(x) is to be estimated. With the c rows N that are most
informative about x,

    b = H_NN^-1 k(X_N, x),    q_j(x) = f_j(x) - b . u_j[N],    w(x) = k(x, x) - b . k(X_N, x),

q_j is the same path given these rows alone, and its variance w is known. As g_j is independent of all observations u_j,
it is independent of q_j - g_j = k(x, X) alpha_j - b . u_j[N], which therefore has the variance w - v. The
maximum-likelihood estimate of v from both (`variance_from_paths`) has the relative variance
2 / s / (1 + v^2 / (w - v)^2): small where a few neighbours determine f(x) almost completely.

Any choice of N gives a consistent estimate. Here it is the rows of largest k(x, x_i)^2 / H_ii, by which each of them
alone lowers the variance of f(x): for stationary kernels the nearest ones. Where one row replaces another, the estimate
jumps by a part of its error; without neighbours it is a smooth function of x. Local conditioning: Vecchia (1988).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.memory import halve_on_failure, limit_edge, memory_budget, spans, tile_edge
from pathgp.compute.recompute import recompute
from pathgp.compute.settings import Compute
from pathgp.compute.threads import list_in_order
from pathgp.kernels import Kernel
from pathgp.operators import cross_product
from pathgp.pathwise import PriorPaths, variance_from_paths
from pathgp.posterior.system import System

NEIGHBOURS = 32
# Rows of X whose kernel matrix is evaluated at once, for the neighbours of several test inputs together.
_ROWS_TOGETHER = {"cpu": 512, "cuda": 4096}


@dataclass(frozen=True)
class SampledVariance:
    """v(x) of f, or of one summand of the kernel, from the paths.

    kernel: that of H.  weights: alpha (n, s).  neighbours: c; zero uses the prior as the control, w = k(x, x).
    part: the kernel of the summand.  terms: the terms of its features.
    """

    kernel: Kernel
    system: System
    prior: PriorPaths
    weights: Tensor
    compute: Compute
    neighbours: int = NEIGHBOURS
    part: Kernel | None = None
    terms: Collection[int] | None = None

    def __call__(self, Xs: Tensor) -> Tensor:
        """Variances (m,) at Xs (m, d); differentiable in Xs. Time O(m (n (d + s) + s features + c^3))."""
        f = self.prior(Xs, self.terms)
        memory, backend = self.compute.memory_bytes, self.compute.cross_backend
        h = cross_product(self._part, Xs, self.system.X, self.weights, memory, backend).T
        count = min(self.neighbours, len(self.system.X))
        if not count:
            return variance_from_paths(f - h, h, self._part.diag(Xs))
        index = nearest(self._part, Xs, self.system.X, self._variances(), count, memory)
        step = max(1, _ROWS_TOGETHER.get(Xs.device.type, 512) // count)

        def condition(rows: slice) -> tuple[Tensor, Tensor]:
            return recompute(self._condition, Xs[rows], index[rows])

        parts = list_in_order(list(spans(len(Xs), step)), condition, Xs.device)
        means, variances = zip(*parts, strict=True)
        return variance_from_paths(f - h, h - torch.cat(means, 1), torch.cat(variances))

    @property
    def _part(self) -> Kernel:
        return self.kernel if self.part is None else self.part

    def _variances(self) -> Tensor:
        """diag(H): (n,), slightly increasing, so that all devices choose the first of equally informative rows."""
        X = self.system.X
        order = torch.linspace(1.0, 1.001, len(X), dtype=X.dtype, device=X.device)
        return (self.kernel.diag(X) + self.system.deviation.square().to(X)) * order

    def _condition(self, Xs: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """b . u_j[N] (s, m) and w (m,), for test inputs with the neighbours ``index`` (m, c)."""
        system, inputs = self.system, Xs.to(torch.float64)
        rows, place = torch.unique(index, return_inverse=True)
        points = system.X[rows].to(torch.float64)
        deviation = system.deviation.expand(len(system.X))[rows]
        with torch.no_grad():
            H = self.kernel(points)
            H.diagonal().add_(deviation.square())
            factor, failed = torch.linalg.cholesky_ex(H[place.unsqueeze(2), place.unsqueeze(1)])
            # Neighbours that are equal up to rounding, almost without noise, are not used.
            sound = (failed == 0).view(-1, 1)
            factor = torch.where(sound.unsqueeze(2), factor, torch.eye(index.shape[1], dtype=H.dtype, device=H.device))
        cross = self._part(inputs, points).gather(1, place) * sound
        b = torch.cholesky_solve(cross.unsqueeze(2), factor).squeeze(2)
        variance = (self._part.diag(inputs) - (b * cross).sum(1)).clamp_min(0.0)
        observed = system.targets[rows, 1:] + deviation.unsqueeze(1).to(Xs) * system.noise_draws[rows]
        spread = b.new_zeros(len(Xs), len(rows)).scatter(1, place, b)
        return (spread.to(Xs) @ observed).T, variance.to(Xs)


def nearest(kernel: Kernel, Xs: Tensor, X: Tensor, variances: Tensor, count: int, memory: float | None) -> Tensor:
    """The ``count`` rows of X with the largest k(x, x_i)^2 / variances_i, for each x of Xs: (m, count).

    Time O(m n d), memory one tile and the result.
    """

    def compute(edge: int) -> Tensor:
        edge = limit_edge(edge, len(Xs) * len(X), X.device)
        columns = min(len(X), edge**2)

        def choose(I: slice) -> Tensor:
            value, index = Xs.new_empty(I.stop - I.start, 0), variances.new_empty(I.stop - I.start, 0, dtype=torch.long)
            for J in spans(len(X), columns):
                share = kernel(Xs[I], X[J]).square_().div_(variances[J])
                top = share.topk(min(count, J.stop - J.start), 1)
                value, index = torch.cat([value, top.values], 1), torch.cat([index, top.indices + J.start], 1)
                kept = value.topk(min(count, value.shape[1]), 1)
                value, index = kept.values, index.gather(1, kept.indices)
            return index

        return torch.cat(list_in_order(list(spans(len(Xs), max(1, edge**2 // columns))), choose, X.device))

    with torch.no_grad():
        edge = tile_edge(memory_budget(memory, X.device), X.dtype, X.device)
        return halve_on_failure(compute, edge)[0]
