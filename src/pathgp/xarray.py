"""The door to xarray: a field with holes in, the filled field with its uncertainty out.

    from pathgp.xarray import fill

    filled = fill(temperature)                   # a DataArray with NaN where nothing was measured
    filled["mean"], filled["std"], filled["samples"]

Every dimension is a side of a grid (see `LatentKroneckerGP`), with its coordinate as input:

- numbers stand for themselves, with all their digits whatever the dtype of the field, dates for days since the first
  one, spans of time for days;
- longitudes around the whole Earth become points on a circle, so that both ends meet;
- a dimension with latitudes and longitudes along it (stations) becomes points on the unit sphere;
- names become tasks, whose correlations are learned; a dimension without coordinate is counted 0, 1, 2, ...

Kernels refer to these units. `fill_table` does the same for a long table with one row per measured cell.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp import kernels as kernel_classes
from pathgp.compute.inputs import as_float64
from pathgp.kernels import Kernel
from pathgp.learning.initialise import neighbour_lengthscale
from pathgp.models import LatentKroneckerGP
from pathgp.solvers import Solver

try:
    import xarray as xr
except ImportError as error:
    raise ImportError("the door to xarray needs it: pip install 'pathgp[xarray]'") from error

_LATITUDE, _LONGITUDE = ("lat", "latitude"), ("lon", "long", "longitude")
# Degrees beyond which longitudes go around the Earth.
_AROUND = 300.0
# In standard deviations of the field.
_LARGEST_SIGNAL = 30.0
# Correlations between so many names can be learned.
_MOST_NAMES = 100


def fill(
    field: xr.DataArray,
    kernels: Mapping[Hashable, Kernel] | None = None,
    *,
    noise: float | None = None,
    steps: int | None = None,
    samples: int = 32,
    solver: str | Solver = "auto",
    tol: float = 1e-3,
    max_epochs: float | None = None,
    progress: bool = False,
    generator: torch.Generator | None = None,
) -> xr.Dataset:
    """The posterior of a field on its own coordinates, hyperparameters learned from the cells that are not NaN.

    Args:
        field: a DataArray of numbers, any number of dimensions, NaN where nothing was measured.
        kernels: by dimension, in the units of its coordinate; Matern-3/2 elsewhere. One of them should be a `Scale`;
            otherwise the first is scaled by the spread of the field. Given kernels are where learning starts, the
            others start from the data.
        noise: standard deviation of the noise to start from; a tenth of the spread by default.
        steps: largest number of steps of learning, None for the default of `LatentKroneckerGP.fit`; 0 keeps kernels
            and noise as they are given.
        samples: joint draws of the field; standard deviations come from them too.
        solver: of the linear systems.
        tol: their relative residual.
        max_epochs: budget of each solve.
        progress: show a progress bar.
        generator: source of all draws.

    Returns:
        A Dataset with ``mean``, ``std`` (of the field without the noise) and ``samples``, whose first dimension is
        ``sample``. The learned noise and the report of the solve are among its attributes.
    """
    if not isinstance(field, xr.DataArray):
        raise TypeError(f"fill takes a DataArray, got {type(field).__name__}: choose one variable of a Dataset")
    if field.ndim == 0:
        raise ValueError("the field has no dimension")
    if "sample" in field.dims:
        raise ValueError("the samples have a dimension 'sample' of their own: rename that of the field")
    given = dict(kernels or {})
    unknown = [dim for dim in given if dim not in field.dims]
    if unknown:
        dimensions = ", ".join(map(repr, field.dims))
        raise ValueError(f"kernels are given for {unknown[0]!r}, but the dimensions are {dimensions}")
    if not np.issubdtype(field.dtype, np.number) or np.issubdtype(field.dtype, np.complexfloating):
        raise TypeError(f"the field has dtype {field.dtype}: it must hold real numbers")
    values = np.asarray(field.values, dtype=np.float32 if field.dtype == np.float32 else np.float64)
    observed = values[np.isfinite(values)]
    if not observed.size:
        raise ValueError("every value of the field is missing: at least one observation is needed")
    spread = float(observed.std(dtype=np.float64)) or 1.0
    sides = {dim: _side(field, dim) for dim in field.dims}
    chosen = [given.get(dim, default) for dim, (_, default) in sides.items()]
    scaled = any(_is_scaled(kernel) for kernel in chosen)
    if not scaled:
        chosen[0] = kernel_classes.Scale(chosen[0], spread)
    model = LatentKroneckerGP(chosen, noise=noise or 0.1 * spread, mean=float(observed.mean(dtype=np.float64)))
    if not scaled:
        # A field that hardly bends asks for an endless signal, and its systems for endless digits.
        model.constrain("signal", bounds=(1e-6 * spread, _LARGEST_SIGNAL * spread))
    factors = [inputs for inputs, _ in sides.values()]
    options: dict[str, Any] = {"solver": solver, "tol": tol, "max_epochs": max_epochs, "samples": samples}
    if steps != 0:
        # Given values are where learning starts.
        initialise = "auto" if not given and noise is None else "model"
        options |= {"steps": steps, "initialise": initialise, "progress": progress}
        model.fit(factors, values, generator=generator, **options)
        posterior = model.posterior
    else:
        posterior = model.condition(factors, values, generator=generator, **options)
    dims = tuple(field.dims)
    attributes = {key: field.attrs[key] for key in ("units", "standard_name") if key in field.attrs}
    name = str(field.attrs.get("long_name", field.name or "field"))
    described = {"mean": "posterior mean", "std": "posterior standard deviation", "samples": "posterior samples"}
    results = {"mean": posterior.mean(), "std": posterior.variance() ** 0.5, "samples": posterior.sample()}
    return xr.Dataset(
        {
            key: (
                dims if key != "samples" else ("sample", *dims),
                np.asarray(result),
                {**attributes, "long_name": f"{name}, {described[key]}"},
            )
            for key, result in results.items()
        },
        coords=field.coords,
        attrs={"noise": float(model.noise.detach()), "report": str(posterior.report)},
    )


def fill_table(frame: Any, dims: Sequence[str], value: str, **options: Any) -> Any:
    """`fill` for a long table (pandas): one row per measured cell, columns ``dims`` and ``value``.

    Returns a table of all cells of the grid that the values in ``dims`` span, with the columns ``mean`` and ``std``,
    and ``value`` where it was measured. ``options`` are those of `fill`. A row without a value in ``dims`` belongs to
    no cell: it is refused.
    """
    missing = [name for name in (*dims, value) if name not in frame.columns]
    if missing:
        raise ValueError(f"the table has no column {missing[0]!r}; it has {', '.join(map(repr, frame.columns))}")
    for name in dims:
        if (absent := frame[name].isna().to_numpy()).any():
            raise ValueError(
                f"column {name!r} has no value in {int(absent.sum())} of {len(frame)} rows, first in row "
                f"{int(absent.argmax())}: such a row belongs to no cell, fill it in or leave it out"
            )
    twice = frame.duplicated(list(dims))
    if bool(twice.any()):
        row = int(twice.to_numpy().argmax())
        cell = ", ".join(f"{name} = {frame[name].iloc[row]}" for name in dims)
        raise ValueError(f"the cell {cell} is there twice, again in row {row}: average such rows first")
    field = frame.set_index(list(dims))[value].to_xarray()
    filled = fill(field, **options)[["mean", "std"]].assign({value: field})
    return filled.to_dataframe().reset_index()[[*dims, value, "mean", "std"]]


def _side(field: xr.DataArray, dim: Hashable) -> tuple[NDArray[np.float64], Kernel]:
    """Inputs (p, columns) of a dimension and the kernel it has by default."""
    along = {str(name).lower(): field[name] for name in field.coords if field[name].dims == (dim,) and name != dim}
    lat = next((along[name] for name in _LATITUDE if name in along), None)
    lon = next((along[name] for name in _LONGITUDE if name in along), None)
    if lat is not None and lon is not None:
        return _with_kernel(_sphere(_numbers(lat), _numbers(lon)))
    if dim not in field.coords:
        return _with_kernel(np.arange(field.sizes[dim], dtype=np.float64)[:, None])
    coordinate = field[dim]
    if coordinate.dtype.kind in "OUS" and all(isinstance(name, (str, bytes)) for name in coordinate.values):
        if len(coordinate) > _MOST_NAMES:
            raise ValueError(
                f"dimension {dim!r} has {len(coordinate)} names, and correlations between at most {_MOST_NAMES} can be "
                "learned: give it latitudes and longitudes, or another coordinate of numbers"
            )
        return np.arange(len(coordinate), dtype=np.float64)[:, None], kernel_classes.Task(len(coordinate))
    numbers = _numbers(coordinate)
    around = str(dim).lower() in _LONGITUDE or coordinate.attrs.get("units") == "degrees_east"
    if around and np.ptp(numbers) >= _AROUND:
        angle = np.deg2rad(numbers)
        return _with_kernel(np.stack([np.cos(angle), np.sin(angle)], 1))
    return _with_kernel(numbers[:, None])


def _with_kernel(inputs: NDArray[np.float64]) -> tuple[NDArray[np.float64], Kernel]:
    """Inputs and a Matern kernel that starts at the length scale of their neighbours."""
    return inputs, kernel_classes.Matern(1.5, neighbour_lengthscale(inputs))


def _numbers(coordinate: xr.DataArray) -> NDArray[np.float64]:
    """A coordinate as numbers, times in days."""
    values = coordinate.values
    if values.dtype.kind in "mM" and np.isnat(values).any():
        raise ValueError(f"coordinate {coordinate.name!r} has no time at position {int(np.isnat(values).argmax())}")
    if values.dtype.kind == "M":
        values = values - values.min()
    if values.dtype.kind == "m":
        return np.asarray(values / np.timedelta64(1, "D"), dtype=np.float64)
    if values.dtype.kind not in "biuf":
        kinds = "numbers, dates or names"
        raise ValueError(f"coordinate {coordinate.name!r} has dtype {values.dtype}: it must hold {kinds}")
    numbers: NDArray[np.float64] = as_float64(values, f"coordinate {coordinate.name!r}")
    if not np.isfinite(numbers).all():
        position = int(np.argmin(np.isfinite(numbers)))
        raise ValueError(f"coordinate {coordinate.name!r} is {numbers[position]} at position {position}: fill it in")
    return numbers


def _sphere(lat: NDArray[np.float64], lon: NDArray[np.float64]) -> NDArray[np.float64]:
    lat, lon = np.deg2rad(lat), np.deg2rad(lon)
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)


def _is_scaled(kernel: Kernel) -> bool:
    return any(isinstance(part, (kernel_classes.Scale, kernel_classes.Task)) for part in kernel.modules())
