"""Backend that divides the work among several processes or devices."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.compute.process_groups import Group
from pathgp.operators.base import Solve
from pathgp.operators.dense import Dense
from pathgp.operators.streamed import Streamed

# The inverse of a block of H, from the part of a member and the rows of the block.
_InvertBlock = Callable[[Streamed | Dense, Tensor], Solve]


class Sharded:
    """K in parts, one for every member of a group; a sum over the members completes a result.

    Vectors are the same everywhere. A single block is evaluated where it is needed.

    Args:
        group: the members.
        whole: all of K, evaluated in this process, for blocks and variances.
        make: returns the part of a member, given a kernel, inputs and ``member=(number, size)``.
    """

    def __init__(self, group: Group, whole: Streamed, make: Callable[..., Streamed | Dense]) -> None:
        self.group, self.whole, self.variances, self.home = group, whole, whole.variances, whole.X.device
        self.block, self.between, self.weighted_sum = whole.block, whole.between, whole.weighted_sum
        self.parts = {
            member: make(copy.deepcopy(whole.kernel).to(device), whole.X.to(device), member=(member, group.size))
            for member, device in group.members(self.home).items()
        }

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        self.group.check([V], "the vectors of the ranks differ: run them on devices of one kind")
        return start + self._sum(lambda part, V: part.product(V, torch.zeros_like(V)), V)

    def rows(self, index: Tensor, V: Tensor, start: Tensor) -> Tensor:
        def own_rows(part: Streamed | Dense, index: Tensor, V: Tensor) -> Tensor:
            return part.rows(index, V, V.new_zeros(len(index), V.shape[1]))

        return start + self._sum(own_rows, index, V)

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        return self._sum(lambda part, index, D: part.columns(index, D), index, D)

    def bilinear(
        self, L: Tensor, R: Tensor, learned: list[Tensor], symmetric: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Every member passes over its part of K once, for value and gradient."""
        is_learned = [any(p is q for q in learned) for p in self.whole.kernel.parameters()]

        def compute(part: Streamed | Dense, L: Tensor, R: Tensor) -> Tensor:
            own: list[Tensor] = [p for p, chosen in zip(part.kernel.parameters(), is_learned, strict=True) if chosen]
            value, grads = part.bilinear(L, R, own, symmetric)
            return torch.cat([value.reshape(1), *(grad.flatten() for grad in grads)])

        value, *grads = self._sum(compute, L, R).split([1, *(p.numel() for p in learned)])
        return value.squeeze(0), [grad.reshape(p.shape) for grad, p in zip(grads, learned, strict=True)]

    def block_inverses(self, blocks: Sequence[Tensor], invert: _InvertBlock) -> Iterator[Solve]:
        """Every member evaluates and inverts one block of ``size`` consecutive ones, and sends its solutions to all."""
        for together in spans(len(blocks), self.group.size):
            own = blocks[together]
            inverses = self.group.each(functools.partial(self._invert_own, own, invert))
            yield from (functools.partial(self._solve_by, owner, inverses) for owner in range(len(own)))

    def _invert_own(self, blocks: Sequence[Tensor], invert: _InvertBlock, member: int) -> Solve | None:
        """The inverse of the block that belongs to a member, if there is one."""
        return invert(self.parts[member], blocks[member]) if member < len(blocks) else None

    def _sum(self, compute: Callable[..., Tensor], *vectors: Tensor) -> Tensor:
        """The sum of compute(part, *vectors on its device) over the members."""

        def own(member: int) -> Tensor:
            part = self.parts[member]
            return compute(part, *(vector.to(part.X.device) for vector in vectors))

        with torch.no_grad():
            return self.group.reduce(own, self.home)

    def _solve_by(self, owner: int, inverses: dict[int, Solve | None], R: Tensor) -> Tensor:
        """The solution by the owner's inverse, sent to all members."""

        def own_solution(member: int) -> Tensor:
            solve = inverses[member] if member == owner else None
            return torch.zeros_like(R) if solve is None else solve(R.to(self.parts[member].X.device))

        return self.group.reduce(own_solution, self.home)
