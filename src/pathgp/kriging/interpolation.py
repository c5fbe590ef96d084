"""`krige`: learn the model of a field from values at points, and predict it at targets or on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pathgp.compute.inputs import read_device
from pathgp.compute.memory import read_bytes
from pathgp.compute.random import as_generator
from pathgp.compute.settings import Compute
from pathgp.kernels import Kernel
from pathgp.kriging.coordinates import Field, as_array, columns_of, read_field
from pathgp.kriging.model import learn
from pathgp.kriging.result import Kriging, predict
from pathgp.kriging.targets import read_cells, read_targets


def krige(
    points: Any,
    values: Any,
    targets: Any = None,
    *,
    grid: Any = None,
    columns: Sequence[str] | None = None,
    coordinates: str | None = None,
    kernel: str | Kernel | None = None,
    anisotropy: bool | None = None,
    nugget: float | None = None,
    noise: Any = None,
    trend: str | float | Sequence[str] = "constant",
    cells: float | Sequence[float] | bool | None = None,
    cell_points: int = 4,
    samples: int = 64,
    steps: int | None = None,
    time_limit: float | None = None,
    progress: bool = False,
    device: str | torch.device | None = None,
    memory: float | str | None = None,
    generator: torch.Generator | None = None,
) -> Kriging:
    """Predict a field from values at scattered points: mean, standard deviation and conditional simulations.

    y_i = t(x_i) + f(x_i) + eps_i with a trend t, a Gaussian process f and a nugget eps. Kernel, nugget and trend are
    learned from all values by the likelihood, see `GP.fit`; predictions use all of them, not only neighbours.

    Args:
        points: coordinates (n, d), NumPy or torch; or a DataFrame; or a GeoDataFrame of points.
        values: (n,), or the name of a column of the frame. NaN is refused: leave such rows out.
        targets: where to predict: an array (m, d), or a frame with the same columns.
        grid: in place of targets the nodes of a grid: a spacing for all axes, or one for each (multiples of it that
            cover the points); a dict with a spacing or nodes for every coordinate; or a Dataset of xarray.
        columns: the coordinates in a frame; by default all columns but the values, the noise and the trend's.
            Longitude and latitude are coordinates also if the trend names them.
        coordinates: "plane"; or "lonlat", longitude and latitude in degrees, on the sphere. None: "lonlat" for columns
            with such names (lon, lat) and for a GeoDataFrame in degrees.
        kernel: a name, such as "matern-3/2"; or a kernel, whose hyperparameters are in the units of the data (Earth
            radii on the sphere, where a stationary kernel becomes `Sphere`). Without ``active_dims`` it sees the
            coordinates, not the columns of the trend. None: the likelihood chooses among Matérn kernels, see
            `pathgp.models.field_choice`.
        anisotropy: True for one length scale per axis, False for one for all. None: True in a plane, False on the
            sphere.
        nugget: standard deviation of the noise, in the units of the values; None learns it. A variogram starts at its
            square.
        noise: known standard deviations of the single values (n,), or the name of a column; the nugget adds to them.
        trend: its coefficients are estimated with the rest: "constant" (ordinary kriging), "linear" or "quadratic" in
            the coordinates (universal kriging), or a list of columns (external drift). A number is a known mean (simple
            kriging).
        cells: predict averages over cells (block kriging) of this size, or one for each axis; True takes the cells of
            the grid.
        cell_points: sub-points of a cell along each axis.
        samples: the number of conditional simulations; standard deviations come from them, too, for more than 1,000
            points.
        steps: steps of learning, at most; 0 keeps a given kernel and nugget.
        time_limit: seconds that learning may take.
        progress: show progress bars.
        device: such as "cuda"; the CPU by default.
        memory: budget in bytes, such as "4GB", for products and for the results.
        generator: source of all draws.

    Returns:
        A `Kriging` with ``mean``, ``std``, ``samples``, ``posterior``, ``report``, ``variogram``, ``exceedance``,
        ``cross_validation``, ``to_frame``, ``to_dataset`` and ``plot``.
    """
    drift = [] if isinstance(trend, str) or not isinstance(trend, Sequence) else trend
    field = read_field(points, values, columns, coordinates, drift, noise if isinstance(noise, str) else None)
    known = _read_noise(noise, points, field)
    _require_enough(field, steps)
    compute = Compute(memory=None if memory is None else read_bytes(memory))
    budget = compute.budget(torch.device("cpu"))
    where = read_targets(targets, grid, field.coordinates, field.X, budget)
    blocks = read_cells(cells, cell_points, where, field.coordinates)
    gp, report = learn(
        field,
        kernel,
        anisotropy,
        nugget,
        trend,
        known,
        read_device(device),
        steps=steps,
        time_limit=time_limit,
        samples=samples,
        progress=progress,
        generator=as_generator(generator),
        compute=compute,
    )
    return predict(field, gp.posterior, report, where, blocks, progress)


def _read_noise(noise: Any, points: Any, field: Field) -> Any:
    """Check known standard deviations (n,) of the values, an array or the name of a column; None for none."""
    if noise is None:
        return None
    known = columns_of(points, [noise], "points")[:, 0] if isinstance(noise, str) else as_array(noise, "noise")
    if known.shape != field.y.shape:
        advice = "; one number for all is the nugget" if known.ndim == 0 else ""
        raise ValueError(f"noise must have shape {field.y.shape}, one for each value; got {known.shape}{advice}")
    if not (np.isfinite(known) & (known >= 0)).all():
        row = int(np.argmin(np.isfinite(known) & (known >= 0)))
        raise ValueError(f"noise has {known[row]} in row {row}: standard deviations are finite and not negative")
    return known


def _require_enough(field: Field, steps: int | None) -> None:
    """Refuse values from which nothing can be learned."""
    if steps == 0:
        return
    if len(field.y) < 2:
        raise ValueError("there is one point, from which nothing can be learned: give kernel, nugget and steps=0")
    if np.ptp(field.y) == 0:
        raise ValueError(f"all values are {field.y[0]:g}: there is nothing to learn")
    if (field.X[:1] == field.X).all():
        raise ValueError("all points coincide: give values at different places")
