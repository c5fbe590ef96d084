"""Consecutive rows of a table, and the conversion of their cells.

A cell is a text or a number; the kind of a column ("number", "text" or "date") decides how it is converted. Errors name
the column and the line of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pathgp.data.tabular import are_dates, days

MISSING = {"", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null"}

_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+([eE][+-]?\d+)?\s*")
# Numbers with a point, which are ambiguous where the comma separates decimals.
_POINT = re.compile(r"\s*[+-]?(\d+\.\d+|\d{1,3}(\.\d{3})+,\d+)([eE][+-]?\d+)?\s*")


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table.

    cells: by column name.  copied: texts of the columns to copy into the output.  unit, row_numbers: how messages name
    the rows, as "line 3".  progress: the share of the file that has been read.  originals: by column name the cells
    before they became numbers, or None for texts: a text column shows whole numbers and truth values as they are.
    """

    cells: Mapping[str, Sequence[Any]]
    copied: Sequence[Sequence[str]]
    unit: str
    row_numbers: Sequence[int]
    progress: float
    originals: Mapping[str, Sequence[Any]] | None = None

    def __len__(self) -> int:
        return len(self.row_numbers)

    def name_row(self, row: int) -> str:
        return f"{self.unit} {self.row_numbers[row]}"

    def convert(self, kinds: Mapping[str, str]) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_], str]:
        """Convert columns of these kinds.

        Returns the values by name, the mask of rows with a missing value, and a sentence on the first of them.
        """
        converters = {"number": self.numbers, "text": self.texts, "date": self.dates}
        values = {name: converters[kind](name) for name, kind in kinds.items()}
        missing, first = np.zeros(len(self), dtype=bool), ""
        for name, column in values.items():
            is_empty = np.isnan(column) if column.dtype.kind == "f" else np.array([cell is None for cell in column])
            if is_empty.any() and not first:
                first = f"column {name!r} has no value in {self.name_row(int(is_empty.argmax()))}"
            missing |= is_empty
        return values, missing, first

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of finite numbers, NaN for empty cells."""
        cells = self.cells[name]
        try:
            if not isinstance(cells, np.ndarray) and any("_" in cell for cell in cells if cell):
                raise ValueError("NumPy would read 1_2 as 12")
            values = np.array(cells, dtype=np.float64)
        except ValueError:
            values = np.array([as_number(cell) for cell in cells])
        if np.isinf(values).any():
            row = int(np.isinf(values).argmax())
            raise ValueError(_not_a_number(name, cells[row], self.name_row(row)))
        return values

    def texts(self, name: str) -> NDArray[np.object_]:
        """A column of texts, None for empty cells."""
        values = np.empty(len(self), dtype=object)
        cells = (self.cells if self.originals is None else self.originals)[name]
        values[:] = [None if (text := as_text(cell)) in MISSING else text for cell in cells]
        return values

    def dates(self, name: str) -> NDArray[np.float64]:
        """A column of dates in days since 1970, NaN for empty cells."""
        cells = self.cells[name]
        return days(name, cells if isinstance(cells, np.ndarray) else self.texts(name), self.name_row)

    def with_points(self) -> Block:
        """The same block with decimal points in place of decimal commas."""
        for name, column in self.cells.items():
            for row, cell in enumerate(column):
                if _POINT.fullmatch(cell):
                    number = f"column {name!r} has {cell!r} in {self.name_row(row)}"
                    raise ValueError(f"{number}: with --decimal-comma write 1234,5 and not 1.234,5 or 1234.5")
        return replace(self, cells={name: list(map(_with_point, column)) for name, column in self.cells.items()})

    def kind(self, name: str) -> str:
        """Guess the kind of a column: "date" if all cells are ISO 8601 dates, "text" if half or more are no numbers."""
        cells = self.cells[name]
        if isinstance(cells, np.ndarray):
            return "number"
        filled = [text for text in map(as_text, cells) if text not in MISSING]
        if are_dates(filled):
            return "date"
        wrong = [text for text in filled if as_number(text) == np.inf]
        if wrong and all(map(_DECIMAL_COMMA.fullmatch, wrong)):
            row = next(row for row, cell in enumerate(cells) if as_text(cell) == wrong[0])
            raise ValueError(_not_a_number(name, wrong[0], self.name_row(row)))
        return "text" if 2 * len(wrong) >= max(1, len(filled)) else "number"


def as_text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def as_number(cell: Any) -> float:
    """The number in a cell, NaN for an empty cell, infinity for a cell without a number."""
    text = as_text(cell)
    try:
        return np.nan if text in MISSING else _parse(text)
    except ValueError:
        return np.inf


def _parse(text: str) -> float:
    """The number that a text holds; ValueError if it holds none, or an identifier such as 1_2, which Python accepts."""
    if "_" in text:
        raise ValueError(f"{text!r} is no number")
    return float(text)


def _with_point(cell: str) -> str:
    return cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell


def _not_a_number(name: str, cell: Any, row: str) -> str:
    if _DECIMAL_COMMA.fullmatch(as_text(cell)):
        decimals = "write thousands without a comma and decimals with a point, or use --decimal-comma"
        return f"column {name!r} has {cell!r} in {row}: {decimals}"
    try:
        _parse(as_text(cell))
    except ValueError:
        return (
            f"column {name!r} holds numbers, but {cell!r} in {row}: correct it, leave the cell empty if the value is "
            "missing, or read the column as text with --categorical"
        )
    return f"column {name!r} is infinite in {row}: correct it, or leave the cell empty"
