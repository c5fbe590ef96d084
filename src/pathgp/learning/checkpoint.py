"""The state of a fit between two steps, and the file that an interrupted fit continues from (see `compute.files`)."""

from __future__ import annotations

import copy
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
from pathgp.learning.estimators import State
from pathgp.learning.model import Data, Learnable
from pathgp.learning.report import Step

# Increase this number if earlier files cannot be continued bit for bit.
FORMAT = 4

_ADVICE = "remove the file to start anew, or use another path"


@dataclass
class Checkpoint:
    """Where and how often a fit saves itself.

    Args:
        path: the file. A fit that finds it continues from there; it must belong to the same data and settings.
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
        files.write(self.path, {"pathgp checkpoint": FORMAT, "step": step, **content})
        self._last_step, self._last_time = step, time.monotonic()

    def read(self, expected: dict[str, str], mean: Tensor) -> dict[str, Any] | None:
        """The content, or None if there is no file yet; ValueError if it belongs to another fit.

        ``expected``: facts of the fit by name, which those in the file must equal.  ``mean``: values of the mean
        function at the data, which those in the file must equal up to rounding.
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


def pack(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A snapshot of a fit in tensors and plain types, without its data."""
    state, history = snapshot["state"], snapshot["history"]
    kept = {"draws": state.draws, "rows": state.rows, "solutions": state.solutions}
    kept["prior"] = None if state.prior is None else state.prior.state()
    is_double = snapshot["data"].dtype == torch.float64
    return snapshot | {"state": kept, "data": is_double, "history": [vars(step) for step in history]}


def unpack(content: dict[str, Any], model: Learnable, data: Data) -> dict[str, Any]:
    """The snapshot that `pack` packed, for a model and data that agree with it."""
    saved = content["state"] | {"order": content["order"]}
    prior = saved.pop("prior")
    prior = None if prior is None else model.restore_prior(prior)
    tensors = {name: None if tensor is None else tensor.to(data.device) for name, tensor in saved.items()}
    return content | {
        "order": tensors.pop("order"),
        "state": State(prior, **tensors),
        "data": data.to(torch.float64) if content["data"] else data,
        "history": [Step(**step) for step in content["history"]],
    }


def mean_values(model: Learnable, data: Data) -> Tensor:
    """The mean function at the data, on the CPU, with its learned parameters set to 0.1 up to 1."""
    mean = copy.deepcopy(model.mean)
    with torch.no_grad():
        if isinstance(mean, torch.nn.Module):
            for p in mean.parameters():
                if p.requires_grad:
                    p.copy_(torch.linspace(0.1, 1.0, p.numel(), dtype=p.dtype).view_as(p))
        values = mean(data.X_raw) if callable(mean) else torch.tensor([mean], dtype=torch.float64)
    return values.detach().cpu()


def exit_on_signal(number: int, frame: object) -> None:
    """Turn a signal into SystemExit, so that there is time to save, and ignore further ones."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


@contextmanager
def at_sigterm(handler: Callable[[int, Any], object] | signal.Handlers) -> Iterator[None]:
    """Handle SIGTERM this way, unless the program has its own handler or this is not its main thread.

    Batch systems end programs by SIGTERM, and torchrun all ranks once one has ended, often before the others notice.
    """
    before = signal.getsignal(signal.SIGTERM)
    ours = before in (signal.SIG_DFL, exit_on_signal) and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def as_checkpoint(checkpoint: str | os.PathLike[str] | Checkpoint | None) -> Checkpoint | None:
    """A checkpoint from a path, or with its own intervals."""
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        return checkpoint
    return Checkpoint(os.fspath(checkpoint))
