"""The cells of tables 3.1 and 4.1 from the results of uci_inference.py, those of the automatic solver, and reasons."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from benchmarks.common.recording import read
from benchmarks.common.uci import UCI
from benchmarks.thesis.published import Cell, spread, tables
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


def explain_cell(table: str, rows: dict[str, tuple[str, ...]], cell: Cell) -> str:
    """What the results say about a cell: the exact posterior of the same splits, and how the solve ended."""
    low = cell.block == "low-noise RMSE"
    known, score = list(stored("cuda", low).values()), SCORES[cell.block]
    mine = next(found for method in rows[cell.row] if (found := _rows(known, cell.column, method, score)))
    exact = {_split(row): row[score] for row in _rows(known, cell.column, "exact", score)}
    said = [f"{len(mine)} of five splits", *spread(table, cell, 5)]
    same = ", ".join(f"{exact[_split(row)]:.3f}" for row in mine if _split(row) in exact)
    whole = f", and {fmean(exact.values()):.3f} on {len(exact)} splits" if len(exact) > len(mine) else ""
    said.append(f"the exact posterior has {same}{whole}")
    ends = [row for row in mine if row.get("residual") is not None]
    if ends and max(row["residual"] for row in ends) > 0.02:
        why = " after all its steps" if any(row["status"] == "BUDGET_EXHAUSTED" for row in ends) else ""
        said.append(f"the solve ended{why} at a residual of {max(row['residual'] for row in ends):.2g}")
    if rows[cell.row] == ("SVGP",):
        more = fmean(_values(known, cell.column, ("SVGP-4096",), score))
        said.append(f"3,000 fixed inducing points, with 4,096 it is {more:.3f}")
    elif cell.block == "NLL" and cell.row != "SVGP":
        said += _samples(cell.column)
    return "; ".join(said)


def _samples(name: str) -> list[str]:
    """What averages over 64 samples cost: the results of worse_cells.py."""
    rows = [row for row in read("worse_cells_cpu") if row["part"] == "samples" and row["set"] == name]
    if not rows:
        return []
    most = max(row["rows"] for row in rows)
    found = {row["samples"]: row["nll"] for row in rows if row["rows"] == most}
    counts = sorted(count for count in found if count)
    values = ", ".join(f"{found[count]:.3f} with {count:,}" for count in counts)
    return [
        f"variances are averages over 64 samples: on {most:,} rows the exact NLL is {found[None]:.3f}, and {values}"
    ]


def _split(row: dict[str, Any]) -> int:
    """The first files had one split."""
    return int(row.get("split") or 0)


def _rows(known: Any, column: str, method: str, score: str) -> list[dict[str, Any]]:
    """The rows of a method on the whole set that have this score."""
    mine = [row for row in known if row["set"] == column and row["method"] == method and not row.get("rows")]
    return [row for row in mine if row.get(score) is not None]


def _values(known: Any, column: str, methods: tuple[str, ...], score: str) -> list[float]:
    """The values of the first of these methods that was run on the whole set, one per split."""
    return next(([row[score] for row in rows] for m in methods if (rows := _rows(known, column, m, score))), [])
