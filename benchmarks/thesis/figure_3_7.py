"""Figure 3.7: Thompson sampling with many points per round, by solver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.thesis.size import Size
from benchmarks.thesis.thompson_curves import draw_runs

TITLE = "Parallel Thompson sampling with SGD, CG and SVGP"
TEXT = """\
The thesis compares SGD, CG and SVGP here. AP and uniform random points are added.

The target is a draw from a Matérn-3/2 prior over eight inputs. Every round maximises as many posterior functions as it
evaluates points. The gain is the best value so far minus that of the start points. Lines are means and bands are
standard errors, over length scales and seeds; below is the mean gain after the last round. Every solver has 30 epochs
in a round, with few start points. That is too little for SGD, which the thesis uses with 50,000 of them."""
NEEDS = "thompson"


def draw(path: Path, size: Size) -> dict[str, Any]:
    return draw_runs(path, ("sgd", "cg", "svgp", "ap", "random"), "3.7")
