"""H = K + Sigma, shared out among several processes or devices."""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pathgp.compute.groups import share, words
from pathgp.compute.memory import spans
from pathgp.compute.settings import Compute
from pathgp.kernels import Kernel
from pathgp.operators.base import Operator
from pathgp.operators.fused import Fused
from pathgp.operators.kernel import Choice, KernelOperator, checked_noise
from pathgp.operators.streamed import Streamed


class ShardedOperator(Operator):
    """H = K + diag(noise^2) at the inputs X, whose entries the members of a group share out.

    Vectors are the same everywhere. Each of ``size`` members evaluates its part of the entries for a product, for rows
    and columns and for ``bilinear``; one sum over the members ends it. A single block of H is evaluated where it is
    needed, those of `block_inverses` are shared out.

    Backends: "dense" keeps n / size rows of K on every member. "streamed" evaluates square tiles at every product, each
    of the symmetric half once and dealt out in turn: n^2 / (2 size) entries for every member and one part in 4 size
    more. "fused" evaluates n / size rows inside a kernel on each GPU. "auto" chooses as for `KernelOperator`, K
    fitting when the rows of a member fit into its budget. Gradients share out the same tiles or rows.

    Args:
        kernel: covariance function.
        X: inputs (n, d), the same on every rank.
        noise: standard deviation of the noise, a number or one per row.
        compute: backend, memory budget of each member, precision as for `KernelOperator`, and the group, `Ranks` or
            `Devices`, which is required here.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        noise: float | Tensor = 0.1,
        compute: Compute | None = None,
    ) -> None:
        compute = Compute.read(compute)
        group = compute.group
        if group is None:
            raise ValueError("a ShardedOperator needs a group: Compute(group=Ranks()) or Compute(group=Devices([...]))")
        self.group, self.members = group, group.size
        self.memory = compute.budget(X.device)
        choice = Choice.of(compute.backend, kernel, X, self.memory, self.members)
        alone = Compute(choice.tiles.name, self.memory, precision=compute.precision)
        self._whole = KernelOperator(kernel, X, noise, alone)
        self.fallback_reason = choice.fallback_reason
        self.kernel, self.X = kernel, self._whole.X
        self.shape, self.dtype, self.device = self._whole.shape, self._whole.dtype, self._whole.device
        self.noise, self.entries = self._whole.noise, self._whole.entries
        self._deviation = checked_noise(noise, self.shape[0], self.device)
        values = [p.detach() for p in kernel.parameters()]
        message = "X, noise, kernel, backend or precision differ between ranks: give every rank the same data and model"
        facts = [words(kernel), compute.backend, compute.precision]
        group.check([self.X, self._deviation.detach(), *values, *facts], message)
        self.backend = "dense" if choice.kept else choice.tiles.name
        self.precision = "high" if choice.kept else self._whole.precision
        self._parts = self._share(_Rows if choice.kept else _Tiles, choice.tiles)

    @functools.cached_property
    def inner(self) -> ShardedOperator:
        if self.precision == "high":
            return self
        twin = copy.copy(self)
        twin._parts = self._share(_Tiles, functools.partial(Fused, precision=self.precision))
        twin.inner = twin
        return twin

    def __matmul__(self, V: Tensor) -> Tensor:
        self._check(V, self.shape[0], "V")
        self.group.check([V], "the vectors of the ranks have come apart: run them on devices of one kind")
        return self._sum(lambda part: part.product(V.to(part.device))) + self._weighted_noise(V)

    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        self._check(V, self.shape[0], "V")
        result = self._sum(lambda part: part.rows(index.to(part.device), V.to(part.device)))
        return result + self._weighted_noise(V[index], index)

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        self._check(D, len(index), "D")
        result = self._sum(lambda part: part.columns(index.to(part.device), D.to(part.device)))
        return result.index_add_(0, index, self._weighted_noise(D, index))

    def block(self, index: Tensor) -> Tensor:
        return self._whole.block(index)

    def block_inverses(
        self, parts: Sequence[Tensor], invert: Callable[[Tensor], Callable[[Tensor], Tensor]]
    ) -> Iterator[Callable[[Tensor], Tensor]]:
        """Each member evaluates and inverts one block of as many as there are members; its answers go to all."""
        for together in spans(len(parts), self.members):
            blocks = parts[together]
            ready = self.group.each(functools.partial(self._inverted, blocks, invert))
            yield from (functools.partial(self._answered, ready, owner) for owner in range(len(blocks)))

    def diagonal(self) -> Tensor:
        return self._whole.diagonal()

    def bilinear(self, L: Tensor, R: Tensor, symmetric: bool = False) -> Tensor:
        """sum_j L_j^T H R_j. Every member passes over its part of K, for value and gradient at once."""
        self._check(L, self.shape[0], "L")
        self._check(R, self.shape[0], "R")
        L, R = L.detach(), R.detach()
        noise = (self._deviation.square() * (L * R).sum(1).to(torch.float64)).sum()
        wanted = [p.requires_grad for p in self.kernel.parameters()]

        def compute(learned: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            total = self._sum(lambda part: part.bilinear(L.to(part.device), R.to(part.device), symmetric, wanted))
            value, *grads = total.split([1, *(p.numel() for p in learned)])
            return value.squeeze(0), [grad.reshape(p.shape) for grad, p in zip(grads, learned, strict=True)]

        return self._whole._differentiable(compute) + noise

    def features(self, num: int, generator: torch.Generator | None = None, draws: int | None = None) -> Tensor:
        return self._whole.features(num, generator, draws)

    def cost(self, rows: int | None = None) -> float:
        return self._whole.cost(rows)

    def partition(self, parts: int, generator: torch.Generator, near: bool = False) -> tuple[Tensor, ...]:
        return self._whole.partition(parts, generator, near)

    def sync_generator(self, generator: torch.Generator) -> torch.Generator:
        return self.group.sync_generator(generator)

    def __repr__(self) -> str:
        return f"ShardedOperator(n={self.shape[0]}, {self.backend}, {self.dtype}, {self.group!r})"

    def _share(self, part: type[_Part], tiles: Callable[..., Streamed]) -> dict[int, _Part]:
        """The parts of the members of this process."""
        return {m: part(self, tiles, m, device) for m, device in self.group.members(self.device).items()}

    def _sum(self, compute: Callable[[_Part], Tensor]) -> Tensor:
        with torch.no_grad():
            return self.group.reduce(lambda member: compute(self._parts[member]), self.device)

    def _inverted(
        self, blocks: Sequence[Tensor], invert: Callable[[Tensor], Callable[[Tensor], Tensor]], member: int
    ) -> Callable[[Tensor], Tensor] | None:
        if member >= len(blocks):
            return None
        part = self._parts[member]
        return invert(part.block(blocks[member].to(part.device)))

    def _answered(self, ready: dict[int, Callable[[Tensor], Tensor] | None], owner: int, R: Tensor) -> Tensor:
        """What the owner's function makes of R, for all."""

        def answer(member: int) -> Tensor:
            function = ready[member]
            if member != owner or function is None:
                return torch.zeros_like(R)
            return function(R.to(self._parts[member].device))

        return self.group.reduce(answer, self.device)


