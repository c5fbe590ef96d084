"""Pictures of a posterior over one input, drawn into given axes: nothing here imports matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.posterior import Posterior

INK, MEAN, PATH, DATA, TRUTH = "#1b1b1f", "#2447a8", "#7d9be0", "#8a8a94", "#d1495b"

# Two-sided 95 % of a normal distribution.
_WIDTH = 1.959964


def draw_posterior(
    axes: Any,
    post: Posterior,
    window: tuple[float, float],
    data: tuple[NDArray[Any], NDArray[Any]] | None = None,
    truth: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    paths: int = 10,
    points: int = 600,
) -> None:
    """Mean, 95 % band of f, a few paths, the data and the true function over an interval of a single input.

    axes: matplotlib axes.  data: inputs and targets, of which those inside the window are drawn.
    """
    x = np.linspace(*window, points)
    with torch.no_grad():
        mean = np.asarray(post.mean(x[:, None]))
        half = _WIDTH * np.sqrt(np.asarray(post.variance(x[:, None])))
        draws = np.asarray(post.paths(x[:, None]))[:paths] if paths else np.empty((0, points))
    if data is not None:
        inside = (data[0] >= window[0]) & (data[0] <= window[1])
        # Dots fade as they become many, so that a crowd stays a cloud.
        alpha = min(0.6, max(0.15, 300.0 / max(1, int(inside.sum()))))
        axes.plot(data[0][inside], data[1][inside], ".", color=DATA, ms=3.2, mew=0, alpha=alpha, zorder=1)
        axes.plot([], [], ".", color=DATA, ms=5, label="data")
    axes.fill_between(x, mean - half, mean + half, color=MEAN, alpha=0.15, lw=0, label="95 % band", zorder=2)
    for number, draw in enumerate(draws):
        axes.plot(x, draw, color=PATH, lw=0.7, alpha=0.9, zorder=3, label=None if number else f"{len(draws)} paths")
    axes.plot(x, mean, color=MEAN, lw=1.6, label="mean", zorder=4)
    if truth is not None:
        axes.plot(x, truth(x), color=TRUTH, lw=1.1, ls=(0, (4, 2)), label="truth", zorder=5)
    axes.set_xlim(*window)


def tidy(axes: Any) -> None:
    """Only the left and the lower axis, thin and grey."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set(color="#b8b8c0", linewidth=0.8)
    axes.tick_params(color="#b8b8c0", labelcolor=INK, labelsize=8, length=3, width=0.8)
