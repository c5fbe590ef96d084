"""One batch of linear systems for the posterior mean and all posterior samples.

    H [v, alpha_1, ..., alpha_s] = [y, f_1(X) + eps_1, ..., f_s(X) + eps_s],   H = K + Sigma,  eps_j = Sigma^1/2 w_j

With a trend the batch has p more right-hand sides, the basis functions B (see `pathgp.posterior.trend`).

Solvers get the noise as delta = Sigma^-1/2 w, so that eps = Sigma delta: primal SGD moves it into its regulariser
(thesis, section 3.2.2), every other solver adds it to the right-hand side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.pathwise import PriorPaths
from pathgp.posterior.trend import GeneralisedLeastSquares

# Weight of the average over all rows in the estimate of each row's posterior variance, in samples.
_SHRINKAGE = 4
# Columns of the solution that are converted to float64 at once.
_COLUMNS_AT_ONCE = 8


@dataclass(frozen=True)
class System:
    """The right-hand sides in the model's units.

    X: (n, d), for a grid the numbers of the cells (n, 1).  targets: (n, 1 + s), y and the prior draws f_j(X).
    noise_draws: (n, s) standard normal, or (n, 0) if the targets are complete.  deviation: standard deviation of the
    noise, a scalar or (n,), float64.  basis: the basis functions of a trend (n, p), or None.
    """

    X: Tensor
    targets: Tensor
    noise_draws: Tensor
    deviation: Tensor
    basis: Tensor | None = None

    @property
    def is_complete(self) -> bool:
        """Whether there are right-hand sides; a posterior saved without data keeps only X and deviation."""
        return self.targets.shape[1] > 0

    def require_targets(self, operation: str) -> System:
        """This system; ValueError if it is not complete. ``operation``: needs the right-hand sides."""
        if not self.is_complete:
            raise ValueError(f"{operation} needs the observations, which were not saved: use save(data=True)")
        return self

    @property
    def num_basis(self) -> int:
        """The number p of basis functions of a trend."""
        return 0 if self.basis is None else self.basis.shape[1]

    def right_hand_sides(self) -> Tensor:
        """What solvers get, together with `delta`: (n, 1 + s + p)."""
        return self.targets if self.basis is None else torch.cat([self.targets, self.basis], 1)

    def delta(self) -> Tensor | None:
        """The noise in the form solvers expect: eps = Sigma delta, zero for y and the basis of a trend."""
        if not self.noise_draws.shape[1]:
            return None
        scaled = self.noise_draws / self.deviation.unsqueeze(-1).to(self.noise_draws.dtype)
        return torch.cat([scaled.new_zeros(len(scaled), 1), scaled, scaled.new_zeros(len(scaled), self.num_basis)], 1)

    def split(self, x: Tensor) -> tuple[Tensor, GeneralisedLeastSquares | None]:
        """Solutions (n, 1 + s + p) as those of y and the draws (n, 1 + s), and those of the trend, if there is one."""
        if self.basis is None:
            return x, None
        count = x.shape[1] - self.num_basis
        return x[:, :count], GeneralisedLeastSquares(self.basis, x[:, count:])

    def posterior_variances(self, x: Tensor) -> Tensor:
        """Estimated posterior variances of f at the data (n,), float64, from a solution x (n, 1 + s + p).

        Those without a trend, which are smaller.

        The zero-mean part of path j at the data is f_j(X) - K alpha_j = Sigma alpha_j - eps_j + r_j, so that no product
        is needed. Few samples determine a single row poorly: its estimate is shrunk towards the average over all rows.
        """
        noise = self.deviation.to(torch.float64).square().expand(len(self.X))
        count = self.noise_draws.shape[1]
        if not count:
            return noise
        total = torch.zeros_like(noise)
        deviation = noise.sqrt().unsqueeze(1)
        for part in spans(count, _COLUMNS_AT_ONCE):
            alpha = x[:, 1 + part.start : 1 + part.stop].to(torch.float64)
            total += (deviation.square() * alpha - deviation * self.noise_draws[:, part]).square().sum(1)
        share = float((total / noise).mean()) / count
        return (total + _SHRINKAGE * share * noise) / (count + _SHRINKAGE)

    def error_scale(self, x: Tensor | None, largest: float) -> float:
        """The root mean square of a residual whose effect is one posterior standard deviation at the data.

        The error that a residual r leaves in the mean or in a path is, at the data, K H^-1 r: at most r, and at most
        n k / sigma^2 r, with k the ``largest`` prior variance. The posterior variance of a row is at most sigma^2, and
        at least that of n observations of it alone. Without a solution x the noise is used in its place.
        """
        noise, n = self.deviation.to(torch.float64).square(), len(self.X)
        variances = noise
        if x is not None:
            variances = self.posterior_variances(x).maximum(largest * noise / (noise + n * largest))
        # A prior variance of zero: no residual has an effect.
        ratio = float(noise.min()) / (n * largest) if largest > 0.0 else math.inf
        return (1.0 + ratio) * float((1.0 / variances).mean()) ** -0.5

    def noisy_draws(self, columns: slice = slice(None)) -> Tensor:
        """The prior draws as if observed, f_j(X) + eps_j: (n, s), or some of the columns, float64."""
        noise = self.deviation.unsqueeze(-1) * self.noise_draws[:, columns]
        return self.targets[:, 1:][:, columns].to(torch.float64) + noise

    def sizes(self) -> Tensor:
        """Euclidean norms of all right-hand sides (1 + s + p,), float64."""
        norms = [torch.linalg.vector_norm(self.targets[:, :1], dim=0, dtype=torch.float64)]
        for part in spans(self.noise_draws.shape[1], _COLUMNS_AT_ONCE):
            norms.append(torch.linalg.vector_norm(self.noisy_draws(part), dim=0))
        if self.basis is not None:
            norms.append(torch.linalg.vector_norm(self.basis, dim=0, dtype=torch.float64))
        return torch.cat(norms)

    def to(self, dtype: torch.dtype, prior: PriorPaths | None) -> System:
        """The system in another dtype, with the values of the prior draws to all its digits."""
        if dtype == self.X.dtype:
            return self
        X, targets = self.X.to(dtype), self.targets.to(dtype)
        if prior is not None:
            with torch.no_grad():
                targets = torch.cat([targets[:, :1], prior(X).T], 1)
        basis = None if self.basis is None else self.basis.to(dtype)
        return System(X, targets, self.noise_draws.to(dtype), self.deviation, basis)

    def extend(self, other: System) -> System:
        """The rows of both systems."""
        deviation = self.deviation
        if deviation.ndim or other.deviation.ndim:
            deviation = torch.cat([system.deviation.expand(len(system.X)) for system in (self, other)])
        pairs = ((self.X, other.X), (self.targets, other.targets), (self.noise_draws, other.noise_draws))
        X, targets, noise_draws = map(torch.cat, pairs)
        basis = None if self.basis is None or other.basis is None else torch.cat([self.basis, other.basis])
        return System(X, targets, noise_draws, deviation, basis)
