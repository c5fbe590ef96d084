"""The pictures of the documentation's page on diagnostics: regions of a map, and errors by spectral direction.

python -m benchmarks.thesis.diagnostics_pictures [--out docs/assets/figures] [--rows 1000]
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from numpy.typing import NDArray

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.options import parse
from benchmarks.thesis.figure_3_4 import TINTS, stop_early
from pathgp import GP, kernels, plots, solvers
from pathgp.cli import demo
from pathgp.diagnostics import REGIONS, Diagnosis, ExactSolution, SpectralBasis, diagnose

ENTRANTS: dict[str, solvers.Solver] = {
    "AP": solvers.AP(),
    "CG, no preconditioner": solvers.CG(preconditioner=None, block=1),
    "SDD": solvers.SDD(),
    "SGD": solvers.SGD(),
}
BUDGETS = (4, 12)
_TITLE: dict[str, Any] = {"fontsize": 9, "loc": "left"}


def regions_of_a_map(path: Path, rows: int | None) -> Path:
    """Data in a ring with a gap: shares of interpolation and extrapolation, and the distance of a stopped solve."""
    X, y = ring(min(rows or 3000, 3000))
    gp = GP(kernels.SquaredExponential(lengthscale=0.35), noise=0.3)
    post = stop_early(gp, X, y, solvers.SDD(), 6)
    side = np.linspace(-2.4, 2.4, 90)
    points = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    basis = SpectralBasis.of(post)
    regions = basis.regions(points)
    distance = ExactSolution.of(post).wasserstein(points)
    figure, axes = grid(1, 4, width=13, height=3.3)
    shares = (regions.interpolation, regions.extrapolation, regions.prior)
    for panel, name, share, tint in zip(axes[0], REGIONS, shares, TINTS, strict=False):
        _map(panel, side, share.numpy(), _ramp(tint), 1.0)
        panel.set_title(f"share of k(x, x): {name}", **_TITLE)
    image = _map(axes[0, 3], side, np.asarray(distance), _ramp(plots.MEAN), None)
    axes[0, 3].set_title(f"distance to the exact posterior, SDD, {post.report.epochs:.0f} epochs", **_TITLE)
    figure.colorbar(image, ax=axes[0, 3], shrink=0.8).ax.tick_params(labelsize=8)
    for panel in axes[0]:
        panel.plot(X[:, 0], X[:, 1], ".", color=plots.INK, ms=1.4, mew=0, alpha=0.35)
        panel.set_aspect("equal")
        panel.set_xticks([])
        panel.set_yticks([])
    return save(figure, path)


def errors_by_direction(path: Path, rows: int | None) -> Path:
    """The error of the mean and of the paths along every spectral direction, for four solvers and two budgets."""
    case = demo.make_cases(rows or 3000, seed=0)[0]
    X, y = case.x.astype(np.float64)[:, None], case.y.astype(np.float64)
    gp = GP(kernels.Matern(1.5, lengthscale=demo.LENGTHSCALE), noise=demo.NOISE)
    figure, axes = grid(1, len(BUDGETS), width=11, height=3.6, sharey=True)
    for panel, budget in zip(axes[0], BUDGETS, strict=True):
        for (name, solver), colour in zip(ENTRANTS.items(), COLOURS, strict=False):
            diagnosis = diagnose(stop_early(gp, X, y, solver, budget), X[:100])
            panel.plot(*_smooth(diagnosis), color=colour, lw=1.3, label=name)
        panel.axvline(diagnosis.regions.leading, color=plots.INK, lw=0.8, ls=":")
        panel.axhline(1.0, color=plots.INK, lw=0.8, ls=":")
        panel.set_title(f"{budget} epochs", **_TITLE)
        panel.set_xlabel("number of the spectral basis function", fontsize=9)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_ylim(1e-8, 30.0)
    axes[0, 0].set_ylabel("error of the paths / exact size", fontsize=9)
    legend(figure, axes[0, 0])
    return save(figure, path)


def ring(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Inputs on a ring that is open on one side, and noisy values."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(0.35 * np.pi, 2.0 * np.pi, count)
    radius = 1.2 + 0.18 * rng.normal(size=count)
    X = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return X, np.sin(3.0 * angle) + 0.3 * rng.normal(size=count)


def _smooth(diagnosis: Diagnosis) -> tuple[list[float], list[float]]:
    """Relative errors of the paths in groups of neighbouring directions, about twenty per decade of their number."""
    edges = np.unique(np.logspace(0, np.log10(len(diagnosis.eigenvalues)), 60).round().astype(int) - 1)
    numbers, errors = [], []
    for first, last in itertools.pairwise(edges):
        part = slice(int(first), int(last))
        numbers.append((first + last + 1) / 2)
        errors.append(float(diagnosis.path_error[part].norm() / diagnosis.path_size[part].norm()))
    return numbers, errors


def _map(panel: Any, side: NDArray[Any], values: NDArray[Any], colours: Any, highest: float | None) -> Any:
    extent = (side[0], side[-1], side[0], side[-1])
    image = values.reshape(len(side), len(side))
    return panel.imshow(image, origin="lower", extent=extent, cmap=colours, vmin=0.0, vmax=highest)


def _ramp(colour: str) -> Any:
    return LinearSegmentedColormap.from_list(colour, ["#ffffff", colour])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/scratch"), help="folder for the PNG files")
    parser.add_argument("--rows", type=int, default=1000)
    options = parse(parser, rows=60)
    regions_of_a_map(options.out / "figure-regions.png", options.rows)
    errors_by_direction(options.out / "figure-directions.png", options.rows)


if __name__ == "__main__":
    main()
