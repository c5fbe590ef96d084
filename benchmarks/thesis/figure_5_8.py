"""Figure 5.8: hyperparameters along fits with frozen draws and warm starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.thesis.size import Size
from benchmarks.thesis.trajectories import draw_trajectories

TITLE = "Trajectories with warm starts"
TEXT = """\
The same comparison as figure 5.5, with random numbers that are drawn once, and with warm starts."""
CPU_ROWS = 1000


def draw(path: Path, size: Size) -> dict[str, Any]:
    return draw_trajectories(path, size, warm_start=True)
