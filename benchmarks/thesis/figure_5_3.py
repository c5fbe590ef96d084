"""Figure 5.3: the distance of a start to the solution, along a fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.thesis.learning_fits import TOL, learn
from benchmarks.thesis.size import Size, regression
from benchmarks.thesis.traces import trace_fit
from pathgp import plots

TITLE = "Distance to the solution"
TEXT = """\
Fits of `pol` and `elevators` with 64 probes whose random draws are fixed.

- First panel: the squared distance of a start x₀ to the solution x is (x₀ - x)ᵀH(x₀ - x). From a start at zero its mean
  is tr H⁻¹ for the standard estimator and n for the pathwise one. Measured and expected values coincide. From the
  solution of the previous step (dashed) the distance of both is far smaller.
- Second panel: the resulting epochs of alternating projections (AP).
- Third and fourth panel: tr H⁻¹ follows the largest eigenvalue of H⁻¹, and this follows the noise precision 1 / σ²,
  which rises as the model learns that there is little noise."""
CPU_ROWS = 1000
SETS = ("pol", "elevators")


def draw(path: Path, size: Size) -> dict[str, Any]:
    """The squared distance |x0 - x|_H^2 of a solve's start from its solution, averaged over the probes.

    From zero it is z^T H^-1 z on average tr H^-1 for the standard estimator, and n for the pathwise one; from the
    solution of the step before it is small for both.
    """
    sets = size.pick(SETS, SETS[:1])
    figure, axes = grid(len(sets), 4, width=12, height=2.6, sharex=True)
    for row, name in enumerate(sets):
        data = regression(name, size)
        _, report = learn(data, size.steps)
        traces, spectrum = trace_fit(data, report)
        for (kind, trace), colour in zip(traces.items(), (COLOURS[1], COLOURS[0]), strict=True):
            for panel, cold, warm in (
                (axes[row, 0], trace.cold, trace.warm),
                (axes[row, 1], trace.epochs, trace.warm_epochs),
            ):
                panel.plot(cold, color=colour, lw=1.6, label=kind)
                panel.plot(warm, color=colour, lw=1.2, ls="--", label=f"{kind}, warm start")
        expected = {"color": plots.INK, "lw": 0.9, "ls": ":"}
        axes[row, 0].plot(spectrum[:, 0], **expected, label="expected: tr H⁻¹, n")
        axes[row, 0].axhline(len(data.y), **expected)
        axes[row, 2].plot(spectrum[:, 1], color=plots.INK, lw=1.4)
        axes[row, 3].plot([1 / step.values["noise"][0] ** 2 for step in report.history], color=plots.INK, lw=1.4)
        axes[row, 0].set_ylabel(f"{name}, n = {len(data.y):,}", fontsize=9)
        axes[row, 0].set_yscale("log")
    titles = ("squared distance to the solution", f"epochs of AP to {TOL:g}", "largest eigenvalue of H⁻¹", "1 / σ²")
    for panel, title in zip(axes[0], titles, strict=True):
        panel.set_title(title, fontsize=9, loc="left")
    for panel in axes[-1]:
        panel.set_xlabel("step", fontsize=9)
    legend(figure, axes[0, 0])
    save(figure, path)
    standard, pathwise = traces["standard"], traces["pathwise"]
    return {
        "n": len(data.y),
        "steps": size.steps,
        f"{name}, last step: distance of standard / pathwise": standard.cold[-1] / pathwise.cold[-1],
        f"{name}, last step: epochs of standard / pathwise": standard.epochs[-1] / pathwise.epochs[-1],
    }
