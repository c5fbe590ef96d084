"""The numbers that the thesis prints, from published.json, and the verdict on ours beside them.

published.json holds every cell as it is printed, the standard error second: ["0.08", "0.00"]; null is a dash.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

FILE = Path(__file__).with_name("published.json")
VERDICTS = ("within", "better", "worse", "not comparable", "not run")
# Why there are no values of our own for a baseline of tables 6.1 and 6.2.
NO_CAGP = "no release of GPyTorch contains CaGP"
# Values from which the spread over splits or seeds is estimated, at least.
LEAST_VALUES = 3
# Why minutes of runs that shared the device have no verdict.
SHARED_DEVICE = "another device, shared with other work, so minutes are shown and not judged"


@cache
def tables() -> dict[str, dict[str, Any]]:
    """All tables of the file by name, such as "table 4.1"."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def printed(table: str, block: str, row: str, column: str) -> list[str] | None:
    """A cell as the thesis prints it: the mean and, where there is one, its standard error."""
    known = tables()[table]
    cells = known["blocks"][block].get(row)
    found: list[str] | None = cells[known["columns"].index(column)] if cells else None
    return found


def mean(table: str, block: str, row: str, column: str) -> float | None:
    """The mean of a cell."""
    found = printed(table, block, row, column)
    return float(found[0]) if found else None


@dataclass(frozen=True)
class Cell:
    """Our values for one cell of a table, one per split or seed.

    reason: why the cell cannot be compared with the thesis's.  missing: why there are no values, where there could be.
    spread: the standard deviation over splits or seeds, for a cell with a single value; see `estimate_spreads`.
    mark: printed behind our number; the protocol of the table explains it.
    """

    block: str
    row: str
    column: str
    values: tuple[float, ...] = ()
    reason: str = ""
    higher_is_better: bool = False
    missing: str = ""
    spread: float = 0.0
    mark: str = ""

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def error(self) -> float:
        """The standard error of the mean; the spread for a single value."""
        return stdev(self.values) / math.sqrt(len(self.values)) if len(self.values) > 1 else self.spread

    def verdict(self, theirs: list[str] | None) -> str:
        """Compare with a cell of the thesis.

        "within": the difference is at most the root of the sum of both squared standard errors, plus half a unit of the
        last digit that the thesis prints. Otherwise "better" or "worse".
        """
        if self.reason:
            return "not comparable"
        if not self.values:
            return "not run"
        if theirs is None:
            return "not comparable"
        digits = len(theirs[0].partition(".")[2])
        bar = float(theirs[1]) if len(theirs) > 1 else 0.0
        allowed = math.hypot(bar, self.error) + 0.5 * 10.0**-digits
        gap = self.mean - float(theirs[0])
        if abs(gap) <= allowed * (1.0 + 1e-9):
            return "within"
        return "better" if (gap > 0) == self.higher_is_better else "worse"

    def text(self, digits: int) -> str:
        """The mean, its standard error and the number of values, for a page."""
        if not self.values:
            return "–"
        shown = f"{self.mean:.{digits}f}"
        return (f"{shown} ± {self.error:.{digits}f}" if len(self.values) > 1 else shown) + self.mark


def estimate_spreads(cells: list[Cell]) -> list[Cell]:
    """Give cells with a single value the standard deviation of the row with the most values in their column.

    A split that is hard for one method is hard for all, so that their spreads are similar. Without a row of at least
    three values the spread stays zero.
    """

    def spread(single: Cell) -> float:
        rows = [cell for cell in cells if (cell.block, cell.column) == (single.block, single.column)]
        most = max(rows, key=lambda cell: len(cell.values))
        return stdev(most.values) if len(most.values) >= LEAST_VALUES else 0.0

    return [replace(cell, spread=spread(cell)) if len(cell.values) == 1 else cell for cell in cells]


def other_rows(table: str, reason: str, known: Iterable[Cell]) -> list[Cell]:
    """Cells without values for the rows of the thesis's table that no known cell stands for."""
    found = {(cell.block, cell.row) for cell in known}
    blocks, columns = tables()[table]["blocks"], tables()[table]["columns"]
    rows = [(block, row) for block in blocks for row in blocks[block] if (block, row) not in found]
    return [Cell(block, row, column, reason=reason) for block, row in rows for column in columns]


def expected_error(table: str, cell: Cell, total: int) -> dict[str, str]:
    """The standard error of a mean of fewer splits or seeds, from the thesis's standard error over ``total``."""
    theirs, number = printed(table, cell.block, cell.row, cell.column), len(cell.values)
    if theirs is None or len(theirs) < 2 or float(theirs[1]) == 0.0 or number >= total:
        return {}
    return {"expected standard error": f"{float(theirs[1]) * math.sqrt(total / number):.2g}"}


def markdown(titles: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    rows = [list(titles), *map(list, lines)]
    written = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([written[0], "|---" * len(rows[0]) + "|", *written[1:]])


def count(table: str, cells: Iterable[Cell]) -> Counter[str]:
    """How many cells have each verdict."""
    return Counter(cell.verdict(printed(table, cell.block, cell.row, cell.column)) for cell in cells)
