"""The page of a posterior on a grid with holes: `GridPosterior.to_html`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pathgp.compute.inputs import Array, read_grid, read_matrix, read_vector
from pathgp.html.accuracy import Comparison, accuracy_section, some
from pathgp.html.field import Field, array, field_section
from pathgp.html.learning import fit_verdict, learning_section, require_report
from pathgp.html.markup import Section, Verdict, document, paragraph, tiles, verdicts
from pathgp.html.numbers import count, number, percent
from pathgp.html.solver import certificate, solve_verdict, solver_section, versions
from pathgp.html.subject import read_names
from pathgp.html.words import kernel_in_words, listed
from pathgp.learning.report import FitReport
from pathgp.posterior.grid import GridPosterior

# Held-out cells and scattered points that are compared; the latter take time O(m^3).
_MOST_CELLS, _MOST_POINTS = 10_000, 1_000


def write(
    post: GridPosterior,
    path: str | os.PathLike[str],
    X_test: Array | None = None,
    y_test: Array | None = None,
    names: Sequence[str] | None = None,
    target: str | None = None,
    fit: FitReport | None = None,
    title: str | None = None,
) -> None:
    """Write the page of a posterior on a grid."""
    require_report(fit)
    sides = read_names(names, len(post.data.originals), "side", "side ")
    y = "y" if target is None else str(target)
    field = Field.of(post)
    comparison = _compared(post, field, X_test, y_test)
    sections = [
        _summary(post, sides, y, comparison, fit),
        None if comparison is None else accuracy_section(comparison, y),
        field_section(field, sides, y),
        None if fit is None else learning_section(fit, ()),
        solver_section(post, fit, _variance_words(post)),
    ]
    shape = " × ".join(f"{size:,}" for size in field.observed.shape)
    lead = f"A grid of {shape} cells, computed in {post.report.precision} on {post.report.device}."
    heading = str(title) if title is not None else f"A Gaussian process for {y}"
    page = document(heading, lead, [section for section in sections if section], f"Written by {versions()}")
    if post.settings.compute.is_main_process:
        Path(path).write_text(page, encoding="utf-8")


def _summary(
    post: GridPosterior, names: list[str], target: str, comparison: Comparison | None, fit: FitReport | None
) -> Section:
    model, data = post.model, post.data
    cells, seen = data.observed.numel(), int(data.observed.sum())
    noise = number(post.noise_std)
    priors = [
        f"along {name}, {kernel_in_words(kernel, [name] * width)}"
        for name, kernel, width in zip(names, model.sides, data.widths, strict=True)
    ]
    filled = f"{seen:,} of {count(cells, 'cell')} are observed; {percent(1 - seen / cells)} are holes, which it fills."
    words = [
        f"A Gaussian process describes {target} on a grid of {listed(names)}. {filled}",
        f"Its prior is a product: {'; '.join(priors)}.",
        f"The noise has standard deviation {noise} in the units of {target}.",
    ]
    found, body = [solve_verdict(post.report)], []
    if comparison is None:
        advice = "Give y_test, a grid of true values for some of the holes."
        found.append(Verdict(None, f"How accurate it is, is not known here: no values were held out. {advice}"))
    else:
        words.append(comparison.sentence(target))
        found.append(comparison.calibration())
        body.append(tiles(comparison.tiles()))
    if fit is not None:
        found.append(fit_verdict(fit))
    found.append(Verdict(None, certificate(post.report)))
    return Section("summary", "Summary", [*map(paragraph, words), *body, verdicts(found)])


def _compared(post: GridPosterior, field: Field, X_test: Array | None, y_test: Array | None) -> Comparison | None:
    """Predictions of held-out cells, or of scattered points; None where nothing was held out."""
    if y_test is None:
        if X_test is not None:
            raise ValueError("X_test comes without y_test: give both, or y_test alone as a grid")
        return None
    if field.std is None:
        raise ValueError("accuracy needs variances, and this posterior has no samples: use condition(samples=64)")
    noise = post.noise_std**2
    how = "The model has not seen these values; predictive variances include its noise."
    if X_test is not None:
        read = read_matrix(X_test, "X_test", columns=post.data.columns, like=post.data.originals[0])
        y = read_vector(y_test, len(read.X), "y_test", like=read.X)
        if not len(y):
            raise ValueError("X_test has no rows: leave X_test and y_test out")
        rows = torch.from_numpy(some(len(y), _MOST_POINTS)).to(read.X.device)
        with torch.no_grad():
            found = post.at(read.X[rows], torch.Generator().manual_seed(0))
        variance = array(found.variance) + noise
        return Comparison(array(y[rows]), array(found.mean), variance, "held-out points", len(y), how)
    truth = array(read_grid(y_test, "y_test"))
    if truth.shape != field.observed.shape:
        raise ValueError(f"y_test has shape {truth.shape}, the grid has {field.observed.shape}; NaN is for the unknown")
    held = np.flatnonzero(np.isfinite(truth) & ~field.observed)
    if not len(held):
        raise ValueError("y_test has no value in a hole of the grid: there is nothing to compare")
    cells = held[some(len(held), _MOST_CELLS)]
    values, mean, std = (grid.ravel()[cells] for grid in (truth, field.mean, field.std))
    return Comparison(values, mean, std**2 + noise, "held-out cells", len(held), how)


def _variance_words(post: GridPosterior) -> str:
    if not post.num_samples:
        return "There are no samples, and so no variances."
    error = f"{100 * post.report.std_error:.0f} %"
    return f"Variances come from {post.num_samples} samples: a standard deviation is known to {error} or better."
