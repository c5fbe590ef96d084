"""H = K + Sigma, shared out among several processes or devices."""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pathgp.kernels import Kernel
from pathgp.operators.base import Operator
from pathgp.operators.groups import Group, share
from pathgp.operators.kernel import KernelOperator, checked_noise
from pathgp.operators.memory import halve_on_failure, spans, tile_edge


class ShardedOperator(Operator):
    """H = K + diag(noise^2) at the inputs X, whose entries the members of a group share out.

    Vectors are the same everywhere. Each of ``size`` members evaluates its part of the entries for a product, for rows
    and columns and for ``bilinear``; one sum over the members ends it. A single block of H is evaluated where it is
    needed, those of `block_inverses` are shared out.

    Backends: "dense" keeps n / size rows of K on every member. "streamed" evaluates square tiles at every product, each
    of the symmetric half once and dealt out in turn: n^2 / (2 size) entries for every member and one part in 4 size
    more. "fused" evaluates n / size rows inside a kernel on each GPU. "auto" is dense when the rows fit into the memory
    budget, else fused on a CUDA device where it can be had, else streamed. Gradients are always streamed.

    Args:
        kernel: covariance function.
        X: inputs (n, d), the same on every rank.
        noise: standard deviation of the noise, a number or one per row.
        group: `Ranks` or `Devices`.
        backend: one of the above.
        memory: budget in bytes of each member; by default half of what is free.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        noise: float | Tensor = 0.1,
        *,
        group: Group,
        backend: str = "auto",
        memory: int | None = None,
    ) -> None:
        if not isinstance(group, Group):
            raise TypeError(f"group must be Ranks() or Devices([...]), got {type(group).__name__}")
        self.group, self.members = group, group.size
        self.memory = group.budget(memory, X.device)
        dense = self._keeps_rows(backend, X)
        self._whole = KernelOperator(kernel, X, noise, "streamed" if dense else backend, self.memory)
        self.kernel, self.X = kernel, self._whole.X
        self.shape, self.dtype, self.device = self._whole.shape, self._whole.dtype, self._whole.device
        self.noise, self.entries = self._whole.noise, self._whole.entries
        self._deviation = checked_noise(noise, self.shape[0], self.device)
        values = [p.detach() for p in kernel.parameters()]
        advice = "give every rank the same data and the same model"
        group.check([self.X, self._deviation.detach(), *values], f"X, noise or kernel differ between ranks: {advice}")
        self.backend = "dense" if dense else self._whole.backend
        part = _Rows if dense else _Tiles
        self._parts = {member: part(self, member, device) for member, device in group.members(self.device).items()}

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
        """sum_j L_j^T H R_j. Every member passes over its tiles of the half of K, for value and gradient at once."""
        self._check(L, self.shape[0], "L")
        self._check(R, self.shape[0], "R")
        L, R = L.detach(), R.detach()
        noise = (self._deviation.square() * (L * R).sum(1).to(torch.float64)).sum()
        learned = [p for p in self.kernel.parameters() if p.requires_grad]
        value: Tensor = _SharedSum.apply(self, L, R, *learned)
        return value + noise

    def features(self, num: int, generator: torch.Generator | None = None, draws: int | None = None) -> Tensor:
        return self._whole.features(num, generator, draws)

    def cost(self, rows: int | None = None) -> float:
        return self._whole.cost(rows)

    def agree(self, generator: torch.Generator) -> torch.Generator:
        return self.group.agree(generator)

    def __repr__(self) -> str:
        return f"ShardedOperator(n={self.shape[0]}, {self.backend}, {self.dtype}, {self.group!r})"

    def _keeps_rows(self, backend: str, X: Tensor) -> bool:
        needed = -(-len(X) // self.members) * len(X) * X.element_size()
        if backend == "dense" and needed > self.memory:
            raise ValueError(
                f"the rows of K need {needed / 1e9:.2f} GB on each of {self.members} members, the budget is "
                f"{self.memory / 1e9:.2f} GB: use backend='streamed', more members, or raise memory="
            )
        return backend == "dense" or (backend == "auto" and needed <= self.memory)

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

    def __init__(self, H: ShardedOperator, member: int, device: torch.device) -> None:
        self.member, self.size, self.device = member, H.members, device
        self.whole = KernelOperator(H.kernel, H.X.to(device), 0.0, H._whole.backend, H.memory)
        self.X, self.noise = self.whole.X, H.noise.to(device)
        self.kernel = copy.deepcopy(H.kernel).to(device)
        self.edge = tile_edge(H.memory, H.dtype, device)

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
        block = self.whole.block(index)
        block.diagonal().add_(self.noise[index] if self.noise.ndim else self.noise)
        return block

    def bilinear(self, L: Tensor, R: Tensor, learned: list[bool]) -> Tensor:
        """The value of sum_j L_j^T K R_j over this member's tiles, then its gradients: one vector, float64."""
        parameters = [p for p, wanted in zip(self.kernel.parameters(), learned, strict=True) if wanted]

        def accumulate(edge: int) -> Tensor:
            value = torch.zeros((), dtype=torch.float64, device=self.device)
            grads = [torch.zeros_like(p) for p in parameters]
            for I, J in self.pairs(edge):
                W = L[I] @ R[J].T
                W = W if I == J else W.addmm_(R[I], L[J].T)
                with torch.enable_grad():
                    tile = self.tile(I, J)
                if parameters and tile.requires_grad:
                    found = torch.autograd.grad(tile, parameters, W, allow_unused=True)
                    for grad, new in zip(grads, found, strict=True):
                        grad += 0.0 if new is None else new
                value += torch.dot(tile.detach().flatten(), W.flatten())
            return torch.cat([value.reshape(1), *(grad.flatten() for grad in grads)])

        # On a CPU the tile, its weights and its gradient share the cache.
        edge = self.edge if self.device.type == "cuda" else max(1, self.edge // 2)
        return halve_on_failure(accumulate, edge)[0]

    def tile(self, I: slice, J: slice) -> Tensor:
        """K[I, J], exact on the diagonal."""
        return self.kernel(self.X[I]) if I == J else self.kernel(self.X[I], self.X[J])

    def pairs(self, edge: int) -> list[tuple[slice, slice]]:
        """This member's tiles (I, J) of the half J <= I of K, with sides of ``edge`` rows at most.

        Dealt out in turn. Their number is a multiple of the number of members, so that all have equally many.
        """
        n = len(self.X)
        count = 2 * self.size * max(2, -(-n // (2 * self.size * edge)))
        sides = [part for k in range(count) if (part := share(n, k, count)).start < part.stop]
        return [(I, J) for k, I in enumerate(sides) for J in sides[: k + 1]][self.member :: self.size]


class _Tiles(_Part):
    """Nothing is kept: tiles of the symmetric half for products, shares of the index for rows and columns.

    A fused product is made of rows, as it does not use the symmetry.
    """

    def product(self, V: Tensor) -> Tensor:
        if self.whole.backend == "fused":
            return self.rows(torch.arange(len(V), device=self.device), V)

        def compute(edge: int) -> Tensor:
            result = torch.zeros_like(V)
            for I, J in self.pairs(edge):
                tile = self.tile(I, J)
                result[I].addmm_(tile, V[J])
                if I != J:
                    result[J].addmm_(tile.T, V[I])
            return result

        result, self.edge = halve_on_failure(compute, self.edge)
        return result

    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        result = V.new_zeros(len(index), V.shape[1])
        own = share(len(index), self.member, self.size)
        result[own] = self.whole.rows(index[own], V)
        return result

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        own = share(len(index), self.member, self.size)
        return self.whole.columns(index[own], D[own])


class _Rows(_Part):
    """Consecutive rows of K are kept: n^2 / size numbers."""

    def __init__(self, H: ShardedOperator, member: int, device: torch.device) -> None:
        super().__init__(H, member, device)
        self.own = share(len(self.X), member, self.size)
        with torch.no_grad():
            self.K, self.edge = halve_on_failure(self._evaluate, self.edge)

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
        result = D.new_zeros(len(self.X), D.shape[1])
        for place, K in self._kept(index):
            result.addmm_(K.T, D[place])
        return result

    def _evaluate(self, edge: int) -> Tensor:
        """K[own, :] in tiles, with one of its own for every part of the diagonal."""
        n, first = len(self.X), self.own.start
        K = self.X.new_empty(self.own.stop - first, n)
        for part in spans(len(K), edge):
            I = slice(first + part.start, first + part.stop)
            for J in (slice(0, I.start), I, slice(I.stop, n)):
                for piece in spans(J.stop - J.start, edge):
                    columns = slice(J.start + piece.start, J.start + piece.stop)
                    K[part, columns] = self.tile(I, columns)
        return K

    def _kept(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Which of the rows ``index`` are kept here, and these, some 8 MB at a time: they stay in the cache."""
        here = ((index >= self.own.start) & (index < self.own.stop)).nonzero().flatten()
        step = max(16, 8_000_000 // (self.K.shape[1] * self.K.element_size()))
        for part in spans(len(here), step if self.device.type == "cpu" else max(1, len(here))):
            yield here[part], self.K[index[here[part]] - self.own.start]


class _SharedSum(torch.autograd.Function):
    """sum_j L_j^T K R_j with its gradient in the kernel's parameters, from one pass over the tiles of every member."""

    @staticmethod
    def forward(ctx: Any, H: ShardedOperator, L: Tensor, R: Tensor, *parameters: Tensor) -> Tensor:
        learned = [p.requires_grad for p in H.kernel.parameters()]
        total = H._sum(lambda part: part.bilinear(L.to(part.device), R.to(part.device), learned))
        value, *grads = total.split([1, *(p.numel() for p in parameters)])
        grads = [grad.reshape(p.shape).to(p) for grad, p in zip(grads, parameters, strict=True)]
        ctx.save_for_backward(*grads)
        return value.squeeze(0)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, None, *(outer[0].to(grad) * grad for grad in ctx.saved_tensors))
