"""Kernels of finite rank: k(x, z) = phi(x) . phi(z) with a map phi known in closed form."""

from __future__ import annotations

from torch import Tensor

from pathgp.kernels.base import Kernel


class Finite(Kernel):
    """Base of the kernels with a finite feature map; a subclass gives the map and its number of columns."""

    def exact_features(self, X: Tensor) -> Tensor:
        """phi(X) with k(x, z) = phi(x) . phi(z), at the active columns of the inputs: (n, c)."""
        raise NotImplementedError(f"{type(self).__name__} does not define its features")

    def num_exact_features(self, dim: int | None) -> int | None:
        """The number c of features with ``dim`` active columns; None if it depends on an unknown ``dim``."""
        raise NotImplementedError(f"{type(self).__name__} does not define its number of features")

    def _coordinates(self, X: Tensor) -> Tensor:
        return self.exact_features(X)

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.exact_features(X) @ self.exact_features(Z).T

    def _diagonal(self, X: Tensor) -> Tensor:
        return self.exact_features(X).square().sum(1)
