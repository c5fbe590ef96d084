"""Columns of a table as inputs of a model: numbers as they are, every category of a text column as a column of 0 and 1.

Shared by the door to scikit-learn and by the command line, and so are the kernels that go by a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp import kernels

KERNELS: dict[str, Callable[[torch.Tensor], kernels.Kernel]] = {
    "squared-exponential": kernels.SquaredExponential,
    "matern-1/2": lambda lengthscale: kernels.Matern(0.5, lengthscale),
    "matern-3/2": lambda lengthscale: kernels.Matern(1.5, lengthscale),
    "matern-5/2": lambda lengthscale: kernels.Matern(2.5, lengthscale),
    "rational-quadratic": lambda lengthscale: kernels.RationalQuadratic(1.0, lengthscale),
}
# Up to so many rows the exact gradient and exact variances are the cheapest ones, and nothing is random.
EXACT_ROWS = 1000
# More categories than this are rather names of rows than a property of them.
MOST_CATEGORIES = 100


def kernel_of_columns(name: str, columns: int) -> kernels.Kernel:
    """The kernel of this name with a signal scale and a length scale per column."""
    return kernels.Scale(KERNELS[name](torch.ones(columns, dtype=torch.float64)), 1.0)


def row_number(row: int) -> str:
    return f"row {row}"


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are the inputs of a model, and the categories of those that hold text."""

    names: Sequence[Any]
    categories: dict[Any, list[Any]] = field(default_factory=dict)

    @property
    def inputs(self) -> list[str]:
        """The names of the columns of `matrix`: the column's own, or column=category."""
        return [
            title
            for name in self.names
            for title in ([f"{name}={c}" for c in self.categories[name]] if name in self.categories else [str(name)])
        ]

    def matrix(
        self, values: Callable[[Any], NDArray[Any]], place: Callable[[int], str] = row_number
    ) -> NDArray[np.float64]:
        """The inputs (n, d) of a table whose columns are values(name); ``place`` tells where a row is."""
        parts: list[NDArray[np.float64]] = []
        for name in self.names:
            column = values(name)
            if name in self.categories:
                parts.append(_indicators(name, column, self.categories[name], place))
            else:
                parts.append(column.astype(np.float64).reshape(-1, 1))
        return np.concatenate(parts, 1)


def distinct(values: Iterable[Any]) -> list[Any]:
    """The categories of a column, in the order of their text."""
    return sorted(set(values), key=str)


def _indicators(name: Any, column: NDArray[Any], known: list[Any], place: Callable[[int], str]) -> NDArray[np.float64]:
    numbers = {category: i for i, category in enumerate(known)}
    codes = np.fromiter((numbers.get(value, -1) for value in column), dtype=np.int64, count=len(column))
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        raise ValueError(
            f"column {name!r} has {column[row]!r} in {place(row)}, which is none of its categories at the fit: "
            + ", ".join(map(repr, known))
        )
    return np.eye(len(known))[codes]
