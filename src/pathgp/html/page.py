"""The document and the summary that the pages of tables and grids share."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import torch

from pathgp._version import __version__
from pathgp.html.accuracy import Comparison
from pathgp.html.learning import fit_verdict
from pathgp.html.markup import Section, Verdict, document, paragraph, tile_list, verdict_list
from pathgp.html.solver import certificate, solve_verdict
from pathgp.learning.report import FitReport
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.table import Posterior


def write_page(
    post: Posterior | GridPosterior,
    path: str | os.PathLike[str],
    title: str | None,
    target: str,
    size: str,
    sections: Sequence[Section | None],
) -> None:
    """Write a page; in a group of processes all compute and the main process writes. size: of the data, in words."""
    heading = f"A Gaussian process for {target}" if title is None else str(title)
    lead = f"{size}, computed in {post.report.precision} on {post.report.device}."
    versions = f"pathgp {__version__}, torch {torch.__version__}, numpy {np.__version__}"
    date = f"{datetime.now().astimezone():%d %B %Y, %H:%M %Z}"
    footer = f"Written by {versions}, Python {platform.python_version()}; {date}"
    page = document(heading, lead, [section for section in sections if section is not None], footer)
    if post.settings.compute.is_main_process:
        Path(path).write_text(page, encoding="utf-8")


def summary_section(
    post: Posterior | GridPosterior,
    target: str,
    sentences: Sequence[str],
    comparison: Comparison | None,
    reason: str,
    fit: FitReport | None,
) -> Section:
    """Sentences about the model, key numbers and verdicts. reason: why there is no comparison with observations."""
    words, verdicts, body = list(sentences), [solve_verdict(post.report)], []
    if comparison is None:
        verdicts.append(Verdict(None, f"The accuracy is not known: {reason}"))
    else:
        words.append(comparison.sentence(target))
        if not comparison.is_constant and comparison.r2 <= 0:
            advice = "Check kernel, length scales and noise, or learn them with fit."
            verdicts.append(Verdict(False, f"It predicts no better than the average of {target}. {advice}"))
        verdicts.append(comparison.calibration())
        if comparison.caveat:
            verdicts.append(Verdict(False, comparison.caveat))
        body.append(tile_list(comparison.tiles()))
    if fit is not None:
        verdicts.append(fit_verdict(fit))
    verdicts.append(Verdict(None, certificate(post.report)))
    return Section("summary", "Summary", [*map(paragraph, words), *body, verdict_list(verdicts)])
