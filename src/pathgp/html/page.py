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
from pathgp.html.grid import grid_sections
from pathgp.html.markup import document
from pathgp.html.table import table_sections
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
    if isinstance(post, GridPosterior):
        size, sections = grid_sections(post, X_test, y_test, names, y, fit)
    else:
        size, sections = table_sections(post, X_test, y_test, names, y, fit)
    lead = f"{size}, computed in {post.report.precision} on {post.report.device}."
    versions = f"pathgp {__version__}, torch {torch.__version__}, numpy {np.__version__}"
    date = f"{datetime.now().astimezone():%d %B %Y, %H:%M %Z}"
    footer = f"Written by {versions}, Python {platform.python_version()}; {date}"
    heading = f"A Gaussian process for {y}" if title is None else str(title)
    page = document(heading, lead, [section for section in sections if section is not None], footer)
    if post.settings.compute.is_main_process:
        Path(path).write_text(page, encoding="utf-8")
