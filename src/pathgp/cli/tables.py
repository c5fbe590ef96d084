"""Read tables from files in blocks of rows: CSV with the standard library, Parquet with pyarrow.

A cell is a text or a number; the kind of a column ("number", "text" or "date") decides how it is converted. Errors name
the column and the line of the file.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from pathgp.cli.output import showing_progress
from pathgp.data.tabular import are_dates, days
from pathgp.html.numbers import count

ROWS = 8192
MISSING = {"", "NA", "N/A", "NaN", "nan", "NULL", "null"}

_DELIMITERS = ",;\t|"
_SAMPLE_LINES = 100
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table.

    cells: by column name.  unit, row_numbers: how messages name the rows, as "line 3".  progress: the share of
    the file that has been read.
    """

    cells: Mapping[str, Sequence[Any]]
    unit: str
    row_numbers: Sequence[int]
    progress: float

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
            values = np.array(cells, dtype=np.float64)
        except ValueError:
            values = np.array([_number(cell) for cell in cells])
        if np.isinf(values).any():
            row = int(np.isinf(values).argmax())
            raise ValueError(_not_a_number(name, cells[row], self.name_row(row)))
        return values

    def texts(self, name: str) -> NDArray[np.object_]:
        """A column of texts, None for empty cells."""
        values = np.empty(len(self), dtype=object)
        values[:] = [None if (text := _text(cell)) in MISSING else text for cell in self.cells[name]]
        return values

    def dates(self, name: str) -> NDArray[np.float64]:
        """A column of dates in days since 1970, NaN for empty cells."""
        cells = self.cells[name]
        return days(name, cells if isinstance(cells, np.ndarray) else self.texts(name), self.name_row)

    def kind(self, name: str) -> str:
        """Guess the kind of a column: "date" if all cells are ISO 8601 dates, "text" if half or more are no numbers."""
        cells = self.cells[name]
        if isinstance(cells, np.ndarray):
            return "number"
        filled = [text for text in map(_text, cells) if text not in MISSING]
        if are_dates(filled):
            return "date"
        wrong = [text for text in filled if _number(text) == np.inf]
        if wrong and all(map(_DECIMAL_COMMA.fullmatch, wrong)):
            row = next(row for row, cell in enumerate(cells) if _text(cell) == wrong[0])
            raise ValueError(_not_a_number(name, wrong[0], self.name_row(row)))
        return "text" if 2 * len(wrong) >= max(1, len(filled)) else "number"


@dataclass(frozen=True)
class Table:
    """A file with named columns. blocks: a function that reads columns by name, `ROWS` rows at a time."""

    path: Path
    names: list[str]
    blocks: Callable[[Sequence[str]], Iterator[Block]]

    def require(self, name: str, option: str) -> str:
        """Return a name from the command line if there is such a column."""
        if name in self.names:
            return name
        raise ValueError(f"{option}: {self.path.name} has no column {name!r}. Its columns are {join_names(self.names)}")

    def require_columns(self, names: Sequence[str]) -> None:
        """Refuse a table without all columns of the model."""
        absent = [name for name in names if name not in self.names]
        if absent:
            raise ValueError(
                f"{self.path.name} lacks {join_names(absent)}, which the model was fitted to. Its columns are "
                f"{join_names(self.names)}"
            )


