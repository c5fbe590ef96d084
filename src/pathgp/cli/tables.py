"""Read tables in blocks of rows: CSV with the standard library, Parquet with pyarrow."""

from __future__ import annotations

import csv
import io
import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from pathgp.cli.blocks import Block, as_number, as_text
from pathgp.cli.output import showing_progress
from pathgp.cli.sources import Source, open_source
from pathgp.data.tabular import days
from pathgp.html.numbers import count

ROWS = 8192

_DELIMITERS = ",;\t|"
_SAMPLE_LINES = 100


@dataclass(frozen=True)
class Table:
    """A table with named columns.

    name: for messages.  blocks: a function that reads `ROWS` rows at a time, given the names of the columns to convert,
    and of those to copy.
    """

    name: str
    names: list[str]
    blocks: Callable[[Sequence[str], Sequence[str]], Iterator[Block]]

    def require(self, name: str, option: str) -> str:
        """Return a name from the command line if there is such a column."""
        if name in self.names:
            return name
        hint = ". Commas, semicolons, tabs or bars separate columns" if len(self.names) == 1 else ""
        known = f"{self.name} has no column {name!r}. Its columns are {join_names(self.names)}"
        raise ValueError(f"{option}: {known}{hint}")

    def require_columns(self, names: Sequence[str]) -> None:
        """Refuse a table without all columns of the model."""
        absent = [name for name in names if name not in self.names]
        if absent:
            raise ValueError(
                f"{self.name} lacks {join_names(absent)}, which the model was fitted to. Its columns are "
                f"{join_names(self.names)}"
            )


def open_table(path: Path, header: bool = True, decimal_comma: bool = False) -> Table:
    """Open a CSV or Parquet file, by its first bytes; "-" is standard input.

    Without a header the columns are called 1, 2, ...  decimal_comma: the numbers of a CSV file are written as 1,5.
    """
    source = open_source(path)
    is_parquet = source.mark() == b"PAR1"
    table = _open_parquet(source) if is_parquet else _open_csv(source, header, decimal_comma)
    name, times = Counter(table.names).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{table.name} has {times} columns called {name!r}: rename them")
    return table


def read_blocks(
    table: Table, names: Sequence[str], quiet: bool, action: str = "read", copied: Sequence[str] = ()
) -> Iterator[Block]:
    """Read the blocks of a table and show a progress bar of those that have been processed."""
    rows = 0
    bar_format = "{desc}: {percentage:3.0f}%|{bar}| {unit} [{elapsed}<{remaining}]"
    hidden = not showing_progress(quiet)
    with tqdm(total=1.0, desc=action, bar_format=bar_format, leave=False, unit="0 rows", disable=hidden) as bar:
        for block in table.blocks(names, copied):
            yield block
            rows += len(block)
            bar.unit = f"{rows:,} rows"
            bar.update(block.progress - bar.n)


def join_names(names: Sequence[str], most: int = 12) -> str:
    """Join the first names for a message."""
    shown = names if len(names) <= most else [*names[: most - 1], f"... ({len(names)} in all)"]
    return ", ".join(map(str, shown))


def _open_csv(source: Source, header: bool, decimal_comma: bool) -> Table:
    """Open text in UTF-8, cells separated by commas, semicolons, tabs or bars, quoted or not."""
    with _explaining(source), source.open() as (file, _), io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        lines = list(itertools.islice(text, _SAMPLE_LINES))
    if not any(line.strip() for line in lines):
        raise ValueError(f"{source.name} is empty: the first line should hold the names of the columns")
    delimiter = _delimiter(lines)
    first = [cell.strip() for cell in next(row for row in csv.reader(lines, delimiter=delimiter) if row)]
    if header and all(as_number(cell) != np.inf for cell in first):
        raise ValueError(
            f"the first line of {source.name} holds numbers in place of names: write the names of the columns above, "
            "or use --no-header and call the columns 1, 2, ..."
        )
    names = [(name or f"#{i + 1}") if header else str(i + 1) for i, name in enumerate(first)]

    def blocks(chosen: Sequence[str], copied: Sequence[str]) -> Iterator[Block]:
        with source.open() as (file, share_read), io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            rows = _csv_rows(source, csv.reader(text, delimiter=delimiter), len(names), header)
            while numbered := list(itertools.islice(rows, ROWS)):
                columns = dict(zip(names, zip(*(row for _, row in numbered), strict=True), strict=True))
                cells, texts = {name: columns[name] for name in chosen}, [columns[name] for name in copied]
                block = Block(cells, texts, "line", [line for line, _ in numbered], share_read())
                yield block.with_points() if decimal_comma else block

    return Table(source.name, names, blocks)


def _csv_rows(source: Source, reader: Any, width: int, header: bool) -> Iterator[tuple[int, list[str]]]:
    """Rows below the header that are not blank, with the number of the line where they begin."""
    line = 1
    with _explaining(source, reader):
        for row in reader:
            if row and not header:
                if len(row) != width:
                    cells = f"{count(len(row), 'cell')}, the first line has {width}"
                    hint = ": is a quotation mark not closed?" if reader.line_num > line else ""
                    raise ValueError(f"line {line} of {source.name} has {cells}{hint}")
                yield line, row
            header = header and not row
            line = reader.line_num + 1


@contextmanager
def _explaining(source: Source, reader: Any = None) -> Iterator[None]:
    """Name the file in the errors of reading it."""
    try:
        yield
    except UnicodeDecodeError as error:
        advice = "save it as CSV in UTF-8, or give a Parquet file"
        raise ValueError(f"{source.name} is not text in UTF-8 ({error.reason}): {advice}") from None
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} of {source.name} is no CSV: {error}") from None
    except (EOFError, OSError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:  # of the disk, not of the decompression
            raise
        raise ValueError(f"{source.name} cannot be decompressed: {error}") from None


def _open_parquet(source: Source) -> Table:
    """Open columns of numbers, truth values, time spans and texts; other types are converted to text."""
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise ValueError(
            f"{source.name} is a Parquet file, which needs pyarrow: pip install 'pathgp[parquet]'"
        ) from None
    try:
        with source.reopen() as file:
            names = parquet.ParquetFile(file).schema_arrow.names
    except ArrowInvalid as error:
        raise ValueError(f"{source.name} cannot be read as Parquet: {error}") from None

    def blocks(chosen: Sequence[str], copied: Sequence[str]) -> Iterator[Block]:
        with source.reopen() as file:
            table, start = parquet.ParquetFile(file), 0
            for batch in table.iter_batches(batch_size=ROWS, columns=[*{*chosen, *copied}]):
                end = start + len(batch)
                if len(batch):
                    yield _parquet_block(batch, chosen, copied, start, end / table.metadata.num_rows)
                start = end

    return Table(source.name, names, blocks)


def _parquet_block(batch: Any, chosen: Sequence[str], copied: Sequence[str], start: int, progress: float) -> Block:
    cells = _Columns(chosen, lambda name: _cells(name, batch.column(name), start))
    originals = _Columns(chosen, lambda name: batch.column(name).to_pylist())
    texts = [list(map(as_text, batch.column(name).to_pylist())) for name in copied]
    return Block(cells, texts, "row", range(start + 1, start + len(batch) + 1), progress, originals)


class _Columns(Mapping[str, Any]):
    """Columns by name, each converted at its first use: a text column never becomes numbers."""

    def __init__(self, names: Sequence[str], convert: Callable[[str], Any]) -> None:
        self._names, self._convert = list(names), cache(convert)

    def __getitem__(self, name: str) -> Any:
        return self._convert(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


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
