"""A field on a grid with holes as maps and as curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.html.accuracy import WIDTH_95
from pathgp.html.charts import Axis, Chart
from pathgp.html.maps import SPREAD, VALUES, choose_view, heat_map, limits_of
from pathgp.html.markup import Html, Section, charts, figure, paragraph
from pathgp.html.numbers import number
from pathgp.posterior.grid import GridPosterior

Grid = NDArray[np.float64]

_SAMPLES = 6
# Fewer cells are no curve.
_LEAST_CELLS = 5


@dataclass(frozen=True)
class Field:
    """Everything that is drawn, on the training grid.

    sides: inputs (p_i, d_i).  seen: values, NaN in the holes; None where they are not known.  std, samples: None for a
    posterior without samples.
    """

    sides: list[Grid]
    observed: NDArray[np.bool_]
    seen: Grid | None
    mean: Grid
    std: Grid | None
    samples: Grid | None

    @classmethod
    def of(cls, post: GridPosterior) -> Field:
        data = post.data
        observed = data.observed.cpu().numpy()
        seen = std = samples = None
        if post.system.is_complete:
            seen = np.full(observed.shape, np.nan)
            seen[observed] = data.y.cpu().numpy()
        with torch.no_grad():
            mean = array(post.mean())
            if post.num_samples:
                std = np.sqrt(array(post.variance()))
                samples = array(post.sample(num=min(_SAMPLES, post.num_samples)))
        return cls([array(F) for F in data.originals], observed, seen, mean, std, samples)


def field_section(field: Field, names: list[str], target: str) -> Section:
    """Maps, and curves along a side whose cells have an order."""
    words = (
        "What was seen, with holes in grey; the mean; one sample, which is as rough as the field itself; and the "
        "standard deviation, large where little is known. The first three share their colours."
    )
    if field.std is None:
        words = (
            "What was seen, with holes in grey, and the mean. Without samples (samples=0) nothing is known beyond it."
        )
    body = []
    if len(field.sides) > 1:
        body += [paragraph(words), charts(_maps(field, names, target))]
    along = _ordered(field)
    if along is not None:
        rows = "with the fewest holes, a median number of them, and the most" if len(field.sides) > 1 else "of the grid"
        body.append(paragraph(f"Along {names[along]}, in the rows {rows}: mean, 95 % band, samples and observations."))
        body.append(charts(_curves(field, along, names[along], target)))
    return Section("field", "The field", body or [paragraph("The grid has too few cells for a picture.")])


def array(values: Any) -> Grid:
    """A float64 array of a tensor or an array."""
    return np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values, dtype=np.float64)


def _maps(field: Field, names: list[str], target: str) -> list[Html]:
    view = choose_view(field.sides, field.observed, names)
    sample = None if field.samples is None else field.samples[0]
    shared = limits_of(*[view.picture(values) for values in (field.seen, field.mean, sample) if values is not None])
    seen, title = field.seen, f"Observed {target}"
    if seen is None:
        seen, title = np.where(field.observed, field.mean, np.nan), "Mean in the observed cells (values are not known)"
    drawn = [
        heat_map("seen", title, view, seen, shared, VALUES),
        heat_map("mean", f"Mean of {target}", view, field.mean, shared, VALUES),
    ]
    if sample is not None and field.std is not None:
        highest = limits_of(view.picture(field.std))[1]
        drawn.append(heat_map("sample", "One sample", view, sample, shared, VALUES))
        drawn.append(heat_map("std", "Standard deviation", view, field.std, (0.0, highest), SPREAD))
    return drawn


def _ordered(field: Field) -> int | None:
    """The longest side with one column, if it has cells enough."""
    sizes = [len(side) if side.shape[1] == 1 else 0 for side in field.sides]
    return int(np.argmax(sizes)) if max(sizes) >= _LEAST_CELLS else None


def _curves(field: Field, along: int, name: str, target: str) -> list[Html]:
    """Up to three rows of the grid along one side: with the fewest holes, a median number, and the most."""
    order = np.argsort(field.sides[along][:, 0])
    x = field.sides[along][order, 0]

    def rows(grid: NDArray[Any], side: int) -> NDArray[Any]:
        return np.moveaxis(grid, side, -1)[..., order]

    observed = rows(field.observed, along).reshape(-1, len(x))
    by_holes = np.argsort((~observed).sum(1), kind="stable")
    chosen = list(dict.fromkeys(int(by_holes[i]) for i in (0, len(by_holes) // 2, -1)))
    mean = rows(field.mean, along).reshape(-1, len(x))[chosen]
    half = np.zeros_like(mean) if field.std is None else WIDTH_95 * rows(field.std, along).reshape(-1, len(x))[chosen]
    seen = np.full_like(mean, np.nan)
    if field.seen is not None:
        seen = rows(field.seen, along).reshape(-1, len(x))[chosen]
    draws = np.empty((0, *mean.shape))
    if field.samples is not None:
        draws = rows(field.samples, along + 1).reshape(len(field.samples), -1, len(x))[:, chosen]
    up = Axis.around(mean - half, mean + half, seen, label=target)
    drawn = []
    for i, row in enumerate(chosen):
        holes = int((~observed[row]).sum())
        low, high = number(float(mean[i].min())), number(float(mean[i].max()))
        widths = f"±{number(float(half[i].min()))} to ±{number(float(half[i].max()))}"
        finding = f"{holes} of {len(x)} cells are holes. Mean from {low} to {high}, 95 % band of {widths}."
        chart = Chart(f"curve-{i}", f"{target} along {name}", finding, Axis.around(x, label=name, pad=0.02), up)
        chart.band(x, mean[i] - half[i], mean[i] + half[i])
        for draw in draws[:, i]:
            chart.line(x, draw, "path")
        chart.line(x, mean[i])
        chart.dots(x, seen[i], "data")
        drawn.append(figure(f"{holes} of {len(x)} cells missing", "", chart.svg()))
    return drawn
