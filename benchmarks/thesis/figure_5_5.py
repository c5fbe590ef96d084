"""Figure 5.5: hyperparameters along fits with fresh draws and cold starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.thesis.size import Size
from benchmarks.thesis.trajectories import draw_trajectories

TITLE = "Trajectories with cold starts"
TEXT = """\
The pathwise estimator with fresh draws and cold starts against exact gradients. Left: all hyperparameters of `pol`,
`elevators` and `bike` at all steps. Right: the three length scales of `elevators` with the largest difference at the
end. In the thesis paths share frequencies, and some length scales deviate visibly. Here every path has its own
frequencies, as with the exact prior samples of the thesis's right panel."""
CPU_ROWS = 1000


def draw(path: Path, size: Size) -> dict[str, Any]:
    return draw_trajectories(path, size, warm_start=False)
