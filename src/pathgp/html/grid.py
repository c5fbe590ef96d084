"""The content of the page of a posterior on a grid with holes: the field as maps and as curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.compute.inputs import Array, read_grid, read_matrix, read_vector
from pathgp.html.accuracy import Comparison, Content
from pathgp.html.charts import Axis, Chart
from pathgp.html.facts import (
    join_names,
    kernel_in_words,
    noise_in_words,
    random_subset,
    read_names,
    signal_unit,
    to_numpy,
)
from pathgp.html.maps import SPREAD, VALUES, choose_view, colour_limits, heat_map
from pathgp.html.markup import Html, Section, chart_grid, figure, paragraph
from pathgp.html.numbers import count, number, percent
from pathgp.plots import WIDTH_95
from pathgp.posterior.grid import GridPosterior

Grid = NDArray[np.float64]

# Held-out cells and scattered points that are compared; m points take time O(m^3).
_MOST_CELLS, _MOST_POINTS = 10_000, 1_000
_SAMPLES = 6
# A curve needs at least this number of cells.
_LEAST_CELLS = 5


@dataclass(frozen=True)
class _Field:
    """The posterior on the training grid.

    names, sides: of the inputs (p_i, d_i).  values: observations, NaN in the holes; None if they are not in the file.
    """

    target: str
    names: list[str]
    sides: list[Grid]
    observed: NDArray[np.bool_]
    values: Grid | None
    mean: Grid
    std: Grid
    samples: Grid


def grid_content(
    post: GridPosterior, X_test: Array | None, y_test: Array | None, names: Sequence[str] | None, target: str
) -> Content:
    """Predict held-out cells or points, and show the field."""
    sides = [to_numpy(F) for F in post.data.originals]
    names = read_names(names, len(sides), "side", "side ")
    observed, values = post.data.observed.cpu().numpy(), None
    if post.system.is_complete:
        values = np.full(observed.shape, np.nan)
        values[observed] = post.data.y.cpu().numpy()
    with torch.no_grad():
        std, samples = post.variance() ** 0.5, post.sample(num=min(_SAMPLES, post.num_samples))
        field = _Field(target, names, sides, observed, values, *map(to_numpy, (post.mean(), std, samples)))
    variances = "Variances are exact, from a Cholesky factor of the matrix."
    if post.variance_method == "samples":
        error = f"the relative error of a standard deviation is about {100 * post.report.std_error:.0f} % or less"
        variances = f"Variances come from {post.num_samples} samples: {error}."
    return Content(
        f"A grid of {' × '.join(f'{size:,}' for size in observed.shape)} cells",
        _sentences(post, field),
        _compare(post, field, X_test, y_test),
        "no values were held out. Give y_test, a grid with true values in holes.",
        [_section(field)],
        variances,
    )


def _sentences(post: GridPosterior, field: _Field) -> list[str]:
    """The grid, the prior of every side, and the noise."""
    cells, observed = field.observed.size, int(field.observed.sum())
    holes = f"{observed:,} of {count(cells, 'cell')} are observed; {percent(1 - observed / cells)} are holes"
    unit = signal_unit(post.model.sides, float(post.scaling.target_scale))
    priors = [
        f"along {name}, {kernel_in_words(kernel, [name] * width, unit)}"
        for name, kernel, width in zip(field.names, post.model.sides, post.data.widths, strict=True)
    ]
    grid = f"A Gaussian process describes {field.target} on a grid of {join_names(field.names)}."
    return [
        f"{grid} {holes}, which it fills.",
        f"Its prior is a product: {'; '.join(priors)}.",
        noise_in_words(post, field.target, unit),
    ]


def _compare(post: GridPosterior, field: _Field, X_test: Array | None, y_test: Array | None) -> Comparison | None:
    """Predict held-out cells or scattered points; None without held-out values."""
    if y_test is None:
        if X_test is not None:
            raise ValueError("X_test comes without y_test: give both, or y_test alone as a grid")
        return None
    noise = post.noise_std**2
    how = "The model has not seen these values; predictive variances include its noise."
    if X_test is not None:
        X = read_matrix(X_test, "X_test", columns=post.data.columns, like=post.data.originals[0]).X
        y = read_vector(y_test, len(X), "y_test", like=X)
        if not len(y):
            raise ValueError("X_test has no rows: leave X_test and y_test out")
        rows = torch.from_numpy(random_subset(len(y), _MOST_POINTS)).to(X.device)
        with torch.no_grad():
            points = post.at(X[rows], torch.Generator().manual_seed(0))
        mean, variance = to_numpy(points.mean), to_numpy(points.variance) + noise
        return Comparison(to_numpy(y[rows]), mean, variance, "held-out points", len(y), how)
    truth = to_numpy(read_grid(y_test, "y_test"))
    if truth.shape != field.observed.shape:
        raise ValueError(f"y_test has shape {truth.shape}, the grid has {field.observed.shape}; use NaN for no value")
    held_out = np.flatnonzero(np.isfinite(truth) & ~field.observed)
    if not len(held_out):
        raise ValueError("y_test has no value in a hole of the grid: there is nothing to compare")
    cells = held_out[random_subset(len(held_out), _MOST_CELLS)]
    values, mean, std = (grid.ravel()[cells] for grid in (truth, field.mean, field.std))
    return Comparison(values, mean, std**2 + noise, "held-out cells", len(held_out), how)


def _section(field: _Field) -> Section:
    """Maps, and curves along the longest side with one column."""
    body: list[Html] = []
    if len(field.sides) > 1:
        words = (
            "The observations, with holes in grey; the mean; one sample, which is as rough as the field itself; and "
            "the standard deviation, large far from observations. The first three share their colours."
        )
        body += [paragraph(words), chart_grid(_maps(field))]
    sizes = [len(side) if side.shape[1] == 1 else 0 for side in field.sides]
    along = int(np.argmax(sizes))
    if sizes[along] >= _LEAST_CELLS:
        rows = "with the fewest holes, a median number of them, and the most" if len(field.sides) > 1 else "of the grid"
        words = f"Along {field.names[along]}, in the rows {rows}: mean, 95 % band, samples and observations."
        body += [paragraph(words), chart_grid(_curves(field, along))]
    return Section("field", "The field", body or [paragraph("The grid has too few cells for a picture.")])


def _maps(field: _Field) -> list[Html]:
    view = choose_view(field.sides, field.observed, field.names)
    values, title, sample = field.values, f"Observed {field.target}", field.samples[0]
    shared = colour_limits(*(view.picture(grid) for grid in (values, field.mean, sample) if grid is not None))
    if values is None:
        values = np.where(field.observed, field.mean, np.nan)
        title = "Mean in the observed cells (values are not known)"
    highest = colour_limits(view.picture(field.std))[1]
    return [
        heat_map("seen", title, view, values, shared, VALUES),
        heat_map("mean", f"Mean of {field.target}", view, field.mean, shared, VALUES),
        heat_map("sample", "One sample", view, sample, shared, VALUES),
        heat_map("std", "Standard deviation", view, field.std, (0.0, highest), SPREAD),
    ]


def _curves(field: _Field, along: int) -> list[Html]:
    """Up to three rows of the grid along one side: with the fewest holes, a median number, and the most."""
    order = np.argsort(field.sides[along][:, 0])
    x, name = field.sides[along][order, 0], field.names[along]

    def rows(grid: NDArray[Any]) -> NDArray[Any]:
        return np.moveaxis(grid, along, -1)[..., order].reshape(-1, len(x))

    observed = rows(field.observed)
    by_holes = np.argsort((~observed).sum(1), kind="stable")
    chosen = list(dict.fromkeys(int(by_holes[i]) for i in (0, len(by_holes) // 2, -1)))
    mean, half = rows(field.mean)[chosen], WIDTH_95 * rows(field.std)[chosen]
    values = np.full_like(mean, np.nan) if field.values is None else rows(field.values)[chosen]
    samples = [rows(sample)[chosen] for sample in field.samples]
    x_axis = Axis.around(x, label=name, pad=0.02)
    y_axis = Axis.around(mean - half, mean + half, values, label=field.target)
    drawn = []
    for i, row in enumerate(chosen):
        missing = f"{int((~observed[row]).sum())} of {len(x)} cells"
        (low, high), (narrow, wide) = (map(number, (part[i].min(), part[i].max())) for part in (mean, half))
        finding = f"{missing} are holes. Mean from {low} to {high}, 95 % band of ±{narrow} to ±{wide}."
        chart = Chart(f"curve-{i}", f"{field.target} along {name}", finding, x_axis, y_axis)
        chart.curve_with_band(x, mean[i], half[i], [sample[i] for sample in samples])
        chart.dots(x, values[i], "data")
        drawn.append(figure(f"{missing} missing", "", chart.svg()))
    return drawn
