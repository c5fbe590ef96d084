"""Plots of a posterior over one input and of a fit, drawn into matplotlib axes of the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.learning.report import FitReport
from pathgp.posterior.table import Posterior

INK, MEAN, PATH, DATA, TRUTH = "#1b1b1f", "#2447a8", "#7d9be0", "#8a8a94", "#d1495b"
COLOURS = ("#2447a8", "#d1495b", "#3a8f6b", "#d98e04", "#7b4fa3", "#5c5c66")

# Two-sided 95 % of a normal distribution.
WIDTH_95 = 1.959964


def draw_posterior(
    axes: Any,
    post: Posterior,
    window: tuple[float, float],
    data: tuple[NDArray[Any], NDArray[Any]] | None = None,
    truth: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    paths: int = 10,
    points: int = 600,
) -> None:
    """Draw mean, 95 % band of f, a few paths, the data and the true function over an interval of a single input.

    axes: matplotlib axes.  data: inputs and targets; those inside the window are drawn.
    """
    x = np.linspace(*window, points)
    with torch.no_grad():
        mean = np.asarray(post.mean(x[:, None]))
        half = WIDTH_95 * np.sqrt(np.asarray(post.variance(x[:, None], method="smooth")))
        draws = np.asarray(post.paths(x[:, None]))[:paths] if paths else np.empty((0, points))
    if data is not None:
        inside = (data[0] >= window[0]) & (data[0] <= window[1])
        # Many dots are more transparent, so that their density stays visible.
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


def draw_fit(figure: Any, report: FitReport, names: Sequence[str] | None = None) -> None:
    """Draw a fit on an empty figure: hyperparameters, gain, residuals, and the relevance of the inputs.

    names: of the inputs, for the relevance. Panels without numbers are left out: residuals of an exact fit, relevance
    without a length scale per input.
    """
    _steps(report)
    last = report.history[-1].values
    per_input = [scales for name, scales in last.items() if name.endswith("lengthscale") and len(scales) > 1]
    panels = [draw_hyperparameters, draw_gain]
    panels += [draw_residuals] if any(step.solver for step in report.history) else []
    size = len(panels) + (len(per_input) == 1)
    columns = 2 if size == 4 else size
    grid = figure.subplots(size // columns, columns, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        panel(axes, report)
    if len(per_input) == 1:
        draw_relevance(grid.flat[-1], per_input[0], names)


def draw_hyperparameters(axes: Any, report: FitReport) -> None:
    """Draw positive hyperparameters over the steps on a logarithmic axis: thick lines for scalars, thin for vectors.

    Hyperparameters that can be negative, such as a constant mean, are left out.
    """
    steps = _steps(report)
    for number, name in enumerate(report.history[0].values):
        curves = np.array([step.values[name] for step in report.history])
        if not (curves > 0).all():
            continue
        many, style = curves.shape[1] > 1, {"color": COLOURS[number % len(COLOURS)], "lw": 1.8}
        lines = axes.plot(steps, curves, **(style | ({"lw": 0.8, "alpha": 0.7} if many else {})))
        lines[0].set_label(f"{name} ({curves.shape[1]})" if many else name)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    _legend(axes)
    _label(axes, "hyperparameters")


def draw_gain(axes: Any, report: FitReport) -> None:
    """Draw the gain in log marginal likelihood (plus log prior) over the first step, in nats per row."""
    gains = [step.gain / report.rows for step in report.history]
    axes.plot(_steps(report), gains, color=MEAN, lw=1.6)
    doubt = " (approximated)" if report.approximation else "" if report.gain_is_exact else " (estimated)"
    _label(axes, f"gain in log likelihood, nats per row{doubt}")


def draw_residuals(axes: Any, report: FitReport) -> None:
    """Draw the final relative residuals of each step's solve, and the tolerance."""
    steps = _steps(report)
    axes.plot(steps, [step.residual for step in report.history], color=MEAN, lw=1.4, label="mean")
    axes.plot(steps, [step.probe_residual for step in report.history], color=TRUTH, lw=1.4, label="probes, average")
    if report.condition.tol > 0:
        axes.axhline(report.condition.tol, color=INK, lw=0.8, ls=":", label="tolerance")
    axes.set_yscale("log")
    _legend(axes)
    _label(axes, "relative residual")


def draw_relevance(
    axes: Any, lengthscale: Sequence[float] | torch.Tensor, names: Sequence[str] | None = None, most: int = 20
) -> None:
    """Draw inverse length scales as bars, the largest on top: how fast the function changes along each input.

    Inputs can be compared if they are standardised or have the same unit.

    lengthscale: one per input, for instance ``gp.hyperparameters()["lengthscale"]``.  names: of the inputs; x0, x1, ...
    by default.  most: largest number of bars.
    """
    entries = relevance(lengthscale, names)
    _, shown, values = zip(*entries[:most], strict=True)
    axes.barh(np.arange(len(shown)), values, color=MEAN, height=0.7)
    axes.set_yticks(np.arange(len(shown)), shown)
    axes.invert_yaxis()
    left_out = f" ({len(entries) - most} smaller ones left out)" if len(entries) > most else ""
    _label(axes, f"relevance, 1 / length scale{left_out}", "")


def relevance(
    lengthscale: Sequence[float] | NDArray[Any] | torch.Tensor, names: Sequence[str] | None = None
) -> list[tuple[int, str, float]]:
    """Return (number, name, inverse length scale) of every input, the most relevant first.

    >>> relevance([2.0, 0.5], ["slow", "fast"])
    [(1, 'fast', 2.0), (0, 'slow', 0.5)]
    """
    values = 1.0 / np.asarray(lengthscale, dtype=np.float64)
    names = [f"x{i}" for i in range(len(values))] if names is None else list(names)
    if values.ndim != 1 or len(names) != len(values):
        raise ValueError(f"expected one name per length scale, got shape {values.shape} and {len(names)} names")
    return [(int(i), names[i], float(values[i])) for i in np.argsort(-values, kind="stable")]


def new_figure(size: tuple[float, float]) -> Any:
    """An empty figure of this size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'pathgp[plots]'") from error
    # Without pyplot: no window, and no list of open figures.
    return Figure(figsize=size, layout="constrained")


def tidy(axes: Any) -> None:
    """Keep the left and the lower axis, thin and grey."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set(color="#b8b8c0", linewidth=0.8)
    axes.tick_params(color="#b8b8c0", labelcolor=INK, labelsize=8, length=3, width=0.8)


def _steps(report: FitReport) -> list[int]:
    if not report.history:
        raise ValueError("the fit took no steps: there is nothing to draw")
    return [step.step for step in report.history]


def _legend(axes: Any) -> None:
    """Put a short legend beside the title: curves may pass anywhere inside the axes."""
    beside = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 3, "borderaxespad": 0.2}
    few = len(axes.get_legend_handles_labels()[1]) <= 3
    axes.legend(**(beside if few else {}), frameon=False, fontsize=8, handlelength=1.2, columnspacing=1.2)


def _label(axes: Any, title: str, unit: str = "step") -> None:
    tidy(axes)
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(unit, fontsize=8)
