"""What the commands print: notes on standard error, results on standard output or into files."""

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


class Refused(Exception):
    """Options that do not go together: exit code 2."""


def say(message: str) -> None:
    """A line on standard error."""
    print(f"pathgp: {message}", file=sys.stderr, flush=True)


def print_json(content: dict[str, Any]) -> None:
    print(json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False))


def finite(value: Any) -> Any:
    """The same with None in place of numbers that JSON does not know."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def writing(path: Path | None, *sources: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or a file that is there in full or not at all; never one of the files that are read."""
    if path is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    check_place(path, *sources)
    with replacing(path) as file:
        yield file


def check_place(path: Path, *sources: Path | None) -> None:
    """Refuse a place where nothing can be written, or where the result would replace what it is made from.

    To be asked before long work, so that it is not done in vain.
    """
    for source in sources:
        if source is not None and path.exists() and source.exists() and os.path.samefile(path, source):
            raise Refused(f"{path} is read by this command: give the result another name")
    if path.is_dir():
        raise Refused(f"{path} is a folder: give the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from None
    if not os.access(path.parent, os.W_OK):
        raise Refused(f"{path} cannot be written: no permission to write to {path.parent}")


def counted(number: int, noun: str) -> str:
    """1 row, 1,000 rows."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def showing_progress(quiet: bool) -> bool:
    """Whether someone looks at standard error and wants to see bars."""
    return not quiet and sys.stderr.isatty()
