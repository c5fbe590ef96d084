"""The table of measured claims in the README, made from the results: every claim links to its file.

It stands between two comments of the README; ``python -m benchmarks.thesis pages`` writes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from benchmarks.common.recording import BENCHMARKS

README = BENCHMARKS.parent / "README.md"
START, END = "<!-- claims: python -m benchmarks.thesis pages -->", "<!-- end of claims -->"

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Claim:
    """What was measured, the file that holds it, and the sentence that its rows give."""

    topic: str
    file: str
    say: Callable[[Rows], str]


def _accuracy(rows: Rows) -> str:
    """The largest difference between alternating projections and the exact posterior."""
    exact = {row["set"]: row["rmse"] for row in rows if row["method"] == "exact" and not row.get("split")}
    gaps = [abs(row["rmse"] - exact[row["set"]]) for row in rows if row["method"] == "AP" and not row.get("split")]
    bound = math.ceil(1e4 * max(gaps)) / 1e4
    return f"test RMSE within {bound:.4f} of the exact float64 posterior on {len(gaps)} UCI sets, by float32 solves"


def _learning(rows: Rows) -> str:
    times = [row["times adam"] for row in rows if row["method"] == "gpytorch cg" and "times adam" in row]
    faster = f"{min(times):.1f} to {max(times):.1f} times as fast"
    return f"100 steps of Adam, {len(times)} UCI sets: {faster} as GPyTorch's CG"


def _million(rows: Rows) -> str:
    known = [row for row in rows if row["n"] > 1_800_000 and row["problem"].startswith("known")]
    best = next(r for r in known if r["solver"] == "AP" and r["seconds"] == r["seconds until nll within 0.02"])
    return f"mean and 64 samples given {best['n']:,} rows in {best['seconds']:.0f} s and {best['gigabytes']:.0f} GB"


def _memory(rows: Rows) -> str:
    row = next(row for row in rows if row["what"] == "mean")
    whole = f"the cross-covariance would take {row['matrix_gb']:.0f} GB"
    return f"means at {row['rows']:,} inputs take {row['peak_gb']:.2f} GB; {whole}"


def _limit(rows: Rows) -> str:
    ours, theirs = rows
    return (
        f"300,000 flights within 900 s: test log-likelihood {ours['log_likelihood']:.3f} after {ours['seconds']:.0f} s;"
        f" GPyTorch's SVGP {theirs['log_likelihood']:.3f} after {theirs['seconds']:.0f} s"
    )


def _curves(rows: Rows) -> str:
    times: dict[str, list[float]] = {}
    for row in rows:
        if row["method"] == "pathgp":
            times.setdefault(row["set"], []).append(row["fit_seconds"])
    means = [fmean(found) for found in times.values()]
    spread = f"{min(means):.0f} to {max(means):.0f} s (means over splits)"
    return f"2,000 curves of 52 epochs, {len(times)} data sets: fits in {spread}, at least eight at a time"


def _field(rows: Rows) -> str:
    row = next(r for r in rows if r["field"] == "generated" and r["method"] == "pathgp" and r["held_out"] == 0.1)
    return f"{row['n']:,} observed cells: learned, and 64 samples of all cells drawn, in {row['seconds']:.0f} s"


def _trust(rows: Rows) -> str:
    good = sum(row["verdict"] == "ok" for row in rows)
    sets = len({row["set"] for row in rows})
    return (
        f"data with little noise, {sets} sets, through Python, the command line and xarray: {good} of {len(rows)}"
        " default fits converge, have honest intervals and are as good as 100 steps of Adam"
    )


def _maps(rows: Rows) -> str:
    """Maps of 90,000 points, against the Vecchia approximation of GPBoost."""
    large = [row for row in rows if row["n"] == 90_000]
    ours = {row["set"]: row for row in large if row["method"] == "pathgp"}
    theirs = [row for row in large if row["method"].startswith("gpboost") and row["set"] in ours]
    faster = [row["seconds"] / ours[row["set"]]["seconds"] for row in theirs]
    gap = max(abs(row["crps"] - ours[row["set"]]["crps"]) for row in theirs)
    return (
        f"{len(theirs)} maps of 90,000 points, learned and predicted: {min(faster):.1f} to {max(faster):.1f} times as"
        f" fast as GPBoost's Vecchia approximation, CRPS the same within {gap:.4f}"
    )


def _optimisation(rows: Rows) -> str:
    """Functions on which the median of our last regrets is the smallest."""
    regrets: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        regrets.setdefault((row["problem"], row["method"]), []).append(row["regret"][-1])
    names = list(dict.fromkeys(row["problem"] for row in rows))
    peers = ("botorch", "turbo")
    won = sum(all(median(regrets[name, "pathgp"]) < median(regrets[name, peer]) for peer in peers) for name in names)
    seeds = len(regrets[names[0], "pathgp"])
    return (
        f"Thompson sampling in batches of 100, {seeds} seeds: smaller median regret than BoTorch and TuRBO on {won} of"
        f" {len(names)} functions in 6 to 20 dimensions"
    )


CLAIMS = (
    Claim("Accuracy", "uci_inference_cuda", _accuracy),
    Claim("Trust", "low_noise", _trust),
    Claim("Learning", "learning_peers_cuda", _learning),
    Claim("Millions of rows", "million_cuda", _million),
    Claim("Memory", "memory", _memory),
    Claim("A time limit", "time_limit_flights3m_300000_cpu", _limit),
    Claim("Learning curves", "lcbench_cuda", _curves),
    Claim("A field with holes", "climate_cuda", _field),
    Claim("Maps", "kriging_cpu", _maps),
    Claim("Optimisation", "bayesian_optimisation_cpu", _optimisation),
)


def make_table() -> str:
    """The Markdown table."""
    lines = ["| what | measured | on | file |", "|---|---|---|---|"]
    for claim in CLAIMS:
        record = json.loads((BENCHMARKS / "results" / f"{claim.file}.json").read_text())
        device = "CPU" if record["device"] == "x86_64" else record["device"].replace("NVIDIA ", "")
        link = f"[{record['date']}](benchmarks/results/{claim.file}.json)"
        lines.append(f"| {claim.topic} | {claim.say(record['rows'])} | {device} | {link} |")
    return "\n".join(lines)


def make_readme(text: str) -> str:
    """The README with a new table."""
    before, rest = text.split(START)
    after = rest.split(END)[1]
    return f"{before}{START}\n{make_table()}\n{END}{after}"
