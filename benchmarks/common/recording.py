"""Timing, a table on the screen, and a JSON file with results and a description of the machine."""

from __future__ import annotations

import datetime as dt
import fcntl
import importlib
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import pathgp

BENCHMARKS = Path(__file__).resolve().parents[1]

Rows = list[dict[str, Any]]


def device_name() -> str:
    """The default device of a benchmark: a GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def seconds(action: Callable[[], Any]) -> float:
    """Wall-clock seconds of one call, device work included."""
    _synchronise()
    began = time.perf_counter()
    action()
    _synchronise()
    return time.perf_counter() - began


def median_seconds(action: Callable[[], Any], runs: int = 5) -> float:
    """Median over several calls after one that warms up."""
    action()
    return statistics.median(seconds(action) for _ in range(runs))


def results_file(name: str) -> Path:
    """Path of NAME.json in benchmarks/results, or in the folder that $PATHGP_RESULTS names."""
    return Path(os.environ.get("PATHGP_RESULTS") or BENCHMARKS / "results") / f"{name}.json"


def read(name: str) -> Rows:
    """The rows that earlier runs wrote under this name; none if there is no file."""
    path = results_file(name)
    rows: Rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


def write(name: str, rows: Rows, **facts: Any) -> Path:
    """Write rows and the facts of this machine to the file of this name."""
    cuda = torch.cuda.is_available()
    record = {
        "date": dt.date.today().isoformat(),
        "revision": revision(),
        "command": command(),
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        **facts,
        "rows": rows,
    }
    path = results_file(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def revision() -> str | None:
    """The git revision of the working tree, with a plus sign if files differ from it; $PATHGP_REVISION without git."""
    try:
        here = {"cwd": BENCHMARKS, "capture_output": True, "text": True, "check": True}
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], **here).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **here).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("PATHGP_REVISION")
    return f"{commit}+" if changed else commit


def command() -> str:
    """The command line of this program; of paths only the last part."""
    return " ".join(["python", *(Path(word).name if word.startswith("/") else word for word in sys.orig_argv[1:])])


def row_key(row: dict[str, Any], key: Sequence[str]) -> str:
    """The values of ``key`` in a row, null for those that it does not have."""
    return json.dumps([row.get(part) for part in key])


def stored(name: str, key: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The rows of a file by their `row_key`."""
    return {row_key(row, key): row for row in read(name)}


def merge(
    name: str,
    key: Sequence[str],
    rows: dict[str, Any] | Rows,
    summarise: Callable[[Rows], dict[str, Any]] | None = None,
    **facts: Any,
) -> Path:
    """Write one row or more to the file of this name; rows of earlier runs stay, unless they have the same `row_key`.

    ``summarise``: facts that follow from all rows of the file. Processes that write to the same file wait for each
    other.
    """
    new = [rows] if isinstance(rows, dict) else rows
    with (Path(tempfile.gettempdir()) / f"pathgp-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merged = list((stored(name, key) | {row_key(row, key): row for row in new}).values())
        return write(name, merged, **facts, **(summarise(merged) if summarise else {}))


def require(library: str) -> Any:
    """Import a library that a benchmark compares with; its absence ends the program with one line."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise SystemExit(f"this comparison needs {library}: pip install {library}") from None


def versions() -> dict[str, str]:
    """Of what the numbers depend on; Triton's where it is installed."""
    found = {"pathgp": pathgp.__version__, "torch": torch.__version__, "python": platform.python_version()}
    if importlib.util.find_spec("triton"):
        found["triton"] = importlib.import_module("triton").__version__
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows with the same keys as an aligned table."""
    if not rows:
        return "(nothing)"
    cells = [[str(key) for key in rows[0]]] + [[_text(row.get(key)) for key in rows[0]] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
