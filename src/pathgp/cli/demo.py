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
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from pathgp import GP, Posterior, kernels, metrics, plots
from pathgp.cli.output import require_writable
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
    """One regression problem: training data, held-out data, the part of the line to draw, and the whole domain."""

    name: str
    subtitle: str
    x: Vector
    y: Vector
    x_test: Vector
    y_test: Vector
    window: tuple[float, float]
    domain: tuple[float, float]


def make_cases(points: int, seed: int) -> list[Case]:
    """Both problems with ``points`` training points each."""
    rng = np.random.default_rng(seed)
    half = 0.5 * SPACING * points
    grid = SPACING * np.arange(points) - half
    # The right end of the domain is the part worth seeing: there the data stop.
    window, domain = (half - 7.0, half + 2.0), (-half - 10.0, half - SPACING + 10.0)
    infill, large = (
        f"{points:,} inputs from N(0, 1)",
        f"{points:,} inputs on a grid over ±{half:.0f}, here its right end",
    )
    inputs = [
        ("infill", infill, rng.normal(size=points), rng.normal(size=TEST_POINTS), (-4.5, 4.5), (-4.5, 4.5)),
        ("large domain", large, grid, rng.uniform(-half, half, size=TEST_POINTS), window, domain),
    ]

    def observe(x: NDArray[Any]) -> tuple[Vector, Vector]:
        return x.astype(np.float32), (truth(x) + NOISE * rng.normal(size=len(x))).astype(np.float32)

    return [Case(name, words, *observe(x), *observe(x_test), *ends) for name, words, x, x_test, *ends in inputs]


def solve(case: Case, seed: int) -> Posterior:
    """Condition on the training data; a bar fills as the worst residual falls to the tolerance."""
    bar = tqdm(
        total=100,
        desc=f"{case.name:<12}",
        bar_format="{desc}  |{bar:30}|  {elapsed}  {postfix}",
        disable=None,  # silent unless standard error is a terminal
    )

    def show(record: Record) -> None:
        worst = float(record.residual.max())
        done = math.log(max(worst, TOL)) / math.log(TOL)
        bar.n = max(bar.n, round(100 * min(1.0, max(0.0, done))))
        bar.set_postfix_str(f"{record.epochs:.0f} epochs, worst residual {worst:.1e}")

    gp = GP(kernels.SquaredExponential(lengthscale=LENGTHSCALE), noise=NOISE)
    generator = torch.Generator().manual_seed(seed)
    with bar:
        bar.set_postfix_str("evaluating the kernel matrix, drawing prior paths")
        return gp.condition(case.x[:, None], case.y, tol=TOL, generator=generator, callback=show)


def describe(case: Case, post: Posterior) -> dict[str, str]:
    """The facts of a case by name, with its errors on held-out data."""
    mean, variance = post.mean(case.x_test[:, None]), post.variance(case.x_test[:, None], noise=True)
    report = post.report
    return {
        "": case.name,
        "solver": report.solution.method,
        "why": report.solution.note,
        "epochs": f"{report.solution.epochs:.1f}",
        "worst residual": f"{report.worst_residual:.1e}",
        "error bound": f"{report.error_bound:.2g}",
        "RMSE": f"{metrics.rmse(case.y_test, mean):.3f}",
        "NLL": f"{metrics.nll(case.y_test, mean, variance):.3f}",
        "95 % coverage": f"{100 * metrics.coverage(case.y_test, mean, variance):.1f} %",
        "seconds": f"{report.seconds:.1f}",
    }


def table(facts: list[dict[str, str]], width: int = 44) -> str:
    """The facts side by side, one case per column of this width."""
    lines = []
    for name in facts[0]:
        columns = [textwrap.wrap(entries[name], width - 4) or [""] for entries in facts]
        for row, cells in enumerate(zip_longest(*columns, fillvalue="")):
            label = "" if row else name
            lines.append((f"{label:<16}" + "".join(f"{cell:<{width}}" for cell in cells)).rstrip())
    lines.insert(1, "─" * max(map(len, lines)))
    return "\n".join(lines)


def draw(cases: list[Case], posteriors: list[Posterior], path: Path) -> None:
    """Two columns, one per case: the function above, its posterior standard deviation over the whole domain below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.2), layout="constrained")
    axes = figure.subplots(2, len(cases), height_ratios=[3.2, 1], squeeze=False)
    for case, post, (top, bottom) in zip(cases, posteriors, axes.T, strict=True):
        plots.draw_posterior(top, post, case.window, (case.x, case.y), truth)
        top.set_ylim(-3.4, 3.4)
        top.set_title(case.name.capitalize(), fontsize=12, weight="bold", loc="left", color=plots.INK)
        top.set_title(case.subtitle, fontsize=9, loc="right", color="#5c5c66")
        x = np.linspace(*case.domain, 1500, dtype=np.float32)
        bottom.semilogy(x, np.sqrt(post.variance(x[:, None])), color=plots.MEAN, lw=0.9)
        bottom.set(xlim=case.domain, ylim=(0.01, 2.0))
        bottom.set_yticks([0.01, 0.1, 1.0], ["0.01", "0.1", "1"])
        bottom.minorticks_off()
        bottom.set_xlabel("x", fontsize=9)
        if case.window != case.domain:
            bottom.axvspan(*case.window, color=plots.INK, alpha=0.12, lw=0)
            beside = {"xytext": (-4, 0), "textcoords": "offset points", "ha": "right", "fontsize": 8}
            bottom.annotate("shown above", (case.window[0], 0.5), **beside)
        plots.tidy(top)
        plots.tidy(bottom)
    axes[0, 0].set_ylabel("y", fontsize=9)
    axes[1, 0].set_ylabel("posterior std", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    figure.savefig(path, dpi=200)


def demo(options: argparse.Namespace) -> int:
    """Solve both problems, print the table and write the picture; returns the exit code."""
    if find_spec("matplotlib") is None:  # asked before the work, so that it is not done in vain
        print("The demo draws with matplotlib: pip install 'pathgp[plots]'", file=sys.stderr)
        return 1
    require_writable(options.out)
    size = f"{options.points:,} points"
    print(f"sin(2x) + cos(5x) with noise {NOISE}, {size}, squared exponential kernel, tol {TOL:.0e}\n")
    cases = make_cases(options.points, options.seed)
    posteriors = [solve(case, options.seed) for case in cases]
    print(f"\n{table(list(map(describe, cases, posteriors)))}\n")
    floor = 0.5 * math.log(2 * math.pi * math.e * NOISE**2)
    print(f"RMSE and NLL are on {TEST_POINTS} held-out noisy points; knowing f would give {NOISE:.3f} and {floor:.3f}.")
    draw(cases, posteriors, options.out)
    print(f"wrote {options.out}")
    return 0
