"""The best value found by Thompson sampling, for figures 3.7 and 4.4, from the results of thompson.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.recording import read

NAMES = ("thompson_cuda", "thompson_cpu")
COMMAND = "python -m benchmarks.thesis.thompson"


def _comparable(rows: list[dict[str, Any]], solvers: tuple[str, ...]) -> tuple[list[dict[str, Any]], list[str]]:
    """The longest runs with the largest start, on the targets that all solvers have been run on; and these solvers."""
    rows = [row for row in rows if row["start"] == max(line["start"] for line in rows)]
    rows = [row for row in rows if len(row["best"]) == max(len(line["best"]) for line in rows)]
    targets = {solver: {_target(row) for row in rows if row["solver"] == solver} for solver in solvers}
    shown = [solver for solver in solvers if targets[solver]]
    common = set.intersection(*(targets[solver] for solver in shown)) if shown else set()
    rows = [row for row in rows if row["solver"] in shown and _target(row) in common]
    return rows, shown if rows else []


def _target(row: dict[str, Any]) -> tuple[float, int]:
    return row["lengthscale"], row["seed"]


def draw_runs(path: Path, solvers: tuple[str, ...], figure_name: str) -> dict[str, Any]:
    """Mean and standard error over length scales and seeds, against evaluations and seconds."""
    # The file with most of the methods, then that with most of the targets; of two alike the one of the GPU.
    name, rows, shown = max(
        ((name, *_comparable(read(name), solvers)) for name in NAMES), key=lambda found: (len(found[2]), len(found[1]))
    )
    if not rows:
        raise SystemExit(f"figure {figure_name} needs results: run {COMMAND}")
    figure, axes = grid(1, 2, width=10, height=3.2)
    facts: dict[str, Any] = {"results file": name, "runs per method": len(rows) // len(shown)}
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
