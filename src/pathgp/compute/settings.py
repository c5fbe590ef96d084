"""How and where to compute: the options that every model, operator and door passes on unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from pathgp.compute.groups import Group
from pathgp.compute.hardware import full_rate_float64
from pathgp.compute.inputs import real_number
from pathgp.compute.random import as_generator

T = TypeVar("T")

BACKENDS = ("auto", "dense", "streamed", "fused")
PRECISIONS = ("high", "medium", "low")


@dataclass(frozen=True)
class Compute:
    """How kernel matrices are stored and multiplied, and who shares the work.

    Args:
        backend: how K is represented: "auto", "dense", "streamed" or "fused", see `operators.KernelOperator`.
        memory: budget in bytes for K or its tiles, on each member of the group; None uses half of the free memory.
        group: `Ranks` (processes started by torchrun) or `Devices` to share the work; None computes alone.
        precision: accuracy of the fused products between a solver's checks: "high", "medium" or "low". Solutions meet
            ``tol`` in full precision in any case. Lower precision pays off when the noise is large.
    """

    backend: str = "auto"
    memory: float | None = None
    group: Group | None = None
    precision: str = "high"

    def __post_init__(self) -> None:
        for name, known in (("backend", BACKENDS), ("precision", PRECISIONS)):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
        if self.memory is not None:
            memory = int(real_number(self.memory, "memory"))
            if memory <= 0:
                raise ValueError(f"memory is a budget in bytes and must be positive, got {self.memory:g}")
            object.__setattr__(self, "memory", memory)
        if not (self.group is None or isinstance(self.group, Group)):
            raise TypeError(f"group must be None, Ranks() or Devices([...]), got {type(self.group).__name__}")

    @classmethod
    def read(cls, compute: Compute | None) -> Compute:
        """The given options, or the defaults for None; TypeError for anything else."""
        if not (compute is None or isinstance(compute, Compute)):
            raise TypeError(f"compute must be a pathgp.Compute(...) or None, got {type(compute).__name__}")
        return compute or cls()

    @property
    def members(self) -> Group:
        """The group, or this process by itself."""
        return self.group or Group()

    def require_equal(self, **arguments: object) -> None:
        """ValueError on every rank if the ranks have different arguments: they would wait for each other forever."""
        self.members.require_equal(**arguments)

    def sync_generator(self, generator: torch.Generator | None) -> torch.Generator:
        """The given generator or a fresh one, in the same state on all ranks."""
        return self.members.sync_generator(as_generator(generator))

    def budget(self, device: torch.device) -> int:
        """The memory budget in bytes, the same for all members of the group."""
        self.require_equal(memory=self.memory)
        return self.members.budget(device) if self.memory is None else int(self.memory)

    def allows_float64(self, device: torch.device) -> bool:
        """Whether work may move to float64: not if fused products were requested or float64 is slow on the device."""
        return self.backend != "fused" and full_rate_float64(device)

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.members.is_main_process

    def on_main_process(self, function: Callable[[], T]) -> T:
        """The result of function() on the first rank, sent to all."""
        return self.members.on_main_process(function)

    def map_rows(self, function: Callable[[Tensor], Tensor], Xs: Tensor) -> Tensor:
        """function(Xs) (count, m), one column per row of Xs (m, d), with the rows divided among the group."""
        return self.members.rows(function, Xs)
