"""The regions of section 3.2.4 of the thesis at given inputs: interpolation, extrapolation, prior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

REGIONS = ("interpolation", "extrapolation", "prior")
# Leading functions hold most of k(x, .) in the interpolation region.
_MOST = 0.5
# The data explain at most this share of k(x, x) in the prior region.
_LITTLE = 0.01


@dataclass(frozen=True, eq=False)
class Regions:
    """Shares of the prior variance k(x, x) at m inputs, by the directions in which the data determine f(x).

        interpolation = sum_{i <= c} u_i(x)^2 / k(x, x)     on the c leading spectral basis functions
        extrapolation = sum_{i > c} u_i(x)^2 / k(x, x)      on the other ones
        prior = 1 - interpolation - extrapolation           on none: f(x) given noise-free data

    An input belongs to the interpolation region if the first share is at least 1/2, to the prior region if the last
    one is at least 0.99, and otherwise to the extrapolation region. In the prior region an error of the weights, of
    norm e in the space of the kernel, changes f(x) by at most 0.1 e sqrt(k(x, x)). Gradient methods converge first on
    the leading functions; an approximate posterior therefore differs from the exact one in the extrapolation region.

    interpolation, extrapolation: (m,), float64.  leading: number c of leading functions.
    """

    interpolation: Tensor
    extrapolation: Tensor
    leading: int

    @property
    def prior(self) -> Tensor:
        """The share that the data do not determine (m,)."""
        return (1.0 - self.interpolation - self.extrapolation).clamp_min(0.0)

    @property
    def labels(self) -> Tensor:
        """The region of every input (m,), as a number into `REGIONS`."""
        labels = torch.where(self.interpolation >= _MOST, 0, 1)
        return labels.masked_fill(self.interpolation + self.extrapolation <= _LITTLE, 2)

    def counts(self) -> dict[str, int]:
        """The number of inputs in every region."""
        return {name: int((self.labels == number).sum()) for number, name in enumerate(REGIONS)}

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts().items())
        return f"Regions of {len(self.interpolation):,} inputs: {counts}; {self.leading:,} leading functions"
