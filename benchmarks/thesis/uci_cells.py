"""The cells of tables 3.1 and 4.1 from the results of uci_inference.py, those of the automatic solver, and reasons."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from benchmarks.common.recording import read
from benchmarks.common.uci import UCI
from benchmarks.thesis.published import Cell, expected_error, markdown, tables
from benchmarks.thesis.uci_inference import file_name

# Beside the rows of the thesis: ours, and the exact posterior.
OURS = {"automatic (ours)": ("auto", "AP"), "exact posterior": ("exact",)}
SCORES = {"RMSE": "rmse", "low-noise RMSE": "rmse", "NLL": "nll", "minutes": "seconds"}
ABSENT = "the data set could not be obtained"
DEVICE = "another device, so minutes are shown and not judged"
PROTOCOL = """\
Predictions with given hyperparameters, on standardised data. RMSE and NLL are means over the test rows. Minutes are
those of the solve for the mean and 64 samples, for SVGP those of the optimum.

- SGD: primal stochastic gradient descent, at most 100,000 steps.{sdd}
- CG: conjugate gradients to a residual of 0.01, with a preconditioner of rank 100.
- SVGP: a sparse variational GP with {points} inducing points. The thesis trains it until it has converged. Here the
  points are fixed, and full natural gradient steps give the optimum at once: hence minutes near zero.
- automatic (ours): the solver that this library chooses by default.
- exact posterior: a Cholesky factorisation in float64.

Solvers use float32. Variances in the NLL are averages over 64 samples, except those of SVGP and of the exact
posterior."""


def make_cells(table: str, rows: dict[str, tuple[str, ...]]) -> list[Cell]:
    """All cells, ours last. ``rows``: for a row of the table, methods of uci_inference.py; the first one run counts."""
    known = {low: read(file_name("cuda", low)) for low in (False, True)}
    cells = []
    for block in tables()[table]["blocks"]:
        for row, methods in (rows | OURS).items():
            for column in tables()[table]["columns"]:
                values = _values(known[block == "low-noise RMSE"], column, methods, SCORES[block])
                scale = 1 / 60 if block == "minutes" else 1.0
                reason = ABSENT if column not in UCI else DEVICE if block == "minutes" and values else ""
                cells.append(Cell(block, row, column, tuple(scale * value for value in values), reason))
    return cells


def explain_cell(table: str, rows: dict[str, tuple[str, ...]], cell: Cell) -> dict[str, str]:
    """What the results say about a cell: the exact posterior of the same splits, and how the solve ended."""
    low = cell.block == "low-noise RMSE"
    known, score = read(file_name("cuda", low)), SCORES[cell.block]
    mine = next(found for method in rows[cell.row] if (found := _rows(known, cell.column, method, score)))
    exact = {_split(row): row[score] for row in _rows(known, cell.column, "exact", score)}
    said = {"splits": f"{len(mine)} of 5"} | expected_error(table, cell, 5)
    said["exact posterior, same splits"] = ", ".join(
        f"{exact[_split(row)]:.3f}" for row in mine if _split(row) in exact
    )
    if len(exact) > len(mine):
        said["exact posterior, mean of its splits"] = f"{fmean(exact.values()):.3f} ({len(exact)} splits)"
    ends = [row for row in mine if row.get("residual") is not None]
    if ends and max(row["residual"] for row in ends) > 0.02:
        why = ", all steps used" if any(row["status"] == "BUDGET_EXHAUSTED" for row in ends) else ""
        said["residual at the end"] = f"{max(row['residual'] for row in ends):.2g}{why}"
    if rows[cell.row] == ("SVGP",):
        more = fmean(_values(known, cell.column, ("SVGP-4096",), score))
        said["with 4,096 inducing points"] = f"{more:.3f}"
    return said


def note_samples(cells: Iterable[Cell]) -> list[str]:
    """What averages over 64 samples cost: the results of worse_cells.py for the sets of these cells."""
    parts: list[str] = []
    for name in dict.fromkeys(cell.column for cell in cells if cell.block == "NLL" and cell.row != "SVGP"):
        rows = [row for row in read("worse_cells_cpu") if row["part"] == "samples" and row["set"] == name]
        if not rows:
            continue
        most = max(row["rows"] for row in rows)
        found = {row["samples"]: row["nll"] for row in rows if row["rows"] == most}
        counts = sorted(count for count in found if count)
        said = f"Exact solves on {most:,} rows of {name}"
        said = f"Our variances are averages over samples; few samples raise the NLL. {said}:"
        values = [f"{found[count]:.3f}" for count in [*counts, None]]
        titles = ["samples", *(f"{count:,}" for count in counts), "exact variance"]
        parts += [said, markdown(titles, [["NLL", *values]])]
    return parts


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
