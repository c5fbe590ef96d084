"""The tables of docs/benchmarks.md hold numbers that their results files hold, rounded as shown.

A comment before a table names the files and, if necessary, how its numbers follow from them:

    <!-- results: default_fit_cuda.json; ratios of seconds by set -->

- ``where KEY=VALUE, ...``: only these rows of the files.
- ``mean by KEY, ...``, ``median by KEY, ...``: averages over rows with the same values of these keys, and their count.
- ``ratios of KEY by KEY, ...``: also the ratios of this quantity between rows with the same values of the other keys.
- ``thesis TABLE``: also the numbers that the thesis prints in this table.
- ``except COLUMN``: a column without measurements.
- ``mixed COLUMN``: its numbers come from different fields.

Labels restrict the rows: in the line of "pol" and the column "CG", a number must be in a row of the file that has the
strings "pol" and "CG", if the file has such strings at all. All numbers of a column come from the same field of these
rows. A first cell with letters is a label; numbers in it are not compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# All tables of the first page are compared; of the others, those that have a comment.
PAGES = ["benchmarks.md", "fields.md", "solvers/cg.md"]
# How a table without a file begins, and what the page says about its numbers.
WITHOUT_FILE = {
    "| set, rows | steps on all rows": "These are single runs, and no results file holds them",
    "| protein, Matérn-3/2 | noise": "computed once; no results file holds them",
    "| command | what it measures |": "The following commands measure more than this page shows",
}

COMMENTS = re.compile(r"(?:<!-- results: [^\n]* -->\n)+\n$")
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
# Not the digits of names: float32, Matern-3/2, L-BFGS-2.
NUMBER = re.compile(r"(?<![\w./-])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d))(?:e[-+]?\d+)?(?![\w/])")


@dataclass
class Row:
    """One row of a results file: its fields, the strings and whole numbers among them, and the numbers by field."""

    values: dict[str, Any]

    def __post_init__(self) -> None:
        self.labels = {normalise(value) for value in self.values.values() if isinstance(value, str)}
        self.labels |= {normalise(f"{value:,}") for value in self.values.values() if type(value) is int}
        self.numbers = {key: list(collect(value)) for key, value in self.values.items()}


def normalise(label: str) -> str:
    """Without capitals, punctuation and markup."""
    return " ".join(re.sub(r"[*`,:_-]+", " ", label.casefold()).split())


def collect(value: Any) -> Iterator[float]:
    """All numbers of a field."""
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from collect(part)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)


@dataclass
class Table:
    """A table of a page: the line of its first row, its cells, and the comments before it."""

    line: int
    cells: list[list[str]]
    comments: list[str]
    start: str

    @property
    def head(self) -> list[str]:
        return self.cells[0]


def tables(text: str) -> Iterator[Table]:
    for match in TABLE.finditer(text):
        lines = match[0].splitlines()
        cells = [[cell.strip(" *`") for cell in line.strip("|").split("|")] for line in lines]
        comments = COMMENTS.search(text[: match.start()])
        found = re.findall(r"<!-- results: (.*) -->", comments[0]) if comments else []
        yield Table(text.count("\n", 0, match.start()) + 1, [cells[0], *cells[2:]], found, lines[0])


@dataclass
class Source:
    """What comments name: rows, facts of whole files, and columns that are not compared or mix fields."""

    rows: list[Row]
    facts: list[Row]
    skipped: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)


@cache
def read(name: str) -> Source:
    """The rows of a results file, other lists of rows in it, and the facts of the whole file."""
    record = json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))
    lists = {key: part for key, part in record.items() if isinstance(part, list) and part and isinstance(part[0], dict)}
    about = {"date", "revision", "command", "device", "threads", "versions"}
    facts = {key: part for key, part in record.items() if key not in about | set(lists)}
    return Source([Row(row) for rows in lists.values() for row in rows], [Row(facts)])


def combine(sources: list[Source]) -> Source:
    """Everything that several comments name."""
    everything = Source([], [])
    for source in sources:
        everything.rows += source.rows
        everything.facts += source.facts
        everything.skipped += source.skipped
        everything.mixed += source.mixed
    return everything


def derive(comment: str) -> Source:
    """Read the files of a comment, and apply its clauses one after the other."""
    files, *clauses = [part.strip() for part in comment.split(";")]
    sources = [read(name) for name in files.split()]
    found = Source([row for s in sources for row in s.rows], [row for s in sources for row in s.facts])
    for clause in clauses:
        verb, _, rest = clause.partition(" ")
        if verb == "where":
            wanted = [pair.strip().split("=") for pair in rest.split(",")]
            found.rows = [r for r in found.rows if all(str(r.values.get(key)) == value for key, value in wanted)]
        elif verb in ("mean", "median"):
            groups = _groups(found.rows, rest.removeprefix("by "))
            found.rows = [_average(group, fmean if verb == "mean" else median) for group in groups]
        elif verb == "ratios":
            key, _, by = rest.removeprefix("of ").partition(" by ")
            found.rows = [row for group in _groups(found.rows, by) for row in _with_ratios(group, key)]
        elif verb == "thesis":
            published = json.loads((ROOT / "benchmarks" / "thesis" / "published.json").read_text(encoding="utf-8"))
            cells = re.findall(r'"(-?\d+\.?\d*)"', json.dumps(published[f"table {rest}"]))
            found.facts.append(Row({"thesis": [float(cell) for cell in cells]}))
        elif verb in ("except", "mixed"):
            (found.skipped if verb == "except" else found.mixed).append(rest)
        else:
            raise ValueError(f"unknown clause {clause!r}")
    return found


def _groups(rows: list[Row], by: str) -> list[list[Row]]:
    """Rows with the same values of these keys."""
    keys = [key.strip() for key in by.split(",")]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if all(key in row.values for key in keys):
            groups.setdefault(tuple(str(row.values[key]) for key in keys), []).append(row)
    return list(groups.values())


def _with_ratios(group: list[Row], key: str) -> list[Row]:
    """The rows with one more field: the ratios of this quantity to those of the others, and the inverse ratios."""
    others = [row.values[key] for row in group if row.values.get(key)]
    return [
        Row(
            {
                **row.values,
                "ratios": [r for other in others for r in (other / row.values[key], row.values[key] / other)],
            }
        )
        if row.values.get(key)
        else row
        for row in group
    ]


def _average(group: list[Row], average: Callable[[list[float]], float]) -> Row:
    """One row for a group: averages of its numbers, and of its lists position by position and all together."""
    found: dict[str, Any] = {"count": len(group)}
    for key, value in group[0].values.items():
        values = [row.values[key] for row in group if row.values.get(key) is not None]
        if isinstance(value, (str, int)) and all(row.values.get(key) == value for row in group):
            found[key] = value
        elif values and all(isinstance(value, (int, float)) for value in values):
            found[key] = float(average(values))
        elif values and all(isinstance(value, list) and value and isinstance(value[0], float) for value in values):
            found[key] = [average(list(column)) for column in zip(*values, strict=False)]
            found[f"all {key}"] = average([number for value in values for number in value])
    return Row(found)


def known_labels(text: str, known: set[str]) -> set[str]:
    """The labels of the results that a cell or a heading contains, without those inside of longer ones."""
    if NUMBER.fullmatch(text):
        return {normalise(text)} & known
    words = f" {normalise(text)} "
    found = {label for label in known if f" {label} " in words and not NUMBER.fullmatch(label.replace(" ", ""))}
    return {label for label in found if not any(label != other and f" {label} " in f" {other} " for other in found)}


def is_close(shown: str, number: float) -> bool:
    """Whether a number is the one shown, to half a unit of its last digit."""
    value = Decimal(shown.replace(",", ""))
    unit = 10.0 ** int(value.as_tuple().exponent)
    return abs(number - float(value)) <= 0.5 * unit * (1.0 + 1e-6)


def compare(table: Table) -> list[str]:
    """The numbers of a table that its results do not hold."""
    source = combine([derive(comment) for comment in table.comments])
    known = {label for row in source.rows for label in row.labels}
    fields: dict[tuple[int, int], set[str]] = {}  # of a column, and of the first, second ... number in its cells
    wrong, first = [], ""
    for i, cells in enumerate(table.cells[1:]):
        first = cells[0] or first
        has_label = bool(re.search(r"[^\W\d_]", NUMBER.sub("", first)))
        texts = [first, *(cell for cell in cells[1:] if not NUMBER.fullmatch(cell))]
        for column, (head, cell) in enumerate(zip(table.head, cells, strict=True)):
            if head in source.skipped or (column == 0 and has_label):
                continue
            wanted = {label for text in [*texts, head] for label in known_labels(text, known)}
            mine = [row for row in source.rows if wanted <= row.labels]
            for position, shown in enumerate(NUMBER.findall(cell)):
                scale = 100.0 if "%" in cell else 1.0
                if holding(shown, source.facts, scale):
                    continue
                found = holding(shown, mine, scale)
                common = fields.setdefault((column, position), found)
                place = f"line {table.line + 2 + i}, {first}, {head}: {shown}"
                if not found:
                    wrong.append(f"{place} is in no row with {sorted(wanted)}")
                elif not common & found and table.head[column] not in source.mixed:
                    wrong.append(f"{place} is in {sorted(found)[:5]}, the numbers above are in {sorted(common)[:5]}")
                fields[column, position] = (common & found) or common or found
    return wrong


def holding(shown: str, rows: list[Row], scale: float) -> set[str]:
    """The fields that have this number in one of the rows."""
    return {
        key
        for row in rows
        for key, numbers in row.numbers.items()
        if any(is_close(shown, number) or is_close(shown, scale * number) for number in numbers)
    }


TABLES = [(page, table) for page in PAGES for table in tables((DOCS / page).read_text(encoding="utf-8"))]
COMPARED = [(page, table) for page, table in TABLES if table.comments]


@pytest.mark.parametrize(("page", "table"), COMPARED, ids=lambda part: str(getattr(part, "line", part)))
def test_numbers_come_from_results(page: str, table: Table) -> None:
    wrong = compare(table)
    assert not wrong, f"{page}, {table.comments}\n" + "\n".join(wrong)


def test_every_table_has_a_file() -> None:
    """Or is in the list of those without, and the page says where its numbers come from."""
    text = " ".join((DOCS / PAGES[0]).read_text(encoding="utf-8").split())
    without = [table for page, table in TABLES if page == PAGES[0] and not table.comments]
    unknown = [table.line for table in without if not table.start.startswith(tuple(WITHOUT_FILE))]
    assert not unknown, f"a comment <!-- results: FILE.json --> is missing before the tables of lines {unknown}"
    assert len(without) == len(WITHOUT_FILE)
    assert [sentence for sentence in WITHOUT_FILE.values() if sentence not in text] == []


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("0.10", ""),
        ("**0.099**", ""),
        ("8", "is in ['seconds'], the numbers above are in ['peak_gb']"),
        ("0.19", "is in no row with ['mean']"),  # that of another row
        ("0.1; 0.12", "0.12 is in no row"),
    ],
)
def test_a_wrong_number_is_found(cell: str, message: str) -> None:
    lines = [
        "<!-- results: memory.json -->\n",
        "| what | peak |",
        "|---|---|",
        "| variance | 0.192 |",
        f"| mean | {cell} |",
    ]
    (table,) = tables("\n".join(lines) + "\n")
    wrong = compare(table)
    assert len(wrong) == bool(message)
    assert message in "".join(wrong)


def test_derived_numbers() -> None:
    rows = [
        {"set": "a", "way": way, "seconds": value, "tries": [value, 4.0]} for way, value in (("x", 1.0), ("y", 3.0))
    ]
    group = [Row(row) for row in rows]
    assert _average(group, fmean).values == {
        "count": 2,
        "set": "a",
        "seconds": 2.0,
        "tries": [2.0, 4.0],
        "all tries": 3.0,
    }
    assert [row.values["ratios"] for row in _with_ratios(group, "seconds")] == [
        [1.0, 1.0, 3.0, 1 / 3],
        [1 / 3, 3.0, 1.0, 1.0],
    ]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("> 40,600 in float32", ["40,600"]),
        ("7 epochs, 1.9 s", ["7", "1.9"]),
        ("Matérn-3/2, .7046 ± 3e-7", [".7046", "3e-7"]),
        ("-0.388 to +12", ["-0.388", "+12"]),
    ],
)
def test_numbers_of_a_cell(text: str, numbers: list[str]) -> None:
    assert NUMBER.findall(text) == numbers
