"""The Gaussian process of a field: kernel, nugget and trend, from the options of `krige`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.compute.inputs import real_number
from pathgp.data.tabular import KERNELS
from pathgp.kernels import Kernel, Scale, Sum
from pathgp.kriging.coordinates import Coordinates, Field
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
    X = torch.as_tensor(model_inputs(field.X, coordinates), device=device)
    names = FIELD_KERNELS if kernel is None else (kernel,)
    candidates = [_model(name, coordinates, X.shape[1], anisotropy, trend) for name in names]
    for gp in candidates:
        _set_nugget(gp, nugget, X, y)
    note = ""
    if len(candidates) > 1 and options.get("steps") != 0:
        gp, likelihoods = choose_model(candidates, X, y, noise, options["generator"])
        listing = ", ".join(f"{name} {value:.1f}" for name, value in zip(names, likelihoods, strict=True))
        note = f"{names[int(np.argmax(likelihoods))]} by the log likelihood of groups of neighbours: {listing}"
        options["initialise"] = "model"
    else:
        gp = candidates[0]
    report = gp.fit(X, y, noise, dtype="auto", **options)
    return gp, replace(report, note="; ".join(filter(None, [note, report.note])))


def model_inputs(X: Matrix, coordinates: Coordinates) -> Matrix:
    """The inputs of the model for points X (n, d): longitudes and latitudes become points on the unit sphere."""
    if coordinates.lonlat is None:
        return X
    lon, lat = (np.deg2rad(X[:, i]) for i in coordinates.lonlat)
    sphere = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)
    return np.concatenate([sphere, X[:, len(coordinates.names) :]], 1)


def _model(
    kernel: Any, coordinates: Coordinates, columns: int, anisotropy: bool | None, trend: str | float | Sequence[str]
) -> GP:
    """The model with a kernel of this name, or with a given one, whose hyperparameters are in the units of the data."""
    places = columns - len(coordinates.drift)
    mean = _mean(trend, coordinates, places)
    if isinstance(kernel, Kernel):
        return GP(kernel, mean=mean)
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be a pathgp kernel or one of {', '.join(map(repr, KERNELS))}, got {kernel!r}")
    per_axis = coordinates.lonlat is None if anisotropy is None else bool(anisotropy)
    local = KERNELS[kernel](torch.ones(places if per_axis else (), dtype=torch.float64))
    if coordinates.drift:
        local = Sum(local, active_dims=range(places))
    return GP(Scale(local, 1.0), mean=mean, standardise=True if per_axis else "common")


def _mean(trend: str | float | Sequence[str], coordinates: Coordinates, places: int) -> Mean:
    """The prior mean: a number if it is known, otherwise a trend with unknown coefficients."""
    if isinstance(trend, str):
        if trend not in TRENDS:
            known = ", ".join(map(repr, TRENDS))
            raise ValueError(f"trend must be {known}, a number (the known mean) or a list of columns, got {trend!r}")
        return Trend(trend, columns=range(places))
    if not isinstance(trend, Sequence):
        return real_number(trend, "trend")
    names = coordinates.columns
    return Trend("linear", columns=[names.index(name) + places - len(coordinates.names) for name in trend])


def _set_nugget(gp: GP, nugget: float | None, X: torch.Tensor, y: torch.Tensor) -> None:
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
