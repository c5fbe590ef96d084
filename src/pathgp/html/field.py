"""A field on a grid with holes as maps and as curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.html.charts import Axis, Chart
from pathgp.html.facts import to_numpy
from pathgp.html.maps import SPREAD, VALUES, choose_view, colour_limits, heat_map
from pathgp.html.markup import Html, Section, chart_grid, figure, paragraph
from pathgp.html.numbers import number
from pathgp.plots import WIDTH_95
from pathgp.posterior.grid import GridPosterior

Grid = NDArray[np.float64]

_SAMPLES = 6
# A curve needs at least this number of cells.
_LEAST_CELLS = 5


@dataclass(frozen=True)
class Field:
    """The posterior on the training grid.

    sides: inputs (p_i, d_i).  values: observations, NaN in the holes; None if they are not in the file.
    std, samples: None for a posterior without samples.
    """

    sides: list[Grid]
    observed: NDArray[np.bool_]
    values: Grid | None
    mean: Grid
    std: Grid | None
    samples: Grid | None

    @classmethod
    def of(cls, post: GridPosterior) -> Field:
        observed = post.data.observed.cpu().numpy()
        values = std = samples = None
        if post.system.is_complete:
            values = np.full(observed.shape, np.nan)
            values[observed] = post.data.y.cpu().numpy()
        with torch.no_grad():
            mean = to_numpy(post.mean())
            if post.num_samples:
                std = np.sqrt(to_numpy(post.variance()))
                samples = to_numpy(post.sample(num=min(_SAMPLES, post.num_samples)))
        return cls([to_numpy(F) for F in post.data.originals], observed, values, mean, std, samples)


def field_section(field: Field, names: list[str], target: str) -> Section:
    """Maps, and curves along the longest side with one column."""
    body: list[Html] = []
    if len(field.sides) > 1:
        words = (
            "The observations, with holes in grey; the mean; one sample, which is as rough as the field itself; and "
            "the standard deviation, large far from observations. The first three share their colours."
        )
        if field.std is None:
            words = "The observations, with holes in grey, and the mean. There are no samples (samples=0)."
        body += [paragraph(words), chart_grid(_maps(field, names, target))]
    sizes = [len(side) if side.shape[1] == 1 else 0 for side in field.sides]
    along = int(np.argmax(sizes))
    if sizes[along] >= _LEAST_CELLS:
        rows = "with the fewest holes, a median number of them, and the most" if len(field.sides) > 1 else "of the grid"
        body.append(paragraph(f"Along {names[along]}, in the rows {rows}: mean, 95 % band, samples and observations."))
        body.append(chart_grid(_curves(field, along, names[along], target)))
    return Section("field", "The field", body or [paragraph("The grid has too few cells for a picture.")])


def _maps(field: Field, names: list[str], target: str) -> list[Html]:
    view = choose_view(field.sides, field.observed, names)
    sample = None if field.samples is None else field.samples[0]
    shared = colour_limits(*[view.picture(grid) for grid in (field.values, field.mean, sample) if grid is not None])
    values, title = field.values, f"Observed {target}"
    if values is None:
        values, title = (
            np.where(field.observed, field.mean, np.nan),
            "Mean in the observed cells (values are not known)",
        )
    drawn = [
        heat_map("seen", title, view, values, shared, VALUES),
        heat_map("mean", f"Mean of {target}", view, field.mean, shared, VALUES),
    ]
    if sample is not None and field.std is not None:
        highest = colour_limits(view.picture(field.std))[1]
        drawn.append(heat_map("sample", "One sample", view, sample, shared, VALUES))
        drawn.append(heat_map("std", "Standard deviation", view, field.std, (0.0, highest), SPREAD))
    return drawn


def _curves(field: Field, along: int, name: str, target: str) -> list[Html]:
    """Up to three rows of the grid along one side: with the fewest holes, a median number, and the most."""
    order = np.argsort(field.sides[along][:, 0])
    x = field.sides[along][order, 0]

    def rows(grid: NDArray[Any]) -> NDArray[Any]:
        return np.moveaxis(grid, along, -1)[..., order].reshape(-1, len(x))

    observed = rows(field.observed)
    by_holes = np.argsort((~observed).sum(1), kind="stable")
    chosen = list(dict.fromkeys(int(by_holes[i]) for i in (0, len(by_holes) // 2, -1)))
    mean = rows(field.mean)[chosen]
    half = np.zeros_like(mean) if field.std is None else WIDTH_95 * rows(field.std)[chosen]
    values = np.full_like(mean, np.nan) if field.values is None else rows(field.values)[chosen]
    samples = [rows(sample)[chosen] for sample in (() if field.samples is None else field.samples)]
    y_axis = Axis.around(mean - half, mean + half, values, label=target)
    drawn = []
    for i, row in enumerate(chosen):
        missing = f"{int((~observed[row]).sum())} of {len(x)} cells"
        low, high, narrow, wide = (
            number(float(v)) for v in (mean[i].min(), mean[i].max(), half[i].min(), half[i].max())
        )
        finding = f"{missing} are holes. Mean from {low} to {high}, 95 % band of ±{narrow} to ±{wide}."
        x_axis = Axis.around(x, label=name, pad=0.02)
        chart = Chart(f"curve-{i}", f"{target} along {name}", finding, x_axis, y_axis)
        chart.curve_with_band(x, mean[i], half[i], [sample[i] for sample in samples])
        chart.dots(x, values[i], "data")
        drawn.append(figure(f"{missing} missing", "", chart.svg()))
    return drawn
