"""Read and write the rows of lcbench.py, and print them with the thesis's numbers and ranks."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from benchmarks.common.recording import read, table
from benchmarks.thesis.lcbench_curves import SETS

# Table 6.1, in the order of SETS; minutes are those of the thesis's GPU.
THESIS: dict[str, dict[str, tuple[float, ...]]] = {
    "train_rmse": {
        "LKGP": (1.705, 0.047, 0.278, 0.061, 0.039, 0.008, 0.006),
        "SVGP": (3.893, 0.201, 0.463, 0.240, 0.200, 0.101, 0.086),
        "VNNGP": (4.920, 0.113, 0.284, 0.158, 0.130, 0.067, 0.072),
        "CaGP": (3.972, 0.219, 0.511, 0.241, 0.208, 0.105, 0.091),
    },
    "test_rmse": {
        "LKGP": (2.935, 0.335, 0.747, 0.351, 0.394, 0.261, 0.152),
        "SVGP": (2.716, 0.316, 0.540, 0.294, 0.285, 0.232, 0.145),
        "VNNGP": (3.053, 0.705, 0.915, 0.677, 0.642, 0.591, 0.568),
        "CaGP": (2.810, 0.325, 0.593, 0.281, 0.296, 0.239, 0.153),
    },
    "train_nll": {
        "LKGP": (1.955, -1.573, 0.160, -1.311, -1.718, -2.933, -2.943),
        "SVGP": (3.098, -0.132, 0.652, 0.025, -0.150, -0.800, -0.977),
        "VNNGP": (3.005, -0.079, 0.639, 0.104, -0.056, -0.489, -0.456),
        "CaGP": (2.794, -0.042, 0.798, 0.034, -0.103, -0.718, -0.900),
    },
    "test_nll": {
        "LKGP": (2.349, 0.051, 1.047, -0.057, -0.328, -0.633, -1.214),
        "SVGP": (2.327, 0.319, 0.781, 0.199, 0.160, 0.065, -0.496),
        "VNNGP": (2.733, 1.046, 1.365, 1.011, 0.891, 0.717, 0.712),
        "CaGP": (2.451, 0.321, 0.916, 0.142, 0.171, 0.088, -0.463),
    },
    "minutes": {"LKGP": (0.371, 1.458, 0.487, 1.728, 2.447, 1.493, 2.012)},
}
# By how much an NLL may exceed the thesis's.
MARGIN = 0.1
# The average ranks of the thesis over all 35 sets, among these four.
RANKS = {
    "train_rmse": {"LKGP": 1.171, "SVGP": 2.771, "VNNGP": 2.314, "CaGP": 3.743},
    "test_rmse": {"LKGP": 2.600, "SVGP": 1.657, "VNNGP": 3.743, "CaGP": 2.000},
    "train_nll": {"LKGP": 1.029, "SVGP": 2.400, "VNNGP": 3.286, "CaGP": 3.286},
    "test_nll": {"LKGP": 1.257, "SVGP": 2.543, "VNNGP": 3.200, "CaGP": 3.000},
}
SCORES = ("train_rmse", "test_rmse", "train_nll", "test_nll")
# What tells one row from another.
ABOUT = ("set", "seed", "configurations", "steps", "probes", "method", "preconditioner")


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a row from others."""
    return tuple(row.get(name) for name in ABOUT)


def stored(device: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows of the file."""
    return {key(row): row for row in read(f"lcbench_{device}")}


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
            line[f"thesis {score}"] = THESIS[score]["LKGP"][SETS.index(name)] if name in SETS else None
        if line["test_nll"] is not None:
            line["predict s"] = fmean(row["predict_seconds"] for row in same)
        lines.append(line)
        if name in SETS and complete(line):
            verdicts.append(f"{name}, {probes} probes, {preconditioner}: {verdict(name, line)}")
    print(table(lines))
    print("\n".join(verdicts))
    for score, theirs in RANKS.items():
        mine = [rank(line["set"], score, line[score]) for line in lines if line["set"] in SETS and complete(line)]
        if mine:
            said = ", ".join(f"{method} {value}" for method, value in theirs.items())
            print(f"{score}: average rank {fmean(mine):.3f} over {len(mine)} of the table's sets; thesis, all: {said}")
    for line in beside_sparse(rows):
        print(line)


def complete(line: dict[str, Any]) -> bool:
    """Whether a line of the table is ours and follows the protocol."""
    return line["method"] == "pathgp" and line["test_nll"] is not None and line["p"] == 2000 and line["steps"] == 100


def rank(name: str, score: str, value: float) -> int:
    """The place of our value among the sparse baselines of the thesis."""
    place = SETS.index(name)
    return 1 + sum(values[place] < value for method, values in THESIS[score].items() if method != "LKGP")


def beside_sparse(rows: list[dict[str, Any]]) -> list[str]:
    """On how many sets and seeds ours is better than a sparse GP with the same seconds, and its average rank."""
    said = []
    for peer in sorted({row["method"] for row in rows if "sparse" in row["method"]}):
        theirs = [row for row in rows if row["method"] == peer]
        known = {key(row): row for row in rows}
        pairs = [(known[key({**row, "method": "pathgp"})], row) for row in theirs]
        for score in SCORES:
            # One that broke down comes last.
            won = sum(mine[score] < row.get(score, math.inf) for mine, row in pairs)
            average = 2.0 - won / len(pairs)
            said.append(f"{score}: better than {peer} in {won} of {len(pairs)} rows, average rank {average:.3f}")
    return said


def verdict(name: str, scores: dict[str, Any]) -> str:
    """Where our NLL stands against the thesis's model and its sparse baselines."""
    place, said = SETS.index(name), []
    for score in ("train_nll", "test_nll"):
        known = {method: values[place] for method, values in THESIS[score].items()}
        mine, theirs = scores[score], known.pop("LKGP")
        said.append(f"{score} {mine:.3f}, thesis {theirs:.3f}{'' if mine <= theirs + MARGIN else ' MISSED'}")
        for method, value in known.items():
            if theirs < value <= mine:
                said.append(f"not below {method} {value:.3f}, which the thesis beats")
    return "; ".join(said)
