"""A column of SMILES as the inputs of a model: the options ``--smiles`` and ``--fingerprint``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pathgp.cli.output import UsageError
from pathgp.cli.tables import Table

_FINGERPRINT = ("fingerprint", "radius", "size")
# Options that choose or describe columns, which a model of molecules does not use.
_OTHERS = ("inputs", "ignore", "categorical", "kernel")


@dataclass(frozen=True)
class Molecules:
    """One column of SMILES, in place of `tabular.Columns`; its inputs are Morgan fingerprints."""

    column: str
    radius: int = 2
    size: int = 2048
    counts: bool = True

    @property
    def names(self) -> list[str]:
        return [self.column]

    @property
    def texts(self) -> list[str]:
        return [self.column]

    @property
    def inputs(self) -> list[str]:
        """The names of the columns of `matrix`."""
        return [f"{self.column}:{number}" for number in range(self.size)]

    def matrix(self, values: Callable[[Any], NDArray[Any]], name_row: Callable[[int], str] = "row {}".format) -> Any:
        """The fingerprints (n, size), a sparse matrix; errors name the row and the SMILES."""
        from pathgp.chem import fingerprints

        texts = values(self.column).tolist()
        options: dict[str, Any] = {"radius": self.radius, "size": self.size, "counts": self.counts}
        return fingerprints(texts, **options, sparse=True, name_row=name_row).astype(np.float64)

    def about(self) -> dict[str, Any]:
        """What a model file keeps."""
        return asdict(self)


def find_molecules(options: argparse.Namespace, table: Table) -> Molecules | None:
    """The column of --smiles; None without this option, when those of fingerprints are refused."""
    given = {name: value for name in _FINGERPRINT if (value := getattr(options, name)) is not None}
    if options.smiles is None:
        if given:
            raise UsageError(f"--{next(iter(given))} needs --smiles, the column of SMILES")
        return None
    for name in _OTHERS:
        if getattr(options, name):
            raise UsageError(f"--{name} does not go with --smiles: the inputs are the fingerprints of one column")
    column, is_counted = table.require(options.smiles, "--smiles"), given.pop("fingerprint", "counts") == "counts"
    return Molecules(column, counts=is_counted, **given)
