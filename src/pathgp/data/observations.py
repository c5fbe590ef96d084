"""Observations as a model sees them: checked, standardised, in the model's units."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathgp.compute.inputs import Array, read_vector
from pathgp.data.standardise import Standardisation


@dataclass(frozen=True)
class Observations:
    """n rows of data.

    given: the inputs (n, d) as the caller gave them, which mean functions see.  y: (n,) float64, in the caller's units.
    X: (n, d) standardised, in the dtype of the computations.  known: known standard deviations of the noise (n,) in the
    model's units, or None.
    """

    given: Tensor
    y: Tensor
    X: Tensor
    known: Tensor | None
    scaling: Standardisation

    @classmethod
    def of(
        cls, given: Tensor, y: Tensor, noise: Array | None, scaling: Standardisation, dtype: torch.dtype
    ) -> Observations:
        """Standardise checked inputs and targets; X is copied, since the caller may write to it later."""
        known = read_noise(noise, given)
        X = scaling.inputs(given, dtype).detach().clone()
        known = None if known is None else known / scaling.target_scale
        return cls(given.detach(), y, X, known, scaling)

    @property
    def dtype(self) -> torch.dtype:
        return self.X.dtype

    @property
    def device(self) -> torch.device:
        return self.X.device

    @property
    def columns(self) -> int:
        return self.X.shape[1]

    def targets(self, mean: Tensor) -> Tensor:
        """(y - mean) in the model's units (n,), in the dtype of X."""
        return self.scaling.targets(self.y - mean).to(self.X.dtype)

    def to(self, dtype: torch.dtype) -> Observations:
        """The same data in another dtype of the computations; that of results stays."""
        return replace(self, X=self.scaling.inputs(self.given, dtype))

    def subset(self, rows: Tensor) -> Observations:
        """Some of the rows, under the same standardisation."""
        known = None if self.known is None else self.known[rows]
        return Observations(self.given[rows], self.y[rows], self.X[rows], known, self.scaling)

    def fingerprint(self) -> str:
        """A digest of the numbers."""
        return fingerprint(self.X, self.y, self.known)


def fingerprint(*tensors: Tensor | None) -> str:
    """A digest of shapes, dtypes and numbers: equal only for equal tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor is not None:
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def read_noise(noise: Array | None, X: Tensor) -> Tensor | None:
    """Known standard deviations (n,), checked not to be negative."""
    if noise is None:
        return None
    known = read_vector(noise, X.shape[0], "noise", like=X)
    if bool((known < 0).any()):
        row = int(torch.nonzero(known < 0)[0])
        raise ValueError(f"noise is {float(known[row])} at row {row}: it holds standard deviations")
    return known
