"""The result of `krige`: mean, standard deviation, simulations and probabilities of a field at its targets."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from tqdm import tqdm

from pathgp.compute.inputs import real_number
from pathgp.compute.memory import spans
from pathgp.compute.optional import import_optional
from pathgp.kernels import Sphere
from pathgp.kernels.expression import leaves
from pathgp.kriging.coordinates import EARTH_RADIUS_KM, Coordinates, Field
from pathgp.kriging.cross_validation import CrossValidation, cross_validate
from pathgp.kriging.empirical_variogram import Variogram
from pathgp.kriging.fitted_variogram import fitted_variogram
from pathgp.kriging.targets import Cells, Grid, Points, Targets, read_cells, read_targets, require_samples
from pathgp.learning.report import FitReport
from pathgp.posterior.block_average import block_average
from pathgp.posterior.table import Posterior

Vector = NDArray[np.float64]

# Targets that are predicted at once; cells have several sub-points each.
_TARGETS_AT_ONCE = 16_384


@dataclass(frozen=True, eq=False)
class Kriging:
    """A predicted field. Vectors (m,) are in the order of the targets; of a grid in that of `to_dataset`, flattened.

    mean, std: of the field without the nugget (m,); of its average over every cell where cells were asked for.
    posterior: the `Posterior` behind it; its inputs are the columns ``coordinates.columns``, longitudes within 180
        degrees of ``coordinates.centre``.
    report: how the model was learned and solved, a `FitReport`.
    field: the observed values and their coordinates.  targets: where it was predicted.  cells: their sizes, or None.
    """

    mean: Vector
    std: Vector
    posterior: Posterior
    report: FitReport
    field: Field
    targets: Targets
    cells: Cells | None

    @property
    def coordinates(self) -> Coordinates:
        """The names of the coordinates, and whether they are longitudes and latitudes."""
        return self.field.coordinates

    @property
    def nugget(self) -> float:
        """Standard deviation of the learned or given noise."""
        return self.posterior.noise_std

    @cached_property
    def samples(self) -> Vector:
        """Conditional simulations (s, m): functions drawn from the posterior, at the targets.

        Computed at the first use. ValueError if they exceed the memory budget.
        """
        count, budget = self.posterior.num_samples, self.posterior.settings.compute.budget(torch.device("cpu"))
        require_samples(count, len(self.targets), budget)
        found = np.empty((count, len(self.targets)))

        def evaluate(rows: slice) -> None:
            X = self.targets.rows(rows)
            if self.cells is None:
                found[:, rows] = self.simulate(X)
            else:
                inside, weights = _spread(X, self.cells, self.field, self.posterior)
                average = block_average(self.posterior, inside, weights, with_paths=True)
                assert average.paths is not None
                found[:, rows] = average.paths.cpu().numpy()

        _in_blocks(evaluate, len(self.targets), self.cells, False, "samples")
        return found

    def simulate(self, points: Any) -> Vector:
        """All conditional simulations (s, m) at points, an array (m, d) or a frame: always the same functions."""
        X = self.coordinates.read(points, "points")
        with torch.no_grad():
            return np.asarray(self.posterior.paths(_inputs(X, self.coordinates, self.posterior)).cpu())

    def at(
        self,
        targets: Any = None,
        *,
        grid: Any = None,
        cells: float | Sequence[float] | bool | None = None,
        cell_points: int = 4,
        progress: bool = False,
    ) -> Kriging:
        """The same posterior at other targets; arguments as in `krige`."""
        coordinates, budget = self.coordinates, self.posterior.settings.compute.budget(torch.device("cpu"))
        where = read_targets(targets, grid, coordinates, self.field.X, budget)
        blocks = read_cells(cells, cell_points, where, coordinates)
        return predict(self.field, self.posterior, self.report, where, blocks, progress)

    def exceedance(self, threshold: float, noise: bool = False) -> Vector:
        """Probability (m,) that the field is above a threshold: Phi((mean - threshold) / std).

        noise: of a new measurement, nugget included, in place of the field.
        """
        level = real_number(threshold, "threshold")
        spread = np.sqrt(self.std**2 + self.nugget**2) if noise else self.std
        above = self.mean - level
        certain = np.where(above > 0, 1.0, np.where(above < 0, 0.0, 0.5))
        return np.where(spread > 0, ndtr(above / np.where(spread > 0, spread, 1.0)), certain)

    @cached_property
    def cross_validation(self) -> CrossValidation:
        """Scores of predicting every value from all others, with the learned hyperparameters: no further solves."""
        return cross_validate(self.posterior)

    @cached_property
    def variogram(self) -> Variogram:
        """The empirical variogram of the values less the trend, and that of the model."""
        return fitted_variogram(self.field, self.posterior)

    def to_frame(self, threshold: float | None = None) -> Any:
        """A DataFrame with a row per target: its coordinates, mean and std; the given frame with these columns added.

        threshold: adds a column ``exceedance``.
        """
        pd = import_optional("pandas", "to_frame", "xarray")
        results = {"mean": self.mean, "std": self.std}
        if threshold is not None:
            results["exceedance"] = self.exceedance(threshold)
        frame = self.targets.frame if isinstance(self.targets, Points) else None
        if frame is None:
            columns: dict[str, Any] = dict(
                zip(self.coordinates.columns, self.targets.rows(slice(0, len(self.targets))).T, strict=True)
            )
            if isinstance(self.targets, Grid):
                columns |= {name: self.coordinates.to_caller(name, columns[name]) for name in self.coordinates.names}
            return pd.DataFrame(columns | results)
        if not hasattr(frame, "assign"):
            # A frame of polars.
            frame = pd.DataFrame({name: np.asarray(frame[name]) for name in frame.columns})
        taken = [name for name in results if name in frame.columns]
        if taken:
            raise ValueError(f"targets has a column {taken[0]!r}, which the result would replace: rename it")
        return frame.assign(**results)

    def to_dataset(self, threshold: float | None = None, samples: int = 0) -> Any:
        """An xarray Dataset on the grid with ``mean`` and ``std``; ``to_netcdf`` writes it to a file.

        threshold: adds ``exceedance``.  samples: adds this number of simulations along a dimension ``sample``.
        """
        xr = import_optional("xarray", "to_dataset", "xarray")
        if not isinstance(self.targets, Grid):
            raise ValueError("the targets are points, not a grid: use to_frame")
        grid, name, of = self.targets, self.field.name, "" if self.cells is None else ", average over cells"
        fields = {"mean": (self.mean, f"{name}, mean{of}"), "std": (self.std, f"{name}, standard deviation{of}")}
        if threshold is not None:
            fields["exceedance"] = (self.exceedance(threshold), f"probability of {name} above {threshold:g}{of}")
        variables: dict[str, Any] = {
            key: (grid.dims, values.reshape(grid.shape), {"long_name": title})
            for key, (values, title) in fields.items()
        }
        if samples:
            drawn = self.samples[:samples].reshape(-1, *grid.shape)
            variables["samples"] = (("sample", *grid.dims), drawn, {"long_name": f"{name}, conditional simulations"})
        attributes = {key.replace(" ", "_"): value for key, value in self.summary_items()[2:-3]}
        attributes["report"] = str(self.report)
        to_caller = self.coordinates.to_caller
        coords = {key: (key, to_caller(key, x), self._axis_attributes(i)) for i, (key, x) in enumerate(_axes(grid))}
        return xr.Dataset(variables, coords=coords, attrs=attributes)

    def plot(self, threshold: float | None = None, figure: Any = None) -> Any:
        """Draw maps of mean and standard deviation, and with a threshold of the probability to exceed it.

        figure: a matplotlib figure to draw on; a new one by default. Returns the figure.
        """
        from pathgp.kriging.drawing import draw_maps

        return draw_maps(self, threshold, figure)

    def to_html(self, path: str | os.PathLike[str], title: str | None = None, threshold: float | None = None) -> None:
        """Write a page with maps, variogram, accuracy and how the model was learned, without scripts or requests.

        threshold: adds the map of the probability to exceed it.
        """
        from pathgp.html.field import write_field

        write_field(self, path, title, threshold)

    def summary_items(self) -> list[tuple[str, str]]:
        """The model in the units of the data, as (name, value) pairs."""
        post, report = self.posterior, self.report
        unit = float(post.scaling.target_scale)
        values = {name: np.array(numbers) for name, numbers in report.values.items()}
        items = [
            ("points", f"{report.rows:,} values of {self.field.name} by {', '.join(self.coordinates.columns)}"),
            ("targets", f"{len(self.targets):,}" + self._shape_in_words()),
            ("kernel", repr(post.model.kernel)),
            ("nugget", f"{self.nugget:.4g}: std of a measurement"),
        ]
        if len(values.get("signal", ())) == 1:
            items.append(("signal", f"{values['signal'][0] * unit:.4g}: std of the field about its trend"))
        if scales := self._lengthscales():
            items.append(("length scale", ", ".join(scales)))
        if post.trend is not None:
            names = [_name_columns(name, self.coordinates.columns) for name in post.trend.names]
            trend = zip(names, post.trend.coefficients.tolist(), post.trend.std.tolist(), strict=True)
            items.append(("trend", ", ".join(f"{name}: {value:.4g} ± {std:.2g}" for name, value, std in trend)))
        notes = "; ".join(filter(None, [report.note, self.field.note]))
        items += [("note", notes)] if notes else []
        items.append(("mean", f"{self.mean.min():.4g} to {self.mean.max():.4g}"))
        items.append(("std", f"{self.std.min():.4g} to {self.std.max():.4g}, median {np.median(self.std):.4g}"))
        items.append(("seconds", f"{report.seconds:.3g} to learn"))
        return items

    def __repr__(self) -> str:
        return "\n".join(f"{name:<13}  {value}" for name, value in self.summary_items())

    def _lengthscales(self) -> list[str]:
        """Length scales in the units of the axes; of `Sphere` in kilometres."""
        scale, names, found = self.posterior.scaling.scale.cpu().numpy(), self.coordinates.columns, []
        for leaf, columns in leaves(self.posterior.model.kernel, range(len(names))):
            if isinstance(leaf, Sphere):
                found.append(f"{leaf.kernel.lengthscale.item() * EARTH_RADIUS_KM:.4g} km")
            elif isinstance(numbers := getattr(leaf, "lengthscale", None), torch.Tensor):
                relative = numbers.detach().cpu().numpy().reshape(-1)
                if len(relative) == 1 < len(columns):
                    found.append(f"{relative[0] * scale[columns[0]]:.4g}")
                else:
                    found += [f"{names[i]} {n * scale[i]:.4g}" for i, n in zip(columns, relative, strict=True)]
        return found

    def _shape_in_words(self) -> str:
        words = f", a grid of {' × '.join(map(str, self.targets.shape))}" if isinstance(self.targets, Grid) else ""
        if self.cells is not None:
            sizes = " × ".join(f"{size:g}" for size in self.cells.sizes if size)
            words += f", averages over cells of {sizes}"
        return words

    def _axis_attributes(self, column: int) -> dict[str, str]:
        if self.coordinates.lonlat is None or column not in self.coordinates.lonlat:
            return {}
        is_longitude = column == self.coordinates.lonlat[0]
        kind, unit = ("longitude", "degrees_east") if is_longitude else ("latitude", "degrees_north")
        return {"standard_name": kind, "units": unit}


def predict(
    field: Field, posterior: Posterior, report: FitReport, targets: Targets, cells: Cells | None, progress: bool
) -> Kriging:
    """Mean and standard deviation at all targets, a block at a time."""
    mean, std = np.empty(len(targets)), np.empty(len(targets))

    def evaluate(rows: slice) -> None:
        X = targets.rows(rows)
        if cells is None:
            inputs = _inputs(X, field.coordinates, posterior)
            with torch.no_grad():
                mean[rows] = posterior.mean(inputs).cpu().numpy()
                std[rows] = posterior.variance(inputs).sqrt().cpu().numpy()
        else:
            average = block_average(posterior, *_spread(X, cells, field, posterior))
            mean[rows], std[rows] = average.mean.cpu().numpy(), average.variance.sqrt().cpu().numpy()

    _in_blocks(evaluate, len(targets), cells, progress, "predict")
    return Kriging(mean, std, posterior, report, field, targets, cells)


def _in_blocks(evaluate: Callable[[slice], None], m: int, cells: Cells | None, progress: bool, title: str) -> None:
    step = _TARGETS_AT_ONCE if cells is None else max(1, _TARGETS_AT_ONCE // cells.points ** len(cells.sizes))
    with tqdm(total=m, desc=title, unit=" targets", unit_scale=True, leave=False, disable=not progress) as bar:
        for rows in spans(m, step):
            evaluate(rows)
            bar.update(rows.stop - rows.start)


def _inputs(X: Vector, coordinates: Coordinates, posterior: Posterior) -> torch.Tensor:
    """Points X (m, d) in the range of the observed longitudes, on the device of the posterior."""
    return torch.as_tensor(coordinates.around(X), device=posterior.system.X.device)


def _spread(X: Vector, cells: Cells, field: Field, posterior: Posterior) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (m, q, d) of the sub-points of cells around X (m, d), and their weights (m, q)."""
    inside, weights = cells.spread(X, field.coordinates)
    flat = _inputs(inside.reshape(-1, inside.shape[2]), field.coordinates, posterior)
    return flat.view(*inside.shape[:2], -1), torch.as_tensor(weights, device=flat.device)


def _axes(grid: Grid) -> list[tuple[str, Vector]]:
    return list(zip(grid.names, grid.axes, strict=True))


def _name_columns(name: str, columns: Sequence[str]) -> str:
    """The name of a basis function with the names of the columns in place of x0, x1, ..."""
    return re.sub(r"x(\d+)", lambda number: columns[int(number[1])], name)
