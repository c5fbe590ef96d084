"""Memory budgets, tile sizes, and recovery from failed allocations."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from pathgp.compute.inputs import real_number
from pathgp.compute.threads import count_threads

T = TypeVar("T")

# A share of what is free: the caller's own arrays, the solver's iterates and other processes need the rest.
_SHARE_OF_FREE = 0.5
# Entries of one tile on the CPU: its few temporaries still fit into the outer cache, and the overhead of some twenty
# calls per tile is small. Measured best with two threads: 1536 rows.
_CPU_TILE_ENTRIES = 1536 * 1536
# The least and the largest edge of a tile that one thread computes.
_CPU_TASK_EDGES = (512, 1024)
_GPU_TILE_ENTRIES = 8192 * 8192
# Bytes per tile entry while a kernel is evaluated: float64 distances, their rounded copy, two temporaries.
_BYTES_PER_ENTRY = {torch.float32: 24, torch.float64: 40}
# A budget below this was meant in other units.
_LEAST = 1000
# The unit is written in full: "8G" means 10^9 bytes to some programs and 2^30 to others.
_SIZE = re.compile(
    r"\s*(?P<number>\d[\d_]*(\.\d+)?(e[+]?\d+)?)\s*(((?P<prefix>[kmgt])(?P<binary>i)?)?b)?\s*", re.IGNORECASE
)
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


def read_bytes(memory: float | str) -> int:
    """A memory budget in bytes, from a number or a text such as "8GB", "8 GiB" or "8e9"."""
    if isinstance(memory, str):
        parts = _SIZE.fullmatch(memory)
        if parts is None:
            raise ValueError(f"memory must be a number of bytes or a text such as '8GB' or '8 GiB', got {memory!r}")
        base = 1024 if parts["binary"] else 1000
        memory = float(parts["number"]) * base ** " kmgt".index((parts["prefix"] or " ").lower())
    number = real_number(memory, "memory")
    if number <= 0:
        raise ValueError(f"memory is a budget in bytes and must be positive, got {number:g}")
    return int(number)


def given_bytes(memory: float | str | None) -> int | None:
    """Check the memory budget of a user: a text as in `read_bytes`, or a number of at least `_LEAST` bytes.

    `Compute` only asks for a positive number: the sides of a grid divide a budget, and a share may be smaller.
    """
    if memory is None:
        return None
    number = read_bytes(memory)
    if number < _LEAST:
        raise ValueError(f"memory is a budget in bytes, {_LEAST} at least, got {number}: 2 GB are 2e9 or '2GB'")
    return number


def memory_budget(memory: float | None, device: torch.device) -> int:
    """The budget in bytes: ``memory``, or a share of the free memory of the device."""
    if memory is None:
        return int(free_memory(device) * _SHARE_OF_FREE)
    return int(memory)


def tile_edge(budget: int, dtype: torch.dtype, device: torch.device) -> int:
    """Edge of a square tile of K that keeps its temporaries inside the budget and inside the caches.

    Every thread of a CPU may have a tile at the same time.
    """
    budget //= count_threads(device)
    entries = _GPU_TILE_ENTRIES if device.type == "cuda" else _CPU_TILE_ENTRIES
    allowed = int(budget * _TILE_SHARE) // _BYTES_PER_ENTRY.get(dtype, 40)
    return max(1, int(min(entries, allowed) ** 0.5))


def limit_edge(edge: int, entries: int, device: torch.device) -> int:
    """Edge of the tiles that threads of a CPU compute at the same time, for a matrix with this number of entries.

    Small matrices have smaller tiles, so that every thread computes several. On a GPU: ``edge``.
    """
    least, largest = _CPU_TASK_EDGES
    return min(edge, largest, max(least, math.isqrt(entries) // 8)) if device.type == "cpu" else edge


def tiles(n: int, m: int, edge: int, device: torch.device) -> list[tuple[slice, slice]]:
    """Tiles (I, J) of an (n, m) matrix, row by row, with at most edge^2 entries: longer if n or m is less than edge."""
    edge = limit_edge(edge, n * m, device)
    height, width = (edge * edge // max(1, min(edge, other)) for other in (m, n))
    return [(I, J) for I in even_spans(n, height) for J in even_spans(m, width)]


def even_spans(n: int, step: int) -> Iterator[slice]:
    """As few consecutive slices of at most ``step`` as possible that cover range(n), of nearly equal length."""
    return spans(n, max(1, -(-n // max(1, -(-n // step)))))


def spans(n: int, step: int) -> Iterator[slice]:
    """Consecutive slices of length ``step`` that cover range(n)."""
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def as_slice(index: Tensor) -> slice | Tensor:
    """Numbers (p,) on the CPU as a slice if they are consecutive, which avoids a copy of what they select."""
    if not len(index) or not bool((index.diff() == 1).all()):
        return index
    return slice(int(index[0]), int(index[-1]) + 1)


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
