"""A value whose gradient is computed together with it, at copies of the hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ValueAndGradient = Callable[[list[Tensor]], tuple[Tensor, list[Tensor]]]
"""A function from the copies of the learned parameters to (value, gradients)."""


class FromSnapshot(torch.autograd.Function):
    """A scalar with a gradient that ``forward`` already computes, at the copies of the kernel's parameters."""

    @staticmethod
    def forward(ctx: Any, compute: ValueAndGradient, learned: list[Tensor], *parameters: Tensor) -> Tensor:
        value, grads = compute(learned)
        ctx.save_for_backward(*grads)
        ctx.devices = [p.device for p in parameters]
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grads = ctx.saved_tensors
        return (None, None, *((grad_outputs[0] * g).to(d) for g, d in zip(grads, ctx.devices, strict=True)))
