"""Figure 5.10: residuals and log-likelihoods of learning on large sets with 10 epochs per step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.common.drawing import COLOURS, grid, save
from benchmarks.common.recording import results_file
from benchmarks.thesis.size import Size
from pathgp import plots

TITLE = "Learning on large sets"
TEXT = """\
Residuals of the probes at every step, pathwise estimator, a budget of 10 epochs per step; and the test log-likelihood
with the hyperparameters before and after the fit. The sets of the thesis (391,386 to 1,844,352 rows) could not be
obtained. The relief of the Earth and a draw from a known process replace them. The data are the results of
`benchmarks/hardware/learning_scale.py`.

The steps of every run were fixed beforehand: 10 on 250,000 and 1,000,000 rows of the relief, 30 on 391,386 rows, 3 on
the known process, whose steps take the longest. A run ends after these steps, converged or not.

- Left: three solvers on the same problem. Alternating projections reach 0.01 (dotted) in 4 or 5 of the 10 epochs, from
  zero as from the previous solution. Warm starts lower the residuals of the other two, which use about all of their
  budgets.
- Middle: alternating projections with warm starts on the other problems; the legend has the tolerance of a solve. On
  the relief solves reach 0.01 in 4 or 5 epochs. At a tolerance of 0.0001 they end near it after 6 to 10. On the known
  process they use all 10 epochs and end above 0.01.
- Right: the lines of conjugate gradients are far below the axes. With such residuals, samples and mean are not those of
  the posterior. On the known process the log-likelihood falls a little in the three steps."""
NEEDS = "learning_scale"
# What a panel compares: several solvers on one problem, or several problems.
COMPARED = ("etopo5", 250_000)
SOLVERS = {"ap": COLOURS[0], "cg": COLOURS[1], "sdd": COLOURS[2]}
# The log-likelihoods that are drawn are larger than this.
LOWEST = 0.0

Record = dict[str, Any]


def draw(path: Path, size: Size) -> dict[str, Any]:
    files = sorted(results_file("learning_scale_x").parent.glob("learning_scale_*.json"))
    if not files:
        raise SystemExit("figure 5.10 needs results of a GPU: run python -m benchmarks.hardware.learning_scale")
    records = [json.loads(file.read_text()) for file in files]
    solvers = [record for record in records if (record["problem"], record["n"]) == COMPARED]
    problems = [record for record in records if (record["problem"], record["n"]) != COMPARED]
    figure, axes = grid(1, 3, width=12, height=3.6)
    for record in solvers:
        line(axes[0, 0], record, SOLVERS[record["solver"]], f"{record['solver'].upper()}, {start(record)}")
    for colour, record in zip([*COLOURS[len(SOLVERS) :], plots.INK], problems, strict=False):
        line(axes[0, 1], record, colour, f"{problem(record)}, to {record['tol']:g}")
        likelihood(axes[0, 2], record, colour, f"{problem(record)}, to {record['tol']:g}")
    for record in solvers:
        name = f"{problem(record)}, {record['solver'].upper()}, {start(record)}"
        likelihood(axes[0, 2], record, SOLVERS[record["solver"]], name)
    titles = (f"residual, {problem(solvers[0])}" if solvers else "", "residual, AP, warm", "test log-likelihood")
    for panel, title in zip(axes[0], titles, strict=True):
        panel.set_title(title, fontsize=9, loc="left")
        panel.set_xlabel("step", fontsize=9)
    for panel in axes[0, :2]:
        panel.set_yscale("log")
        panel.axhline(0.01, color=plots.INK, lw=0.8, ls=":")
    figure.legend(*legend_of(axes[0, 0], axes[0, 1]), loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    save(figure, path)
    return {f"{label(record)}: {name}": value for record in records for name, value in numbers(record).items()}


def start(record: Record) -> str:
    return "cold" if record.get("warm_start") is False else "warm"


def problem(record: Record) -> str:
    return f"{'known process' if record['problem'].startswith('known') else 'relief'}, {record['n']:,} rows"


def label(record: Record) -> str:
    return f"{problem(record)}, {record.get('solver', 'ap').upper()}, {start(record)}, to {record['tol']:g}"


def numbers(record: Record) -> dict[str, float]:
    """Of one line: the residual of the last step, and the log-likelihood after the fit if there is one."""
    found = {"last residual": record["rows"][-1]["residual"]}
    after = record.get("log_likelihood after")
    return found if after is None else found | {"test log-likelihood": after}


def line(panel: Any, record: Record, colour: str, name: str) -> None:
    """The residual at every step; dashed for cold starts."""
    residuals = [row["residual"] for row in record["rows"]]
    style = "-" if start(record) == "warm" else "--"
    panel.plot(range(1, 1 + len(residuals)), residuals, style, marker="o", ms=3, lw=1.4, color=colour, label=name)


def likelihood(panel: Any, record: Record, colour: str, name: str) -> None:
    """The log-likelihood before and after."""
    scores = [record[key] for key in ("log_likelihood before", "log_likelihood after") if key in record]
    if min(scores) > LOWEST:
        style = "-" if start(record) == "warm" else "--"
        steps = [0, len(record["rows"])][: len(scores)]
        panel.plot(steps, scores, style, marker="o", ms=4, lw=1.4, color=colour, label=name)


def legend_of(*panels: Any) -> tuple[list[Any], list[str]]:
    """Handles and labels of several panels."""
    handles, labels = [], []
    for panel in panels:
        more, names = panel.get_legend_handles_labels()
        handles += more
        labels += names
    return handles, labels
