"""Figure 4.4: Thompson sampling with 1,000 points per round, SDD beside the other solvers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.thesis.size import Size
from benchmarks.thesis.thompson_curves import draw_runs

TITLE = "Parallel Thompson sampling with SDD"
TEXT = "The same runs as in figure 3.7, with stochastic dual descent."
NEEDS = "thompson"


def draw(path: Path, size: Size) -> dict[str, Any]:
    return draw_runs(path, ("sdd", "sgd", "cg", "ap", "random"), "4.4")
