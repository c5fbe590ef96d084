"""Output of the commands: notes on standard error, results on standard output or in files."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pathgp.compute.files import replacing


class UsageError(Exception):
    """Options that contradict each other: exit code 2."""


def print_note(message: str) -> None:
    """Print a line on standard error."""
    print(f"pathgp: {message}", file=sys.stderr, flush=True)


def print_json(content: dict[str, Any]) -> None:
    print(json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False))


def finite(value: Any) -> Any:
    """Replace numbers that JSON does not know by None."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def writing(path: Path | None, *sources: Path | None) -> Iterator[BinaryIO]:
    """Open standard output, or a file that appears only when it is complete; never one of the ``sources``."""
    if path is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    require_writable(path, *sources)
    with replacing(path) as file:
        yield file


def require_writable(path: Path, *sources: Path | None) -> None:
    """Refuse a path that cannot be written, or that is one of the ``sources``; call it before long work."""
    for source in sources:
        if source is not None and path.exists() and source.exists() and os.path.samefile(path, source):
            raise UsageError(f"{path} is read by this command: give the result another name")
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}, create it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: no permission to write to {path.parent}")


def showing_progress(quiet: bool) -> bool:
    """Whether to show progress bars: standard error is a terminal and the user did not ask for quiet."""
    return not quiet and sys.stderr.isatty()
