"""Figure 6.3: SARCOS with more and more missing values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pathgp
from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.recording import device_name
from benchmarks.thesis.break_even import NAMES, arm, crossing, learned, products
from benchmarks.thesis.size import Size
from pathgp import plots

TITLE = "Break-even of latent Kronecker structure"
TEXT = """\
Seven torques of a robot arm, with a kernel over joint states times a full covariance between torques, for a growing
ratio of missing values. The cost of the factors is constant; that of a matrix of the observed cells falls with the
square of their number. Dotted: the break-even points that `pathgp.break_even` predicts. Both methods predict the same,
so their lines in the right panels coincide. The training file of SARCOS could not be obtained; the rows are those of
its test file."""
CPU_ROWS = 250
# Rows below which the time of a product is not that of its operations.
LEAST = 2000
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def draw(path: Path, size: Size) -> dict[str, Any]:
    ratios, steps = size.pick(RATIOS, (0.2, 0.8)), max(1, size.steps // 2)
    data = arm(size.rows, device_name())
    whole = data if size.rows is None or size.quick else arm(max(size.rows, LEAST), device_name())
    costs = products(whole, list(ratios), columns=65, runs=size.pick(5, 1))
    fits = [row for ratio in ratios for row in learned(data, ratio, steps)]
    expected = pathgp.break_even(*whole.Y.shape)
    panels = {
        "seconds": ("a product with 65 columns (s)", costs, expected.time),
        "bytes": ("memory of the matrices (bytes)", costs, expected.memory),
        "rmse": ("test RMSE", fits, None),
        "nll": ("test NLL", fits, None),
    }
    figure, axes = grid(1, len(panels), width=12, height=3.0, sharex=True)
    for panel, (cost, (title, lines, breaks_even)) in zip(axes[0], panels.items(), strict=True):
        # Predictions coincide: the second line is dashed, so that both are seen.
        for colour, style, (way, name) in zip(COLOURS, ("o-", "s--"), NAMES.items(), strict=False):
            mine = [row for row in lines if row["way"] == way]
            values = [row[cost] for row in mine]
            panel.plot([row["missing"] for row in mine], values, style, ms=3, lw=1.4, color=colour, label=name)
        if breaks_even is not None:
            panel.set_yscale("log")
            panel.axvline(breaks_even, color=plots.INK, lw=0.8, ls=":")
        panel.set_title(title, fontsize=9, loc="left")
        panel.set_xlabel("missing ratio", fontsize=9)
    title = f"SARCOS: products {len(whole.Y):,} x 7 cells; predictions {len(data.Y):,} x 7 cells, {steps} steps"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    legend(figure, axes[0, 0])
    save(figure, path)
    facts: dict[str, Any] = {"rows of the products": len(whole.Y), "rows of the fits": len(data.Y), "steps": steps}
    for cost, name, predicted in (("seconds", "time", expected.time), ("bytes", "memory", expected.memory)):
        facts |= {
            f"break-even of {name}, predicted": predicted,
            f"break-even of {name}, measured": crossing(costs, cost),
        }
    return facts
