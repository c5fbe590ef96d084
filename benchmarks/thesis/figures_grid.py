"""Figures 6.2 and 6.3: cost of a grid with and without its structure, by size and by missing ratio.

Dense matrices of the observed cells are measured up to a size of ``LARGEST`` bytes.
"""

from __future__ import annotations

from pathlib import Path

import torch

import pathgp
from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.recording import device_name
from benchmarks.thesis.break_even import arm, learned, products, resources

LARGEST = 40e9 if torch.cuda.is_available() else 2e9
STEPS = 50 if torch.cuda.is_available() else 15
NAMES = {"dense": "all observed cells", "kronecker": "factors"}
# Rows below which the time of a product is not that of its operations.
LEAST = 2000
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def resources_against_n(path: Path, rows: int | None) -> Path:
    """Figure 6.2: memory, evaluation and product on complete grids of ``rows`` x ``rows`` points and smaller ones."""
    largest = rows or 3000
    roots = [size for size in (10, 18, 32, 56, 100, 178, 316, 562, 1000, 1778, 3162, 5623) if size <= largest]
    found = {way: [] for way in NAMES}
    resources(roots[0], tuple(NAMES))  # libraries are loaded before anything is timed
    for root in roots:
        ways = tuple(way for way in NAMES if way == "kronecker" or 4 * root**4 <= LARGEST)
        for row in resources(root, ways):
            found[row["way"]].append(row)
    panels = {
        "bytes": "memory of the matrices (bytes)",
        "evaluation_seconds": "evaluation (s)",
        "seconds": "product (s)",
    }
    figure, axes = grid(1, len(panels), width=10, height=3.0, sharex=True)
    for panel, (cost, title) in zip(axes[0], panels.items(), strict=True):
        for colour, (way, lines) in zip(COLOURS, found.items(), strict=False):
            n = [row["n"] for row in lines]
            panel.loglog(n, [row[cost] for row in lines], "o-", ms=3, lw=1.4, color=colour, label=NAMES[way])
        panel.set_title(title, fontsize=9, loc="left")
        panel.set_xlabel("n", fontsize=9)
    legend(figure, axes[0, 0])
    return save(figure, path)


def inverse_dynamics(path: Path, rows: int | None) -> Path:
    """Figure 6.3: SARCOS with more and more missing; dotted: where the formula expects the costs to cross."""
    data = arm(rows, device_name())
    whole = data if rows is None else arm(max(rows, LEAST), device_name())
    costs = products(whole, list(RATIOS), columns=65, runs=5)
    fits = [row for ratio in RATIOS for row in learned(data, ratio, STEPS)]
    expected = pathgp.break_even(*whole.Y.shape)
    panels = {
        "seconds": ("a product with 65 columns (s)", costs, expected.time),
        "bytes": ("memory of the matrices (bytes)", costs, expected.memory),
        "rmse": ("test RMSE", fits, None),
        "nll": ("test NLL", fits, None),
    }
    figure, axes = grid(1, len(panels), width=12, height=3.0, sharex=True)
    for panel, (cost, (title, lines, crossing)) in zip(axes[0], panels.items(), strict=True):
        # Predictions coincide: the second line is dashed, so that both are seen.
        for colour, style, (way, name) in zip(COLOURS, ("o-", "s--"), NAMES.items(), strict=False):
            mine = [row for row in lines if row["way"] == way]
            values = [row[cost] for row in mine]
            panel.plot([row["missing"] for row in mine], values, style, ms=3, lw=1.4, color=colour, label=name)
        if crossing is not None:
            panel.set_yscale("log")
            panel.axvline(crossing, color="#1b1b1f", lw=0.8, ls=":")
        panel.set_title(title, fontsize=9, loc="left")
        panel.set_xlabel("missing ratio", fontsize=9)
    title = f"SARCOS: products {len(whole.Y):,} x 7 cells; predictions {len(data.Y):,} x 7 cells, {STEPS} steps"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    legend(figure, axes[0, 0])
    return save(figure, path)
