"""The file an interrupted fit goes on from; its format is that of `pathgp.compute.files`."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathgp.compute import files

# Raised whenever a file of the previous number could not be continued bit for bit.
FORMAT = 3

_ADVICE = "remove the file to start anew, or use another path"


@dataclass
class Checkpoint:
    """Where and how often a fit saves itself.

    Args:
        path: the file. A fit that finds it goes on from there; it must belong to the same data and settings.
        steps: write after this number of steps ...
        seconds: ... or after this number of seconds, whichever comes first.
    """

    path: str | os.PathLike[str]
    steps: int = 10
    seconds: float = 60.0
    _last_step: int = field(default=0, repr=False)
    _last_time: float = field(default_factory=time.monotonic, repr=False)

    def due(self, step: int) -> bool:
        """Whether it is time to write again."""
        return step - self._last_step >= self.steps or time.monotonic() - self._last_time >= self.seconds

    def write(self, content: dict[str, Any], step: int) -> None:
        """Replace the file: it is the old one or the new one, whatever happens."""
        files.write(self.path, {"pathgp checkpoint": FORMAT, **content})
        self._last_step, self._last_time = step, time.monotonic()

    def read(self, expected: dict[str, str], mean: Tensor) -> dict[str, Any] | None:
        """The content, or None where there is no file yet; an error where it belongs to something else.

        ``expected``: facts of the fit that the file must agree with, in words by name.  ``mean``: values of the mean
        function at the data, with which those in the file must agree up to rounding.
        """
        path = Path(self.path)
        self._last_step, self._last_time = 0, time.monotonic()
        if not path.exists():
            return None
        try:
            content = files.read(path)
            number = content["pathgp checkpoint"]
        except (ValueError, KeyError) as error:
            reason = "it has other content" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} is not a checkpoint of a pathgp fit: {reason}") from error
        if number != FORMAT:
            raise ValueError(f"{path} has checkpoint format {number}, this version writes {FORMAT}: {_ADVICE}")
        for name, value in expected.items():
            found = content.get("facts", {}).get(name)
            if found != value:
                raise ValueError(f"{path} belongs to another fit: its {name} is {found}, here it is {value}; {_ADVICE}")
        _compare_means(path, content["mean"], mean)
        self._last_step = content["step"]
        return content


def _compare_means(path: Path, saved: Tensor, mean: Tensor) -> None:
    """An error where two mean functions differ by more than devices that round differently."""
    gap = float((saved - mean).abs().max())
    size = max(float(saved.abs().max()), float(mean.abs().max()))
    if not gap <= 0.1 * math.sqrt(torch.finfo(mean.dtype).eps) * size:
        raise ValueError(
            f"{path} belongs to another fit: its mean function has other values at the data, up to {gap:.3g} apart "
            f"from those here; {_ADVICE}"
        )


def leave(number: int, frame: object) -> None:
    """A signal as an exception, so that there is time to save; another one would end that."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


@contextmanager
def at_sigterm(handler: Callable[[int, Any], object] | signal.Handlers) -> Iterator[None]:
    """SIGTERM handled so, unless the program has a handler of its own or this is not its main thread.

    Batch systems end programs by it, and torchrun all ranks once one has ended, often before the others have noticed.
    """
    before = signal.getsignal(signal.SIGTERM)
    ours = before in (signal.SIG_DFL, leave) and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def as_checkpoint(checkpoint: str | os.PathLike[str] | Checkpoint | None) -> Checkpoint | None:
    """What a user may give: a path, or a `Checkpoint` with its own intervals."""
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        return checkpoint
    return Checkpoint(os.fspath(checkpoint))
