"""Groups that share work: the processes started by torchrun, or several devices of one process.

Every process runs the same program on the same data. Each member holds all vectors (n, s), but only its part of the
kernel matrix. It computes its part of a product; all members then continue with the sum of the parts, which is equal to
the last bit on every rank. All ranks therefore take the same decisions without communication.
"""

from __future__ import annotations

import functools
import hashlib
import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pathgp.compute.counts import stored_parts
from pathgp.compute.memory import memory_budget

T = TypeVar("T")


class RankLost(RuntimeError):
    """Another rank ended, or did not reach a collective operation within the time-out."""


class Group:
    """Members, numbered from 0, that compute parts of a result: here one process by itself.

    size: the number of members.  rank: the member that this process is.  is_main_process: whether this process writes
    files and shows progress.
    """

    size = 1
    rank = 0
    is_main_process = True

    def members(self, home: torch.device) -> dict[int, torch.device]:
        """The members of this process and where each computes, for vectors that live on ``home``."""
        return {self.rank: home}

    def each(self, compute: Callable[[int], T]) -> dict[int, T]:
        """compute(member) for every member of this process, concurrently."""
        return {self.rank: compute(self.rank)}

    def reduce(self, compute: Callable[[int], Tensor], home: torch.device) -> Tensor:
        """The sum of compute(member) over all members, on ``home``; equal in all processes to the last bit."""
        return compute(self.rank)

    def budget(self, home: torch.device) -> int:
        """Half of the free memory in bytes of the member with the least; members on one device divide its memory."""
        return memory_budget(None, home)

    def rows(self, function: Callable[[Tensor], Tensor], Xs: Tensor) -> Tensor:
        """function(Xs) (count, m), whose columns belong to the rows of Xs (m, d); differentiable in Xs."""
        return function(Xs)

    def check(self, values: Sequence[Tensor | str], message: str) -> None:
        """ValueError with this message in every process unless all have the same values."""

    def require_equal(self, **arguments: object) -> None:
        """ValueError in every process that names an argument with different values."""

    def sync_generator(self, generator: torch.Generator) -> torch.Generator:
        """The generator, in the state that it has on the first rank."""
        return generator

    def on_main_process(self, compute: Callable[[], T]) -> T:
        """compute() on the first rank; all ranks return its result or raise its exception."""
        return compute()


