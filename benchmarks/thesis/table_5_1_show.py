"""Read the rows of table_5_1.py, print them with the thesis's numbers, and give the cells of the page."""

from __future__ import annotations

import json
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from benchmarks.common.recording import read, results_file, table
from benchmarks.common.uci import UCI
from benchmarks.thesis.published import SHARED_DEVICE, Cell, markdown, mean, tables

ROWS = (*tables()["table 5.1"]["blocks"]["minutes"], "AP-shuffled-pathwise-warm")
# For the page: epochs, and what cold_estimators.py measures.
COLD = """\
Cold solves by alternating projections (AP), each to the tolerance (`benchmarks/thesis/cold_estimators.py`). The
epochs of a row are the sum over the measured steps of one fit, on a part of the data. A block has the same share of
the data as in the thesis. In table 5.1 the cold solves of AP end after at most 500 epochs, which hides the ratio.

The pathwise estimator needs fewer epochs, because the tolerance is relative to the right-hand side. AP is slow along
eigenvectors of H with small eigenvalues. White probes z have equal parts along all eigenvectors. Probes from the prior
have hardly anything along the slow ones, so their residual must fall by a smaller factor there. The *expected ratio*
follows from the eigenvalues of H and this model alone. The gain grows with the number of rows and as the noise falls:
on 4,000 rows of pol the measured ratio is larger than the average of 5.4 that the thesis reports. It is smaller than
the thesis's ratios of minutes for these two sets, which are those of all rows.

Greedy blocks are parts of one fixed partition. A plain loop over the thesis's pseudo-code takes as many epochs as our
solver, whichever of these blocks comes next. Shuffled blocks come from a new random partition in every epoch. They need
far fewer epochs, and the estimator makes little difference."""
EPOCHS = """\
Means over the splits. `>`: some solves ended after 500 epochs, above the tolerance. `*`: 25 times the epochs of 4
steps, at the hyperparameters of the row CG-pathwise-warm. Shuffled blocks take the fewest epochs on every set."""
# For the page: how the table is measured.
PROTOCOL = """\
A row is named after its solver, its estimator and the start of its solves. Solvers: conjugate gradients (CG),
alternating projections (AP, blocks chosen greedily), stochastic dual descent (SDD). Estimators: standard (random
probes) and pathwise (samples from the prior). Starts: cold (zero) and warm (the solution of the previous step).
AP-shuffled-pathwise-warm is ours: the same, with shuffled blocks.

Ours: 100 steps of Adam, 64 probes, solves to a residual of 0.01 in at most 500 epochs, float32. Log-likelihoods are
means over the test rows, with standardised targets. Minutes are those of the 100 steps, without the solve for the
posterior. Cells without a log-likelihood were measured at 4 of the 100 steps: their minutes are the mean of these
steps times 100."""


