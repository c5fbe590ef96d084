"""The Gaussian process of a field: kernel, nugget and trend, from the options of `krige`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathgp.compute.inputs import real_number
from pathgp.data.tabular import KERNELS
from pathgp.kernels import Kernel, Product, Scale, Sphere, Sum
from pathgp.kriging.coordinates import Coordinates, Field
from pathgp.kriging.given_kernel import restrict_kernel
from pathgp.learning.model import Mean
from pathgp.learning.policy import FIELD_KERNELS
from pathgp.learning.report import FitReport
from pathgp.means import Trend
from pathgp.models.field_choice import choose_model
from pathgp.models.gp import GP

Matrix = NDArray[np.float64]

TRENDS = ("constant", "linear", "quadratic")


def learn(
    field: Field,
    kernel: str | Kernel | None,
    anisotropy: bool | None,
    nugget: float | None,
    trend: str | float | Sequence[str],
    noise: Matrix | None,
    device: torch.device,
    **options: Any,
) -> tuple[GP, FitReport]:
    """Return the fitted model of a field and the report of its fit. options: those of `GP.fit`."""
    coordinates, y = field.coordinates, torch.as_tensor(field.y, device=device)
    X = torch.as_tensor(field.X, device=device)
    names = FIELD_KERNELS if kernel is None else (kernel,)
    candidates = [_model(name, coordinates, anisotropy, trend) for name in names]
    for gp in candidates:
        _set_nugget(gp, nugget, X, y)
    note, began = "", time.perf_counter()
    if len(candidates) > 1 and options.get("steps") != 0:
        gp, likelihoods = choose_model(candidates, X, y, noise, options["generator"])
        listing = ", ".join(f"{name} {value:.1f}" for name, value in zip(names, likelihoods, strict=True))
        note = f"{names[int(np.argmax(likelihoods))]} by the log likelihood of groups of neighbours: {listing}"
        options["initialise"] = "model"
        if (limit := options.get("time_limit")) is not None:
            # The comparison counts; at least a tenth of the limit is left for all rows.
            options["time_limit"] = max(0.1 * limit, limit - (time.perf_counter() - began))
    else:
        gp = candidates[0]
    report = gp.fit(X, y, noise, dtype="auto", **options)
    return gp, replace(report, note="; ".join(filter(None, [note, report.note])))


def _model(kernel: Any, coordinates: Coordinates, anisotropy: bool | None, trend: str | float | Sequence[str]) -> GP:
    """The model with a kernel of this name, or with a given one, whose hyperparameters are in the units of the data."""
    mean = _mean(trend, coordinates)
    if isinstance(kernel, Kernel):
        return GP(restrict_kernel(kernel, coordinates), mean=mean)
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be a pathgp kernel or one of {', '.join(map(repr, KERNELS))}, got {kernel!r}")
    if coordinates.lonlat is not None and anisotropy:
        raise ValueError("anisotropy=True is for a plane: on the sphere one length scale holds in all directions")
    per_axis = anisotropy is None or bool(anisotropy)
    local = _kernel(KERNELS[kernel], coordinates, per_axis)
    return GP(Scale(local, 1.0), mean=mean, standardise=True if per_axis else "common")


def _kernel(make: Callable[[Tensor], Kernel], coordinates: Coordinates, per_axis: bool) -> Kernel:
    """The correlation of the field: on the sphere that of longitude and latitude times that of other coordinates."""
    columns = list(range(len(coordinates.names)))
    if coordinates.lonlat is None:
        local = make(torch.ones(len(columns) if per_axis else (), dtype=torch.float64))
        return Sum(local, active_dims=columns) if coordinates.drift else local
    lon, lat = coordinates.lonlat
    local = Sphere(make(torch.ones((), dtype=torch.float64)), active_dims=[lat, lon])
    others = [column for column in columns if column not in coordinates.lonlat]
    if not others:
        return local
    return Product(local, Sum(make(torch.ones(len(others), dtype=torch.float64)), active_dims=others))


def _mean(trend: str | float | Sequence[str], coordinates: Coordinates) -> Mean:
    """The prior mean: a number if it is known, otherwise a trend with unknown coefficients."""
    if isinstance(trend, str):
        if trend not in TRENDS:
            known = ", ".join(map(repr, TRENDS))
            raise ValueError(f"trend must be {known}, a number (the known mean) or a list of columns, got {trend!r}")
        return Trend(trend, columns=range(len(coordinates.names)))
    if not isinstance(trend, Sequence):
        return real_number(trend, "trend")
    if not trend:
        raise ValueError("trend is an empty list: name columns, or use 'constant'")
    return Trend("linear", columns=[coordinates.columns.index(name) for name in trend])


def _set_nugget(gp: GP, nugget: float | None, X: Tensor, y: Tensor) -> None:
    """Fix the noise to a nugget in the units of y; None leaves it to be learned."""
    if nugget is None:
        return
    value = real_number(nugget, "nugget")
    if value <= 0:
        small = 1e-3 * float(y.std(correction=0)) or 1e-3
        raise ValueError(
            f"nugget must be positive, got {value:g}: a small one, such as {small:.1g}, makes the field pass through "
            "the values; leave it out to learn it"
        )
    unit = float(gp.prepare_data(X, y).scaling.target_scale)
    gp.load_state_dict(GP(gp.kernel, value / unit, gp.mean, gp.standardise).state_dict())
    gp.constrain("noise", fixed=True)
