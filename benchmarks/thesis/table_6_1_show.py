"""Read and write the rows of table_6_1.py, and print them with the thesis's numbers and ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.common.recording import read, row_key, table
from benchmarks.thesis.lcbench_curves import SETS
from benchmarks.thesis.published import NO_CAGP, SHARED_DEVICE, Cell, expected_error, mean, printed, tables

# For the page: how the table is measured.
CONCLUSION = "The fits of APSFailure have not converged after 100 steps: more steps lower both scores."
PROTOCOL = """\
LKGP is `LatentKroneckerGP`. A column is a set of 2,000 learning curves over 52 epochs, most of which end early.
Train is the observed cells, test the missing ones. A seed is one choice of the cells that are observed. Values are
standardised by the observed final ones. Ours: 100 steps of Adam, 64 probes, float32; minutes are those of the fit.
SVGP and VNNGP are GPyTorch's. [More about these
runs](../benchmarks.md#learning-curves-table-61-of-the-thesis)."""
# By how much an NLL may exceed the thesis's.
MARGIN = 0.1
# Our names of the blocks of the table.
BLOCKS = {"train_rmse": "train RMSE", "test_rmse": "test RMSE", "train_nll": "train NLL", "test_nll": "test NLL"}
SCORES = tuple(BLOCKS)
MODELS = ("LKGP", "SVGP", "VNNGP", "CaGP")
# Rows of the results by row of the table.
METHODS = {"LKGP": "pathgp", "SVGP": "gpytorch sparse", "VNNGP": "gpytorch vnngp"}
# Why the scores of a baseline cannot be compared with those of the thesis.
FEWER = {
    "SVGP": "1,000 inducing points in place of 10,000, and only the seconds of our fit and prediction",
    "VNNGP": "32 neighbours in place of 256, and 300 epochs in place of 1,000",
}
# The column about cells whose last solve was repeated, and what it means.
ACCURATE = "with a more accurate last solve"
SOLVED_AGAIN = """\
The last solve was repeated at the hyperparameters of step 95 of 100, to a smaller residual, for every seed. Where a
cell is then still worse, the solve is not the cause."""
KEY = ("set", "seed", "configurations", "steps", "probes", "method", "preconditioner")


def thesis(score: str, method: str, column: str) -> float:
    """The mean that the thesis prints."""
    found = mean("table 6.1", BLOCKS[score], method, column)
    assert found is not None
    return found


def table_cells() -> list[Cell]:
    """Our values for the cells of the table, one per seed."""
    protocol = {"configurations": 2000, "steps": 100, "probes": 64}
    rows = [row for row in read("lcbench_cuda") if protocol.items() <= row.items()]
    found = []
    for block in tables()["table 6.1"]["blocks"]:
        score = next((score for score, name in BLOCKS.items() if name == block), "fit_seconds")
        for method in MODELS:
            for column in tables()["table 6.1"]["columns"]:
                start = METHODS.get(method)
                mine = [row for row in rows if start and row["method"].startswith(start) and row["set"] == column]
                mine = [row for row in mine if row["method"] != "pathgp default" and score in row]
                found.append(_cell(block, method, column, tuple(row[score] for row in mine)))
    return found


def explain(cell: Cell) -> dict[str, str]:
    """What the results say about a cell: fits with more steps, and more accurate solves at the same hyperparameters."""
    said = {"seeds": f"{len(cell.values)} of 10"} | expected_error("table 6.1", cell, 10)
    score = next((score for score, name in BLOCKS.items() if name == cell.block), "")
    for row in read("lcbench_cpu"):
        if row["set"] == cell.column and row["steps"] > 100 and score in row and cell.row == "LKGP":
            about = f"{row['steps']} steps, CPU, {row['probes']} probes, first seed"
            said["with more steps"] = f"{row[score]:.3f} ({about})"
    said |= _more_seeds(cell, score)
    solves = [row for row in read("worse_cells_cpu") if row["part"] == "curves" and row["set"] == cell.column]
    seeds = sorted({row["seed"] for row in solves if score in row})
    if seeds and cell.row == "LKGP":
        # The most accurate solve of every seed.
        best = [min((r for r in solves if r["seed"] == s and score in r), key=lambda r: r["residual"]) for s in seeds]
        values, largest = ", ".join(f"{row[score]:.4f}" for row in best), max(row["residual"] for row in best)
        theirs = printed("table 6.1", cell.block, cell.row, cell.column)
        accurate = replace(cell, values=tuple(row[score] for row in best)).verdict(theirs)
        accurate = "still worse" if accurate == "worse" else accurate
        said[ACCURATE] = f"{values} (residuals up to {largest:.1g}): {accurate}"
    return said


def notes(cells: Iterable[Cell]) -> list[str]:
    """How the last solves were repeated, if they were for one of these cells."""
    return [SOLVED_AGAIN] if any(ACCURATE in explain(cell) for cell in cells) else []


def _more_seeds(cell: Cell, score: str) -> dict[str, str]:
    """The same fits on a CPU with fewer probes, if that was done for more seeds."""
    fits = [
        row for row in read("lcbench_cpu") if (row["set"], row["method"], row["steps"]) == (cell.column, "pathgp", 100)
    ]
    values = {row["seed"]: row[score] for row in fits if score in row and row["configurations"] == 2000}
    if cell.row != "LKGP" or len(values) <= len(cell.values):
        return {}
    more = replace(cell, values=tuple(values.values()))
    verdict = more.verdict(printed("table 6.1", cell.block, cell.row, cell.column))
    about = f"{len(values)} seeds, CPU, {fits[0]['probes']} probes"
    return {"with more seeds": f"{more.text(4)} ({about}): {verdict}"}


def _cell(block: str, method: str, column: str, values: tuple[float, ...]) -> Cell:
    reason, missing = "", ""
    if method == "CaGP":
        reason = NO_CAGP
    elif column == "average rank":
        reason = "a rank needs all four methods on all 35 sets"
    elif block == "minutes":
        values, reason = tuple(value / 60 for value in values), SHARED_DEVICE
    elif method in FEWER and values:
        reason = FEWER[method]
    elif method != "LKGP":
        took = mean("table 6.1", "minutes", method, column)
        missing = f"it takes {took:.0f} minutes in the thesis"
    return Cell(block, method, column, values, reason, missing=missing)


def show(device: str) -> None:
    """Means over the seeds, the thesis's numbers beside them, and whether ours are as good."""
    rows = read(f"lcbench_{device}")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if "failed" not in row:
            keys = ("set", "configurations", "steps", "probes", "method", "preconditioner")
            groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    lines, verdicts = [], []
    for (name, p, steps, probes, method, preconditioner), same in groups.items():
        line = {"set": name, "p": p, "steps": steps, "probes": probes, "method": method, "with": preconditioner}
        line |= {"seeds": len(same), "fit s": fmean(row["fit_seconds"] for row in same)}
        line |= {"predict s": None, "GB": max(row["peak_gb"] for row in same)}
        for score in SCORES:
            known = [row[score] for row in same if score in row]
            line[score] = fmean(known) if known else None
            line[f"thesis {score}"] = thesis(score, "LKGP", name) if name in SETS else None
        if line["test_nll"] is not None:
            line["predict s"] = fmean(row["predict_seconds"] for row in same)
        lines.append(line)
        if name in SETS and complete(line):
            verdicts.append(f"{name}, {probes} probes, {preconditioner}: {verdict(name, line)}")
    print(table(lines))
    print("\n".join(verdicts))
    for score in SCORES:
        mine = [rank(line["set"], score, line[score]) for line in lines if line["set"] in SETS and complete(line)]
        if mine:
            said = ", ".join(f"{method} {thesis(score, method, 'average rank')}" for method in MODELS)
            print(f"{score}: average rank {fmean(mine):.3f} over {len(mine)} of the table's sets; thesis, all: {said}")
    print(table(beside_sparse(rows)))


def complete(line: dict[str, Any]) -> bool:
    """Whether a line of the table is ours and follows the protocol."""
    return line["method"] == "pathgp" and line["test_nll"] is not None and line["p"] == 2000 and line["steps"] == 100


def rank(name: str, score: str, value: float) -> int:
    """The place of our value among the sparse baselines of the thesis."""
    return 1 + sum(thesis(score, method, name) < value for method in MODELS[1:])


def beside_sparse(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """On how many sets and seeds ours is better than a sparse GP with the same seconds, and its average rank."""
    found = []
    known = {row_key(row, KEY): row for row in rows}
    for peer in sorted({row["method"] for row in rows if "sparse" in row["method"]}):
        theirs = [row for row in rows if row["method"] == peer]
        ours = [known.get(row_key({**row, "method": "pathgp"}, KEY), {}) for row in theirs]
        for score in SCORES:
            # A fit that failed comes last.
            pairs = [(a[score], b.get(score, math.inf)) for a, b in zip(ours, theirs, strict=True) if score in a]
            if pairs:
                won = sum(a < b for a, b in pairs)
                line = {"score": score, "peer": peer, "rows": len(pairs), "better": won}
                found.append({**line, "average rank": 2.0 - won / len(pairs)})
    return found


def verdict(name: str, scores: dict[str, Any]) -> str:
    """Where our NLL stands against the thesis's model and its sparse baselines."""
    said = []
    for score in ("train_nll", "test_nll"):
        known = {method: thesis(score, method, name) for method in MODELS}
        mine, theirs = scores[score], known.pop("LKGP")
        said.append(f"{score} {mine:.3f}, thesis {theirs:.3f}{'' if mine <= theirs + MARGIN else ' MISSED'}")
        for method, value in known.items():
            if theirs < value <= mine:
                said.append(f"not below {method} {value:.3f}, which the thesis beats")
    return "; ".join(said)
