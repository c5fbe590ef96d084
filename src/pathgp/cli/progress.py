"""Progress of work on a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tqdm import tqdm

from pathgp.cli.output import showing_progress
from pathgp.cli.tables import Block, Table


def reading(table: Table, names: Sequence[str], quiet: bool, what: str = "read") -> Iterator[Block]:
    """The blocks of a table, with a bar of the share of the file whose blocks have been dealt with."""
    rows = 0
    form = "{desc}: {percentage:3.0f}%|{bar}| {unit} [{elapsed}<{remaining}]"
    with tqdm(
        total=1.0, desc=what, bar_format=form, leave=False, unit="0 rows", disable=not showing_progress(quiet)
    ) as bar:
        for block in table.blocks(names):
            yield block
            rows += len(block)
            bar.unit = f"{rows:,} rows"
            bar.update(table.done - bar.n)
