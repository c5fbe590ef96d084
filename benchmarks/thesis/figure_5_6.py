"""Figure 5.6: cross-sections of the quadratic objective of a solve, and the distance of cold and warm starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.uci import Regression
from benchmarks.thesis.learning_fits import learn
from benchmarks.thesis.size import Size, regression
from benchmarks.thesis.table_5_1 import initial, move
from benchmarks.thesis.traces import FEATURES, SAMPLES, trace_fit
from pathgp import FitReport, plots
from pathgp.learning.estimators import Iterative, State
from pathgp.operators import KernelOperator

TITLE = "Cross-sections of the objective"
TEXT = """\
The quadratic objective of a solve on `pol` along the two eigendirections of H with the largest eigenvalues, after 20
steps, centred at the solution: contours, a cold start at zero, and a warm start at the solution of the step before, for
one probe of each estimator. Right: the squared distance to the solution along the fit, mean over the probes, as in
figure 5.3."""
CPU_ROWS = 1000
STEP = 20


def draw(path: Path, size: Size) -> dict[str, Any]:
    data = regression("pol", size)
    _, report = learn(data, size.steps)
    step = min(STEP, len(report.history) - 1)
    figure, axes = grid(1, 3, width=12, height=3.4)
    for panel, kind in zip(axes[0], ("standard", "pathwise"), strict=False):
        values, cold, warm = cross_section(data, report, step, kind == "pathwise")
        _draw_contours(panel, values, cold, warm)
        panel.set_title(f"{kind}, step {step}", fontsize=9, loc="left")
    traces, _ = trace_fit(data, report)
    for (kind, trace), colour in zip(traces.items(), COLOURS, strict=False):
        axes[0, 2].plot(trace.cold, color=colour, lw=1.5, label=f"{kind}, cold")
        axes[0, 2].plot(trace.warm, color=colour, lw=1.2, ls="--", label=f"{kind}, warm")
    axes[0, 2].set_yscale("log")
    axes[0, 2].set_title("squared distance to the solution", fontsize=9, loc="left")
    axes[0, 2].set_xlabel("step", fontsize=9)
    axes[0, 2].legend(frameon=False, fontsize=8)
    legend(figure, axes[0, 0])
    save(figure, path)
    ratio = traces["pathwise"].cold[-1] / traces["pathwise"].warm[-1]
    return {"n": len(data.y), "steps": size.steps, "pathwise, last step: distance of cold / warm": ratio}


def cross_section(data: Regression, report: FitReport, step: int, pathwise: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The two largest eigenvalues of H (2,), and a cold and a warm start of a probe along their directions (2,)."""
    model = initial(data).working_copy(data.X.device)
    observed = model.prepare_data(data.X.to(torch.float64), data.y.to(torch.float64))
    estimator, state = Iterative(pathwise, SAMPLES, FEATURES, True), State()
    estimator.draw(model, observed, state, torch.Generator().manual_seed(0))
    solutions = []
    for number in (step - 1, step):
        move(model, report.history[number].values)
        H = KernelOperator(model.kernel, observed.X, model.noise.detach().to(observed.X.device))
        matrix = H.block(torch.arange(H.shape[0], device=H.device))
        system = estimator.system(model, observed, state)
        b = system.targets[:, 1]
        if system.noise_draws.shape[1]:
            b = b + (system.deviation.detach() * system.noise_draws)[:, 0]
        solutions.append(torch.linalg.solve(matrix, b))
    values, vectors = torch.linalg.eigh(matrix)
    directions = vectors[:, [-1, -2]]
    before, solution = solutions
    return values[[-1, -2]], directions.T @ -solution, directions.T @ (before - solution)


def _draw_contours(panel: Any, values: Tensor, cold: Tensor, warm: Tensor) -> None:
    reach = 1.2 * max(float(cold.abs().max()), float(warm.abs().max()), 1e-12)
    side = np.linspace(-reach, reach, 120)
    first, second = np.meshgrid(side, side)
    height = 0.5 * (float(values[0]) * first**2 + float(values[1]) * second**2)
    panel.contour(first, second, height, levels=12, colors="#8a8a94", linewidths=0.7)
    panel.plot(0, 0, "+", color=plots.INK, ms=9, mew=1.6, label="solution")
    panel.plot(*cold.tolist(), "o", color=COLOURS[1], ms=6, label="cold start")
    panel.plot(*warm.tolist(), "D", color=COLOURS[0], ms=5, label="warm start")
    panel.set_xlabel("first eigendirection", fontsize=9)
    panel.set_ylabel("second eigendirection", fontsize=9)
