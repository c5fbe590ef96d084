"""What a fit says while it runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pathgp
from pathgp.learning.progress import Progress


@pytest.fixture(autouse=True)
def _interrupts_are_raised() -> Iterator[None]:
    """Programs that a shell starts in the background ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _interrupt(shown: Progress) -> None:
    """Ctrl-C during an operation that does not end at once."""
    with shown.acknowledge_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5.0)


def test_an_interrupt_is_acknowledged(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress(True, True) as shown:
        with pytest.raises(KeyboardInterrupt):
            _interrupt(shown)
        assert "interrupted: stopping when the current operation ends" in capfd.readouterr().err
    assert signal.set_wakeup_fd(-1) == -1, "nothing is left behind"


def test_without_a_bar_nothing_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress(False, True) as shown, pytest.raises(KeyboardInterrupt):
        _interrupt(shown)
    assert capfd.readouterr().err == ""


def test_other_threads_do_not_listen() -> None:
    errors = []

    def work() -> None:
        try:
            with Progress(True, True) as shown, shown.acknowledge_interrupts():
                pass
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []


def test_the_bar_is_there_while_kernels_are_chosen(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This may take longer than all steps."""
    shown_before: list[str] = []
    choose = pathgp.LatentKroneckerGP.choose_kernels

    def spy(model: pathgp.LatentKroneckerGP, data: Any) -> tuple[pathgp.LatentKroneckerGP, str]:
        shown_before.append(capfd.readouterr().err)
        return choose(model, data)

    monkeypatch.setattr(pathgp.LatentKroneckerGP, "choose_kernels", spy)
    Y = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pathgp.LatentKroneckerGP([None, None], noise=0.3).fit([None, None], Y, steps=1, samples=4, progress=True)
    assert "preparing" in shown_before[0]
    assert "preparing" not in capfd.readouterr().err.split("\r")[-1]
