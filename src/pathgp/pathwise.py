"""Pathwise conditioning: a posterior path is a prior path plus an update path.

    f|y(.) = f(.) + K(., X) (v - alpha),   v = H^-1 (y - mu),   alpha = H^-1 (f(X) + eps),   eps ~ N(0, Sigma)

f is a draw from the prior that can be evaluated anywhere; it consists of random features with its own frequencies and
weights. The weights v and alpha are solved for once; evaluating a path needs no further solve.
Thesis, section 2.1.2; Wilson et al. (2020, 2021).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.random import normal
from pathgp.features import FeatureMap
from pathgp.kernels import Kernel
from pathgp.operators import cross_product, own_product


@dataclass(frozen=True)
class PriorPaths:
    """s functions f_j(.) = sum_i w_ji phi_ji(.) from the zero-mean prior; w standard normal."""

    features: FeatureMap
    weights: Tensor

    @classmethod
    def draw(cls, kernel: Kernel, samples: int, features: int, columns: int, generator: torch.Generator) -> PriorPaths:
        """Draw paths with ``features`` random features each, independent of each other, for inputs (m, ``columns``)."""
        phi = kernel.features(features, generator=generator, paths=samples, dim=columns)
        return cls(phi, normal((samples, phi.num), generator, torch.float64, torch.device("cpu")))

    @property
    def samples(self) -> int:
        """The number of paths s."""
        return len(self.weights)

    @property
    def num_features(self) -> int:
        """The number of features of each path."""
        return int(self.features.num)

    def state(self) -> dict[str, Any]:
        """Numbers and tensors that define the paths together with their kernel, for ``from_state``."""
        return {"features": self.features.state(), "weights": self.weights}

    @classmethod
    def from_state(cls, kernel: Kernel, state: dict[str, Any]) -> PriorPaths:
        """The paths with this ``state()``, for a kernel of the same structure."""
        return cls(FeatureMap.from_state(kernel, state["features"]), state["weights"])

    def follow(self, generator: torch.Generator) -> PriorPaths:
        """These paths, with features that represent the kernel at its present hyperparameters.

        The same object unless a periodic kernel needs more harmonics. Features that stay keep their draws: a series
        changes by the missing terms; the frequencies of a product with it are assigned anew to the harmonics.
        """
        if self.features.suffices:
            return self
        phi, places = self.features.rebuild(generator)
        fresh = normal((len(self.weights), phi.num), generator, torch.float64, torch.device("cpu"))
        weights = torch.where(places >= 0, self.weights[:, places.clamp_min(0)], fresh)
        return PriorPaths(phi, weights)

    def __call__(self, X: Tensor, only: Collection[int] | None = None) -> Tensor:
        """Values (s, m) at X (m, d); differentiable in X. Time O(s m features). ``only``: see `FeatureMap.weighted`."""
        return self.features.weighted(X, self.weights.to(X), only)

    def at(self, X: Tensor, paths: Tensor) -> Tensor:
        """Values (p, q) of paths with these numbers (p,), each at its own points X (p, q, d); differentiable in X."""
        return self.features.weighted_at(X, self.weights[paths].to(X), paths)


@dataclass(frozen=True)
class ZeroPaths:
    """The zero function s times: the prior part of paths that consist of their update alone."""

    samples: int
    num_features: int = 0

    def state(self) -> dict[str, Any]:
        """Numbers that define the paths."""
        return {"zero": self.samples}

    def follow(self, generator: torch.Generator) -> ZeroPaths:
        """These paths, which no hyperparameter changes."""
        return self

    def __call__(self, X: Tensor, only: Collection[int] | None = None) -> Tensor:
        """Zeros (s, m) at X (m, d)."""
        return X.new_zeros(self.samples, len(X))

    def at(self, points: Tensor, paths: Tensor) -> Tensor:
        """Zeros (p, q) at points (p, q, d) of p paths."""
        return points.new_zeros(points.shape[:2])


@dataclass(frozen=True)
class UpdatePaths:
    """Functions K(., X) W, one per column of the representer weights W (n, s)."""

    kernel: Kernel
    X: Tensor
    weights: Tensor
    memory: float | None = None
    backend: str = "auto"

    def __call__(self, Xs: Tensor) -> Tensor:
        """Values (s, m) at Xs (m, d); differentiable in Xs. Time O(s m n), memory one tile and the output.

        ``backend``: see `cross_product`, which takes less time for many inputs in up to three dimensions.
        """
        return cross_product(self.kernel, Xs, self.X, self.weights, self.memory, self.backend).T

    def at(self, Xs: Tensor) -> Tensor:
        """Values (s, q) of function j at its own points Xs[j], Xs (s, q, d); differentiable in Xs. Time O(s q n)."""
        return own_product(self.kernel, Xs, self.X, self.weights, self.memory, self.backend)


def variance_from_paths(g: Tensor, h: Tensor, prior: Tensor) -> Tensor:
    """Posterior variance v (m,) from s paths of which f = g + h, g the zero-mean part and h = K(., X) alpha.

    g and h are independent, with variances v and k - v where k is the known prior variance. The mean square of g
    alone has relative variance 2 / s. The maximum-likelihood estimate from both,

        v = (G / v^2 + (k - H) / (k - v)^2) / (1 / v^2 + 1 / (k - v)^2),   G = mean g^2,  H = mean h^2,

    iterated from k G / (G + H), has 2 / s / (1 + v^2 / (k - v)^2): the same near the data, half of it where
    v = k / 2, and none far from the data, where v = k.
    """
    return variance_from_moments(g.square().mean(0), h.square().mean(0), prior)


def variance_from_moments(G: Tensor, H: Tensor, prior: Tensor) -> Tensor:
    """The same from the mean squares of both parts."""
    tiny = torch.finfo(G.dtype).tiny
    variance = prior * G / (G + H).clamp_min(tiny)
    for _ in range(3):
        near, far = (prior - variance).square(), variance.square()
        combined = (near * G + far * (prior - H)) / (near + far).clamp_min(tiny)
        # The estimate of a small variance can be negative; the mean square is used instead.
        variance = torch.where(combined > 0, combined, G).minimum(prior)
    return variance
