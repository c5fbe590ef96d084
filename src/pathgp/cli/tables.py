"""Tables in files, read a block of rows at a time: CSV with the standard library, Parquet with pyarrow.

A cell is a text or a number; what a column means is decided by who asks, `numbers` or `texts`. Errors name the column
and the line of the file.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pathgp.cli.output import counted
from pathgp.data.tabular import are_dates, days

ROWS = 8192
MISSING = {"", "NA", "N/A", "NaN", "nan", "NULL", "null"}

_DELIMITERS = ",;\t|"
_SAMPLE = 1 << 16
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table: the cells of its columns by name, and where a row is in the file."""

    cells: dict[str, Sequence[Any]]
    place: Callable[[int], str]

    def __len__(self) -> int:
        return len(next(iter(self.cells.values())))


class Table(ABC):
    """A file with named columns."""

    names: list[str]
    path: Path

    @abstractmethod
    def blocks(self, names: Sequence[str]) -> Iterator[Block]:
        """The columns of these names, some rows at a time."""

    @property
    @abstractmethod
    def done(self) -> float:
        """Share of the file that has been read, between 0 and 1."""

    def require(self, name: str, option: str) -> str:
        """A name from the command line, if there is such a column."""
        if name in self.names:
            return name
        raise ValueError(f"{option}: {self.path.name} has no column {name!r}. Its columns are {listed(self.names)}")


def open_table(path: Path, header: bool = True) -> Table:
    """A CSV or Parquet file, told apart by their first bytes. Without a header columns are called 1, 2, ..."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a folder or a pipe: give a file")
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    return _Parquet(path) if is_parquet else _CSV(path, header)


def numbers(block: Block, name: str) -> NDArray[np.float64]:
    """A column of finite numbers, NaN where a cell is empty."""
    cells = block.cells[name]
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        values = np.array([_number(cell) for cell in cells])
        if np.isinf(values).any():
            row = int(np.argmax(np.isinf(values)))
            raise ValueError(_no_number(name, cells[row], block.place(row))) from None
    if np.isinf(values).any():
        row = int(np.argmax(np.isinf(values)))
        raise ValueError(f"column {name!r} is infinite in {block.place(row)}: correct it, or leave the cell empty")
    return values


def texts(block: Block, name: str) -> NDArray[np.object_]:
    """A column of categories as they are written, None where a cell is empty."""
    values = np.empty(len(block), dtype=object)
    cells = (str(cell).strip() if cell is not None else "" for cell in block.cells[name])
    values[:] = [None if cell in MISSING else cell for cell in cells]
    return values


def dates(block: Block, name: str) -> NDArray[np.float64]:
    """A column of dates in days since 1970, NaN where a cell is empty."""
    cells = block.cells[name]
    return days(name, cells if isinstance(cells, np.ndarray) else texts(block, name), block.place)


def holds_dates(block: Block, name: str) -> bool:
    """Whether all cells of a column that are not empty are dates as ISO 8601 writes them."""
    cells = block.cells[name]
    return not isinstance(cells, np.ndarray) and are_dates(cell for cell in texts(block, name) if cell is not None)


def is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where `numbers` or `texts` found nothing."""
    return np.isnan(values) if values.dtype.kind == "f" else np.array([value is None for value in values], dtype=bool)


def holds_text(block: Block, name: str) -> bool:
    """Whether at least half of the cells that are not empty are no numbers; those of another kind are then mistakes."""
    cells = block.cells[name]
    if isinstance(cells, np.ndarray):
        return False
    filled = [cell for cell in map(_stripped, cells) if cell not in MISSING]
    wrong = [cell for cell in filled if _number(cell) == np.inf]
    if wrong and all(map(_DECIMAL_COMMA.fullmatch, wrong)):
        row = next(row for row, cell in enumerate(cells) if _stripped(cell) == wrong[0])
        raise ValueError(_no_number(name, wrong[0], block.place(row)))
    return 2 * len(wrong) >= max(1, len(filled))


