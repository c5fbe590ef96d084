"""The empirical variogram of a field beside that of the model that was learned from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.kriging.coordinates import EARTH_RADIUS_KM, Coordinates, Field
from pathgp.kriging.empirical_variogram import Variogram, variogram
from pathgp.posterior.table import Posterior

Vector = NDArray[np.float64]

# Points on the curve of the model.
_POINTS = 100


def fitted_variogram(field: Field, post: Posterior) -> Variogram:
    """The empirical variogram of the values less the trend, and that of the model."""
    coordinates, lonlat = field.coordinates, field.coordinates.lonlat
    P = field.X[:, : len(coordinates.names)] if lonlat is None else field.X[:, list(lonlat)]
    kind = "plane" if lonlat is None else "lonlat"
    empirical = variogram(P, field.y - trend_at(field.X, post), coordinates=kind)
    # P has no names, and on the globe no other coordinates.
    empirical = replace(empirical, note=coordinates.distance_note)
    # Few points may have no pair of neighbours at all.
    farthest = np.nanmax(empirical.lags) if np.isfinite(empirical.lags).any() else np.ptp(P, axis=0).max()
    lags = np.linspace(0.0, float(farthest), _POINTS)
    return empirical.with_model(lags, *model_variogram(lags, np.median(field.X, axis=0), coordinates, post))


def trend_at(X: Vector, post: Posterior) -> Vector | float:
    """The learned trend at points X (n, d): (n,), or the known mean."""
    if post.trend is None:
        return float(post.model.mean)
    basis = post.model.mean(torch.as_tensor(X, device=post.system.X.device))
    return np.asarray((basis @ post.trend.coefficients.to(basis)).cpu())


def model_variogram(
    lags: Vector, centre: Vector, coordinates: Coordinates, post: Posterior
) -> tuple[Vector, list[str]]:
    """nugget^2 + k(0) - k(h) at lags h (m,), along every axis: (curves, m), and the names of the curves.

    One curve if the axes do not differ, and on the globe. Known noise of single values enters by its mean square.
    centre: a point (d,), whose other columns stay fixed.
    """
    axes = list(range(len(coordinates.names)))
    steps, start = lags, centre.copy()
    if coordinates.lonlat is not None:
        # Along the equator.
        start[list(coordinates.lonlat)] = 0.0
        axes, steps = [coordinates.lonlat[0]], np.rad2deg(lags / EARTH_RADIUS_KM)
    unit = float(post.scaling.target_scale) ** 2
    curves: list[Vector] = []
    for axis in axes:
        P = np.tile(start, (len(lags) + 1, 1))
        P[1:, axis] += steps
        X = post.scaling.inputs(torch.as_tensor(P, device=post.system.X.device), torch.float64)
        with torch.no_grad():
            difference = post.model.kernel.diag(X[:1]) - post.model.kernel(X[:1], X[1:])[0]
        curves.append(unit * difference.cpu().numpy())
    found = np.stack(curves) + unit * float(post.system.deviation.square().mean())
    if len(found) == 1 or np.allclose(found, found[0], rtol=1e-6):
        return found[:1], ["model"]
    return found, [f"model along {coordinates.names[axis]}" for axis in axes]
