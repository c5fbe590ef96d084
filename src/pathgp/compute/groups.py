"""Who shares the work out: the processes that torchrun started, or several devices of one process.

Every process runs the same program on the same data. Vectors (n, s) exist everywhere, the kernel matrix nowhere as a
whole: each member computes its part of a product, and the sum of the parts, the same to the last bit on every rank, is
what all go on with. So all ranks take the same decisions without being told.
"""

from __future__ import annotations

import hashlib
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pathgp.compute.memory import memory_budget

T = TypeVar("T")


class RankLost(RuntimeError):
    """Another rank ended, or did not come to a meeting of all ranks within the time-out."""


class Group(ABC):
    """Members, numbered from 0, that compute parts of a result.

    size: how many there are.  leader: whether this process writes files and shows progress.
    """

    size: int
    leader: bool = True

    @abstractmethod
    def members(self, home: torch.device) -> dict[int, torch.device]:
        """The members of this process and where each computes, for vectors that live on ``home``."""

    @abstractmethod
    def each(self, compute: Callable[[int], T]) -> dict[int, T]:
        """compute(member) for the members of this process, at the same time."""

    @abstractmethod
    def reduce(self, compute: Callable[[int], Tensor], home: torch.device) -> Tensor:
        """The sum of compute(member) over all members, on ``home``; equal in all processes to the last bit."""

    @abstractmethod
    def budget(self, memory: float | None, home: torch.device) -> int:
        """The memory of one member in bytes: as given, or the least that any of them has, half of what is free.

        Members that share a device share what is free there.
        """

    def rows(self, function: Callable[[Tensor], Tensor], Xs: Tensor) -> Tensor:
        """function(Xs) (count, m), whose columns belong to the rows of Xs (m, d); differentiable in Xs."""
        return function(Xs)

    def check(self, values: Sequence[Tensor | str], message: str) -> None:  # noqa: B027
        """ValueError with this message in every process unless all of them hold the same numbers and words."""

    def require_equal(self, **arguments: object) -> None:  # noqa: B027
        """ValueError in every process that names what they were given different values of."""

    def sync_generator(self, generator: torch.Generator) -> torch.Generator:
        """The generator, in the state that it has on the first rank."""
        return generator

    def on_main_process(self, compute: Callable[[], T]) -> T:
        """What the first rank finds, given to all; its exceptions as well."""
        return compute()


