"""What stands around a table of the thesis: how many values it has, why cells have no verdict, why some are worse."""

from __future__ import annotations

from benchmarks.thesis.index import Item
from benchmarks.thesis.published import Cell, markdown, tables

EXPECTED = """\
*Expected standard error*: that of a mean of so few values, computed from the standard error of the thesis."""
# The first columns of the table about worse cells.
FACTS = ("splits", "seeds", "expected standard error")


def explain_groups(cells: list[Cell]) -> list[str]:
    """Why cells cannot be compared, and why others were not run."""
    parts = []
    for heading, lines in (("Not comparable:", _group_reasons(cells)), ("Not run:", _group_missing(cells))):
        if lines:
            parts.append(heading + "\n\n" + "\n".join(lines))
    return parts


def make_worse_table(item: Item, worse: list[Cell]) -> list[str]:
    """A line for every worse cell, a column for everything that was measured about one of them, and notes."""
    facts = [item.load().explain(cell) for cell in worse]
    titles = [title for title in FACTS if any(title in fact for fact in facts)]
    titles += [title for title in dict.fromkeys(t for fact in facts for t in fact) if title not in titles]
    lines = []
    for cell, fact in zip(worse, facts, strict=True):
        values = ", ".join(f"{value:.3f}" for value in cell.values)
        lines.append([cell.block, cell.row, cell.column, values, *(fact.get(title, "") for title in titles)])
    heading = "Cells that are worse, and what was measured about the cause."
    if "expected standard error" in titles:
        heading += "\n" + EXPECTED
    every = "ours, by seed" if "seeds" in titles else "ours, by split"
    return [heading, markdown(["score", "row", "column", every, *titles], lines), *item.load().notes(worse)]


def count_values(table: str, cells: list[Cell]) -> str:
    """How many splits or seeds our numbers are from: by row or by column, whichever says it more precisely."""
    ours = [cell for cell in cells if cell.values]
    counts = {}
    for side in ("row", "column"):
        names = _named(ours, side)
        counts[side] = {name: [len(c.values) for c in ours if getattr(c, side) == name] for name in names}
    found = min(counts.values(), key=lambda side: sum(max(known) - min(known) for known in side.values()))
    said: dict[str, list[str]] = {}
    for name, known in found.items():
        number = f"{min(known)} to {max(known)}" if min(known) < max(known) else f"{min(known)}"
        said.setdefault(number, []).append(name)
    listed = "; ".join(f"{number} ({', '.join(names)})" for number, names in said.items())
    what = "seeds" if "seed" in tables()[table]["caption"] else "splits"
    return f"Our number of {what}: {listed if len(said) > 1 else next(iter(said), 'none')}."


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
