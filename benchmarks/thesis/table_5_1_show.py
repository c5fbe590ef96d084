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
epochs of a row are means over the measured steps of one fit, on a part of the data. A block has the same share of
the data as in the thesis. In table 5.1 the cold solves of AP end after at most 500 epochs, which hides the ratio.

The pathwise estimator needs fewer epochs, because the tolerance is relative to the right-hand side. AP is slow along
eigenvectors of H with small eigenvalues. White probes z have equal parts along all eigenvectors. Probes from the prior
have hardly anything along the slow ones, so their residual must fall by a smaller factor there. The *expected ratio*
follows from the eigenvalues of H and this model alone. It has the right size for few rows. It does not explain why the
measured ratio of pol grows with the number of rows: on 4,000 rows it is larger than the average of 5.4 that the thesis
reports. Both are smaller than the thesis's ratios of minutes for these two sets, which are those of all rows.

Greedy blocks are parts of one fixed partition. A plain loop over the thesis's pseudo-code takes as many epochs as our
solver, whichever of these blocks comes next. Shuffled blocks come from a new random partition in every epoch. They need
far fewer epochs, and the estimator makes little difference."""
EPOCHS = """\
Means over the splits. `>`: some solves ended after 500 epochs, above the tolerance. `*`: from 4 of the 100 steps, as
above. Such a number is too small where starts are warm: the start of a measured step is the exact solution of the step
before, and in a fit it is that solve's result. Shuffled blocks take the fewest epochs on every set."""
# Behind numbers that were measured at some of the steps.
SAMPLED = "*"
# For the page: how the table is measured.
PROTOCOL = """\
A row is named after its solver, its estimator and the start of its solves. Solvers: conjugate gradients (CG),
alternating projections (AP, blocks chosen greedily), stochastic dual descent (SDD). Estimators: standard (random
probes) and pathwise (samples from the prior). Starts: cold (zero) and warm (the solution of the previous step).
AP-shuffled-pathwise-warm is ours: the same, with shuffled blocks.

Ours: 100 steps of Adam, 64 probes, solves to a residual of 0.01 in at most 500 epochs, float32. Log-likelihoods are
means over the test rows, with standardised targets. Minutes are those of the 100 steps, without the solve for the
posterior. `*`: measured at 4 of the 100 steps, at the hyperparameters of the row CG-pathwise-warm; minutes are the mean
of these steps times 100, and there is no log-likelihood."""
# Above the table of worse cells.
CONCLUSION = """\
Two causes are known. CG ends every column at its tolerance, and predictions of pol are sensitive to that: the table
below shows the last solve alone, and alternating projections, which end at smaller errors, have the log-likelihood of
the thesis. On keggdirected the only split that was run is the hardest of four."""


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
    found = []
    for block, score in (("test log-likelihood", "log_likelihood"), ("minutes", "seconds")):
        for row in ROWS:
            for column in UCI:
                runs = runs_of(row, column)
                mine = [run for run in runs if run[score] is not None]
                is_time = block == "minutes"
                values = tuple((1 / 60 if is_time else 1.0) * run[score] for run in mine)
                facts = {"missing": "" if mine else _missing(runs), "reason": SHARED_DEVICE if is_time and mine else ""}
                mark = SAMPLED if is_time and mine and mine[0]["sampled"] else ""
                found.append(Cell(block, row, column, values, **facts, higher_is_better=not is_time, mark=mark))
    return found


def runs_of(row: str, column: str) -> list[dict[str, Any]]:
    """The whole fits of a cell, or, if there are none, the runs that measured some of the steps."""
    rows = [row for row in read("uci_learning_cuda") if row["rows_of_data"] is None and "failed" not in row]
    mine = [found for found in rows if (found["row"], found["set"], found["steps"]) == (row, column, 100)]
    return [found for found in mine if not found["sampled"]] or mine


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
    lines = [[name, *(_epochs(runs_of(name, column)) for column in UCI)] for name in ROWS]
    return ["### Epochs of the 100 steps", EPOCHS, markdown(("", *UCI), lines)]


def _epochs(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return "–"
    limit, mark = (">" if any(run["above_tol"] for run in runs) else ""), (SAMPLED if runs[0]["sampled"] else "")
    return f"{limit}{fmean(run['epochs'] for run in runs):,.0f}{mark}"


def estimator_section() -> list[str]:
    """What the pathwise estimator alone saves in cold solves by AP: the results of cold_estimators.py."""
    files = [file for device in ("cpu", "cuda") if (file := results_file(f"cold_estimators_{device}")).exists()]
    if not files:
        return []
    records = [json.loads(file.read_text()) for file in files]
    rows = [row for record in records for row in record["rows"]]
    titles = (
        "set",
        "rows",
        "steps",
        "blocks",
        "standard, epochs per step",
        "pathwise, epochs per step",
        "ratio",
        "expected ratio",
    )
    titles += ("thesis, ratio of minutes", "noise at the end")
    lines = []
    summaries = [row for record in records for row in record["summary"]]
    for row in sorted(summaries, key=lambda row: (UCI.index(row["set"]), row["selection"], row["n"])):
        cold = [mean("table 5.1", "minutes", f"AP-{kind}-cold", row["set"]) for kind in ("standard", "pathwise")]
        steps = {other["step"] for other in rows if (other["set"], other["n"]) == (row["set"], row["n"])}
        # The model and the thesis are about greedy blocks.
        greedy = row["selection"] == "greedy"
        theirs = f"{cold[0] / cold[1]:.1f}" if greedy and all(cold) else ""
        expected = f"{row['expected ratio']:.2f}" if greedy else ""
        epochs = [f"{row[kind] / len(steps):,.1f}" for kind in ("standard", "pathwise")]
        found = (row["set"], row["n"], len(steps), row["selection"], *epochs)
        found += (f"{row['ratio']:.2f}", expected, theirs, f"{row['last noise']:.2g}")
        lines.append(map(str, found))
    return ["### The pathwise estimator alone", COLD, markdown(titles, lines)]
