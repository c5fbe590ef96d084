"""Columns of a table as inputs of a model: numbers as they are, dates as days since 1970, durations as days, every
category of a text column as a column of 0 and 1; and kernels by name.

Shared by the door to scikit-learn and by the command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp import kernels
from pathgp.compute.inputs import as_float64

KERNELS: dict[str, Callable[[torch.Tensor], kernels.Kernel]] = {
    "squared-exponential": kernels.SquaredExponential,
    "matern-1/2": lambda lengthscale: kernels.Matern(0.5, lengthscale),
    "matern-3/2": lambda lengthscale: kernels.Matern(1.5, lengthscale),
    "matern-5/2": lambda lengthscale: kernels.Matern(2.5, lengthscale),
    "rational-quadratic": lambda lengthscale: kernels.RationalQuadratic(1.0, lengthscale),
}
# Up to this number of rows the exact gradient and exact variances are the cheapest ones, and nothing is random.
EXACT_ROWS = 1000
# A text column with more categories than this is assumed to hold names of rows.
MOST_CATEGORIES = 100

_DAY = timedelta(days=1)
_CLOCK = r"([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?( ?(Z|[+-]\d{2}(:?\d{2})?))?)?"
_ISO = re.compile(r"\d{4}-\d{2}(-\d{2}" + _CLOCK + ")?")
# Dates with an ambiguous order of day and month, or not in the format of ISO 8601.
_UNCLEAR = re.compile(r"(\d{1,2}[./-]\d{1,2}[./-]\d{4}|\d{4}[./]\d{1,2}[./]\d{1,2})([T ].*)?")


def kernel_of_columns(name: str, columns: int) -> kernels.Kernel:
    """The kernel of this name with a signal scale and a length scale per column."""
    return kernels.Scale(KERNELS[name](torch.ones(columns, dtype=torch.float64)), 1.0)


def row_number(row: int) -> str:
    return f"row {row}"


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are inputs of a model, the categories of text columns, and the columns with dates."""

    names: Sequence[Any]
    categories: dict[Any, list[Any]] = field(default_factory=dict)
    dates: Sequence[Any] = ()

    @property
    def inputs(self) -> list[str]:
        """The names of the columns of `matrix`: the column's own, for dates with their unit, or column=category."""
        titles: list[str] = []
        for name in self.names:
            if name in self.categories:
                titles += [f"{name}={category}" for category in self.categories[name]]
            else:
                titles.append(f"{name} (days)" if name in self.dates else str(name))
        return titles

    def matrix(
        self, values: Callable[[Any], NDArray[Any]], place: Callable[[int], str] = row_number
    ) -> NDArray[np.float64]:
        """The inputs (n, d) of a table with the columns values(name), dates in days; ``place(row)``: for messages."""
        parts: list[NDArray[np.float64]] = []
        for name in self.names:
            column = values(name)
            if name in self.categories:
                parts.append(_indicators(name, column, self.categories[name], place))
            else:
                parts.append(as_float64(column, f"column {name!r}").reshape(-1, 1))
        return np.concatenate(parts, 1)


def distinct(values: Iterable[Any]) -> list[Any]:
    """The categories of a column, in the order of their text."""
    return sorted(set(values), key=str)


def are_dates(values: Iterable[Any]) -> bool:
    """Whether there are values and all of them are dates: objects, or strings as in ISO 8601 (2024-03-31)."""
    values = list(values)
    return bool(values) and all(
        isinstance(value, date | np.datetime64) or (isinstance(value, str) and bool(_ISO.fullmatch(value)))
        for value in values
    )


def refuse_unclear_dates(name: Any, values: Iterable[Any], advice: str) -> None:
    """Raise ValueError if all strings of a column look like dates, but not in the format of ISO 8601."""
    texts = [value for value in values if isinstance(value, str)]
    if texts and all(map(_UNCLEAR.fullmatch, texts)):
        raise ValueError(
            f"column {name!r} seems to hold dates such as {texts[0]!r}: write them as 2024-03-31, {advice}"
        )


def days(name: Any, column: NDArray[Any], place: Callable[[int], str] = row_number) -> NDArray[np.float64]:
    """Dates as days since 1970, durations as days; NaN for missing ones.

    Times with a zone are converted to UTC; a column must not mix times with and without a zone.
    """
    if column.dtype.kind == "M":
        column = column - np.datetime64(0, "s")
    if column.dtype.kind == "m":
        return np.asarray(column / np.timedelta64(1, "D"), dtype=np.float64)
    if column.dtype.kind not in "OUT":
        raise ValueError(f"column {name!r} held dates at the fit and holds numbers now: their unit is not known")
    result = np.full(len(column), np.nan)
    zones = set()
    for row, value in enumerate(column):
        if value is None or value != value:
            continue
        try:
            instant = _instant(value)
        except (TypeError, ValueError):
            raise ValueError(f"column {name!r} holds dates, but {value!r} in {place(row)}: correct it") from None
        zones.add(instant.tzinfo is not None)
        if len(zones) > 1:
            raise ValueError(f"column {name!r} has times with and without a zone, as {value!r} in {place(row)}")
        epoch = datetime(1970, 1, 1, tzinfo=UTC if instant.tzinfo is not None else None)
        result[row] = (instant - epoch) / _DAY
    return result


def _instant(value: Any) -> datetime:
    if isinstance(value, str) and _ISO.fullmatch(value):
        return datetime.fromisoformat(f"{value}-01" if len(value) == 7 else value.replace(" Z", "Z"))
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    raise TypeError(f"{value!r} is not a date")


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
