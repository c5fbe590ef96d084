"""Figure 6.3: SARCOS with more and more missing values."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pathgp
from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.recording import Rows, device_name, read
from benchmarks.thesis.break_even import NAMES, arm, crossing, learned, products
from benchmarks.thesis.size import Size
from pathgp import plots

TITLE = "Break-even of latent Kronecker structure"
TEXT = """\
Seven torques of a robot arm, with a kernel over joint states times a full covariance between torques, for a growing
ratio of missing values. The cost of the factors is constant; that of a matrix of the observed cells falls with the
square of their number. Dotted: the break-even points that `pathgp.break_even` predicts. Both methods predict the same,
so their lines in the right panels coincide; bars are standard errors over seeds, where there is more than one. The
training file of SARCOS could not be obtained; the rows are those of its test file.

The figure draws results of `benchmarks/thesis/break_even.py`: time and memory of products on a CPU from
`break_even_cpu.json`, test errors of fits on a GPU from `break_even_cuda.json`. The file named below records the
drawing itself."""
PRODUCTS, FITS = "break_even_cpu", "break_even_cuda"
CPU_ROWS = 250
RATIOS = (0.2, 0.8)


def draw(path: Path, size: Size) -> dict[str, Any]:
    costs, fits = ([], []) if size.quick else recorded()
    if not costs or not fits:
        costs, fits = measured(size)
    whole, fitted = (costs[0]["p"], costs[0]["q"]), fits[0]["p"]
    expected = pathgp.break_even(*whole)
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
            values = by_ratio(lines, way, cost)
            errors = [stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0 for found in values.values()]
            means = [fmean(found) for found in values.values()]
            panel.errorbar(list(values), means, errors, fmt=style, ms=3, lw=1.4, color=colour, label=name)
        if breaks_even is not None:
            panel.set_yscale("log")
            panel.axvline(breaks_even, color=plots.INK, lw=0.8, ls=":")
        panel.set_title(title, fontsize=9, loc="left")
        panel.set_xlabel("missing ratio", fontsize=9)
    steps = fits[0]["steps"]
    title = f"SARCOS: products {whole[0]:,} x 7 cells; predictions {fitted:,} x 7 cells, {steps} steps"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    legend(figure, axes[0, 0])
    save(figure, path)
    seeds = [len(found) for found in by_ratio(fits, "kronecker", "rmse").values()]
    facts: dict[str, Any] = {"rows of the products": whole[0], "rows of the fits": fitted, "steps": steps}
    facts |= {"seeds, by missing ratio": ", ".join(map(str, seeds))}
    for cost, name, predicted in (("flops", "time", expected.time), ("bytes", "memory", expected.memory)):
        facts[f"break-even of {name}, predicted"] = predicted
        facts[f"break-even of {'operations' if cost == 'flops' else name}, counted"] = crossing(costs, cost)
    facts["break-even of time, measured"] = crossing(costs, "seconds")
    exact = [row["mean_difference"] for row in fits if "mean_difference" in row]
    return facts | {"largest difference of exact means": max(exact)}


def by_ratio(rows: Rows, way: str, cost: str) -> dict[float, list[float]]:
    """The values of one way by missing ratio, one per seed."""
    mine = [row for row in rows if row["way"] == way]
    return {
        ratio: [row[cost] for row in mine if row["missing"] == ratio] for ratio in sorted({r["missing"] for r in mine})
    }


def recorded() -> tuple[Rows, Rows]:
    """Products and fits on the most rows that the results hold."""
    found = []
    for file, part in ((PRODUCTS, "products"), (FITS, "fit")):
        rows = [row for row in read(file) if row["part"] == part]
        found.append([row for row in rows if row["p"] == max(r["p"] for r in rows)])
    return found[0], found[1]


def measured(size: Size) -> tuple[Rows, Rows]:
    """Products and fits on a few rows."""
    data, steps = arm(size.rows, device_name()), max(1, size.steps // 2)
    costs = products(data, list(RATIOS), columns=65, runs=1)
    return costs, [row for ratio in RATIOS for row in learned(data, ratio, steps)]