class Devices(Group):
    """Several devices in one process: ``Devices(["cuda:0", "cuda:1"])``.

    Every device works in a thread of its own. Vectors live where X lives; the devices get copies of X once and of the
    vectors with every product. Products and gradients are shared out, prediction happens where X lives.
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
        first, *others = self.each(compute).values()
        total = first.to(home)
        for part in others:
            total += part.to(home)
        return total

    def budget(self, memory: float | None, home: torch.device) -> int:
        if memory is not None:
            return memory_budget(memory, home)
        return min(memory_budget(None, device) // self.devices.count(device) for device in self.devices)

    def __repr__(self) -> str:
        return f"Devices([{', '.join(repr(str(device)) for device in self.devices)}])"


class Ranks(Group):
    """All processes of ``torch.distributed``, one member each: ``Ranks()`` after ``init_process_group``.

    Every rank must make the same calls in the same order, prediction included. A rank that is lost, or stays away, ends
    the others with `RankLost` within the time-out given to ``init_process_group``.
    """

    def __init__(self) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "there is no process group: start the program by 'torchrun --nproc_per_node=4 program.py' and call "
                "torch.distributed.init_process_group() in it before Ranks()"
            )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.leader = self.rank == 0
        # Kinds of devices whose tensors can meet: NCCL knows GPUs alone, gloo both.
        self._kinds = [pair.split(":")[0] for pair in dist.get_backend_config().split(",")]
        # Sums over rows depend on the number of threads in their last bits, and so would decisions.
        threads = torch.tensor([torch.get_num_threads()])
        self.check([threads], "the ranks have different numbers of threads: set OMP_NUM_THREADS to the same everywhere")

    def members(self, home: torch.device) -> dict[int, torch.device]:
        if home.type not in self._kinds:
            raise ValueError(
                f"the data are on {home}, but this process group adds up numbers on {' and '.join(self._kinds)} alone: "
                "move the data, or call torch.distributed.init_process_group('gloo') for ranks on CPUs"
            )
        return {self.rank: home}

    def each(self, compute: Callable[[int], T]) -> dict[int, T]:
        return {self.rank: compute(self.rank)}

    def reduce(self, compute: Callable[[int], Tensor], home: torch.device) -> Tensor:
        part = compute(self.rank).contiguous()
        self._meet("a sum over all ranks", lambda: dist.all_reduce(part))
        return part

    def budget(self, memory: float | None, home: torch.device) -> int:
        self.require_equal(memory=memory)
        if memory is not None:
            return memory_budget(memory, home)
        found = self._gathered((socket.gethostname(), str(home), memory_budget(None, home)))
        places = [place for *place, _ in found]
        return min(free // places.count(place) for *place, free in found)

    def rows(self, function: Callable[[Tensor], Tensor], Xs: Tensor) -> Tensor:
        self.check([Xs.detach()], "the ranks were given different inputs to predict at")
        # With fewer rows than ranks each computes all of them.
        if len(Xs) < self.size:
            return function(Xs)
        values: Tensor = _SharedRows.apply(self, function, Xs)
        return values

    def check(self, values: Sequence[Tensor | str], message: str) -> None:
        parts = [v if isinstance(v, str) else (tuple(v.shape), v.dtype, _digest(v)) for v in values]
        described = repr(parts).encode()
        digest = int.from_bytes(hashlib.blake2b(described, digest_size=7).digest())
        own = torch.tensor([digest], device="cpu" if "cpu" in self._kinds else self._kinds[0])
        found = [torch.empty_like(own) for _ in range(self.size)]
        self._meet("a comparison of all ranks", lambda: dist.all_gather(found, own))
        different = [rank for rank, other in enumerate(found) if int(other) != int(found[0])]
        if different:
            raise ValueError(f"{message} (rank {different[0]} differs from rank 0)")

    def require_equal(self, **arguments: object) -> None:
        first, *others = self._gathered({name: words(value) for name, value in arguments.items()})
        for rank, other in enumerate(others, 1):
            for name, value in first.items():
                if other[name] != value:
                    found = f"{value} on rank 0 and {other[name]} on rank {rank}"
                    raise ValueError(f"{name} is {found}: give every rank the same arguments")

    def sync_generator(self, generator: torch.Generator) -> torch.Generator:
        generator.set_state(self.on_main_process(generator.get_state))
        return generator

    def on_main_process(self, compute: Callable[[], T]) -> T:
        found: list[Any] = [None, None]
        if self.leader:
            try:
                found[0] = compute()
            except Exception as error:
                found[1] = error
        self._meet("word from the first rank", lambda: dist.broadcast_object_list(found, 0))
        if found[1] is not None:
            raise found[1]
        value: T = found[0]
        return value

    def _gathered(self, own: T) -> list[T]:
        """What every rank has, in their order."""
        found = [own] * self.size
        self._meet("a comparison of all ranks", lambda: dist.all_gather_object(found, own))
        return found

    def _meet(self, what: str, collective: Callable[[], Any]) -> None:
        try:
            collective()
        except RuntimeError as error:
            if "Duplicate GPU" in str(error):
                raise ValueError(
                    "several ranks use the same GPU: call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before "
                    "Ranks(), and start no more ranks than there are GPUs"
                ) from error
            raise RankLost(
                f"rank {self.rank} of {self.size}: {what} failed, because another rank has ended or did not make the "
                "same call within the time-out. Start again: fit(checkpoint=...) goes on from its file, on any number "
                f"of ranks. The cause: {error}"
            ) from error

    def __repr__(self) -> str:
        return f"Ranks({self.rank} of {self.size})"


class _SharedRows(torch.autograd.Function):
    """function(Xs) of which every rank computes its rows, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, group: Ranks, function: Callable[[Tensor], Tensor], Xs: Tensor) -> Tensor:
        ctx.group, ctx.part, ctx.shape = group, share(len(Xs), group.rank, group.size), Xs.shape
        with torch.set_grad_enabled(ctx.needs_input_grad[2]):
            ctx.inputs = Xs[ctx.part].detach().requires_grad_(ctx.needs_input_grad[2])
            ctx.values = function(ctx.inputs)

        def own(_: int) -> Tensor:
            result = ctx.values.new_zeros(len(ctx.values), len(Xs))
            result[:, ctx.part] = ctx.values.detach()
            return result

        return group.reduce(own, Xs.device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[None, None, Tensor]:
        def own(_: int) -> Tensor:
            result = ctx.inputs.new_zeros(ctx.shape)
            (result[ctx.part],) = torch.autograd.grad(ctx.values, ctx.inputs, outer[:, ctx.part], retain_graph=True)
            return result

        return None, None, ctx.group.reduce(own, outer.device)


def share(n: int, member: int, size: int) -> slice:
    """The rows of range(n) that belong to a member: consecutive, as many as every other's or one less."""
    return slice(member * n // size, (member + 1) * n // size)


def words(value: object) -> str:
    """A value in words that are the same in every process: without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _digest(tensor: Tensor) -> tuple[int, int]:
    """Two numbers that change with the bits of a matrix and with the order of its rows and columns."""
    matrix = tensor.detach().reshape(tensor.shape[0] if tensor.ndim else 1, tensor.shape[1:].numel()).contiguous()
    bits = matrix.view(torch.int32 if matrix.element_size() == 4 else torch.int64)
    sums = [bits.sum(dim, dtype=torch.int64) for dim in (0, 1)]
    first, second = (int((s * torch.arange(1, len(s) + 1, device=s.device)).sum()) for s in sums)
    return first, second
