"""What a fit says while it runs: its plan, a bar with the time left, and what it does after Ctrl-C."""

from __future__ import annotations

import math
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from tqdm.auto import tqdm

from pathgp.compute.stacklevel import levels_to_the_caller
from pathgp.learning.report import Step
from pathgp.learning.timing import describe_seconds

# A fit that is predicted to take more seconds than this says so at its start.
LONG = 180.0


class LongFitWarning(UserWarning):
    """A fit will take minutes or hours; the message says how long, and how to make it shorter."""


class Progress:
    """Messages of a fit on standard error: the plan, and a bar whose length is the predicted time.

    Without ``is_shown`` there is no bar, and a plan of more than three minutes becomes a `LongFitWarning`.
    """

    def __init__(self, is_shown: bool, is_main_process: bool) -> None:
        self.is_shown, self._is_main_process = is_shown, is_main_process
        self._began = time.perf_counter()
        self._bar = tqdm(disable=not is_shown, total=1.0, bar_format="fit {percentage:3.0f}%|{bar}| preparing")

    def announce(self, plan: str, seconds: float, can_warn: bool) -> None:
        """Say what the fit is going to do and how long that will take; without a bar, by a warning if it is long."""
        text = f"{plan}: about {describe_seconds(seconds)}"
        if self.is_shown:
            self._bar.write(text, file=sys.stderr)
            self.show("", seconds)
        elif can_warn and self._is_main_process and seconds > LONG:
            remedy = "limit it by time_limit= (seconds), watch it with progress=True, or move the data to a GPU"
            warnings.warn(f"{text}; {remedy}", LongFitWarning, stacklevel=levels_to_the_caller())

    def show(self, text: str, left: float) -> None:
        """Update the bar: what was done last, and the seconds until the end of the fit."""
        if self.is_shown:
            elapsed = time.perf_counter() - self._began
            self._bar.n, self._bar.total = elapsed, elapsed + max(left, 0.0)
            words = ", ".join(filter(None, [f"about {describe_seconds(left)} left", text]))
            self._bar.bar_format = "fit {percentage:3.0f}%|{bar}| " + words
            self._bar.refresh()

    def show_step(self, step: Step, left: float) -> None:
        """Update the bar after a step."""
        noise = step.values.get("noise", [math.nan])[0]
        solve = f"residual {step.probe_residual:.1e}, {step.epochs:.0f} epochs, " if step.solver else ""
        words = f"step {step.step + 1} on {step.rows:,} rows, {solve}noise {noise:.3g}, gain {step.gain:.4g}"
        self.show(words, left)

    @contextmanager
    def acknowledge_interrupts(self) -> Iterator[None]:
        """Say at once that Ctrl-C was noticed: KeyboardInterrupt is raised only when an operation of torch has ended.

        In the main thread, with a bar, and if no event loop uses Python's wakeup file.
        """
        if not self.is_shown or threading.current_thread() is not threading.main_thread():
            yield
            return
        ours, of_signals = socket.socketpair()
        of_signals.setblocking(False)
        before = signal.set_wakeup_fd(of_signals.fileno(), warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)

        def read() -> None:
            while number := ours.recv(1):
                if number[0] == signal.SIGINT:
                    self._bar.write("interrupted: stopping when the current operation ends", file=sys.stderr)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield
        finally:
            if before == -1:
                signal.set_wakeup_fd(-1)
            of_signals.close()
            reader.join()
            ours.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_shown and error is None:
            self._bar.n = self._bar.total
            self._bar.bar_format = "fit {percentage:3.0f}%|{bar}| {elapsed}"
        self._bar.close()
