"""The sections of the page of a posterior on a grid with holes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pathgp.compute.inputs import Array, read_grid, read_matrix, read_vector
from pathgp.html.accuracy import Comparison, accuracy_section
from pathgp.html.facts import join_names, kernel_in_words, random_subset, read_names, to_numpy
from pathgp.html.field import Field, field_section
from pathgp.html.learning import learning_section
from pathgp.html.markup import Section
from pathgp.html.numbers import count, number, percent
from pathgp.html.solver import solver_section
from pathgp.html.summary import summary_section
from pathgp.learning.report import FitReport
from pathgp.posterior.grid import GridPosterior

# Held-out cells and scattered points that are compared; m points take time O(m^3).
_MOST_CELLS, _MOST_POINTS = 10_000, 1_000


def grid_sections(
    post: GridPosterior,
    X_test: Array | None,
    y_test: Array | None,
    names: Sequence[str] | None,
    target: str,
    fit: FitReport | None,
) -> tuple[str, list[Section | None]]:
    """Return the size of the grid in words, and the sections."""
    sides = read_names(names, len(post.data.originals), "side", "side ")
    field = Field.of(post)
    comparison = _compare(post, field, X_test, y_test)
    reason = "no values were held out. Give y_test, a grid with true values in holes."
    variances = "There are no samples, and so no variances."
    if post.num_samples:
        error = f"the relative error of a standard deviation is about {100 * post.report.std_error:.0f} % or less"
        variances = f"Variances come from {post.num_samples} samples: {error}."
    return f"A grid of {' × '.join(f'{size:,}' for size in field.observed.shape)} cells", [
        summary_section(post, target, _sentences(post, sides, target), comparison, reason, fit),
        None if comparison is None else accuracy_section(comparison, target),
        field_section(field, sides, target),
        None if fit is None else learning_section(fit, ()),
        solver_section(post, fit, variances),
    ]


def _sentences(post: GridPosterior, names: list[str], target: str) -> list[str]:
    """The grid, the prior of every side, and the noise."""
    data = post.data
    cells, observed = data.observed.numel(), int(data.observed.sum())
    holes = f"{observed:,} of {count(cells, 'cell')} are observed; {percent(1 - observed / cells)} are holes"
    priors = [
        f"along {name}, {kernel_in_words(kernel, [name] * width)}"
        for name, kernel, width in zip(names, post.model.sides, data.widths, strict=True)
    ]
    return [
        f"A Gaussian process describes {target} on a grid of {join_names(names)}. {holes}, which it fills.",
        f"Its prior is a product: {'; '.join(priors)}.",
        f"The noise has standard deviation {number(post.noise_std)} in the units of {target}.",
    ]


def _compare(post: GridPosterior, field: Field, X_test: Array | None, y_test: Array | None) -> Comparison | None:
    """Predict held-out cells or scattered points; None without held-out values."""
    if y_test is None:
        if X_test is not None:
            raise ValueError("X_test comes without y_test: give both, or y_test alone as a grid")
        return None
    if field.std is None:
        raise ValueError("accuracy needs variances, and this posterior has no samples: use condition(samples=64)")
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
