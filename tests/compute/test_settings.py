"""Compute: checked when it is made, and the behaviour of one process without a group."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch

from pathgp import Compute, Devices

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (
            {"backend": "keops"},
            ValueError,
            "backend must be one of 'auto', 'dense', 'streamed', 'fused', 'field', 'toeplitz', got 'keops'",
        ),
        ({"precision": "half"}, ValueError, "precision must be one of 'high', 'medium', 'low', got 'half'"),
        ({"memory": 0}, ValueError, "memory is a budget in bytes and must be positive, got 0"),
        ({"memory": "2G"}, ValueError, "a text such as '8GB' or '8 GiB', got '2G'"),
        ({"memory": [1]}, TypeError, "memory must be a number, got"),
        ({"memory": float("nan")}, ValueError, "memory must be finite"),
        ({"group": ["cpu"]}, TypeError, r"group must be None, Ranks\(\) or Devices\(\[...\]\), got list"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Compute(**options)


def test_a_value() -> None:
    assert Compute(memory=2e9) == Compute(memory=2_000_000_000)
    assert isinstance(Compute(memory=2e9).memory, int)
    with pytest.raises(FrozenInstanceError):
        Compute().backend = "dense"  # type: ignore[misc]
    assert Compute.read(None) == Compute()
    with pytest.raises(TypeError, match=r"compute must be a pathgp.Compute\(...\) or None, got dict"):
        Compute.read({"backend": "dense"})  # type: ignore[arg-type]


def test_one_process() -> None:
    """Without a group everything happens here."""
    compute, Xs = Compute(memory=1e6), torch.arange(6.0).view(3, 2)
    assert compute.is_main_process
    assert compute.budget(CPU) == 1_000_000
    assert 0 < Compute().budget(CPU) < 2**50
    for text, expected in (("2GB", 2e9), ("2 GiB", 2**31), ("1.5e9", 1.5e9), ("512 kb", 512e3), ("1_000_000", 1e6)):
        assert Compute(memory=text).memory == expected
    assert compute.on_main_process(lambda: 7) == 7
    torch.testing.assert_close(compute.map_rows(lambda X: X.sum(1).unsqueeze(0), Xs), Xs.sum(1).unsqueeze(0))
    generator = torch.Generator().manual_seed(3)
    assert compute.sync_generator(generator) is generator
    compute.require_equal(anything=1)


def test_where_float64_is_allowed() -> None:
    assert Compute().allows_float64(CPU)
    assert not Compute("fused").allows_float64(CPU)
    assert Compute(memory=9e5, group=Devices(["cpu", "cpu"])).budget(CPU) == 900_000
