"""A kernel of the caller as one of the coordinates: without the columns of the trend, and on the sphere."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from pathgp.kernels import Kernel, Product, Scale, Sphere, Sum
from pathgp.kernels.expression import fold, leaves
from pathgp.kernels.sphere import has_sphere
from pathgp.kernels.stationary import Stationary
from pathgp.kriging.coordinates import Coordinates


def restrict_kernel(kernel: Kernel, coordinates: Coordinates) -> Kernel:
    """A given kernel for these coordinates; it shares its parameters with the result.

    Parts without ``active_dims`` see the coordinates only, not the columns of the trend. On the globe a stationary
    kernel of longitude and latitude becomes `Sphere`, with its length scale in Earth radii. A kernel with a `Sphere` of
    its own is used as it is, and so is one that names single columns.
    """
    d = len(coordinates.names)
    if coordinates.drift and not _names_drift(kernel, d):
        # A scale stays outside: the summary knows the signal by its place.
        if isinstance(kernel, Scale) and kernel.active_dims is None:
            kernel = kernel.around(Sum(kernel.kernel, active_dims=range(d)))
        else:
            kernel = Sum(kernel, active_dims=range(d))
    if coordinates.lonlat is None:
        return kernel
    lon, lat = coordinates.lonlat
    seen = leaves(kernel, range(len(coordinates.columns)))
    if has_sphere(kernel):
        for leaf, columns in seen:
            if isinstance(leaf, Sphere) and columns != (lat, lon):
                raise ValueError(
                    f"Sphere reads latitude, then longitude, which are the columns {[lat, lon]} here: write "
                    f"Sphere(..., active_dims=[{lat}, {lon}])"
                )
        return kernel
    if not any(_is_of_positions(leaf, columns, coordinates) for leaf, columns in seen):
        return kernel
    return fold(kernel, partial(_on_sphere, coordinates=coordinates), tuple(range(len(coordinates.columns))))


def _names_drift(kernel: Kernel, d: int) -> bool:
    """Whether ``active_dims`` name every column, or a column of the trend, which comes after d coordinates."""

    def visit(node: Kernel, seen: Sequence[int] | None, parts: Iterator[list[Any]]) -> list[Any]:
        return [columns for part in parts for columns in part] if node.parts else [seen]

    seen = fold(kernel, visit)
    return None not in seen or any(max(columns) >= d for columns in seen if columns is not None)


def _is_of_positions(leaf: Kernel, columns: Sequence[int], coordinates: Coordinates) -> bool:
    """Whether an elementary kernel is a stationary one of both longitude and latitude."""
    assert coordinates.lonlat is not None
    return isinstance(leaf, Stationary) and set(coordinates.lonlat) <= set(columns)


def _on_sphere(
    node: Kernel, columns: Sequence[int] | None, parts: Iterator[Kernel], coordinates: Coordinates
) -> Kernel:
    """A node of an expression that sees these columns, with `Sphere` around stationary kernels of positions."""
    assert coordinates.lonlat is not None
    assert columns is not None
    if isinstance(node, Scale):
        return node.around(next(parts))
    if node.parts:
        return (Sum if isinstance(node, Sum) else Product)(*parts)
    # Another object with the same parameters: the kernel of the caller keeps its columns.
    twin = copy.copy(node)
    twin.active_dims = None
    if not _is_of_positions(node, columns, coordinates):
        return Sum(twin, active_dims=columns)
    lon, lat = coordinates.lonlat
    if not isinstance(node, Stationary) or node.lengthscale.ndim or len(columns) > 2:
        raise ValueError(
            f"on the sphere one length scale, in Earth radii, holds in all directions, and {node!r} has others: write "
            f"Sphere(Matern(1.5, 0.1), active_dims=[{lat}, {lon}]), times a kernel of the other columns, or use "
            "coordinates='plane'"
        )
    return Sphere(twin, active_dims=[lat, lon])
