"""What stands around a table of the thesis: how many values it has, why cells have no verdict, why some are worse."""

from __future__ import annotations

from collections import Counter

from benchmarks.thesis.index import Item
from benchmarks.thesis.published import Cell, markdown, mean, tables

EXPECTED = """\
*Expected standard error*: that of a mean of so few values, computed from the standard error of the thesis."""
# Minutes above this multiple of the thesis's are listed.
SLOW = 2.0
# With more exceptions from the usual number of splits, ranges are given.
MOST_EXCEPTIONS = 4
# The first columns of the table about worse cells.
FACTS = ("splits", "seeds", "expected standard error")


def explain_groups(table: str, cells: list[Cell]) -> list[str]:
    """Why cells cannot be compared, why others were not run, and which took much longer than in the thesis."""
    parts = []
    headings = {"Not comparable:": _group_reasons(cells), "Not run:": _group_missing(cells)}
    headings[f"More than {SLOW:g} times the minutes of the thesis:"] = _list_slow(table, cells)
    for heading, lines in headings.items():
        if lines:
            parts.append(heading + "\n\n" + "\n".join(lines))
    return parts


def _list_slow(table: str, cells: list[Cell]) -> list[str]:
    """A line for every row with cells whose minutes are a multiple of the thesis's."""
    found: dict[str, list[str]] = {}
    for cell in (cell for cell in cells if cell.block == "minutes" and cell.values):
        theirs = mean(table, cell.block, cell.row, cell.column)
        if theirs and cell.mean > SLOW * theirs:
            found.setdefault(cell.row, []).append(f"{cell.column} ({cell.mean / theirs:.1f})")
    return [f"- {row}: {', '.join(columns)}" for row, columns in found.items()]


def make_worse_table(item: Item, worse: list[Cell]) -> list[str]:
    """A line for every worse cell, a column for everything that was measured about one of them, and notes."""
    module = item.load()
    facts = [module.explain(cell) for cell in worse]
    titles = [title for title in FACTS if any(title in fact for fact in facts)]
    titles += [title for title in dict.fromkeys(t for fact in facts for t in fact) if title not in titles]
    lines = []
    for cell, fact in zip(worse, facts, strict=True):
        values = ", ".join(f"{value:.3f}" for value in cell.values)
        lines.append([cell.block, cell.row, cell.column, values, *(fact.get(title, "") for title in titles)])
    heading = "\n".join(
        filter(
            None, ["Cells that are worse, and what was measured about the cause.", getattr(module, "CONCLUSION", "")]
        )
    )
    if "expected standard error" in titles:
        heading += "\n" + EXPECTED
    every = "ours, by seed" if "seeds" in titles else "ours, by split"
    return [heading, markdown(["score", "row", "column", every, *titles], lines), *module.notes(worse)]


def count_values(table: str, cells: list[Cell]) -> str:
    """How many splits or seeds our numbers are from: the most frequent number, and the cells with others."""
    ours = [cell for cell in cells if cell.values]
    what = "seeds" if "seed" in tables()[table]["caption"] else "splits"
    if not ours:
        return f"Our number of {what}: none."
    usual = Counter(len(cell.values) for cell in ours).most_common(1)[0][0]
    others = [cell for cell in ours if len(cell.values) != usual]
    groups: dict[tuple[int, str, str], list[str]] = {}
    for block in _named(others, "block"):
        in_block = [cell for cell in ours if cell.block == block]
        numbers = {len(cell.values) for cell in in_block}
        if len(numbers) == 1:
            groups[min(numbers), block, ""] = []
    rest = [cell for cell in others if not any(cell.block == block for _, block, _ in groups)]
    for cell in rest:
        columns = groups.setdefault((len(cell.values), "", cell.row), [])
        columns += [cell.column] if cell.column not in columns else []
    same: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for (number, block, row), columns in groups.items():
        same.setdefault((number, tuple(columns)), []).append(block or row)
    listed = [
        f"{number} ({', '.join(names)}{': ' if columns else ''}{', '.join(columns)})"
        for (number, columns), names in sorted(same.items(), key=lambda group: -group[0][0])
    ]
    if len(listed) > MOST_EXCEPTIONS:
        return f"Our number of {what}: {_ranges_by_row(ours)}."
    return f"Our number of {what}: {usual}{'; but ' if listed else ''}{'; '.join(listed)}."


def _ranges_by_row(cells: list[Cell]) -> str:
    """The least and the largest number of values of every row."""
    rows: dict[str, list[str]] = {}
    for row in _named(cells, "row"):
        numbers = [len(cell.values) for cell in cells if cell.row == row]
        is_range = min(numbers) < max(numbers)
        rows.setdefault(f"{min(numbers)} to {max(numbers)}" if is_range else f"{numbers[0]}", []).append(row)
    return "; ".join(f"{numbers} ({', '.join(names)})" for numbers, names in rows.items())


def _group_reasons(cells: list[Cell]) -> list[str]:
    """A line for every reason: the blocks, rows and columns in which it occurs, and the reason."""
    lines = []
    for text in dict.fromkeys(cell.reason for cell in cells if cell.reason):
        lines.append(f"- {_where([cell for cell in cells if cell.reason == text], cells)}: {text}.")
    return lines


def _group_missing(cells: list[Cell]) -> list[str]:
    """The same for cells that were not run: a place for all rows that lack the same cells."""
    groups: dict[tuple[str, frozenset[tuple[str, str]]], list[Cell]] = {}
    for text in dict.fromkeys(cell.missing for cell in cells if cell.missing):
        mine = [cell for cell in cells if cell.missing == text]
        for row in dict.fromkeys(cell.row for cell in mine):
            of_row = [cell for cell in mine if cell.row == row]
            for block, columns in _split_blocks(of_row):
                same = [cell for cell in of_row if cell.block in block]
                groups.setdefault((text, frozenset((b, c) for b in block for c in columns)), []).extend(same)
    lines = []
    for text in dict.fromkeys(text for text, _ in groups):
        places = [_where(same, cells) for (known, _), same in groups.items() if known == text]
        lines.append(f"- {places[0]}: {text}." if len(places) == 1 else f"- {text[0].upper()}{text[1:]}:")
        lines += [f"    - {place}" for place in places if len(places) > 1]
    return lines


def _split_blocks(cells: list[Cell]) -> list[tuple[list[str], tuple[str, ...]]]:
    """Blocks of the cells of a row that have the same columns."""
    found: dict[tuple[str, ...], list[str]] = {}
    for block in dict.fromkeys(cell.block for cell in cells):
        found.setdefault(tuple(cell.column for cell in cells if cell.block == block), []).append(block)
    return [(blocks, columns) for columns, blocks in found.items()]


def _where(some: list[Cell], cells: list[Cell]) -> str:
    """Blocks, rows and columns of some cells; a side is left out if it is all that these blocks show."""
    blocks = {cell.block for cell in some}
    shown = [cell for cell in cells if cell.block in blocks and cell.values]
    where = [] if len(blocks) == len({cell.block for cell in cells}) else [", ".join(_named(some, "block"))]
    for side in ("row", "column"):
        named = _named(some, side)
        whole = {getattr(cell, side) for cell in cells}
        if not set(named) >= ({getattr(cell, side) for cell in shown} if some[0].values else whole):
            where.append(", ".join(named))
    return "; ".join(where) or ("all" if len(some) == len(cells) else "all our numbers")


def _named(cells: list[Cell], side: str) -> list[str]:
    return list(dict.fromkeys(getattr(cell, side) for cell in cells))
