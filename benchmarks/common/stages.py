"""Seconds of the stages of a long run, printed as they end, and a limit after which the run is recorded and ended."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stages:
    """Calls of functions and their seconds, by label. A stage includes those it calls."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def summary(self) -> dict[str, str]:
        """Seconds and calls of every stage, in words."""
        return {
            label: f"{seconds:.3g} s in {self.calls[label]} call{'s' if self.calls[label] > 1 else ''}"
            for label, seconds in self.seconds.items()
        }

    def say(self, text: str) -> None:
        """Print a line with the seconds since the beginning."""
        print(f"{time.perf_counter() - self.began:9.2f} s  {text}", flush=True)

    @contextmanager
    def watch(self, functions: dict[str, tuple[Any, str]]) -> Iterator[None]:
        """Measure functions, given as label: (module or class, name), while the context lasts."""
        originals = {label: getattr(owner, name) for label, (owner, name) in functions.items()}
        for label, (owner, name) in functions.items():
            setattr(owner, name, self._measure(label, originals[label]))
        try:
            yield
        finally:
            for label, (owner, name) in functions.items():
                setattr(owner, name, originals[label])

    def _measure(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def measured(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **options)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            taken = time.perf_counter() - began
            self.calls[label] += 1
            self.seconds[label] += taken
            self.say(f"{label}: {taken:.3g} s")
            return result

        return measured


@contextmanager
def end_after(seconds: float | None, record: Callable[[], None]) -> Iterator[None]:
    """End the program after this time, if the context has not ended before: call ``record``, and exit with status 1."""
    if seconds is None:
        yield
        return

    def end() -> None:
        print(f"not within {seconds:.0f} s", flush=True)
        record()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
