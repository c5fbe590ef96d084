"""Tiles of the fused kernels: those that fit into the shared memory of a chip, and the fastest of them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from pathgp import _version
from pathgp.compute.files import replacing
from pathgp.operators.fused.leaves import HELD_LEVELS, LEVELS, Structure

# Chips on which the first tile that fits is the fastest or close to it, by benchmarks/hardware/fused.py --tune.
_KNOWN = ((9, 0),)
# Rows of a trial, and the share of the first tile's time that another tile has to undercut.
TRIAL = 32_768
_FASTER = 0.97
# Devices of one process work in threads.
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Tile:
    """Rows and columns of a tile, warps and pipeline stages of a program."""

    rows: int = 128
    columns: int = 64
    warps: int = 8
    stages: int = 2

    def options(self) -> dict[str, Any]:
        """Its size as constants of a kernel, and options of the compiler."""
        size = {"M": self.rows, "N": self.columns}
        return {**size, "num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


_TILES = (Tile(), Tile(columns=32), Tile(64, 32, 4), Tile(64, 16, 4), Tile(64, 16, 4, 1))
# Bits are read a chunk at a time; in a pipeline all of them would have to be there at once.
# Of 64 columns Triton 3.6 makes wrong sums, or reads where nothing is, when 16 columns of V are among those multiplied.
# On an H200 the second of these is faster for 64 columns of V (13.8 against 18.0 ms), the first for 65 (20.5, 22.1).
_LEVEL_TILES = (Tile(128, 32, 8, 1), Tile(64, 32, 4, 1))


def fitting(structure: Structure, held: int, streamed: int, device: torch.device) -> list[Tile]:
    """The tiles whose half-precision pairs fit into shared memory, the largest first.

    ``held``: columns kept for every row beside the points, and ``streamed`` those read with every column of K.
    """
    busy = len(structure.leaves) > 1 or streamed >= 128
    bits = structure.levels if structure.levels <= HELD_LEVELS else LEVELS
    points = 2 * structure.parts * structure.width
    found = []
    for tile in _LEVEL_TILES if bits else _TILES[1:] if busy else _TILES:
        rows = tile.rows * (points + 4 * held + bits)
        if rows + tile.stages * tile.columns * (points + 4 * streamed) <= shared_memory(device):
            found.append(tile)
    if not found:
        raise ValueError(f"{structure.width} prepared columns are too many for the tiles of fused products")
    return found


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program's tiles may take: seven eighths of the shared memory of a block, 227 KB on Hopper."""
    if device.type != "cuda":
        return 200_000
    found = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 * 1024)
    return int(found) * 7 // 8


def known(device: torch.device) -> bool:
    """Whether the order of the tiles is that of their speed on this chip."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) in _KNOWN


def fastest(
    name: str, tiles: Sequence[Tile], prepare: Callable[[], Callable[[Tile], Any]], device: torch.device
) -> Tile:
    """The tile with which the function that ``prepare`` returns takes the least time, measured once per chip and name.

    Compiling the candidates takes several seconds. The result is kept on disk, in ``$XDG_CACHE_HOME/pathgp``, so that
    later runs have the same tiles, and the same bits.
    """
    key = f"{torch.cuda.get_device_name(device)}, {name}"
    with _LOCK:
        for tile in tiles:
            if _measured().get(key) == list(astuple(tile)):
                return tile
        launch = prepare()
        times = {tile: _seconds(partial(launch, tile), device) for tile in tiles}
        times[tiles[0]] *= _FASTER
        chosen = min(tiles, key=lambda tile: times[tile])
        _remember(key, chosen)
    return chosen


def _seconds(action: Callable[[], Any], device: torch.device) -> float:
    """The lesser time of two runs after one that compiles; infinite if the chip lacks resources."""
    from triton.runtime.errors import OutOfResources

    try:
        action()
    except OutOfResources:
        return float("inf")
    times = []
    for _ in range(2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(torch.cuda.current_stream(device))
        action()
        end.record(torch.cuda.current_stream(device))
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times)


def _file() -> Path:
    """The file of measured tiles; one per version of the package, whose kernels may differ."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "pathgp" / f"tiles-{_version.__version__}.json"


def _read() -> dict[str, Any]:
    """The content of the file; empty if it cannot be read."""
    try:
        content = json.loads(_file().read_text())
    except (OSError, ValueError, RuntimeError):
        return {}
    return content if isinstance(content, dict) else {}


# The measured tiles by name.
_measured = cache(_read)


def _remember(key: str, tile: Tile) -> None:
    """Remember a tile, if possible on disk as well, beside the tiles that other processes have written meanwhile."""
    _measured()[key] = list(astuple(tile))
    with suppress(OSError, RuntimeError), replacing(_file()) as file:
        file.write(json.dumps(_read() | _measured(), indent=1).encode())
