"""Convert the columns of a table to inputs of a model: dates to days since 1970, time spans to days, and text to one
column of 0 and 1 per category.

The scikit-learn door and the command line share it, and the kernels with a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from numbers import Real
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
# The kernel of a table for which none is named.
DEFAULT_KERNEL = "matern-5/2"
# A text column with more distinct values than this probably names the rows.
MOST_CATEGORIES = 100
# As does one with a value for less than two rows on average, in more rows than this.
_FEW_ROWS = 20

_CLOCK = r"([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?( ?(Z|[+-]\d{2}(:?\d{2})?))?)?"
_ISO = re.compile(r"\d{4}-\d{2}(-\d{2}" + _CLOCK + ")?")
# What a column of objects may hold to be one of numbers: tables of databases come with Decimal.
_NUMBERS = (Real, Decimal, np.bool_)
# Dates whose order of day and month is ambiguous, or differs from ISO 8601.
_UNCLEAR = re.compile(r"(\d{1,2}[./-]\d{1,2}[./-]\d{4}|\d{4}[./]\d{1,2}[./]\d{1,2})([T ].*)?")


def kernel_of_columns(name: str, columns: int) -> kernels.Kernel:
    """Return the kernel of this name with a signal scale and one length scale per column."""
    return kernels.Scale(KERNELS[name](torch.ones(columns, dtype=torch.float64)), 1.0)


@dataclass(frozen=True)
class Columns:
    """The input columns of a table, the categories of its text columns, and the names of its date columns.

    date_kinds: what the date columns hold, as `find_date_kind` returns it; columns without a kind are not checked.
    """

    names: Sequence[Any]
    categories: dict[Any, list[Any]] = field(default_factory=dict)
    dates: Sequence[Any] = ()
    date_kinds: dict[Any, str] = field(default_factory=dict)

    @property
    def texts(self) -> Sequence[Any]:
        """The names of the text columns."""
        return list(self.categories)

    @property
    def inputs(self) -> list[str]:
        """The names of the columns of `matrix`: the name, "name (days)" for dates, or "name=category"."""
        titles: list[str] = []
        for name in self.names:
            if name in self.categories:
                titles += [f"{name}={category}" for category in self.categories[name]]
            else:
                titles.append(f"{name} (days)" if name in self.dates else str(name))
        return titles

    def require_date_kind(self, name: Any, column: NDArray[Any]) -> None:
        """Refuse a date column of another kind than at the fit: its days would be shifted or mean something else."""
        kind, now = self.date_kinds.get(name), find_date_kind(column)
        if kind is not None and now is not None and kind != now:
            raise ValueError(f"column {name!r} held {kind} at the fit and holds {now} now: convert it as at the fit")

    def matrix(
        self, values: Callable[[Any], NDArray[Any]], name_row: Callable[[int], str] = "row {}".format
    ) -> NDArray[np.float64]:
        """Return the inputs (n, d) of a table with columns values(name), dates in days; ``name_row``: for errors."""
        parts: list[NDArray[np.float64]] = []
        for name in self.names:
            column = values(name)
            if name not in self.categories:
                parts.append(as_float64(column, f"column {name!r}").reshape(-1, 1))
                continue
            known = self.categories[name]
            numbers = {category: i for i, category in enumerate(known)}
            codes = np.array([numbers.get(value, -1) for value in column], dtype=np.int64)
            if (codes < 0).any():
                row = int(np.argmax(codes < 0))
                raise ValueError(
                    f"column {name!r} has {column[row]!r} in {name_row(row)}, which is none of its categories at the "
                    f"fit: {', '.join(map(repr, known))}"
                )
            parts.append(np.eye(len(known))[codes])
        return np.concatenate(parts, 1)


def is_frame(X: Any) -> bool:
    """Whether X is a frame of pandas or polars."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def split_columns(X: Any) -> dict[Any, NDArray[Any]]:
    """Columns of a frame by name, or of an array of times by number; empty for other arrays."""
    if not is_frame(X):
        is_time = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "mM"
        return dict(enumerate(X.T)) if is_time else {}
    if not len(X.columns):
        raise ValueError("X has no columns")
    names = list(X.columns)
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two columns have the name {repeated!r}: rename one of them")
    for name in names:
        dtype = str(X[name].dtype).lower()
        if dtype.startswith("datetime") and "," in dtype:
            raise ValueError(f"column {name!r} has times with a zone: convert them, as with .dt.tz_convert(None)")
    return {name: X[name].to_numpy() for name in names}