class Devices(Group):
    """Several devices in one process: ``Devices(["cuda:0", "cuda:1"])``.

    Every device has its own thread. Vectors stay on the device of X; the devices get a copy of X once and of the
    vectors with every product. Products and gradients are divided among the devices, predictions run on that of X.
    """

    def __init__(self, devices: Sequence[str | torch.device]) -> None:
        if isinstance(devices, str | torch.device):
            raise TypeError(f"Devices takes a list of devices: Devices([{str(devices)!r}])")
        self.devices = [torch.device(device) for device in devices]
        self.size = len(self.devices)
        if not self.devices:
            raise ValueError("Devices needs at least one device, for instance Devices(['cuda:0', 'cuda:1'])")

    def members(self, home: torch.device) -> dict[int, torch.device]:
        return dict(enumerate(self.devices))

    def each(self, compute: Callable[[int], T]) -> dict[int, T]:
        grad = torch.is_grad_enabled()

        def work(member: int) -> T:
            # Threads begin with gradients switched on.
            with torch.set_grad_enabled(grad):
                return compute(member)

        with ThreadPoolExecutor(self.size) as pool:
            return dict(enumerate(pool.map(work, range(self.size))))

    def reduce(self, compute: Callable[[int], Tensor], home: torch.device) -> Tensor:
        return functools.reduce(Tensor.add_, (part.to(home) for part in self.each(compute).values()))

    def budget(self, home: torch.device) -> int:
        return min(memory_budget(None, device) // self.devices.count(device) for device in self.devices)

    def __repr__(self) -> str:
        return f"Devices({[str(device) for device in self.devices]})"


class Ranks(Group):
    """All processes of ``torch.distributed``, one member each: ``Ranks()`` after ``init_process_group``.

    Every rank must make the same calls in the same order, predictions included. If a rank is lost or late, the others
    raise `RankLost` within the time-out of ``init_process_group``.
    """

    def __init__(self) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "there is no process group: start the program by 'torchrun --nproc_per_node=4 program.py' and call "
                "torch.distributed.init_process_group() in it before Ranks()"
            )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.is_main_process = self.rank == 0
        # Device types of the collectives: NCCL supports GPUs only, gloo both.
        self._kinds = [pair.split(":")[0] for pair in dist.get_backend_config().split(",")]
        # The last bits of sums over rows depend on the number of threads, and decisions on these bits.
        threads = torch.tensor([torch.get_num_threads()])
        self.check([threads], "the ranks have different numbers of threads: set OMP_NUM_THREADS to the same everywhere")

    def members(self, home: torch.device) -> dict[int, torch.device]:
        if home.type not in self._kinds:
            raise ValueError(
                f"the data are on {home}, but this process group adds up numbers on {' and '.join(self._kinds)} alone: "
                "move the data, or call torch.distributed.init_process_group('gloo') for ranks on CPUs"
            )
        return super().members(home)

    def reduce(self, compute: Callable[[int], Tensor], home: torch.device) -> Tensor:
        part = compute(self.rank).contiguous()
        self._communicate("a sum over all ranks", lambda: dist.all_reduce(part))
        return part

    def budget(self, home: torch.device) -> int:
        found = self._gather((socket.gethostname(), str(home), memory_budget(None, home)))
        places = [place for *place, _ in found]
        return min(free // places.count(place) for *place, free in found)

    def rows(self, function: Callable[[Tensor], Tensor], Xs: Tensor) -> Tensor:
        self.check([Xs.detach()], "the ranks were given different inputs to predict at")
        # With fewer rows than ranks each computes all of them.
        if len(Xs) < self.size:
            return function(Xs)
        own = share(len(Xs), self.rank, self.size)
        values = function(_Sum.apply(self, Xs, False)[own])
        total: Tensor = _Sum.apply(self, torch.nn.functional.pad(values, (own.start, len(Xs) - own.stop)), True)
        return total

    def check(self, values: Sequence[Tensor | str], message: str) -> None:
        parts = [v if isinstance(v, str) else (tuple(v.shape), v.dtype, *map(_digest, stored_parts(v))) for v in values]
        digest = int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest())
        own = torch.tensor([digest], device="cpu" if "cpu" in self._kinds else self._kinds[0])
        found = [torch.empty_like(own) for _ in range(self.size)]
        self._communicate("a comparison of all ranks", lambda: dist.all_gather(found, own))
        different = [rank for rank, other in enumerate(found) if int(other) != int(found[0])]
        if different:
            raise ValueError(f"{message} (rank {different[0]} differs from rank 0)")

    def require_equal(self, **arguments: object) -> None:
        first, *others = self._gather({name: words(value) for name, value in arguments.items()})
        for rank, other in enumerate(others, 1):
            for name, value in first.items():
                if other[name] != value:
                    values = f"{value} on rank 0 and {other[name]} on rank {rank}"
                    raise ValueError(f"{name} is {values}: give every rank the same arguments")

    def sync_generator(self, generator: torch.Generator) -> torch.Generator:
        generator.set_state(self.on_main_process(generator.get_state))
        return generator

    def on_main_process(self, compute: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]
        if self.is_main_process:
            try:
                outcome[0] = compute()
            except Exception as error:
                outcome[1] = error
        self._communicate("a broadcast from the first rank", lambda: dist.broadcast_object_list(outcome, 0))
        if outcome[1] is not None:
            raise outcome[1]
        value: T = outcome[0]
        return value

    def _gather(self, own: T) -> list[T]:
        """The values of all ranks, in their order."""
        found = [own] * self.size
        self._communicate("a comparison of all ranks", lambda: dist.all_gather_object(found, own))
        return found

    def _communicate(self, operation: str, collective: Callable[[], Any]) -> None:
        try:
            collective()
        except RuntimeError as error:
            if "Duplicate GPU" in str(error):
                raise ValueError(
                    "several ranks use the same GPU: call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before "
                    "Ranks(), and start no more ranks than there are GPUs"
                ) from error
            raise RankLost(
                f"rank {self.rank} of {self.size}: {operation} failed, because another rank has ended or did not make "
                "the same call within the time-out. Start again: fit(checkpoint=...) continues from its file, on any "
                f"number of ranks. The cause: {error}"
            ) from error

    def __repr__(self) -> str:
        return f"Ranks({self.rank} of {self.size})"


class _Sum(torch.autograd.Function):
    """Sum a tensor over the ranks in one direction, forwards or backwards, and pass it on unchanged in the other."""

    @staticmethod
    def forward(ctx: Any, group: Ranks, values: Tensor, forwards: bool) -> Tensor:
        ctx.group, ctx.forwards = group, forwards
        return group.reduce(lambda _: values.clone(), values.device) if forwards else values.view_as(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[None, Tensor, None]:
        return None, outer if ctx.forwards else ctx.group.reduce(lambda _: outer.clone(), outer.device), None


def share(n: int, member: int, size: int) -> slice:
    """The rows of range(n) that belong to a member: consecutive, in parts whose sizes differ by one at most."""
    return slice(member * n // size, (member + 1) * n // size)


def words(value: object) -> str:
    """The repr of a value without memory addresses: the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _digest(tensor: Tensor) -> tuple[int, int]:
    """Two checksums of a matrix that depend on its bits and on the order of its rows and columns."""
    matrix = tensor.detach().reshape(tensor.shape[0] if tensor.ndim else 1, tensor.shape[1:].numel()).contiguous()
    bits = matrix.view(torch.int32 if matrix.element_size() == 4 else torch.int64)
    sums = [bits.sum(dim, dtype=torch.int64) for dim in (0, 1)]
    first, second = (int((s * torch.arange(1, len(s) + 1, device=s.device)).sum()) for s in sums)
    return first, second