class _Part(ABC):
    """What one member does: parts of products with K, without the noise, that add up over the members."""

    def __init__(self, H: ShardedOperator, tiles: Callable[..., Streamed], member: int, device: torch.device) -> None:
        self.member, self.size, self.device = member, H.members, device
        self.kernel = copy.deepcopy(H._whole._snapshot).to(device)
        self.tiles = tiles(self.kernel, H.X.to(device), H.memory, member=(member, H.members))
        self.noise = H.noise.to(device)

    @abstractmethod
    def product(self, V: Tensor) -> Tensor:
        """A part of K V: (n, s)."""

    @abstractmethod
    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        """A part of K[index, :] V: (len(index), s)."""

    @abstractmethod
    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        """A part of K[:, index] D: (n, s)."""

    def block(self, index: Tensor) -> Tensor:
        """H[index, index], all of it."""
        block = self.tiles.block(index)
        block.diagonal().add_(self.noise[index] if self.noise.ndim else self.noise)
        return block

    def bilinear(self, L: Tensor, R: Tensor, symmetric: bool, wanted: list[bool]) -> Tensor:
        """This member's part of sum_j L_j^T K R_j, then of its gradients: one vector, float64."""
        learned: list[Tensor] = [p for p, chosen in zip(self.kernel.parameters(), wanted, strict=True) if chosen]
        value, grads = self.tiles.bilinear(L, R, learned, symmetric)
        return torch.cat([value.reshape(1), *(grad.flatten() for grad in grads)])


class _Tiles(_Part):
    """Nothing is kept: a part of the tiles, or of the rows, for products; shares of the index for rows and columns."""

    def product(self, V: Tensor) -> Tensor:
        return self.tiles.product(V, torch.zeros_like(V))

    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        result = V.new_zeros(len(index), V.shape[1])
        own = share(len(index), self.member, self.size)
        result[own] = self.tiles.rows(index[own], V, result[own])
        return result

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        own = share(len(index), self.member, self.size)
        return self.tiles.columns(index[own], D[own])


class _Rows(_Part):
    """Consecutive rows of K are kept: n^2 / size numbers."""

    def __init__(self, H: ShardedOperator, tiles: Callable[..., Streamed], member: int, device: torch.device) -> None:
        super().__init__(H, tiles, member, device)
        self.own = share(H.shape[0], member, self.size)
        self.K = self.tiles.strip(torch.arange(self.own.start, self.own.stop, device=device))

    def product(self, V: Tensor) -> Tensor:
        result = torch.zeros_like(V)
        torch.mm(self.K, V, out=result[self.own])
        return result

    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        result = V.new_zeros(len(index), V.shape[1])
        for place, K in self._kept(index):
            result[place] = K @ V
        return result

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        result = D.new_zeros(self.K.shape[1], D.shape[1])
        for place, K in self._kept(index):
            result.addmm_(K.T, D[place])
        return result

    def _kept(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Which of the rows ``index`` are kept here, and these, some 8 MB at a time: they stay in the cache."""
        here = ((index >= self.own.start) & (index < self.own.stop)).nonzero().flatten()
        step = max(16, 8_000_000 // (self.K.shape[1] * self.K.element_size()))
        for part in spans(len(here), step if self.device.type == "cpu" else max(1, len(here))):
            yield here[part], self.K[index[here[part]] - self.own.start]
