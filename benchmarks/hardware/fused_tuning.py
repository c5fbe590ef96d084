"""Time all tiles and forms of points (``fused.py --tune``)."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import torch

from benchmarks.common.recording import median_seconds
from benchmarks.hardware import fused
from benchmarks.hardware.fused import in_parallel, normal, operator, shown
from pathgp.operators.fused import Fused
from pathgp.operators.fused import engine as launches
from pathgp.operators.fused.engine import Engine, Tile
from pathgp.operators.fused.points import Extent, Frame

PRODUCT_TILES = [
    Tile(128, 64, 8, 2),
    Tile(128, 64, 8, 3),
    Tile(128, 64, 4, 2),
    Tile(128, 128, 8, 2),
    Tile(128, 32, 8, 3),
    Tile(64, 64, 4, 2),
    Tile(64, 64, 4, 3),
    Tile(64, 128, 4, 2),
]
# With the columns of L and R in one launch.
PULL_TILES = [
    (Tile(128, 64, 8, 2), 96),
    (Tile(128, 32, 8, 2), 96),
    (Tile(128, 32, 8, 2), 144),
    (Tile(128, 64, 8, 2), 144),
    (Tile(128, 64, 8, 1), 96),
    (Tile(64, 32, 4, 2), 96),
    (Tile(64, 32, 4, 2), 144),
    (Tile(64, 64, 4, 2), 96),
    (Tile(64, 64, 4, 1), 96),
]
Setting = tuple[str, int, int, Tile, int]


def settings() -> list[Setting]:
    """(task, d, columns, tile, columns in one launch)."""
    cases = ((16, 64), (16, 65), (3, 16), (26, 65))
    found = [("product", d, s, tile, 128) for d, s in cases for tile in PRODUCT_TILES]
    return found + [("pull", d, s, *setting) for d, s in cases for setting in PULL_TILES]


def prepared(setting: Setting, n: int) -> Callable[[], Any]:
    task, d, s, tile, together = setting
    H = operator(256, d)
    assert isinstance(H._tiles, Fused)
    X, expression = normal(n, d), H._tiles.expression
    with torch.no_grad():
        U = expression.points(X, torch.zeros(d, dtype=torch.float64, device=fused.DEVICE))
        frame = Frame.around(Extent.of(expression, U))
        points = frame.pack(U)
    engine = replace(Engine(frame), tile=tile)
    V = normal(n, s, 1)
    if task == "product":
        return lambda: engine.add_product(points, points, V, torch.zeros_like(V))
    both = torch.cat([V, V], 1)
    launches._WEIGHTS = together
    return lambda: engine.pull(points, points, both, both)


def timed(setting: Setting, n: int) -> float | str:
    """The speed of a setting, or what went wrong."""
    try:
        return n**2 / median_seconds(prepared(setting, n), 3) / 1e12
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"


def compile_one(setting: Setting) -> None:
    """The kernel of a setting; those that do not fit the chip say so when they are timed."""
    timed(setting, 2048)


def tune(n: int, processes: int) -> None:
    """Compile everything in parallel, then time one after the other in a process that a failure does not outlive."""
    in_parallel(compile_one, settings(), processes)
    rows: list[dict[str, Any]] = []
    pool = None
    for setting in settings():
        task, d, s, tile, together = setting
        pool = pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            speed = pool.submit(timed, setting, n).result()
        except BrokenProcessPool as error:
            speed = str(error)
        if "CUDA" in str(speed) or "process" in str(speed):
            # After an error of the device nothing else runs in that process.
            pool.shutdown()
            pool = None
        text = f"{tile.rows}x{tile.columns}, {tile.warps} warps, {tile.stages} stages"
        shown(rows, task=task, d=d, columns=s, tile=text, together=together, speed=speed)
    if pool:
        pool.shutdown()
