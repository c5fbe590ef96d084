"""Figure 5.4: what more samples give to predictions, and what more probes cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.drawing import COLOURS, grid, save
from benchmarks.common.uci import Regression
from benchmarks.thesis.learning_fits import learn, log_likelihood
from benchmarks.thesis.size import Size, regression
from pathgp import GP, plots
from pathgp.metrics import nll

TITLE = "Number of probes"
TEXT = """\
Left: the test log-likelihood with more posterior samples, by the variances of this library and by averages of squares,
as in the thesis. Up to 2,000 rows, as in this run, the variances of this library are exact and need no samples; for
more rows see [variances](../concepts.md#variances-from-samples-or-from-solves). Right: seconds of a fit with 16 and
with 64 probes. This run on a CPU has few rows: the right-hand sides take most of the time, and their cost is
proportional to the number of probes. In the thesis, on all rows, four times as many probes cost a tenth more."""
CPU_ROWS = 1000
SEEDS = 5


def draw(path: Path, size: Size) -> dict[str, Any]:
    data, seeds = regression("pol", size), size.pick(SEEDS, 1)
    figure, (axes,) = grid(1, 2, height=3.2)
    model, _ = learn(data, size.steps)
    counts = size.pick([4, 8, 16, 32, 64, 128, 256], [4, 8])
    scores = np.array([[_conditioned(model, data, samples, seed) for seed in range(seeds)] for samples in counts])
    for number, label in enumerate(("variances of this library", "averages of squares, as in the thesis")):
        axes[0].plot(counts, scores[:, :, number], ".", color=COLOURS[number], ms=3, alpha=0.5)
        axes[0].plot(counts, scores[:, :, number].mean(1), color=COLOURS[number], lw=1.5, label=label)
    exact = model.condition(data.X, data.y, samples=0)
    axes[0].axhline(log_likelihood(exact, data), color=plots.INK, lw=0.9, ls=":", label="exact variances")
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks(counts, map(str, counts))
    axes[0].set_xlabel("posterior samples", fontsize=9)
    axes[0].set_title(f"test log-likelihood, mean of {seeds} draws", fontsize=9, loc="left")
    for samples, colour in ((16, COLOURS[1]), (64, COLOURS[0])):
        fitted, report = learn(data, size.steps, samples=samples)
        label = f"{samples} probes, test log-likelihood {log_likelihood(fitted.posterior, data):.2f}"
        axes[1].plot(np.cumsum([step.seconds for step in report.history]), color=colour, lw=1.6, label=label)
    axes[1].set_xlabel("step", fontsize=9)
    axes[1].set_title("seconds", fontsize=9, loc="left")
    for panel in axes:
        panel.legend(frameon=False, fontsize=8)
    figure.suptitle(f"pol, n = {len(data.y):,}", fontsize=9, x=0.01, ha="left")
    save(figure, path)
    return {"n": len(data.y), "steps": size.steps, "draws": seeds}


def _conditioned(model: GP, data: Regression, samples: int, seed: int) -> tuple[float, float]:
    """Test log-likelihood with fresh samples at the model's hyperparameters, by two estimates of the variance."""
    post = model.condition(data.X, data.y, samples=samples, generator=torch.Generator().manual_seed(seed))
    mean, noise = post.mean(data.X_test), model.noise.detach().square()
    squares = (post.paths(data.X_test) - mean).square().mean(0) + noise.to(mean)
    return log_likelihood(post, data), -nll(data.y_test, mean, squares)
