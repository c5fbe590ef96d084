"""Write the page of a posterior: `Posterior.to_html` and `GridPosterior.to_html`."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pathgp._version import __version__
from pathgp.compute.inputs import Array
from pathgp.html.accuracy import Content, accuracy_section
from pathgp.html.grid import grid_content
from pathgp.html.learning import fit_verdict, learning_section
from pathgp.html.markup import Section, Verdict, document, paragraph, tile_list, verdict_list
from pathgp.html.solver import describe_error, solve_verdict, solver_section
from pathgp.html.table import table_content
from pathgp.learning.report import FitReport
from pathgp.posterior.grid import GridPosterior


def write(
    post: Any,
    path: str | os.PathLike[str],
    X_test: Array | None = None,
    y_test: Array | None = None,
    names: Sequence[str] | None = None,
    target: str | None = None,
    fit: FitReport | None = None,
    title: str | None = None,
) -> None:
    """Write the page of a `Posterior` or `GridPosterior`; of several processes all compute and the main one writes."""
    if fit is not None and not isinstance(fit, FitReport):
        raise TypeError(f"fit must be the FitReport that fit() returned, got {type(fit).__name__}")
    y = "y" if target is None else str(target)
    choose_content = grid_content if isinstance(post, GridPosterior) else table_content
    write_content(post, path, choose_content(post, X_test, y_test, names, y), y, fit, title)


def write_content(
    post: Any, path: str | os.PathLike[str], content: Content, y: str, fit: FitReport | None, title: str | None
) -> None:
    """Write the page with this content; ``y``: the name of the values."""
    sections = [
        _summary(post, y, content, fit),
        *content.first,
        *([] if content.comparison is None else [accuracy_section(content.comparison, y)]),
        *content.sections,
        *([] if fit is None else [learning_section(fit, content.inputs)]),
        solver_section(post, fit, content.variances),
    ]
    lead = f"{content.size}, computed in {post.report.precision} on {post.report.device}."
    heading = f"A Gaussian process for {y}" if title is None else str(title)
    page = document(heading, lead, sections, describe_versions())
    if post.settings.compute.is_main_process:
        Path(path).write_text(page, encoding="utf-8")


def describe_versions() -> str:
    """The last line of a page: what wrote it, and when."""
    versions = f"pathgp {__version__}, torch {torch.__version__}, numpy {np.__version__}"
    date = f"{datetime.now().astimezone():%d %B %Y, %H:%M %Z}"
    return f"Written by {versions}, Python {platform.python_version()}; {date}"


def _noise_was_learned(fit: FitReport | None) -> bool | None:
    """Whether a fit changed the noise; None without a fit."""
    if fit is None:
        return None
    return len({tuple(values.get("noise", ())) for values in (fit.values, *(step.values for step in fit.history))}) > 1


def _summary(post: Any, target: str, content: Content, fit: FitReport | None) -> Section:
    """Sentences about the model, key numbers and verdicts."""
    words, verdicts, tiles = list(content.sentences), [solve_verdict(post.report)], []
    if (comparison := content.comparison) is None:
        verdicts.append(Verdict(None, f"The accuracy is not known: {content.reason}"))
    else:
        words.append(comparison.sentence(target))
        if comparison.has_enough_rows and not comparison.is_constant and comparison.r2 <= 0:
            advice = "The inputs may not determine it."
            if fit is None or not fit.history:
                advice = "If length scales and noise were not learned from data, learn them."
            verdicts.append(Verdict(False, f"It predicts no better than the average of {target}. {advice}"))
        verdicts.append(comparison.calibration(_noise_was_learned(fit)))
        if comparison.caveat:
            verdicts.append(Verdict(False, comparison.caveat))
        tiles = [tile_list(comparison.tiles())]
    if fit is not None:
        verdicts.append(fit_verdict(fit))
    verdicts.append(Verdict(None, describe_error(post)))
    return Section("summary", "Summary", [*map(paragraph, words), *tiles, verdict_list(verdicts)])
