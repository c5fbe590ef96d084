"""Figure 3.7: Thompson sampling with 1,000 points per round, SGD and CG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.thesis.size import Size
from benchmarks.thesis.thompson_curves import draw_runs

TITLE = "Parallel Thompson sampling with SGD and CG"
TEXT = """\
The target is a draw from a Matérn-3/2 prior over eight inputs. Every round maximises as many posterior functions as it
evaluates points. Lines are means, bands standard errors over length scales and seeds."""
NEEDS = "thompson"


def draw(path: Path, size: Size) -> dict[str, Any]:
    return draw_runs(path, ("sgd", "cg", "ap", "random"), "3.7")
