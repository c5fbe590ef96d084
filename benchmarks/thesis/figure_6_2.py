"""Figure 6.2: memory and time on a grid with and without its structure, by size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.thesis.break_even import NAMES, resources
from benchmarks.thesis.size import Size

TITLE = "Cost of a grid"
TEXT = """\
Complete grids of √n × √n points in ten dimensions. A matrix of all n cells takes n² numbers, the two factors take 2n. A
product takes n² operations with the matrix and 2 n^1.5 with the factors. On small grids the product with the matrix is
faster, because it is a single call; the evaluation of the factors is faster at any size. The line of the matrix ends
where it would be too large to store in this run."""
CPU_ROWS = 1000
# Dense matrices are measured up to this size, in bytes.
LARGEST = 40e9 if torch.cuda.is_available() else 2e9
ROOTS = (10, 18, 32, 56, 100, 178, 316, 562, 1000, 1778, 3162, 5623)


def draw(path: Path, size: Size) -> dict[str, Any]:
    """Memory, evaluation and product on complete grids of ``size.rows`` x ``size.rows`` points and smaller ones."""
    roots = [root for root in ROOTS if root <= size.pick(size.rows or 3000, 20)]
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
    save(figure, path)
    last = found["kronecker"][-1]
    return {"cells": last["n"], "bytes of the factors": last["bytes"], "bytes of a dense matrix": 4 * last["n"] ** 2}
