"""Observations that are read block by block, from memory or from a file that is mapped into memory."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pathgp.compute.inputs import Array, read_matrix, read_vector, result_dtype
from pathgp.compute.memory import spans
from pathgp.compute.random import permutation
from pathgp.data.observations import Data
from pathgp.data.standardise import Standardisation

# Rows that are checked and standardised at once, and rows of the sample for choices that need only a few.
_BLOCK, _SAMPLE = 65_536, 10_000


@dataclass(frozen=True)
class Rows(Data):
    """n rows of data in the units of the caller, standardised and converted to float64 one block at a time.

    X_raw: (n, d), of the caller's dtype; if the caller gave a `numpy.memmap`, its pages are read when they are needed.
    sample: (r, d) random rows in the model's units, float64, r <= 10,000: for initial values, bounds and variances.
    """

    X_raw: Tensor
    y: Tensor
    noise_std: Tensor | None
    scaling: Standardisation
    sample: Tensor
    note: str = ""

    @classmethod
    def of(cls, X_raw: Tensor, y: Tensor, noise: Array | None, scaling: Standardisation) -> Rows:
        """Rows of checked inputs and targets (n,); ``noise``: known standard deviations in the units of y."""
        n, noise_std = len(X_raw), None
        if noise is not None:
            known = read_vector(noise, n, "noise", like=X_raw).detach()
            if bool((known < 0).any()):
                row = int(torch.nonzero(known < 0)[0])
                raise ValueError(f"noise is {float(known[row])} at row {row}: it holds standard deviations")
            noise_std = known / scaling.target_scale
        # The caller may write to y later.
        return cls(X_raw, y.detach().clone(), noise_std, scaling, _sample(X_raw, scaling))

    @property
    def factors(self) -> list[Tensor]:  # type: ignore[override]
        """The sample, which stands for all rows where initial values and bounds are chosen."""
        return [self.sample]

    def block(self, rows: slice | Tensor) -> Tensor:
        """Inputs in the model's units, float64, of a slice or of numbered rows."""
        return self.scaling.inputs(self.X_raw[rows].to(torch.float64))

    def inputs(self, rows: Tensor | None = None) -> Tensor:
        return self.block(slice(None) if rows is None else rows)

    def to(self, dtype: torch.dtype) -> Rows:
        """The same rows: all computations with them are in float64."""
        return self

    def subset(self, rows: Tensor) -> Rows:
        noise_std = None if self.noise_std is None else self.noise_std[rows]
        X_raw = self.X_raw[rows]
        return replace(self, X_raw=X_raw, y=self.y[rows], noise_std=noise_std, sample=_sample(X_raw, self.scaling))

    def join(self, other: Rows) -> Rows:
        """All rows of both, which have the same units."""
        parts = (self, other)
        noise_std = None
        if any(part.noise_std is not None for part in parts):
            noise_std = torch.cat([torch.zeros_like(p.y) if p.noise_std is None else p.noise_std for p in parts])
        X_raw = torch.cat([self.X_raw, other.X_raw.to(self.X_raw.dtype)])
        return replace(self, X_raw=X_raw, y=torch.cat([p.y for p in parts]), noise_std=noise_std)

    def fingerprint(self) -> str:
        """A digest of the shape, the targets and the sample of the inputs."""
        digest = hashlib.sha256(f"{tuple(self.X_raw.shape)} {self.X_raw.dtype}".encode())
        for tensor in (self.sample, self.y, self.noise_std):
            if tensor is not None:
                digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


def read_rows(X: Any) -> Tensor:
    """Check inputs (n, d); a copy, except for a `numpy.memmap` of float32 or float64, which is not loaded."""
    if not isinstance(X, np.memmap):
        read = read_matrix(X)
        return read.X.detach().clone() if isinstance(X, Tensor) else read.X
    if X.dtype not in (np.float32, np.float64) or X.ndim != 2 or not X.flags.c_contiguous or not X.shape[1]:
        raise TypeError(
            f"X is a memmap of dtype {X.dtype} and shape {X.shape}: rows are read from float32 or float64 numbers in "
            "native byte order, two-dimensional, row by row; use numpy.asarray(X) to load others"
        )
    with warnings.catch_warnings():
        # Torch warns that a file opened for reading must not be written to, which does not happen here.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(X)
    for rows in spans(len(tensor), _BLOCK):
        try:
            read_matrix(tensor[rows])
        except ValueError as error:
            raise ValueError(f"rows {rows.start} to {rows.stop - 1} of X: {error}") from None
    return tensor


def standardise_rows(X: Tensor, y: Tensor, kept: Sequence[int]) -> Standardisation:
    """`Standardisation.of` with the moments of X (n, d) from two passes over blocks."""
    targets = Standardisation.of(X[:1], y, kept, result_dtype(X, y))
    total, largest = (X.new_zeros(X.shape[1], dtype=torch.float64) for _ in range(2))
    for rows in spans(len(X), _BLOCK):
        block = X[rows].to(torch.float64)
        total += block.sum(0)
        largest = torch.maximum(largest, block.abs().amax(0))
    shift, squares = total / len(X), torch.zeros_like(total)
    for rows in spans(len(X), _BLOCK):
        squares += (X[rows].to(torch.float64) - shift).square().sum(0)
    scale = (squares / len(X)).sqrt()
    # As in `Standardisation`: a column that is constant up to rounding is only shifted.
    scale = torch.where(scale <= 1e-12 * largest.clamp_min(1e-300), torch.ones_like(scale), scale)
    shift[list(kept)], scale[list(kept)] = 0.0, 1.0
    return replace(targets, shift=shift, scale=scale)


def _sample(X: Tensor, scaling: Standardisation) -> Tensor:
    """At most 10,000 random rows in the model's units, float64; always the same ones."""
    if len(X) > _SAMPLE:
        rows = permutation(len(X), torch.Generator().manual_seed(0), X.device)[:_SAMPLE].sort().values
        X = X[rows]
    return scaling.inputs(X.to(torch.float64)).detach().clone()