def require_columns(names: Sequence[str], table: Table) -> None:
    """Refuse a table that lacks a column of the model."""
    absent = [name for name in names if name not in table.names]
    if absent:
        raise ValueError(
            f"{table.path.name} lacks {listed(absent)}, which the model was fitted to. Its columns are "
            f"{listed(table.names)}"
        )


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names for a message, not too many."""
    shown = (
        list(map(str, names)) if len(names) <= most else [*map(str, names[: most - 1]), f"... ({len(names)} in all)"]
    )
    return ", ".join(shown)


class _CSV(Table):
    """Text in UTF-8, cells separated by commas, semicolons, tabs or bars, quoted or not."""

    def __init__(self, path: Path, header: bool) -> None:
        self.path, self._header = path, header
        self._file: BinaryIO | None = None
        self._size = path.stat().st_size
        with path.open("rb") as file:
            sample = file.read(_SAMPLE)
            # Names of many columns can be longer than the sample: the first line must be whole.
            while len(sample) < self._size and len(sample.splitlines()) < 3:
                sample += file.read(len(sample))
        lines = self._decoded(sample, whole=len(sample) == self._size).splitlines(keepends=True)
        lines = lines[:100] if len(sample) == self._size or len(lines) < 2 else lines[:-1][:100]
        if not any(line.strip() for line in lines):
            raise ValueError(f"{path} is empty: the first line should hold the names of the columns")
        self._delimiter = _delimiter(lines)
        first = [cell.strip() for cell in next(row for row in csv.reader(lines, delimiter=self._delimiter) if row)]
        if not header:
            self.names = [str(i + 1) for i in range(len(first))]
            return
        if all(_number(cell) != np.inf for cell in first):
            raise ValueError(
                f"the first line of {path} holds numbers in place of names: write the names of the columns above, or "
                "say --no-header and call the columns 1, 2, ..."
            )
        self.names = [name or f"#{i + 1}" for i, name in enumerate(first)]
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise ValueError(f"{path} has {Counter(self.names)[twice[0]]} columns called {twice[0]!r}: rename them")

    def blocks(self, names: Sequence[str]) -> Iterator[Block]:
        wanted = [(name, self.names.index(name)) for name in names]
        width = len(self.names)
        with self.path.open("rb") as self._file:
            reader = csv.reader(
                io.TextIOWrapper(self._file, encoding="utf-8-sig", newline=""), delimiter=self._delimiter
            )
            if self._header:
                next(row for row in reader if row)
            while True:
                start = reader.line_num
                try:
                    rows = list(itertools.islice(reader, ROWS))
                except UnicodeDecodeError as error:
                    raise ValueError(self._encoding(error)) from None
                except csv.Error as error:
                    raise ValueError(f"line {reader.line_num} of {self.path} is no CSV: {error}") from None
                if not rows:
                    return
                full = [row for row in rows if row]
                place = _line_of(rows, start)
                for number, row in enumerate(full):
                    if len(row) != width:
                        found = counted(len(row), "cell")
                        raise ValueError(f"{place(number)} of {self.path} has {found}, the first line has {width}")
                if full:
                    columns = list(zip(*full, strict=True))
                    yield Block({name: columns[i] for name, i in wanted}, place)

    @property
    def done(self) -> float:
        if self._file is None:
            return 0.0
        return 1.0 if self._file.closed else self._file.tell() / max(1, self._size)

    def _decoded(self, sample: bytes, whole: bool) -> str:
        try:
            return sample.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            # The sample may end in the middle of a character.
            if not whole and error.start >= len(sample) - 4:
                return sample[: error.start].decode("utf-8-sig")
            raise ValueError(self._encoding(error)) from None

    def _encoding(self, error: UnicodeDecodeError) -> str:
        return f"{self.path} is not text in UTF-8 ({error.reason}): save it as CSV in UTF-8, or give a Parquet file"


class _Parquet(Table):
    """Columns of numbers, truth values and texts; other kinds are read as they print."""

    def __init__(self, path: Path) -> None:
        try:
            from pyarrow import ArrowInvalid, parquet
        except ImportError:
            raise ValueError(f"{path} is a Parquet file, which needs pyarrow: pip install 'pathgp[parquet]'") from None
        self.path, self._read = path, 0
        try:
            self._file = parquet.ParquetFile(path)
        except ArrowInvalid as error:
            raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
        self.names = self._file.schema_arrow.names
        self._rows = self._file.metadata.num_rows

    def blocks(self, names: Sequence[str]) -> Iterator[Block]:
        start = 0
        for batch in self._file.iter_batches(batch_size=ROWS, columns=list(names)):
            self._read = start + len(batch)
            if len(batch):
                cells = {name: _cells(name, batch.column(name), start) for name in names}
                yield Block(cells, partial(_row_of, start))
            start += len(batch)

    @property
    def done(self) -> float:
        return self._read / max(1, self._rows)


def _cells(name: str, column: Any, start: int) -> Sequence[Any]:
    """The values of a column of pyarrow: an array of numbers (spans of time in days), or a list of texts."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_duration(kind):
        return days(name, column.to_numpy(zero_copy_only=False))  # type: ignore[return-value]
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        try:
            cells: NDArray[np.float64] = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            row, value = next((i, v) for i, v in enumerate(column.to_pylist()) if v is not None and int(float(v)) != v)
            raise ValueError(
                f"column {name!r} has {value} in {_row_of(start, row)}, a whole number beyond 2^53 that float64 cannot "
                "hold: subtract an offset, use a larger unit, or store times as timestamps"
            ) from None
        return cells  # type: ignore[return-value]
    return [None if value is None else str(value) for value in column.to_pylist()]


def _stripped(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _number(cell: Any) -> float:
    """The number in a cell, NaN where it is empty, infinity where it is no number."""
    text = _stripped(cell)
    if text in MISSING:
        return np.nan
    try:
        return float(text)
    except ValueError:
        return np.inf


def _no_number(name: str, cell: Any, place: str) -> str:
    if _DECIMAL_COMMA.fullmatch(_stripped(cell)):
        return f"column {name!r} has {cell!r} in {place}: write decimals with a point"
    return (
        f"column {name!r} holds numbers, but {cell!r} in {place}: correct it, leave the cell empty if the value is "
        "missing, or read the column as text with --categorical"
    )


def _delimiter(lines: list[str]) -> str:
    """The one that cuts all lines into the same number of cells, the largest such number."""
    best, most = ",", 1
    for delimiter in _DELIMITERS:
        try:
            widths = {len(row) for row in csv.reader(lines, delimiter=delimiter) if row}
        except csv.Error:
            continue
        if len(widths) == 1 and (width := widths.pop()) > most:
            best, most = delimiter, width
    if most == 1:
        # Rows of unequal length are told later, with the line; names are then the best guide.
        best = max(_DELIMITERS, key=lines[0].count)
    return best


def _line_of(rows: list[list[str]], start: int) -> Callable[[int], str]:
    """Where the rows that are not empty are in the file, the first of all at the line after ``start``."""

    def place(number: int) -> str:
        line, seen = start + 1, -1
        for row in rows:
            seen += bool(row)
            if seen == number:
                break
            # Quoted cells may go over several lines.
            line += 1 + sum(cell.count("\n") for cell in row)
        return f"line {line}"

    return place


def _row_of(start: int, number: int) -> str:
    return f"row {start + number + 1}"
