"""The size of a figure: all rows on a GPU, a part of them on a CPU, a handful with ``--quick``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from benchmarks.common.recording import device_name
from benchmarks.common.uci import Regression, uci

CPU_ROWS, QUICK_ROWS = 3000, 60
GPU_STEPS, CPU_STEPS, QUICK_STEPS = 100, 30, 3

Value = TypeVar("Value")


@dataclass(frozen=True)
class Size:
    """rows: training rows, None for all.  steps: those of a fit.  quick: only show that it runs."""

    rows: int | None
    steps: int
    quick: bool = False

    def pick(self, usual: Value, quick: Value) -> Value:
        """The second value for a quick figure."""
        return quick if self.quick else usual


def choose_size(
    cpu_rows: int = CPU_ROWS, rows: int | None = None, steps: int | None = None, quick: bool = False
) -> Size:
    """The size that suits the device, or the given numbers of rows and steps."""
    if quick:
        return Size(rows or QUICK_ROWS, steps or QUICK_STEPS, True)
    if torch.cuda.is_available():
        return Size(rows, steps or GPU_STEPS)
    return Size(rows or cpu_rows, steps or CPU_STEPS)


def regression(name: str, size: Size, dtype: torch.dtype = torch.float32) -> Regression:
    """The first split of a UCI set at this size, on the default device."""
    return uci(name, dtype=dtype, device=device_name(), rows=size.rows)
