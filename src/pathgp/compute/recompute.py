"""Intermediate tensors that are computed twice instead of being stored for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pathgp.compute.memory import spans

Result = TypeVar("Result")


def recompute(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return ``function(*arguments)``; the backward pass calls the function again instead of storing what it needs.

    Only the arguments and the result are stored between the two passes; a backward pass takes the time of one more
    call. The function must be deterministic. Gradients also reach tensors that the function uses without taking them as
    arguments. If gradients are disabled, this is a plain call.

    `torch.utils.checkpoint.checkpoint` does the same, but its first call imports the compiler of torch, which takes
    seconds.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    count, recomputed = 0, dict[int, Tensor]()

    def pack(tensor: Tensor) -> int:
        nonlocal count
        count += 1
        return count - 1

    def unpack(number: int) -> Tensor:
        # The first request of a backward pass computes all tensors again; each is released once it has been used.
        if number not in recomputed:
            recomputed.update(enumerate(_saved_tensors(function, arguments)))
        return recomputed.pop(number)

    with saved_tensors_hooks(pack, unpack):
        return function(*arguments)


def recompute_blocks(function: Callable[[Tensor], Tensor], X: Tensor, rows: int) -> Tensor:
    """Return ``function(X)`` (m,) for X (m, d), in blocks of ``rows`` rows; a single block is not recomputed."""
    blocks = list(spans(len(X), rows))
    if len(blocks) <= 1:
        return function(X)
    return torch.cat([recompute(function, X[block]) for block in blocks])


def _saved_tensors(function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Tensor]:
    """The tensors that a call of the function stores for its backward pass, in the order of its operations."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        # Detached: autograd attaches the graph of the first call to what `unpack` returns.
        saved.append(tensor.detach())
        return saved[-1]

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        function(*arguments)
    return saved
