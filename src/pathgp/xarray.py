"""Door to xarray: fill the holes of a field, with uncertainty.

    from pathgp.xarray import fill

    filled = fill(temperature)                   # a DataArray with NaN where nothing was measured
    filled["mean"], filled["std"], filled["samples"]

Every dimension is a side of a grid (see `LatentKroneckerGP`). Its coordinate is the input:

- numbers are used as they are, in float64; dates become days since the first one, time spans become days;
- longitudes around the whole Earth become points on a circle, so that both ends meet;
- a dimension with latitudes and longitudes along it (stations) becomes points on the unit sphere;
- names become tasks, whose correlations are learned; a dimension without coordinate is numbered 0, 1, 2, ...

Kernels refer to these units. `fill_table` fills a long table with one row per observed cell.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathgp.compute.inputs import as_float64, read_device
from pathgp.data.tabular import days
from pathgp.kernels import Kernel
from pathgp.learning.policy import choose_start
from pathgp.models.field import kernel_of_names, model_of_field
from pathgp.solvers import Solver

try:
    import xarray as xr
except ImportError as error:
    raise ImportError("the door to xarray needs it: pip install 'pathgp[xarray]'") from error

_LATITUDE, _LONGITUDE = ("lat", "latitude"), ("lon", "long", "longitude")
# Degrees beyond which longitudes go around the Earth.
_AROUND = 300.0
# The variables of a filled field.
_RESULTS = ("mean", "std", "samples")


def fill(
    field: xr.DataArray,
    kernels: Mapping[Hashable, Kernel] | None = None,
    *,
    noise: float | None = None,
    time_limit: float | None = None,
    steps: int | None = None,
    samples: int = 64,
    solver: str | Solver = "auto",
    tol: float = 1e-2,
    max_epochs: float | None = None,
    progress: bool = True,
    device: str | torch.device | None = None,
    generator: torch.Generator | None = None,
) -> xr.Dataset:
    """Fill a field: the posterior on its own coordinates, with hyperparameters learned from the cells that are not NaN.

    Args:
        field: a DataArray of numbers, any number of dimensions, NaN where nothing was measured.
        kernels: by dimension, in the units of its coordinate. `LatentKroneckerGP.fit` chooses those of the other
            dimensions by the likelihood. Learning starts from the given kernels. If all are given, one of them must
            carry the signal: a `Scale` or a `Task`.
        noise: standard deviation of the noise to start from; a tenth of the spread of the field by default.
        time_limit: seconds that learning may take, as in `LatentKroneckerGP.fit`; fewer steps if necessary.
        steps: largest number of steps on all cells, as in `LatentKroneckerGP.fit`. With 0 and kernels for all
            dimensions, kernels and noise stay as they are given.
        samples: joint draws of the field; standard deviations come from them too.
        solver: of the linear systems.
        tol: their relative residual.
        max_epochs: budget of each solve.
        progress: show a progress bar.
        device: device of the computations, such as "cuda"; the CPU by default.
        generator: source of all draws.

    Returns:
        A Dataset with ``mean``, ``std`` (of the field without the noise) and ``samples``, whose first dimension is
        ``sample``. Its attributes: ``noise``, the learned noise; ``kernel_DIMENSION``, the kernel of each dimension
        with its learned values in the units of the coordinate; ``fit`` and ``report``, the reports of learning and of
        the last solve.
    """
    values, sides, chosen = _read_field(field, _read_kernels(kernels))
    place = read_device(device)
    model = model_of_field(values, chosen, noise, is_learned=steps != 0)
    report = model.fit(
        [torch.as_tensor(inputs, device=place) for inputs, _ in sides.values()],
        torch.as_tensor(values, device=place),
        time_limit=time_limit,
        steps=steps,
        initialise=choose_start(is_given=bool(kernels) or noise is not None),
        samples=samples,
        solver=solver,
        tol=tol,
        max_epochs=max_epochs,
        progress=progress,
        generator=generator,
    )
    posterior = model.posterior
    attributes = {key: field.attrs[key] for key in ("units", "standard_name") if key in field.attrs}
    name = field.attrs.get("long_name", field.name or "field")

    def variable(dims: tuple[Hashable, ...], result: Tensor, what: str) -> tuple[Any, Any, dict[str, Any]]:
        return dims, result.cpu().numpy(), {**attributes, "long_name": f"{name}, posterior {what}"}

    learned = {f"kernel_{dim}": repr(kernel) for dim, kernel in zip(field.dims, model.sides, strict=True)}
    return xr.Dataset(
        {
            "mean": variable(field.dims, posterior.mean(), "mean"),
            "std": variable(field.dims, posterior.variance() ** 0.5, "standard deviation"),
            "samples": variable(("sample", *field.dims), posterior.sample(), "samples"),
        },
        coords=field.coords,
        attrs={"noise": float(model.noise.detach()), **learned, "fit": str(report), "report": str(posterior.report)},
    )


def _read_kernels(kernels: Any) -> dict[Hashable, Kernel]:
    """Check that the argument ``kernels`` is a mapping from dimensions to kernels."""
    if kernels is None:
        return {}
    if not isinstance(kernels, Mapping):
        got = f"got {type(kernels).__name__}"
        raise TypeError(f"kernels must be a dict of kernels by dimension, such as {{'time': kernel}}, {got}")
    for dim, kernel in kernels.items():
        if not isinstance(kernel, Kernel):
            raise TypeError(
                f"the kernel of {dim!r} must be a pathgp kernel such as kernels.Matern(1.5), got {kernel!r}"
            )
    return dict(kernels)


def _read_field(
    field: xr.DataArray, given: dict[Hashable, Kernel]
) -> tuple[NDArray[Any], dict[Hashable, tuple[NDArray[np.float64], Kernel | None]], list[Kernel | None]]:
    """Check a field and given kernels: its values, inputs and own kernel of every dimension, and all kernels."""
    if not isinstance(field, xr.DataArray):
        is_dataset = isinstance(field, xr.Dataset)
        remedy = "choose one of its variables" if is_dataset else "wrap it by xarray.DataArray(values, coords, dims)"
        raise TypeError(f"fill takes a DataArray, got {type(field).__name__}: {remedy}")
    if field.ndim == 0:
        raise ValueError("the field has no dimension")
    for name in (*_RESULTS, "sample"):
        if name in field.dims or name in field.coords:
            raise ValueError(f"the result has a {name!r} of its own: rename that dimension or coordinate of the field")
    unknown = [dim for dim in given if dim not in field.dims]
    if unknown:
        dimensions = ", ".join(map(repr, field.dims))
        raise ValueError(f"kernels are given for {unknown[0]!r}, but the dimensions are {dimensions}")
    if not np.issubdtype(field.dtype, np.number) or np.issubdtype(field.dtype, np.complexfloating):
        raise TypeError(f"the field has dtype {field.dtype}: it must hold real numbers")
    # A copy in order: torch does not accept the negative strides of a reversed field.
    values = np.array(field.values, dtype=np.float32 if field.dtype == np.float32 else np.float64, order="C")
    sides = {dim: _side(field, dim) for dim in field.dims}
    return values, sides, [given.get(dim, default) for dim, (_, default) in sides.items()]


def fill_table(frame: Any, dims: Sequence[str], value: str, **options: Any) -> Any:
    """`fill` for a long table (pandas) with one row per observed cell and columns ``dims`` and ``value``.

    Returns a table of all cells of the grid that the values in ``dims`` span, with columns ``mean`` and ``std``, and
    ``value`` of the observed cells. ``options`` are those of `fill`. Every row needs a value in ``dims``.
    """
    if not hasattr(frame, "set_index"):
        raise TypeError(f"fill_table takes a DataFrame of pandas, got {type(frame).__name__}")
    if isinstance(dims, str) or not dims:
        raise TypeError(f"dims must be a list of columns, such as ['station', 'time'], got {dims!r}")
    if value in dims or value in ("mean", "std"):
        raise ValueError(f"the value column {value!r} is also a column of the result: choose or rename another")
    missing = [name for name in (*dims, value) if name not in frame.columns]
    if missing:
        raise ValueError(f"the table has no column {missing[0]!r}; it has {', '.join(map(repr, frame.columns))}")
    for name in dims:
        if (absent := frame[name].isna().to_numpy()).any():
            raise ValueError(
                f"column {name!r} has no value in {int(absent.sum())} of {len(frame)} rows, first in row "
                f"{int(absent.argmax())}: fill them in, or leave these rows out"
            )
    twice = frame.duplicated(list(dims))
    if bool(twice.any()):
        row = int(twice.to_numpy().argmax())
        cell = ", ".join(f"{name} = {frame[name].iloc[row]}" for name in dims)
        raise ValueError(f"the cell {cell} occurs twice, again in row {row}: average such rows first")
    field = frame.set_index(list(dims))[value].to_xarray()
    filled = fill(field, **options)[["mean", "std"]].assign({value: field})
    return filled.to_dataframe().reset_index()[[*dims, value, "mean", "std"]]


def _side(field: xr.DataArray, dim: Hashable) -> tuple[NDArray[np.float64], Kernel | None]:
    """Inputs (p, columns) of a dimension, and its kernel if they determine one."""
    along = {str(name).lower(): field[name] for name in field.coords if field[name].dims == (dim,) and name != dim}
    lat, lon = (next((along[name] for name in names if name in along), None) for names in (_LATITUDE, _LONGITUDE))
    coordinate = field[dim]  # numbered 0, 1, 2, ... by xarray if there is none
    if lat is not None and lon is not None:
        a, b = np.deg2rad(_numbers(lat)), np.deg2rad(_numbers(lon))
        inputs = np.stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)], 1)
    elif coordinate.dtype.kind in "OUS" and all(isinstance(name, (str, bytes)) for name in coordinate.values):
        kernel = kernel_of_names(len(coordinate), f"dimension {dim!r}")
        return np.arange(len(coordinate), dtype=np.float64)[:, None], kernel
    else:
        inputs = _numbers(coordinate)[:, None]
        is_longitude = str(dim).lower() in _LONGITUDE or coordinate.attrs.get("units") == "degrees_east"
        if is_longitude and dim in field.coords and np.ptp(inputs) >= _AROUND:
            angle = np.deg2rad(inputs)
            inputs = np.concatenate([np.cos(angle), np.sin(angle)], 1)
    return inputs, None


def _numbers(coordinate: xr.DataArray) -> NDArray[np.float64]:
    """Convert a coordinate to numbers: dates to days since the first one, time spans to days."""
    values, name = coordinate.values, f"coordinate {coordinate.name!r}"
    if values.dtype.kind not in "biufmM":
        raise ValueError(f"{name} has dtype {values.dtype}: use numbers, dates or names")
    is_time = values.dtype.kind in "mM"
    if values.dtype.kind == "M":
        values = values - np.fmin.reduce(values)
    numbers: NDArray[np.float64] = days(coordinate.name, values) if is_time else as_float64(values, name)
    if not np.isfinite(numbers).all():
        position = int(np.argmin(np.isfinite(numbers)))
        found = "has no time" if is_time else f"is {numbers[position]}"
        raise ValueError(f"{name} {found} at position {position}: fill it in")
    return numbers
