"""Learned mean functions: modules from inputs (n, d) to values (n,), in the units of y.

A model's mean may be a number, any function of the inputs, or a torch module; the parameters of a module are
learned together with the kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pathgp.compute.inputs import real_number


class Constant(nn.Module):
    """One number for all inputs, learned: mu(x) = value."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(real_number(value, "value"), dtype=torch.float64))

    def forward(self, X: Tensor) -> Tensor:
        return self.value.to(X.device).expand(X.shape[0])

    def __repr__(self) -> str:
        return f"Constant({self.value.item():.4g})"
