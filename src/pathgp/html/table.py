"""The page of a posterior of rows: `Posterior.to_html`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pathgp.compute.inputs import Array, read_matrix, read_vector
from pathgp.html.accuracy import Comparison, accuracy_section, some
from pathgp.html.inputs import effects_section, ranked, relevance_section
from pathgp.html.learning import fit_verdict, learning_section, require_report
from pathgp.html.markup import Html, Section, Verdict, document, paragraph, tiles, verdicts
from pathgp.html.numbers import count, number
from pathgp.html.solver import certificate, solve_verdict, solver_section, versions
from pathgp.html.subject import Subject, subject
from pathgp.html.words import kernel_in_words, listed
from pathgp.learning.report import FitReport
from pathgp.posterior.table import Posterior

# Held-out rows that are predicted: more would change no digit that is shown. Fewer where each costs a solve.
_MOST_ROWS, _MOST_SOLVES = 10_000, 300


def write(
    post: Posterior,
    path: str | os.PathLike[str],
    X_test: Array | None = None,
    y_test: Array | None = None,
    names: Sequence[str] | None = None,
    target: str | None = None,
    fit: FitReport | None = None,
    title: str | None = None,
) -> None:
    """Write the page of a posterior; of several ranks all compute, the first one writes."""
    require_report(fit)
    about = subject(post, names, target)
    page = _page(about, X_test, y_test, fit, title)
    if post.settings.compute.is_main_process:
        Path(path).write_text(page, encoding="utf-8")


def _page(about: Subject, X_test: Array | None, y_test: Array | None, fit: FitReport | None, title: str | None) -> Html:
    report = about.post.report
    comparison, reason = _compared(about, X_test, y_test)
    entries = ranked(about)
    sections: list[Section | None] = [
        _summary(about, comparison, reason, fit),
        None if comparison is None else accuracy_section(comparison, about.target),
        relevance_section(about, entries),
        effects_section(about, entries),
        None if fit is None else learning_section(fit, about.names),
        solver_section(about.post, fit, _variance_words(about)),
    ]
    heading = str(title) if title is not None else f"A Gaussian process for {about.target}"
    size = f"{count(about.rows, 'row')}, {count(about.columns, 'input')}"
    lead = f"{size}, computed in {report.precision} on {report.device}."
    return document(heading, lead, [section for section in sections if section], f"Written by {versions()}")


def _summary(about: Subject, comparison: Comparison | None, reason: str, fit: FitReport | None) -> Section:
    post = about.post
    model = post.model
    inputs = f"from {listed(about.names)}" if about.columns <= 12 else f"from {about.columns} inputs"
    words = [
        f"A Gaussian process predicts {about.target} {inputs}, given {count(about.rows, 'row')} of data.",
        f"Its prior: {kernel_in_words(model.kernel, about.names)}. {_units(about)}",
    ]
    found = [solve_verdict(post.report)]
    body = []
    if comparison is None:
        found.append(Verdict(None, f"How accurate it is, is not known here: {reason}"))
    else:
        words.append(comparison.sentence(about.target))
        if not comparison.is_constant and comparison.r2 <= 0:
            advice = "Check kernel, length scales and noise, or learn them with fit."
            found.append(Verdict(False, f"It predicts no better than the average of {about.target}. {advice}"))
        found.append(comparison.calibration())
        if comparison.caveat:
            found.append(Verdict(False, comparison.caveat))
        body.append(tiles(comparison.tiles()))
    if fit is not None:
        found.append(fit_verdict(fit))
    found.append(Verdict(None, certificate(post.report)))
    return Section("summary", "Summary", [*map(paragraph, words), *body, verdicts(found)])


def _units(about: Subject) -> str:
    """The noise of the model, and the units it works in."""
    model = about.post.model
    noise = f"The noise has standard deviation {number(about.noise)} in the units of {about.target}"
    known = ", on top of the known noise of every row" if about.post.system.deviation.ndim else ""
    scaled = " Inputs and target are standardised inside; length scales are in these units."
    return f"{noise}{known}.{scaled if model.standardise else ''}"


def _compared(about: Subject, X_test: Array | None, y_test: Array | None) -> tuple[Comparison | None, str]:
    """Predictions of held-out rows, or of every row from the others; else why there are none."""
    if (X_test is None) != (y_test is None):
        missing, given = ("X_test", "y_test") if X_test is None else ("y_test", "X_test")
        raise ValueError(f"{given} comes without {missing}: give both, or none for leave-one-out")
    if X_test is not None:
        return _held_out(about, X_test, y_test), ""
    if not about.has_targets:
        return None, (
            "the posterior was saved without its targets (data=False) and no X_test, y_test were given. Give both."
        )
    try:
        loo = about.post.leave_one_out()
    except ValueError as error:
        return None, f"{error}; or give X_test, y_test."
    how = (
        "No held-out data were given: every row is predicted from all the others (leave-one-out; variances "
        f"{loo.method}). The hyperparameters have seen all rows, so that new data may be a little harder to predict."
    )
    caveat = ""
    if about.has_factor and not about.post.report.solution.converged:
        caveat = "Accuracy is shown for an exact solution (leave-one-out), which this posterior has not reached."
    y, mean, variance = about.targets(), loo.means.cpu().numpy(), loo.variances.cpu().numpy()
    return Comparison(y, mean, variance, "rows left out one by one", len(y), how, caveat), ""


def _held_out(about: Subject, X_test: Array, y_test: Array) -> Comparison:
    post, X = about.post, about.post.system.X
    read = read_matrix(X_test, "X_test", columns=about.columns, like=X)
    y = read_vector(y_test, len(read.X), "y_test", like=X)
    if not len(y):
        raise ValueError("X_test has no rows: leave X_test and y_test out for leave-one-out")
    cheap = about.has_paths or about.has_factor
    rows = torch.from_numpy(some(len(y), _MOST_ROWS if cheap else _MOST_SOLVES)).to(X.device)
    with torch.no_grad():
        mean, variance = post.mean(read.X[rows]), post.variance(read.X[rows], noise=True)
    how = "Rows that the model has not seen; predictive variances include the noise."
    if post.system.deviation.ndim:
        how = "Rows that the model has not seen; variances include its own noise, not what is known of single rows."
    numbers = [np.asarray(v.cpu(), dtype=np.float64) for v in (y[rows], mean, variance)]
    return Comparison(numbers[0], numbers[1], numbers[2], "held-out rows", len(y), how)


def _variance_words(about: Subject) -> str:
    report = about.post.report
    if not about.has_paths:
        reason = f" ({report.no_paths})" if report.no_paths else ""
        return f"Variances are exact, from further solves: there are no sample paths{reason}."
    accuracy = f"a standard deviation is known to {100 * report.std_error:.0f} % or better"
    if about.has_targets:
        return f"Variances come from {report.samples} paths, controlled by the nearest observations: {accuracy}."
    return f"Variances come from {report.samples} paths alone, as the targets are not in the file: {accuracy}."