def find_columns(X: Any) -> Columns:
    """Find the text and date columns of a frame, or of an array of times."""
    columns = split_columns(X)
    categories: dict[Any, list[Any]] = {}
    dates: list[Any] = []
    for name, values in columns.items():
        is_category = is_frame(X) and str(X[name].dtype).lower().startswith(("categor", "enum"))
        if values.dtype.kind in "mM":
            dates.append(name)
        if not (is_category or values.dtype.kind in "OUT"):
            continue
        missing = [row for row, value in enumerate(values) if is_missing(value)]
        if missing:
            raise ValueError(f"column {name!r} has no value in row {missing[0]}: fill it or leave the row out")
        if not is_category and all(isinstance(value, _NUMBERS) for value in values):
            continue
        if not is_category and are_dates(values):
            dates.append(name)
        else:
            advice = "leave it out, convert dates with pandas.to_datetime, or give it the dtype 'category'"
            categories[name] = find_categories(name, values.tolist(), is_category, advice)
    kinds = {name: kind for name in dates if (kind := find_date_kind(columns[name])) is not None}
    return Columns(list(columns), categories, dates, kinds)


def convert_columns(X: Any, columns: Columns) -> NDArray[np.float64]:
    """Convert a frame or an array of times to numbers (n, d), in the same way as the table that was fitted."""
    cells = split_columns(X)
    if not cells:
        given = f"{type(X).__name__} of {np.asarray(X).dtype}"
        raise ValueError(f"X was fitted as a frame or as times, got {given}: give a frame with the same columns")

    def values(name: Any) -> NDArray[Any]:
        column = cells[name]
        if name in columns.dates:
            columns.require_date_kind(name, column)
            column = days(name, column)
            if np.isnan(column).any():
                raise ValueError(f"column {name!r} has no time in row {int(np.isnan(column).argmax())}: fill it in")
        elif column.dtype.kind in "mM":
            raise ValueError(f"column {name!r} holds dates and held something else at the fit")
        return column

    return columns.matrix(values)


def find_categories(name: Any, values: Iterable[Any], is_category: bool, advice: str) -> list[Any]:
    """Return the distinct values of a text column, sorted as text.

    Refuse dates that are not in ISO 8601, more than `MOST_CATEGORIES` values, and less than two rows per value on
    average, unless the user says that the column holds categories (``is_category``). advice: what the user can do
    instead.
    """
    values = list(values)
    try:
        categories = distinct(values)
    except TypeError:
        raise TypeError(f"column {name!r} holds objects that are neither numbers, text nor dates") from None
    if is_category:
        return categories
    require_clear_dates(name, categories, advice)
    if len(categories) > MOST_CATEGORIES or 2 * len(categories) > len(values) > _FEW_ROWS:
        count, example = f"{len(categories):,} different values", categories[0]
        raise ValueError(f"column {name!r} holds text, {count} such as {example!r}: turn it into numbers, {advice}")
    return categories


def require_clear_dates(name: Any, values: Iterable[Any], advice: str) -> None:
    """Refuse texts that are dates, but not in ISO 8601; advice: what the user can do instead."""
    texts = [value for value in values if isinstance(value, str)]
    if texts and all(map(_UNCLEAR.fullmatch, texts)):
        raise ValueError(
            f"column {name!r} seems to hold dates such as {texts[0]!r}: write them as 2024-03-31, {advice}"
        )


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values, sorted as text."""
    return sorted(set(values), key=str)


def are_dates(values: Iterable[Any]) -> bool:
    """Whether there are values and all are dates: objects, or texts in ISO 8601 (2024-03-31)."""
    cells = list(values)
    return bool(cells) and all(
        isinstance(cell, date | np.datetime64) or (isinstance(cell, str) and _ISO.fullmatch(cell)) for cell in cells
    )


def is_missing(value: Any) -> bool:
    """Whether a cell is None, NaN, NaT or pandas.NA."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        # pandas.NA has no truth value.
        return True


def find_date_kind(column: NDArray[Any]) -> str | None:
    """What a date column holds, in words, by its type or its first cell; None for missing values and other columns."""
    if column.dtype.kind == "m":
        return "time spans"
    if column.dtype.kind == "M":
        return "times without a zone"
    first = next((value for value in column if not is_missing(value)), None) if column.dtype.kind in "OUT" else None
    try:
        return None if first is None else f"times {'without' if _instant(first).tzinfo is None else 'with'} a zone"
    except (TypeError, ValueError):
        return None


def days(name: Any, column: NDArray[Any], name_row: Callable[[int], str] = "row {}".format) -> NDArray[np.float64]:
    """Convert dates of any unit or form to days since 1970, time spans to days; NaN for missing values.

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
        if is_missing(value):
            continue
        try:
            instant = _instant(value)
        except (TypeError, ValueError):
            raise ValueError(f"column {name!r} holds dates, but {value!r} in {name_row(row)}: correct it") from None
        zones.add(instant.tzinfo is not None)
        if len(zones) > 1:
            raise ValueError(f"column {name!r} has times with and without a zone, as {value!r} in {name_row(row)}")
        epoch = datetime(1970, 1, 1, tzinfo=UTC if instant.tzinfo is not None else None)
        result[row] = (instant - epoch) / timedelta(days=1)
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
