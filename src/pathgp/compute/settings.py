"""Options of the computation, which all models, operators and integrations share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from pathgp.compute.hardware import full_rate_float64
from pathgp.compute.memory import read_bytes
from pathgp.compute.process_groups import Group
from pathgp.compute.random import as_generator

T = TypeVar("T")

BACKENDS = ("auto", "dense", "streamed", "fused", "field", "toeplitz")
PRECISIONS = ("high", "medium", "low")


@dataclass(frozen=True)
class Compute:
    """How kernel matrices are stored and multiplied, and which processes or devices share the work.

    Args:
        backend: how K is represented: "auto", "dense", "streamed", "fused", "field" or "toeplitz", see
            `operators.KernelOperator`.
        memory: budget for K or its tiles, on each member of the group: bytes, or a text such as "8GB" or "8 GiB"; None
            uses half of the free memory.
        group: `Ranks` (processes started by torchrun) or `Devices`, whose members share the work; None for this process
            alone.
        precision: accuracy of the fused products between a solver's checks: "high", "medium" or "low". The checks
            always use "high", so that solutions meet ``tol``. Lower precision saves time when the noise is large.
    """

    backend: str = "auto"
    memory: float | str | None = None
    group: Group | None = None
    precision: str = "high"

    def __post_init__(self) -> None:
        for name, allowed in (("backend", BACKENDS), ("precision", PRECISIONS)):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
        if self.memory is not None:
            object.__setattr__(self, "memory", read_bytes(self.memory))
        if not (self.group is None or isinstance(self.group, Group)):
            raise TypeError(f"group must be None, Ranks() or Devices([...]), got {type(self.group).__name__}")

    @classmethod
    def read(cls, compute: Compute | None) -> Compute:
        """Return the given options, or the defaults for None; raise TypeError for other types."""
        if not (compute is None or isinstance(compute, Compute)):
            raise TypeError(f"compute must be a pathgp.Compute(...) or None, got {type(compute).__name__}")
        return compute or cls()

    @property
    def _effective_group(self) -> Group:
        """The group; if there is none, a group of this process alone."""
        return self.group or Group()

    def require_equal(self, **arguments: object) -> None:
        """Raise ValueError on every rank if arguments differ between ranks, which would otherwise cause a deadlock."""
        self._effective_group.require_equal(**arguments)

    def sync_generator(self, generator: torch.Generator | None) -> torch.Generator:
        """Return the generator, or a new one for None, in the same state on all ranks."""
        return self._effective_group.sync_generator(as_generator(generator))

    def budget(self, device: torch.device) -> int:
        """The memory budget in bytes, the same for all members of the group."""
        self.require_equal(memory=self.memory)
        return self._effective_group.budget(device) if self.memory is None else int(self.memory)

    def allows_float64(self, device: torch.device) -> bool:
        """Whether a solver may switch to float64: not with backend="fused", nor if float64 is slow on the device."""
        return self.backend != "fused" and full_rate_float64(device)

    @property
    def memory_bytes(self) -> int | None:
        """The given budget in bytes; None for half of the free memory."""
        return None if self.memory is None else int(self.memory)

    @property
    def cross_backend(self) -> str:
        """The backend of products with K(Xs, X): field products are excluded where other backends are asked for."""
        return "auto" if self.backend in ("auto", "field") else "exact"

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self._effective_group.is_main_process

    def on_main_process(self, function: Callable[[], T]) -> T:
        """Call function() on the first rank, and return its result on all ranks."""
        return self._effective_group.on_main_process(function)

    def map_rows(self, function: Callable[[Tensor], Tensor], Xs: Tensor) -> Tensor:
        """Return function(Xs) (count, m), with one column per row of Xs (m, d); the group shares the rows."""
        return self._effective_group.rows(function, Xs)
