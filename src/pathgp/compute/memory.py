"""The memory promise: budgets, tile sizes, and what to do when an allocation fails all the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from pathgp.compute.inputs import real_number

T = TypeVar("T")

# A share of what is free: the caller's own arrays, the solver's iterates and other processes need the rest.
_SHARE_OF_FREE = 0.5
# Entries of one tile on the CPU: its few temporaries still fit into the outer cache, and the overhead of some twenty
# calls per tile is small. Measured best with two threads: 1536 rows.
_CPU_TILE_ENTRIES = 1536 * 1536
_GPU_TILE_ENTRIES = 8192 * 8192
# Bytes per tile entry while a kernel is evaluated: float64 distances, their rounded copy, two temporaries.
_BYTES_PER_ENTRY = {torch.float32: 24, torch.float64: 40}
# A budget below this was meant in other units.
_LEAST = 1000
# A tile takes at most this share of the budget, so that the outputs fit as well.
_TILE_SHARE = 0.25


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated now on ``device``."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def given_bytes(memory: float | None) -> int | None:
    """What a user gave as a budget."""
    if memory is None:
        return None
    number = real_number(memory, "memory")
    if number < _LEAST:
        raise ValueError(f"memory is a budget in bytes, {_LEAST} at least, got {number:g}: 2 GB are 2e9")
    return int(number)


def memory_budget(memory: float | None, device: torch.device) -> int:
    """The budget in bytes: as given, or a share of what is free on the device."""
    if memory is None:
        return int(free_memory(device) * _SHARE_OF_FREE)
    if memory <= 0:
        raise ValueError(f"memory is a budget in bytes and must be positive, got {memory}")
    return int(memory)


def tile_edge(budget: int, dtype: torch.dtype, device: torch.device) -> int:
    """Edge of a square tile of K that keeps its temporaries inside the budget and inside the caches."""
    entries = _GPU_TILE_ENTRIES if device.type == "cuda" else _CPU_TILE_ENTRIES
    allowed = int(budget * _TILE_SHARE) // _BYTES_PER_ENTRY.get(dtype, 40)
    return max(1, int(min(entries, allowed) ** 0.5))


def spans(n: int, step: int) -> Iterator[slice]:
    """Consecutive slices of length ``step`` that cover range(n)."""
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def halve_on_failure(compute: Callable[[int], T], edge: int) -> tuple[T, int]:
    """compute(edge), or with half the edge after an out-of-memory error, and so on down to one row.

    Returns the result and the edge that worked. ``compute`` must give the same numbers for every edge.
    """
    while True:
        try:
            return compute(edge), edge
        except RuntimeError as error:
            if edge <= 1 or not _is_out_of_memory(error):
                raise
        # Outside the handler: the traceback would keep the failed call's tensors alive.
        edge //= 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