def summary(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the splits, the thesis's numbers beside them."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if "failed" not in row:
            groups.setdefault((row["set"], row["row"], row["rows_of_data"], row["steps"]), []).append(row)
    order = sorted(groups, key=lambda g: (UCI.index(g[0]), g[2] or 0, g[3], ROWS.index(g[1])))
    lines = []
    for group in order:
        name, row, rows_of_data, steps = group
        scores = [r["log_likelihood"] for r in groups[group] if r["log_likelihood"] is not None]
        lines.append(
            {
                "set": name,
                "rows": rows_of_data or "all",
                "steps": steps,
                "row": row,
                "splits": len(groups[group]),
                "loglik": fmean(scores) if scores else None,
                "thesis": mean("table 5.1", "test log-likelihood", row, name),
                "epochs": fmean(r["epochs"] for r in groups[group]),
                "minutes": fmean(r["seconds"] for r in groups[group]) / 60,
                "thesis min": mean("table 5.1", "minutes", row, name),
                "solver": fmean(r["solver_share"] for r in groups[group]),
                "above tol": sum(r["above_tol"] for r in groups[group])
                / sum(r["measured_steps"] for r in groups[group]),
                "how": "/".join(sorted({"sampled" if r["sampled"] else "full" for r in groups[group]})),
            }
        )
    return lines


def ratios(lines: list[dict[str, Any]]) -> list[str]:
    """Epochs of cold standard over warm pathwise per solver and set; the row with the fewest epochs.

    Where cold solves were cut off the ratio is a lower bound (>), where warm ones were it is rough (~).
    """
    said = []
    problems = list(dict.fromkeys((line["set"], line["rows"], line["steps"]) for line in lines))
    known = {(line["set"], line["rows"], line["steps"], line["row"]): line for line in lines}
    for solver in ("CG", "AP", "SDD"):
        pairs = [[known.get((*p, f"{solver}-{way}")) for way in ("standard-cold", "pathwise-warm")] for p in problems]
        found = [
            (
                cold["set"],
                "~" if warm["above tol"] else ">" if cold["above tol"] else "",
                cold["epochs"] / warm["epochs"],
            )
            for cold, warm in pairs
            if cold and warm
        ]
        if found:
            each = ", ".join(f"{name} {mark}{ratio:.1f}" for name, mark, ratio in found)
            mean = f"{max(mark for _, mark, _ in found)}{fmean(ratio for _, _, ratio in found):.1f}"
            said.append(f"{solver}: epochs of cold standard / warm pathwise: {each}; mean {mean}")
    for problem in problems:
        here = [line for line in lines if (line["set"], line["rows"], line["steps"]) == problem]
        best = min(here, key=lambda line: line["epochs"])
        said.append(f"{problem[0]} ({problem[1]} rows): fewest epochs {best['row']}, {best['epochs']:.0f}")
    return said


def show(device: str) -> None:
    """The table of the results of a device."""
    rows = read(f"uci_learning_{device}")
    lines = summary(rows)
    print(table(lines))
    print("\n".join(ratios(lines)))
    for row in rows:
        if "failed" in row:
            print(f"{row['set']} split {row['split']} {row['row']} failed: {row['failed']}")


def table_cells() -> list[Cell]:
    """Our values for the cells of the table: log-likelihoods of whole fits, minutes of all rows."""
    rows = read("uci_learning_cuda")
    whole = [row for row in rows if "failed" not in row and row["rows_of_data"] is None and row["steps"] == 100]
    found = []
    for block, score in (("test log-likelihood", "log_likelihood"), ("minutes", "seconds")):
        for row in ROWS:
            for column in UCI:
                all_of_row = [r for r in whole if (r["set"], r["row"]) == (column, row)]
                mine = [r for r in all_of_row if r[score] is not None]
                scale = 1 / 60 if block == "minutes" else 1.0
                reason = SHARED_DEVICE if block == "minutes" and mine else ""
                missing = "" if mine else _missing(all_of_row)
                values = tuple(scale * r[score] for r in mine)
                higher = block != "minutes"
                found.append(Cell(block, row, column, values, reason, higher_is_better=higher, missing=missing))
    return found


def _missing(rows: list[dict[str, Any]]) -> str:
    """Why a cell has no values, though rows about it may be there."""
    if rows:
        steps, whole = rows[0]["measured_steps"], rows[0]["steps"]
        return f"measured at {steps} of {whole} steps only, for the minutes; the log-likelihood needs a whole fit"
    slow = [row for row in ROWS if row.startswith(("AP-", "SDD-")) and not row.endswith("-pathwise-warm")]
    times = [time for row in slow for name in UCI[3:] if (time := mean("table 5.1", "minutes", row, name))]
    took = f"these fits took {min(times):.0f} to {max(times):.0f} minutes in the thesis"
    return f"not measured on the sets with the most rows, where {took}"


def explain(cell: Cell) -> dict[str, str]:
    """What the results say about a cell: the same splits by shuffled AP, and the epochs of the last solves."""
    rows = read("uci_learning_cuda")
    other = "AP-shuffled-pathwise-warm"
    mine = [row for row in rows if (row["set"], row["row"]) == (cell.column, other) and row["rows_of_data"] is None]
    scores = {row["split"]: row["log_likelihood"] for row in mine if row["log_likelihood"] is not None}
    listed = ", ".join(f"{scores[split]:.3f}" for split in sorted(scores))
    said = {"splits": f"{len(cell.values)} of 10", f"{other}, by split": listed}
    if cell.row.startswith("CG") and _solves(cell.column):
        ends = [
            r["last_epochs"] for r in rows if (r["set"], r["row"]) == (cell.column, cell.row) and "last_epochs" in r
        ]
        ends = [epochs for epochs in ends if epochs]
        said["epochs of the last solve"] = f"{min(ends):.0f} to {max(ends):.0f}"
    return said


def _solves(name: str) -> list[dict[str, Any]]:
    """The last solve alone, by solver and accuracy: the results of worse_cells.py on the most rows of a set."""
    solves = [row for row in read("worse_cells_cpu") if (row["part"], row["set"]) == ("posterior", name)]
    most = max((row["rows"] for row in solves), default=0)
    solves = [row for row in solves if row["rows"] == most]
    return sorted(solves, key=lambda row: (row["solver"] != "CG", row["epochs"]))


def notes(cells: Iterable[Cell]) -> list[str]:
    """What the last solve alone changes, for the sets of these cells."""
    parts = []
    for name in dict.fromkeys(cell.column for cell in cells if cell.row.startswith("CG")):
        solves = _solves(name)
        if not solves:
            continue
        about = f"on {solves[0]['rows']:,} rows, with the hyperparameters of a fit of {solves[0]['fit_rows']:,} rows"
        lines = [
            (row["solver"], f"{row['epochs']:.0f}", f"{row['residual']:.1g}", f"{row['log_likelihood']:.3f}")
            for row in solves
        ]
        titles = ("solver", "epochs", "residual at the end", "test log-likelihood")
        parts += [f"The last solve of {name} by its accuracy, {about}:", markdown(titles, lines)]
    return parts


def supplement() -> list[str]:
    """What the page shows beside the cells of the thesis: epochs, and the pathwise estimator alone."""
    return epochs_section() + estimator_section()


def epochs_section() -> list[str]:
    """Epochs of all rows on all sets."""
    rows = [row for row in read("uci_learning_cuda") if row["rows_of_data"] is None and "failed" not in row]
    lines = []
    for name in ROWS:
        cells = []
        for column in UCI:
            mine = [row for row in rows if (row["row"], row["set"], row["steps"]) == (name, column, 100)]
            mine = [row for row in mine if not row["sampled"]] or mine
            limit = ">" if any(row["above_tol"] for row in mine) else ""
            mark = "*" if mine and mine[0]["sampled"] else ""
            cells.append(f"{limit}{fmean(row['epochs'] for row in mine):,.0f}{mark}" if mine else "–")
        lines.append([name, *cells])
    return ["### Epochs of the 100 steps", EPOCHS, markdown(("", *UCI), lines)]


def estimator_section() -> list[str]:
    """What the pathwise estimator alone saves in cold solves by AP: the results of cold_estimators.py."""
    files = [file for device in ("cpu", "cuda") if (file := results_file(f"cold_estimators_{device}")).exists()]
    if not files:
        return []
    records = [json.loads(file.read_text()) for file in files]
    rows = [row for record in records for row in record["rows"]]
    titles = ("set", "rows", "steps", "blocks", "standard, epochs", "pathwise, epochs", "ratio", "expected ratio")
    titles += ("thesis, ratio of minutes", "noise at the end")
    lines = []
    for row in sorted((row for record in records for row in record["summary"]), key=lambda row: row["n"]):
        cold = [mean("table 5.1", "minutes", f"AP-{kind}-cold", row["set"]) for kind in ("standard", "pathwise")]
        steps = {other["step"] for other in rows if (other["set"], other["n"]) == (row["set"], row["n"])}
        # The model and the thesis are about greedy blocks.
        greedy = row["selection"] == "greedy"
        theirs = f"{cold[0] / cold[1]:.1f}" if greedy and all(cold) else ""
        expected = f"{row['expected ratio']:.2f}" if greedy else ""
        found = (row["set"], row["n"], len(steps), row["selection"], f"{row['standard']:.0f}", f"{row['pathwise']:.0f}")
        found += (f"{row['ratio']:.2f}", expected, theirs, f"{row['last noise']:.2g}")
        lines.append(map(str, found))
    return ["### The pathwise estimator alone", COLD, markdown(titles, lines)]
