"""The peak memory of a part of a program."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(name: str) -> int:
    """VmRSS (now) or VmHWM (the peak), in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Set the peak of this process to the memory that it uses now."""
    CLEAR.write_text("5")


class Peak:
    """``with Peak() as peak: ...`` and then ``peak.bytes``: the most memory above what was held before."""

    def __enter__(self) -> Peak:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back first, and does not hide what comes
            reset_peak()
            self._before = resident("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        now = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident("VmHWM")
        self.bytes = now - self._before
