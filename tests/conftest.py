"""Set-up of all tests: assertions of helpers show their values, Triton has its interpreter, seeds are fixed.

The interpreter runs the fused kernels on machines without a GPU; Triton must know before it is imported.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator

import pytest
import torch

from subprocesses import Forks

pytest.register_assert_rewrite("cli_cases", "fused_cases", "saving_cases")

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Processes that need not import torch."""
    with Forks() as started:
        yield started


@pytest.fixture
def plain_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw figures without arranging their parts, which takes longer than drawing them."""
    engine = pytest.importorskip("matplotlib.layout_engine").ConstrainedLayoutEngine
    monkeypatch.setattr(engine, "execute", lambda self, figure: None)


@pytest.fixture(autouse=True)
def fixed_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls without a generator, and torch's own such as gradcheck, draw the same numbers in every run; within a test
    their seeds differ."""
    seeds = itertools.count(zlib.crc32(request.node.nodeid.encode()))
    torch.manual_seed(next(seeds))
    monkeypatch.setattr("pathgp.compute.random._new_seed", lambda: next(seeds))
