"""Equally spaced values, such as the times of a series or the coordinates of a grid."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Largest distance of a value from a whole number of steps, in steps.
_ON_NODE = 1e-5


@dataclass(frozen=True)
class Spacing:
    """Equally spaced values: the first one, the distance of two, and their number, including those that are missing."""

    first: float
    step: float
    count: int

    def index(self, values: Tensor) -> Tensor:
        """The number of steps from the first value to each of the values (n,)."""
        return ((values.to(torch.float64) - self.first) / self.step).round().long()


def find_spacing(values: Tensor, most: float) -> Spacing | None:
    """The equal spacing of values (n,), some of which may be missing; None if they are not equally spaced.

    The step is the smallest distance of two values. All values must be a whole number of steps from the first, up to
    rounding, and the last at most ``most`` steps. If all values are equal, the spacing has one value. Time O(n log n).
    """
    known = values.to(torch.float64).unique()
    if len(known) == 1:
        return Spacing(float(known[0]), 1.0, 1)
    gaps, extent = known.diff(), float(known[-1] - known[0])
    rounding = 8.0 * torch.finfo(values.dtype).eps * float(known.abs().max())
    step = float(gaps[gaps > rounding].min()) if bool((gaps > rounding).any()) else 0.0
    if step <= 100.0 * rounding or extent / step > most:
        return None
    # The mean of all steps has fewer rounding errors than one of them.
    step = extent / round(extent / step)
    position = (known - known[0]) / step
    if float((position - position.round()).abs().max()) > max(_ON_NODE, rounding / step):
        return None
    return Spacing(float(known[0]), step, round(float(position[-1])) + 1)
