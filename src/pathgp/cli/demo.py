"""A Gaussian process from data to posterior samples: ``pathgp demo``.

Two regression problems with opposite difficulties (thesis, figure 3.1): n points of sin(2x) + cos(5x) with noise 0.5.

infill: x ~ N(0, 1). Data crowd around zero, the kernel matrix is ill-conditioned.
large domain: x on a regular grid of fixed spacing. A well-conditioned matrix, but n grows with the domain, so that no
small set of inducing points can summarise the data.

The same call solves both. Ends with a table and a picture.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from pathgp import GP, Posterior, kernels, metrics, plots
from pathgp.solvers import Record

NOISE, LENGTHSCALE, SPACING = 0.5, 0.5, 0.04
TEST_POINTS = 2000
TOL = 1e-3
Vector = NDArray[np.float32]


def truth(x: NDArray[Any]) -> NDArray[Any]:
    """The function behind the data."""
    return np.sin(2 * x) + np.cos(5 * x)


@dataclass(frozen=True)
class Case:
    """One regression problem: training data, held-out data, and the part of the line to draw."""

    name: str
    x: Vector
    y: Vector
    x_test: Vector
    y_test: Vector
    window: tuple[float, float]


@dataclass(frozen=True)
class Result:
    """A case with its posterior and its figures on held-out data."""

    case: Case
    post: Posterior
    rmse: float
    nll: float
    coverage: float


def make_cases(points: int, seed: int) -> list[Case]:
    """Both problems with ``points`` training points each."""
    rng = np.random.default_rng(seed)
    half = 0.5 * SPACING * points
    grid = SPACING * np.arange(points) - half
    # The right end of the domain is the part worth seeing: there the data stop.
    window = (half - 7.0, half + 2.0)
    inputs = [
        ("infill", rng.normal(size=points), rng.normal(size=TEST_POINTS), (-4.5, 4.5)),
        ("large domain", grid, rng.uniform(-half, half, size=TEST_POINTS), window),
    ]

    def observe(x: NDArray[Any]) -> Vector:
        return (truth(x) + NOISE * rng.normal(size=len(x))).astype(np.float32)

    return [
        Case(name, x.astype(np.float32), observe(x), x_test.astype(np.float32), observe(x_test), window)
        for name, x, x_test, window in inputs
    ]


def solve(case: Case, seed: int) -> Result:
    """Condition on the training data, predict the held-out data."""
    gp = GP(kernels.SquaredExponential(lengthscale=LENGTHSCALE), noise=NOISE)
    with progress(case.name) as callback:
        post = gp.condition(
            case.x[:, None],
            case.y,
            tol=TOL,
            generator=torch.Generator().manual_seed(seed),
            callback=callback,
        )
    mean = post.mean(case.x_test[:, None])
    variance = post.variance(case.x_test[:, None], noise=True)
    return Result(
        case,
        post,
        metrics.rmse(case.y_test, mean),
        metrics.nll(case.y_test, mean, variance),
        metrics.coverage(case.y_test, mean, variance),
    )


class progress:
    """A bar that fills as the worst residual falls from 1 to the tolerance, on a logarithmic scale."""

    def __init__(self, name: str) -> None:
        self._bar = tqdm(
            total=100,
            desc=f"{name:<12}",
            bar_format="{desc}  |{bar:30}|  {elapsed}  {postfix}",
            disable=None,  # silent unless standard error is a terminal
        )

    def __enter__(self) -> Callable[[Record], None]:
        self._bar.set_postfix_str("evaluating the kernel matrix, drawing prior paths")
        return self._show

    def _show(self, record: Record) -> None:
        worst = float(record.residual.max())
        done = math.log(max(worst, TOL)) / math.log(TOL)
        self._bar.n = max(self._bar.n, round(100 * min(1.0, max(0.0, done))))
        self._bar.set_postfix_str(f"{record.epochs:.0f} epochs, worst residual {worst:.1e}")

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def table(results: list[Result]) -> str:
    """The facts side by side, one case per column."""
    entries: list[tuple[str, list[str]]] = [("", [result.case.name for result in results])]
    reports = [result.post.report for result in results]
    entries += [
        ("solver", [report.solution.solver.split("(")[0] for report in reports]),
        ("why", [report.solution.note for report in reports]),
        ("epochs", [f"{report.solution.epochs:.1f}" for report in reports]),
        ("worst residual", [f"{report.worst_residual:.1e}" for report in reports]),
        ("error bound", [f"{report.error_bound:.2g}" for report in reports]),
        ("RMSE", [f"{result.rmse:.3f}" for result in results]),
        ("NLL", [f"{result.nll:.3f}" for result in results]),
        ("95 % coverage", [f"{100 * result.coverage:.1f} %" for result in results]),
        ("seconds", [f"{report.seconds:.1f}" for report in reports]),
    ]
    width = 44
    lines = []
    for name, values in entries:
        columns = [textwrap.wrap(value, width - 4) or [""] for value in values]
        for row in range(max(map(len, columns))):
            cells = [column[row] if row < len(column) else "" for column in columns]
            label = name if row == 0 else ""
            lines.append((f"{label:<16}" + "".join(f"{cell:<{width}}" for cell in cells)).rstrip())
    lines.insert(1, "─" * max(map(len, lines)))
    return "\n".join(lines)


def draw(results: list[Result], path: Path) -> None:
    """Two columns, one per case: the function above, its posterior standard deviation over the whole domain below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.2), layout="constrained")
    axes = figure.subplots(2, len(results), height_ratios=[3.2, 1], squeeze=False)
    for column, result in enumerate(results):
        case, (top, bottom) = result.case, axes[:, column]
        plots.draw_posterior(top, result.post, case.window, (case.x, case.y), truth)
        top.set_ylim(-3.4, 3.4)
        top.set_title(case.name.capitalize(), fontsize=12, weight="bold", loc="left", color=plots.INK)
        top.set_title(_subtitle(case), fontsize=9, loc="right", color="#5c5c66")
        _draw_std(bottom, result)
        for each in (top, bottom):
            plots.tidy(each)
    axes[0, 0].set_ylabel("y", fontsize=9)
    axes[1, 0].set_ylabel("posterior std", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    figure.savefig(path, dpi=200)


def _subtitle(case: Case) -> str:
    n = f"{len(case.x):,}"
    if case.name == "infill":
        return f"{n} inputs from N(0, 1)"
    return f"{n} inputs on a grid over ±{SPACING * len(case.x) / 2:.0f}, here its right end"


def _draw_std(axes: Any, result: Result) -> None:
    case = result.case
    low, high = case.window if case.name == "infill" else (case.x[0] - 10.0, case.x[-1] + 10.0)
    x = np.linspace(low, high, 1500, dtype=np.float32)
    axes.semilogy(x, np.sqrt(result.post.variance(x[:, None])), color=plots.MEAN, lw=0.9)
    axes.set_xlim(low, high)
    axes.set_ylim(0.01, 2.0)
    axes.set_yticks([0.01, 0.1, 1.0], ["0.01", "0.1", "1"])
    axes.minorticks_off()
    axes.set_xlabel("x", fontsize=9)
    if case.name != "infill":
        axes.axvspan(*case.window, color=plots.INK, alpha=0.12, lw=0)
        axes.annotate("shown above", (case.window[0], 0.5), (-4, 0), textcoords="offset points", ha="right", fontsize=8)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pathgp demo", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo.png"), help="the picture (default: demo.png)")
    parser.add_argument("--seed", type=int, default=0, help="seed of data, paths and solver (default: 0)")
    parser.add_argument("--points", type=int, default=10_000, help="training points per case (default: 10000)")
    options = parser.parse_args(arguments)
    if find_spec("matplotlib") is None:  # asked before the work, so that it is not done in vain
        print("The demo draws with matplotlib: pip install 'pathgp[plots]'", file=sys.stderr)
        return 1
    print(
        f"sin(2x) + cos(5x) with noise {NOISE}, {options.points:,} points, squared exponential kernel, tol {TOL:.0e}\n"
    )
    results = [solve(case, options.seed) for case in make_cases(options.points, options.seed)]
    print(f"\n{table(results)}\n")
    floor = 0.5 * math.log(2 * math.pi * math.e * NOISE**2)
    print(f"RMSE and NLL are on {TEST_POINTS} held-out noisy points; knowing f would give {NOISE:.3f} and {floor:.3f}.")
    draw(results, options.out)
    print(f"wrote {options.out}")
    return 0
