"""Figure 5.10: residuals and log-likelihoods of learning on large sets with 10 epochs per step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.common.drawing import COLOURS, grid, save
from benchmarks.common.recording import results_file
from benchmarks.thesis.size import Size
from pathgp import plots

TITLE = "Learning on large sets"
TEXT = """\
Residuals of the probes at every step, pathwise estimator, a budget of 10 epochs per step; and the test log-likelihood
with the hyperparameters before and after the fit. The sets of the thesis (391,386 to 1,844,352 rows) could not be
obtained. The relief of the Earth and a draw from a known process replace them. The data are the results of
`benchmarks/hardware/learning_scale.py`. Its options `--cold` and `--solver` add the other lines of the thesis."""
NEEDS = "learning_scale"


def draw(path: Path, size: Size) -> dict[str, Any]:
    files = sorted(results_file("learning_scale_x").parent.glob("learning_scale_*.json"))
    if not files:
        raise SystemExit("figure 5.10 needs results of a GPU: run python -m benchmarks.hardware.learning_scale")
    figure, axes = grid(1, 2, width=12, height=3.4)
    facts: dict[str, Any] = {}
    for number, file in enumerate(files):
        record = json.loads(file.read_text())
        start = "cold" if record.get("warm_start") is False else "warm"
        problem = "known process" if record["problem"].startswith("known") else "relief (etopo5)"
        label = f"{problem}, n = {record['n']:,}, {record.get('solver', 'ap').upper()}, {start}"
        label += f", to {record['tol']:g}"
        style = {"color": COLOURS[number % len(COLOURS)], "ls": "-" if start == "warm" else "--"}
        residuals = [row["residual"] for row in record["rows"]]
        axes[0, 0].plot(range(1, 1 + len(residuals)), residuals, marker="o", ms=3, lw=1.4, label=label, **style)
        scores = [record[key] for key in ("log_likelihood before", "log_likelihood after") if key in record]
        axes[0, 1].plot([0, len(residuals)][: len(scores)], scores, marker="o", ms=4, lw=1.4, **style)
        facts[f"{label}: last residual"] = residuals[-1]
    axes[0, 0].axhline(0.01, color=plots.INK, lw=0.8, ls=":")
    axes[0, 0].set_yscale("log")
    axes[0, 0].set_title("residual of the probes", fontsize=9, loc="left")
    axes[0, 1].set_title("test log-likelihood, before and after", fontsize=9, loc="left")
    for panel in axes[0]:
        panel.set_xlabel("step", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    save(figure, path)
    return facts
