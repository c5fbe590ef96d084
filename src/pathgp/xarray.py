"""Door to xarray: fill the holes of a field, with uncertainty.

    from pathgp.xarray import fill

    filled = fill(temperature)                   # a DataArray with NaN where nothing was measured
    filled["mean"], filled["std"], filled["samples"]

Every dimension is a side of a grid (see `LatentKroneckerGP`). Its coordinate is the input:

- numbers are used as they are, in float64; dates (also texts such as 2024-03-31) become days since the first one, time
  spans become days;
- longitudes around the whole Earth become points on a circle of radius 1, so that both ends meet: length scales along
  them are in radii of the circle, not degrees;
- a dimension with latitudes and longitudes along it (stations) becomes points on the unit sphere;
- names become tasks, whose correlations are learned; a dimension without coordinate is numbered 0, 1, 2, ...

Kernels refer to these units. `fill_table` fills a long table with one row per observed cell.

In a field over two coordinates of space a product of kernels is not isotropic. There one kernel of both coordinates is
used if the data are more likely under it: `Matern`, or `Sphere` for latitude and longitude.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathgp.compute.inputs import as_float64, read_device
from pathgp.data.tabular import are_dates, days, require_clear_dates
from pathgp.kernels import Kernel, Periodic
from pathgp.learning.policy import choose_initialise
from pathgp.models import GP, LatentKroneckerGP
from pathgp.models.field import kernel_of_names, kernel_of_space, model_of_field
from pathgp.models.kernel_choice import prefer_joint_kernel
from pathgp.solvers import Solver

try:
    import xarray as xr
except ImportError as error:
    raise ImportError("pathgp.xarray needs xarray: pip install 'pathgp[xarray]'") from error

_LATITUDE, _LONGITUDE = ("lat", "latitude"), ("lon", "long", "longitude")
# Degrees beyond which longitudes go around the Earth.
_AROUND = 300.0
# The variables of a filled field.
_RESULTS = ("mean", "std", "samples")


def fill(
    field: xr.DataArray,
    kernels: Mapping[Any, Kernel] | None = None,
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
    isotropic: bool | None = None,
) -> xr.Dataset:
    """Fill a field: the posterior on its own coordinates, with hyperparameters learned from the cells that are not NaN.

    Args:
        field: a DataArray of numbers, any number of dimensions, NaN where nothing was measured.
        kernels: by dimension, in the units of its coordinate; of longitudes around the whole Earth in radii of the
            circle, where 0.1 is 5.7 degrees. `LatentKroneckerGP.fit` chooses those of the other
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
        isotropic: whether one kernel of both coordinates is used, for a field over two coordinates of space. None: if
            sub-grids are more likely under it than under a product, and up to 200,000 cells are observed.

    Returns:
        A Dataset with ``mean``, ``std`` (of the field without the noise) and ``samples``, whose first dimension is
        ``sample``. Its attributes: ``noise``, the learned noise; ``kernel_DIMENSION``, the kernel of each dimension
        with its learned values in the units of the coordinate, or the kernel of all; ``choice``, the likelihoods of
        both, if they were compared; ``fit`` and ``report``, the reports of learning and of the last solve.
    """
    values, sides, chosen = _read_field(field, _read_kernels(kernels))
    place = read_device(device)
    options: dict[str, Any] = {
        "time_limit": time_limit,
        "steps": steps,
        "samples": samples,
        "solver": solver,
        "tol": tol,
        "max_epochs": max_epochs,
        "progress": progress,
        "generator": generator,
    }
    model = model_of_field(values, chosen, noise, is_learned=steps != 0)
    inputs = [torch.as_tensor(side, device=place) for side, _ in sides.values()]
    grid, joint, choice = torch.as_tensor(values, device=place), None, ""
    if (space := _read_space(field, chosen, isotropic)) is not None:
        X, candidate = torch.as_tensor(space[0], device=place), space[1]
        data = model.prepare_data(inputs, grid)
        joint, choice = prefer_joint_kernel(model, data, X[data.cells], candidate, is_forced=bool(isotropic))
    start = choose_initialise(has_values=bool(kernels) or noise is not None or bool(choice))
    if joint is None:
        filled = _fill_grid(model, inputs, grid, initialise=start, **options)
    else:
        filled = _fill_cells(joint, X, grid, initialise=start, **options)
    return _as_dataset(field, filled, choice)


class _Filled(NamedTuple):
    """The results on the grid, the kernels by dimension, and the model's noise and reports."""

    mean: Tensor
    std: Tensor
    samples: Tensor
    kernels: list[Kernel]
    noise: float
    fit: str
    report: str


def _fill_grid(model: LatentKroneckerGP, inputs: list[Tensor], grid: Tensor, **options: Any) -> _Filled:
    """Learn a product of kernels, and predict all cells."""
    report, post = model.fit(inputs, grid, **options), model.posterior
    results = (post.mean(), post.variance() ** 0.5, post.sample())
    return _Filled(*results, model.sides, post.noise_std, str(report), str(post.report))


def _fill_cells(gp: GP, X: Tensor, grid: Tensor, **options: Any) -> _Filled:
    """Learn one kernel from the observed cells, and predict all cells X (p, d) row by row."""
    observed = ~grid.flatten().isnan()
    report, post = gp.fit(X[observed], grid.flatten()[observed], **options), gp.posterior
    results = (post.mean(X), post.variance(X) ** 0.5, post.paths(X))
    mean, std, samples = (torch.as_tensor(r).to(grid.dtype).unflatten(-1, grid.shape) for r in results)
    return _Filled(mean, std, samples, [gp.kernel] * grid.ndim, post.noise_std, str(report), str(post.report))


