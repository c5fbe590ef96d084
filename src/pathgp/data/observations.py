"""Observations as a model sees them: checked, standardised, in the model's units."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from pathgp.compute.counts import stored_parts
from pathgp.compute.inputs import Array, read_vector
from pathgp.data.standardise import Standardisation


class Data:
    """Observations of a table or of a grid. A table has one side, with the columns of X.

    factors: the inputs of every side (p_i, d_i), standardised, in the dtype of the computations.  X_raw: the inputs of
    all observations (n, d) in the caller's units, which mean functions use.  y: (n,) float64, in the caller's units.
    noise_std: known standard deviations of the noise (n,) in the model's units, or None.  note: why the dtype is
    not the usual one, for the report of a fit.  basis: the basis functions of a trend (n, p) in the model's units,
    float64, or None.
    """

    factors: list[Tensor]
    X_raw: Tensor
    y: Tensor
    noise_std: Tensor | None
    scaling: Standardisation
    note: str = ""
    basis: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.factors[0].dtype

    @property
    def device(self) -> torch.device:
        return self.factors[0].device

    @property
    def widths(self) -> list[int]:
        """Columns of every side."""
        return [F.shape[1] for F in self.factors]

    @property
    def columns(self) -> int:
        return sum(self.widths)

    @abstractmethod
    def inputs(self, rows: Tensor | None = None) -> Tensor:
        """The standardised inputs (n, d) of all observations, or of some of them."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Self:
        """The same data in another dtype of the computations; that of results stays."""

    def subset(self, rows: Tensor) -> Self:
        """Some of the observations, under the same standardisation."""
        raise ValueError("a grid is learned from as a whole")

    def fingerprint(self) -> str:
        """A digest of shapes, dtypes and numbers: equal only for equal data."""
        digest = hashlib.sha256()
        for tensor in (*self.factors, self.X_raw, self.y, self.noise_std, self.basis):
            if tensor is not None:
                digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
                for part in stored_parts(tensor):
                    digest.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def targets(self, mean: Tensor) -> Tensor:
        """(y - mean) in the model's units (n,), in the dtype of the computations."""
        return self.scaling.targets(self.y - mean - self.trend_level()).to(self.dtype)

    def trend_level(self) -> Tensor:
        """The least-squares trend that the standardisation takes off y (n,), in the units of y; zero without one."""
        if self.basis is None or self.scaling.trend is None:
            return self.y.new_zeros(())
        return self.basis @ self.scaling.trend.shift


@dataclass(frozen=True)
class Observations(Data):
    """n rows of data; X: (n, d) standardised."""

    X_raw: Tensor
    y: Tensor
    X: Tensor
    noise_std: Tensor | None
    scaling: Standardisation
    note: str = ""
    basis: Tensor | None = None

    @classmethod
    def of(
        cls,
        X_raw: Tensor,
        y: Tensor,
        noise: Array | None,
        scaling: Standardisation,
        dtype: torch.dtype,
        basis: Tensor | None = None,
    ) -> Observations:
        """Standardise checked inputs and targets; X is copied, since the caller may write to it later."""
        noise_std = None
        if noise is not None:
            known = read_vector(noise, X_raw.shape[0], "noise", like=X_raw).detach()
            if bool((known < 0).any()):
                row = int(torch.nonzero(known < 0)[0])
                raise ValueError(f"noise is {float(known[row])} at row {row}: it holds standard deviations")
            noise_std = known / scaling.target_scale
        X = scaling.inputs(X_raw, dtype).detach().clone()
        return cls(X_raw.detach(), y.detach(), X, noise_std, scaling, basis=basis)

    @property
    def factors(self) -> list[Tensor]:  # type: ignore[override]
        return [self.X]

    def inputs(self, rows: Tensor | None = None) -> Tensor:
        return self.X if rows is None else self.X[rows]

    def to(self, dtype: torch.dtype) -> Observations:
        return replace(self, X=self.scaling.inputs(self.X_raw, dtype))

    def subset(self, rows: Tensor) -> Observations:
        noise_std = None if self.noise_std is None else self.noise_std[rows]
        basis = None if self.basis is None else self.basis[rows]
        return Observations(self.X_raw[rows], self.y[rows], self.X[rows], noise_std, self.scaling, basis=basis)
