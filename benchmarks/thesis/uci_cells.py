"""The cells of tables 3.1 and 4.1 from the results of uci_inference.py, and the row of the automatic solver."""

from __future__ import annotations

from typing import Any

from benchmarks.common.uci import UCI
from benchmarks.thesis.published import Cell, tables
from benchmarks.thesis.uci_inference import stored

# Beside the rows of the thesis: ours, and the exact posterior.
OURS = {"automatic (ours)": ("auto", "AP"), "exact posterior": ("exact",)}
SCORES = {"RMSE": "rmse", "low-noise RMSE": "rmse", "NLL": "nll", "minutes": "seconds"}
ABSENT = "the data set could not be obtained"
DEVICE = "another device, so minutes are shown and not judged"


def make_cells(table: str, rows: dict[str, tuple[str, ...]]) -> list[Cell]:
    """All cells, ours last. ``rows``: for a row of the table, methods of uci_inference.py; the first one run counts."""
    known = {low: stored("cuda", low).values() for low in (False, True)}
    cells = []
    for block in tables()[table]["blocks"]:
        for row, methods in (rows | OURS).items():
            for column in tables()[table]["columns"]:
                values = _values(known[block == "low-noise RMSE"], column, methods, SCORES[block])
                scale = 1 / 60 if block == "minutes" else 1.0
                reason = ABSENT if column not in UCI else DEVICE if block == "minutes" and values else ""
                cells.append(Cell(block, row, column, tuple(scale * value for value in values), reason))
    return cells


def explain(cell: Cell) -> str:
    """What the results say about a cell: the exact posterior of the same splits, and how the solve ended."""
    known = stored("cuda", cell.block == "low-noise RMSE").values()
    methods = ("CG-100", "CG") if cell.row == "CG" else (cell.row,)
    exact = _values(known, cell.column, ("exact",), SCORES[cell.block])
    said = [f"{len(cell.values)} of five splits"]
    if len(exact) == len(cell.values):
        said.append(f"the exact posterior has {', '.join(f'{value:.3f}' for value in exact)}")
    ends = [r for r in known if r["set"] == cell.column and r["method"] in methods and r.get("residual") is not None]
    if ends and max(row["residual"] for row in ends) > 0.02:
        said.append(f"the solve ended at a residual of {max(row['residual'] for row in ends):.2g}")
    return "; ".join(said)


def _values(known: Any, column: str, methods: tuple[str, ...], score: str) -> list[float]:
    """The values of the first of these methods that was run on the whole set, one per split."""
    for method in methods:
        mine = [row for row in known if row["set"] == column and row["method"] == method and not row.get("rows")]
        found = [row[score] for row in mine if row.get(score) is not None]
        if found:
            return found
    return []