def _as_dataset(field: xr.DataArray, filled: _Filled, choice: str) -> xr.Dataset:
    """The results on the coordinates of a field."""
    attributes = {key: field.attrs[key] for key in ("units", "standard_name") if key in field.attrs}
    name = field.attrs.get("long_name", field.name or "field")

    def variable(dims: tuple[Hashable, ...], result: Tensor, what: str) -> tuple[Any, Any, dict[str, Any]]:
        return dims, result.cpu().numpy(), {**attributes, "long_name": f"{name}, posterior {what}"}

    learned = {f"kernel_{dim}": repr(kernel) for dim, kernel in zip(field.dims, filled.kernels, strict=True)}
    learned |= {"choice": choice} if choice else {}
    return xr.Dataset(
        {
            "mean": variable(field.dims, filled.mean, "mean"),
            "std": variable(field.dims, filled.std, "standard deviation"),
            "samples": variable(("sample", *field.dims), filled.samples, "samples"),
        },
        coords=field.coords,
        attrs={"noise": filled.noise, **learned, "fit": filled.fit, "report": filled.report},
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
    for dim, kernel in given.items():
        # Only longitudes around the Earth have two columns.
        if sides[dim][0].shape[1] == 2 and any(isinstance(part, Periodic) for part in kernel.modules()):
            raise ValueError(
                f"the longitudes of {dim!r} are points on a circle, whose ends meet without Periodic: use a kernel "
                "such as Matern(1.5, 0.5), whose length scale is in radii of the circle"
            )
    return values, sides, [given.get(dim, default) for dim, (_, default) in sides.items()]


def _read_space(
    field: xr.DataArray,
    chosen: Sequence[Kernel | None],
    isotropic: bool | None,
) -> tuple[NDArray[np.float64], Callable[[float], Kernel]] | None:
    """Inputs (p_1 p_2, 2) of all cells of a field over two coordinates of space, and their kernel for each smoothness.

    None for other fields, for given kernels, and for isotropic=False; ValueError for isotropic=True there.
    """
    is_space = field.ndim == 2 and min(field.shape) > 1 and all(kernel is None for kernel in chosen)
    is_space = is_space and all(field[dim].dtype.kind in "biuf" for dim in field.dims)
    if isotropic and not is_space:
        raise ValueError("isotropic=True is for a field over two coordinates of space, without kernels")
    if isotropic is False or not is_space:
        return None
    columns = [_numbers(field[dim]) for dim in field.dims]
    X = np.stack([column.ravel() for column in np.meshgrid(*columns, indexing="ij")], 1)
    names = [str(dim).lower() for dim in field.dims]
    lat, lon = (next((i for i, name in enumerate(names) if name in known), None) for known in (_LATITUDE, _LONGITUDE))
    # Without coordinates the columns are the numbers of pixels, whatever the names of the dimensions.
    has_coordinates = all(dim in field.coords for dim in field.dims)
    if has_coordinates and lat is not None and lon is not None and np.abs(columns[lat]).max() <= 90.0:
        return X, partial(kernel_of_space, lat_lon=(lat, lon))
    return X, kernel_of_space


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
    elif _holds_names(coordinate):
        require_clear_dates(dim, coordinate.values, "or convert them by pandas.to_datetime")
        kernel = kernel_of_names(len(coordinate), f"dimension {dim!r}")
        return np.arange(len(coordinate), dtype=np.float64)[:, None], kernel
    else:
        inputs = _numbers(coordinate)[:, None]
        is_longitude = str(dim).lower() in _LONGITUDE or coordinate.attrs.get("units") == "degrees_east"
        if is_longitude and dim in field.coords and np.ptp(inputs) >= _AROUND:
            angle = np.deg2rad(inputs)
            inputs = np.concatenate([np.cos(angle), np.sin(angle)], 1)
    return inputs, None


def _holds_names(coordinate: xr.DataArray) -> bool:
    """Whether a coordinate holds texts, other than dates in ISO 8601."""
    values = coordinate.values
    is_text = values.dtype.kind in "OUST" and all(isinstance(name, (str, bytes)) for name in values)
    return is_text and not are_dates(values)


def _numbers(coordinate: xr.DataArray) -> NDArray[np.float64]:
    """Convert a coordinate to numbers: dates, also as texts, to days since the first one, time spans to days."""
    numbers: NDArray[np.float64]
    values, name = coordinate.values, f"coordinate {coordinate.name!r}"
    if values.dtype.kind in "OUT" and are_dates(values):
        numbers = days(coordinate.name, values)
        return numbers - numbers.min()
    if values.dtype.kind not in "biufmM":
        raise ValueError(f"{name} has dtype {values.dtype}: use numbers, dates or names")
    is_time = values.dtype.kind in "mM"
    if values.dtype.kind == "M":
        values = values - np.fmin.reduce(values)
    numbers = days(coordinate.name, values) if is_time else as_float64(values, name)
    if not np.isfinite(numbers).all():
        position = int(np.argmin(np.isfinite(numbers)))
        found = "has no time" if is_time else f"is {numbers[position]}"
        raise ValueError(f"{name} {found} at position {position}: fill it in")
    return numbers
