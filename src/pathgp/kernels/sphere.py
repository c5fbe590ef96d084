"""Stationary kernels on the sphere, for latitudes and longitudes, and kernels as functions of embedded inputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pathgp.kernels.algebra import Product, Scale, Sum
from pathgp.kernels.base import Kernel
from pathgp.kernels.expression import leaves
from pathgp.kernels.stationary import Stationary

_COORDINATES = 3
# Longitudes that differ by this number of degrees are equal.
CIRCLE = 360.0


class Sphere(Kernel):
    """k(x, z) = k_1(u(x), u(z)): a stationary kernel of points u on the unit sphere, for latitude and longitude.

        u(lat, lon) = (cos lat cos lon, cos lat sin lon, sin lat),    |u(x) - u(z)| = 2 sin(angle / 2)

    Distances are chords, which makes every stationary kernel positive semi-definite; most kernels of the great-circle
    distance are not. A chord is shorter than its arc by 0.1 % at 1,000 km and by 4 % at 6,371 km. Longitudes wrap
    around, and each pole is one point, whatever its longitude.

    The length scale is in radii of the sphere: on Earth 0.1 is 637 km, and L km are L / 6371.

    Scales, sums and further columns go around it: ``Scale(Sphere(Matern(1.5, 0.1), active_dims=[0, 1]) *
    Matern(1.5, active_dims=[2]))``. Guinness and Fuentes (2016).

    Args:
        kernel: a stationary kernel with one length scale and without ``active_dims``, such as ``Matern(1.5, 0.1)``.
        active_dims: the columns of latitude and longitude, in this order, both in degrees; needed if the inputs have
            more than two columns.
    """

    def __init__(self, kernel: Kernel, active_dims: Sequence[int] | None = None) -> None:
        super().__init__(active_dims)
        if not isinstance(kernel, Stationary):
            raise TypeError(
                f"Sphere takes a stationary kernel such as Matern(1.5, 0.1), got {type(kernel).__name__}: "
                "scales, sums and products go around Sphere(...)"
            )
        if kernel.active_dims is not None or kernel.lengthscale.ndim:
            raise ValueError(
                "the kernel inside Sphere has one length scale and no active_dims: name the columns of latitude and "
                "longitude in Sphere(..., active_dims=[lat, lon])"
            )
        if self.active_dims is not None and len(self.active_dims) != 2:
            raise ValueError(f"Sphere reads latitude and longitude, got active_dims={list(self.active_dims)}")
        self.kernel = kernel

    @property
    def parts(self) -> list[Kernel]:
        """None: the inner kernel sees no columns of X."""
        return []

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        points = unit_vectors(X, "X")
        return self.kernel(points, points if Z is X else unit_vectors(Z, "Z")).to(X.dtype)

    def _contract(self, W: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        points = unit_vectors(X, "X")
        return self.kernel.contract(W, points, points if Z is X else unit_vectors(Z, "Z"))

    def _diagonal(self, X: Tensor) -> Tensor:
        return self.kernel.diag(unit_vectors(X, "X")).to(X.dtype)

    def _coordinates(self, X: Tensor) -> Tensor:
        return self.kernel.coordinates(unit_vectors(X, "X"))

    def __repr__(self) -> str:
        dims = "" if self.active_dims is None else f", active_dims={list(self.active_dims)}"
        return f"Sphere({self.kernel!r}{dims})"


def unit_vectors(X: Tensor, name: str) -> Tensor:
    """Points on the unit sphere (n, 3), float64, of latitudes and longitudes (n, 2) in degrees."""
    if X.shape[1] != 2:
        raise ValueError(
            f"Sphere reads two columns, latitude and longitude, but {name} has {X.shape[1]}: name them in active_dims"
        )
    degrees = X.to(torch.float64)
    beyond = ~(degrees[:, 0].detach().abs() <= 90.0)
    if bool(beyond.any()):
        row = int(torch.nonzero(beyond)[0])
        raise ValueError(
            f"latitudes lie between -90 and 90 degrees, but {name} has {float(degrees[row, 0]):g} in row {row}: "
            "Sphere reads latitude first, then longitude"
        )
    lat, lon = (degrees * (math.pi / 180.0)).T
    return torch.stack([lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()], 1)


class Embedding:
    """A kernel on X (n, d) as a kernel without `Sphere` on other columns: points on its spheres, and the columns of X
    that are seen otherwise.

    ``kernel`` shares the parameters of the one ``given``, in the same order; without a sphere it is the given kernel.

    Args:
        kernel: any kernel.
        dim: the number d of columns of X.
    """

    def __init__(self, kernel: Kernel, dim: int) -> None:
        self._spheres: list[tuple[int, ...]] = []
        self._kept: tuple[int, ...] = tuple(range(dim))
        self.given = self.kernel = kernel
        if has_sphere(kernel):
            seen = leaves(kernel, range(dim))
            self._kept = tuple(sorted({c for leaf, columns in seen if not isinstance(leaf, Sphere) for c in columns}))
            self.kernel = self._rebuild(kernel, tuple(range(dim)))

    def __call__(self, X: Tensor, name: str = "X") -> Tensor:
        """The inputs of the kernel (n, ``dim``), in the dtype of X; differentiable."""
        if not self._spheres:
            return X
        points = [unit_vectors(X[:, list(columns)], name).to(X.dtype) for columns in self._spheres]
        return torch.cat([X[:, list(self._kept)], *points], 1)

    @property
    def dim(self) -> int:
        """The number of columns of these inputs."""
        return len(self._kept) + _COORDINATES * len(self._spheres)

    def _rebuild(self, kernel: Kernel, columns: tuple[int, ...]) -> Kernel:
        """A kernel, of which the node above sees these columns of X, as a function of the new columns."""
        dims = kernel.active_dims
        if dims is not None and max(dims) >= len(columns):
            raise ValueError(
                f"{type(kernel).__name__} acts on column {max(dims)}, but X has only {len(columns)} columns"
            )
        seen = columns if dims is None else tuple(columns[i] for i in dims)
        if isinstance(kernel, Sphere):
            if len(seen) != 2:
                raise ValueError(
                    f"Sphere reads two columns, latitude and longitude, but it sees {len(seen)}: name them in "
                    "active_dims"
                )
            start = self.dim
            self._spheres.append(seen)
            return Sum(kernel.kernel, active_dims=range(start, start + _COORDINATES))
        if not kernel.parts:
            # Another object with the same parameters, which sees all columns that it is given.
            twin = copy.copy(kernel)
            twin.active_dims = None
            return Sum(twin, active_dims=[self._kept.index(c) for c in seen])
        parts = [self._rebuild(part, seen) for part in kernel.parts]
        if isinstance(kernel, Scale):
            return kernel.around(parts[0])
        return (Sum if isinstance(kernel, Sum) else Product)(*parts)


def has_sphere(kernel: Kernel) -> bool:
    """Whether a kernel expression contains a `Sphere`."""
    return any(isinstance(part, Sphere) for part in kernel.modules())
