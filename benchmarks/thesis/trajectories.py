"""Trajectories of hyperparameters against exact optimisation, for figures 5.5 and 5.8."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.thesis.learning_fits import learn
from benchmarks.thesis.size import Size, regression
from pathgp import FitReport, plots

SETS = ("pol", "elevators", "bike")


def draw_trajectories(path: Path, size: Size, warm_start: bool) -> dict[str, Any]:
    """Differences of all hyperparameters at all steps (left), and the length scales that differ most at the end."""
    figure, axes = grid(1, 4, width=12, height=3.0)
    differences: list[NDArray[np.float64]] = []
    sets = size.pick(SETS, SETS[1:2])
    for name in sets:
        data = regression(name, size)
        _, report = learn(data, size.steps, warm_start=warm_start)
        exact, found = _exact(name, size), _curves(report)
        differences.append((found - exact).ravel())
        if name == "elevators":
            lengthscales = np.flatnonzero([key.startswith("lengthscale") for key in _names(report)])
            worst = lengthscales[np.argsort(-np.abs(found - exact)[-1, lengthscales])][:3]
            for panel, column in zip(axes[0, 1:], worst, strict=True):
                panel.plot(exact[:, column], color=plots.INK, lw=1.2, ls=(0, (4, 2)), label="exact gradients", zorder=3)
                panel.plot(found[:, column], color=COLOURS[0], lw=1.6, label=_kind(warm_start))
                panel.set_title(f"elevators, {_names(report)[column]}", fontsize=9, loc="left")
                panel.set_xlabel("step", fontsize=9)
    bins = np.linspace(-0.1, 0.1, 41)
    shown = [np.clip(values, bins[0], bins[-1]) for values in differences]
    axes[0, 0].hist(shown, bins, stacked=True, color=COLOURS[2 : 2 + len(sets)], label=sets)
    axes[0, 0].set_yscale("log")
    axes[0, 0].legend(frameon=False, fontsize=8)
    axes[0, 0].set_xlabel("difference from exact optimisation", fontsize=9)
    axes[0, 0].set_title("all hyperparameters, all steps", fontsize=9, loc="left")
    near = 100 * np.mean(np.abs(np.concatenate(differences)) < 0.05)
    title = f"n = {len(data.y):,}, {size.steps} steps; {near:.1f} % of all differences are below 0.05"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    legend(figure, axes[0, 1])
    save(figure, path)
    largest = float(np.abs(np.concatenate(differences)).max())
    facts = {"share of differences below 0.05, %": float(near), "largest difference": largest}
    return {"n": len(data.y), "steps": size.steps, **facts}


def _kind(warm_start: bool) -> str:
    return f"pathwise, {'frozen draws, warm' if warm_start else 'fresh draws, cold'} starts"


@cache
def _exact(name: str, size: Size) -> NDArray[np.float64]:
    """The trajectory of exact gradients, which two figures need."""
    return _curves(learn(regression(name, size), size.steps, estimator="exact")[1])


def _curves(report: FitReport) -> NDArray[np.float64]:
    """All hyperparameters (steps, number of them)."""
    return np.array([[value for values in step.values.values() for value in values] for step in report.history])


def _names(report: FitReport) -> list[str]:
    last = report.history[-1].values.items()
    return [f"{name} {i}" if len(values) > 1 else name for name, values in last for i in range(len(values))]
