"""Code that figures share: a grid of axes, colours, and saving to small files for light and dark pages."""

from __future__ import annotations

import colorsys
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


# Lightness of black and of white on dark pages, and the tint of greys there (hue, saturation).
DARK_INK, DARK_PAPER, DARK_TINT = 0.92, 0.13, (0.64, 0.12)


def save(figure: Figure, path: Path) -> Path:
    """Write NAME.png with 256 colours, a quarter of the size and to the eye the same; and NAME-dark.png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    small.putpalette([byte for colour in _colours(small) for byte in darken(colour)])
    small.save(path.with_stem(f"{path.stem}-dark"), optimize=True)
    return path


def darken(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    """The colour for dark pages: the same hue, the lightness reversed."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*(byte / 255 for byte in colour))
    if saturation < 0.05:
        hue, saturation = DARK_TINT
    lightness = DARK_INK + (DARK_PAPER - DARK_INK) * lightness
    red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(hue, lightness, saturation))
    return red, green, blue


def _colours(image: Image.Image) -> list[tuple[int, int, int]]:
    palette = image.getpalette() or []
    return [(palette[i], palette[i + 1], palette[i + 2]) for i in range(0, len(palette), 3)]
