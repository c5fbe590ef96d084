"""The best value found by Thompson sampling, for figures 3.7 and 4.4, from the results of thompson.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.recording import read

NAMES = ("thompson_cuda", "thompson_cpu")
COMMAND = "python -m benchmarks.thesis.thompson"


def _target(row: dict[str, Any]) -> tuple[float, int]:
    return row["lengthscale"], row["seed"]


def draw_runs(path: Path, solvers: tuple[str, ...], figure_name: str) -> dict[str, Any]:
    """Mean and standard error over length scales and seeds, against evaluations and seconds."""
    # The file with most of the methods; of two alike the one of the GPU.
    found = {name: read(name) for name in NAMES}
    name = max(NAMES, key=lambda name: len({row["solver"] for row in found[name]} & set(solvers)))
    rows = found[name]
    if not rows:
        raise SystemExit(f"figure {figure_name} needs results: run {COMMAND}")
    # One protocol in a picture: the largest start, the longest runs.
    rows = [row for row in rows if row["start"] == max(line["start"] for line in rows)]
    rows = [row for row in rows if len(row["best"]) == max(len(line["best"]) for line in rows)]
    figure, axes = grid(1, 2, width=10, height=3.2)
    shown = [solver for solver in solvers if any(row["solver"] == solver for row in rows)]
    # The targets that all of these solvers have been run on.
    targets = set.intersection(*({_target(row) for row in rows if row["solver"] == solver} for solver in shown))
    rows = [row for row in rows if _target(row) in targets]
    facts: dict[str, Any] = {"results file": name, "runs per method": len(targets)}
    for colour, solver in zip(COLOURS, shown, strict=False):
        mine = [row for row in rows if row["solver"] == solver]
        gains = np.array([np.array(row["best"]) - row["best"][0] for row in mine])
        mean, error = gains.mean(0), gains.std(0) / np.sqrt(len(gains))
        evaluations = mine[0]["start"] + mine[0]["batch"] * np.arange(len(mean))
        for panel, x in zip(axes[0], (evaluations, np.mean([row["seconds"] for row in mine], 0)), strict=True):
            panel.plot(x, mean, color=colour, lw=1.6, label=solver.upper() if solver != "random" else solver)
            panel.fill_between(x, mean - error, mean + error, color=colour, alpha=0.15, lw=0)
        facts[f"gain of {solver}"] = float(mean[-1])
    for panel, label in zip(axes[0], ("evaluations", "seconds"), strict=True):
        panel.set_xlabel(label, fontsize=9)
    axes[0, 0].set_title("gain over the best start point", fontsize=9, loc="left")
    legend(figure, axes[0, 0])
    save(figure, path)
    return facts | {"start points": rows[0]["start"], "batch": rows[0]["batch"], "rounds": len(rows[0]["best"]) - 1}
