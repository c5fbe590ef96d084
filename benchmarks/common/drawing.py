"""Code that figures share: a grid of axes, colours, and saving to a small file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pathgp.plots import COLOURS as COLOURS
from pathgp.plots import tidy

try:
    from matplotlib.figure import Figure as Figure
    from PIL import Image
except ImportError:
    raise SystemExit("figures need matplotlib: pip install matplotlib") from None

DPI = 160


def grid(rows: int, columns: int, width: float = 10.0, height: float = 2.6, **options: Any) -> tuple[Figure, Any]:
    """A figure and its (rows, columns) array of axes; ``height`` is that of one row, in inches."""
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for each in axes.flat:
        tidy(each)
    return figure, axes


def legend(figure: Figure, axes: Any) -> None:
    """One legend for all panels, below them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False, fontsize=8.5)


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG with 256 colours: a quarter of the size, to the eye the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    return path