def open_table(path: Path, header: bool = True) -> Table:
    """Open a CSV or Parquet file, by its first bytes. Without a header the columns are called 1, 2, ..."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a folder or a pipe: give a file")
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    return _open_parquet(path) if is_parquet else _open_csv(path, header)


def read_blocks(table: Table, names: Sequence[str], quiet: bool, action: str = "read") -> Iterator[Block]:
    """Read the blocks of a table and show a progress bar of those that have been processed."""
    rows = 0
    bar_format = "{desc}: {percentage:3.0f}%|{bar}| {unit} [{elapsed}<{remaining}]"
    hidden = not showing_progress(quiet)
    with tqdm(total=1.0, desc=action, bar_format=bar_format, leave=False, unit="0 rows", disable=hidden) as bar:
        for block in table.blocks(names):
            yield block
            rows += len(block)
            bar.unit = f"{rows:,} rows"
            bar.update(block.progress - bar.n)


def join_names(names: Sequence[str], most: int = 12) -> str:
    """Join the first names for a message."""
    shown = names if len(names) <= most else [*names[: most - 1], f"... ({len(names)} in all)"]
    return ", ".join(map(str, shown))


def _open_csv(path: Path, header: bool) -> Table:
    """Open text in UTF-8, cells separated by commas, semicolons, tabs or bars, quoted or not."""
    with _explaining(path), path.open(encoding="utf-8-sig", newline="") as file:
        lines = list(itertools.islice(file, _SAMPLE_LINES))
    if not any(line.strip() for line in lines):
        raise ValueError(f"{path} is empty: the first line should hold the names of the columns")
    delimiter = _delimiter(lines)
    first = [cell.strip() for cell in next(row for row in csv.reader(lines, delimiter=delimiter) if row)]
    if header and all(_number(cell) != np.inf for cell in first):
        raise ValueError(
            f"the first line of {path} holds numbers in place of names: write the names of the columns above, or "
            "use --no-header and call the columns 1, 2, ..."
        )
    names = [(name or f"#{i + 1}") if header else str(i + 1) for i, name in enumerate(first)]
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{path} has {times} columns called {name!r}: rename them")

    def blocks(chosen: Sequence[str]) -> Iterator[Block]:
        size = path.stat().st_size
        with path.open("rb") as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            rows = _csv_rows(path, csv.reader(text, delimiter=delimiter), len(names), header)
            while numbered := list(itertools.islice(rows, ROWS)):
                columns = list(zip(*(row for _, row in numbered), strict=True))
                cells = {name: columns[names.index(name)] for name in chosen}
                yield Block(cells, "line", [line for line, _ in numbered], file.tell() / size)

    return Table(path, names, blocks)


def _csv_rows(path: Path, reader: Any, width: int, header: bool) -> Iterator[tuple[int, list[str]]]:
    """Rows below the header that are not blank, with the number of the line where they begin."""
    line = 1
    with _explaining(path, reader):
        for row in reader:
            if row and not header:
                if len(row) != width:
                    cells = count(len(row), "cell")
                    raise ValueError(f"line {line} of {path} has {cells}, the first line has {width}")
                yield line, row
            header = header and not row
            line = reader.line_num + 1


@contextmanager
def _explaining(path: Path, reader: Any = None) -> Iterator[None]:
    """Name the file in the errors of reading it."""
    try:
        yield
    except UnicodeDecodeError as error:
        advice = "save it as CSV in UTF-8, or give a Parquet file"
        raise ValueError(f"{path} is not text in UTF-8 ({error.reason}): {advice}") from None
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} of {path} is no CSV: {error}") from None


def _open_parquet(path: Path) -> Table:
    """Open columns of numbers, truth values, time spans and texts; other types are converted to text."""
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise ValueError(f"{path} is a Parquet file, which needs pyarrow: pip install 'pathgp[parquet]'") from None
    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None

    def blocks(chosen: Sequence[str]) -> Iterator[Block]:
        start = 0
        for batch in file.iter_batches(batch_size=ROWS, columns=list(chosen)):
            end = start + len(batch)
            if len(batch):
                cells = {name: _cells(name, batch.column(name), start) for name in chosen}
                yield Block(cells, "row", range(start + 1, end + 1), end / file.metadata.num_rows)
            start = end

    return Table(path, file.schema_arrow.names, blocks)


def _cells(name: str, column: Any, start: int) -> Any:
    """Convert a column of pyarrow to an array of numbers (time spans in days), or to a list of texts."""
    from pyarrow import ArrowInvalid, float64, types

    kind = column.type
    if types.is_duration(kind):
        return days(name, column.to_numpy(zero_copy_only=False))
    if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
        return [None if value is None else str(value) for value in column.to_pylist()]
    try:
        return column.cast(float64()).to_numpy(zero_copy_only=False)
    except ArrowInvalid:
        row, value = next((i, v) for i, v in enumerate(column.to_pylist()) if v is not None and int(float(v)) != v)
        raise ValueError(
            f"column {name!r} has {value} in row {start + row + 1}, a whole number beyond 2^53 that float64 cannot "
            "hold: subtract an offset, use a larger unit, or store times as timestamps"
        ) from None


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _number(cell: Any) -> float:
    """The number in a cell, NaN for an empty cell, infinity for a cell without a number."""
    text = _text(cell)
    try:
        return np.nan if text in MISSING else float(text)
    except ValueError:
        return np.inf


def _not_a_number(name: str, cell: Any, row: str) -> str:
    if _DECIMAL_COMMA.fullmatch(_text(cell)):
        return f"column {name!r} has {cell!r} in {row}: write decimals with a point"
    try:
        float(cell)
    except ValueError:
        return (
            f"column {name!r} holds numbers, but {cell!r} in {row}: correct it, leave the cell empty if the value is "
            "missing, or read the column as text with --categorical"
        )
    return f"column {name!r} is infinite in {row}: correct it, or leave the cell empty"


def _delimiter(lines: list[str]) -> str:
    """The delimiter that splits all lines into the same, largest number of cells."""
    best, most = ",", 1
    for delimiter in _DELIMITERS:
        try:
            widths = {len(row) for row in csv.reader(lines, delimiter=delimiter) if row}
        except csv.Error:
            continue
        if len(widths) == 1 and (width := widths.pop()) > most:
            best, most = delimiter, width
    # Rows of unequal length are refused later, with their line; the header is then the best guide.
    return best if most > 1 else max(_DELIMITERS, key=lines[0].count)
