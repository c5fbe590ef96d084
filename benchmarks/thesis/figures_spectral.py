"""Figure 3.4 and the pictures of the page on diagnostics: where descent is accurate (thesis, section 3.2.4).

Approximate posteriors are compared with the exact one for the same random draws (`pathgp.diagnostics`).
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap
from numpy.typing import NDArray

from benchmarks.common.drawing import COLOURS, Figure, grid, legend, save
from pathgp import GP, ConvergenceWarning, Posterior, kernels, plots, solvers
from pathgp.cli import demo
from pathgp.diagnostics import REGIONS, Diagnosis, ExactSolution, SpectralBasis, diagnose

WINDOW = (-7.0, 7.0)
SHOWN = (1, 2, 3, 5, 10, 15, 20, 25)
# Epochs of primal descent in figure 3.4: far from convergence by its residual.
EPOCHS = 200
ENTRANTS: dict[str, solvers.Solver] = {
    "AP": solvers.AP(),
    "CG, no preconditioner": solvers.CG(preconditioner=None),
    "SDD": solvers.SDD(),
    "SGD": solvers.SGD(),
}
BUDGETS = (4, 12)
# Interpolation, extrapolation, prior.
TINTS = ("#3a8f6b", "#d98e04", "#8a8a94")
_TITLE: dict[str, Any] = {"fontsize": 9, "loc": "left"}


def error_and_basis(path: Path, rows: int | None) -> Path:
    """Figure 3.4: primal descent beside the exact posterior, their distance, and the spectral basis functions."""
    case = demo.make_cases(rows or 10_000, seed=0)[0]
    data = case.x.astype(np.float64), case.y.astype(np.float64)
    gp = GP(kernels.SquaredExponential(lengthscale=demo.LENGTHSCALE), noise=demo.NOISE)
    post = _stop_early(gp, data[0][:, None], data[1], solvers.SGD(), EPOCHS)
    exact, basis = ExactSolution.of(post), SpectralBasis.of(post)
    x = np.linspace(*WINDOW, 600)
    labels = basis.regions(x[:, None]).labels.numpy()
    figure = Figure(figsize=(12, 7.2), layout="constrained")
    axes = figure.subplot_mosaic([["fit", "fit", "distance", "distance"], list(SHOWN[:4]), list(SHOWN[4:])])
    fit, distances = axes["fit"], axes["distance"]
    plots.draw_posterior(fit, post, WINDOW, data, paths=4)
    mean, half = exact.mean(x[:, None]), plots.WIDTH_95 * exact.std(x[:, None])
    for number, curve in enumerate((mean, mean - half, mean + half)):
        style = {"lw": 0.8} if number else {"lw": 1.2, "label": "exact mean and 95 % band"}
        fit.plot(x, curve, color=plots.INK, ls=(0, (4, 2)), zorder=5, **style)
    fit.set_title(f"SGD, {post.report.epochs:.0f} epochs, residual {post.report.mean_residual:.2f}", **_TITLE)
    fit.set_ylim(-3.4, 3.4)
    distances.plot(x, exact.wasserstein(x[:, None]), color=plots.MEAN, lw=1.4)
    distances.set_title("Wasserstein-2 distance to the exact posterior", **_TITLE)
    distances.set_ylim(bottom=0.0)
    values = basis(x[:, None])
    for number in SHOWN:
        if number <= len(basis):
            axes[number].plot(x, values[number - 1], color=plots.MEAN, lw=1.2)
            axes[number].set_title(f"u{number}, eigenvalue {float(basis.values[number - 1]):.1e}", **_TITLE)
    for panel in axes.values():
        plots.tidy(panel)
        panel.set_xlim(*WINDOW)
        _shade(panel, x, labels)
    legend(figure, fit)
    return save(figure, path)


def regions_of_a_map(path: Path, rows: int | None) -> Path:
    """Data in a ring with a gap: shares of interpolation and extrapolation, and the distance of a stopped solve."""
    X, y = ring(min(rows or 3000, 3000))
    gp = GP(kernels.SquaredExponential(lengthscale=0.35), noise=0.3)
    post = _stop_early(gp, X, y, solvers.SDD(), 6)
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
    figure.colorbar(image, ax=axes[0, 3], shrink=0.8).ax.tick_params(labelsize=7)
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
            diagnosis = diagnose(_stop_early(gp, X, y, solver, budget), X[:100])
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


def _stop_early(gp: GP, X: NDArray[Any], y: NDArray[Any], solver: solvers.Solver, epochs: int) -> Posterior:
    """A posterior after a fixed number of epochs, converged or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return gp.condition(
            X, y, solver=solver, tol=1e-8, max_epochs=epochs, generator=torch.Generator().manual_seed(0)
        )


def _smooth(diagnosis: Diagnosis) -> tuple[list[float], list[float]]:
    """Relative errors of the paths in groups of neighbouring directions, about twenty per decade of their number."""
    edges = np.unique(np.logspace(0, np.log10(len(diagnosis.eigenvalues)), 60).round().astype(int) - 1)
    numbers, errors = [], []
    for first, last in itertools.pairwise(edges):
        part = slice(int(first), int(last))
        numbers.append((first + last + 1) / 2)
        errors.append(float(diagnosis.path_error[part].norm() / diagnosis.path_size[part].norm()))
    return numbers, errors


def _shade(panel: Any, x: NDArray[Any], labels: NDArray[Any]) -> None:
    """Tint the interpolation and the extrapolation region behind a curve over x."""
    for number, tint in enumerate(TINTS[:2]):
        style: dict[str, Any] = {"color": tint, "alpha": 0.12, "lw": 0, "label": REGIONS[number]}
        panel.fill_between(x, 0, 1, where=labels == number, transform=panel.get_xaxis_transform(), **style)


def _map(panel: Any, side: NDArray[Any], values: NDArray[Any], colours: Any, highest: float | None) -> Any:
    extent = (side[0], side[-1], side[0], side[-1])
    image = values.reshape(len(side), len(side))
    return panel.imshow(image, origin="lower", extent=extent, cmap=colours, vmin=0.0, vmax=highest)


def _ramp(colour: str) -> Any:
    return LinearSegmentedColormap.from_list(colour, ["#ffffff", colour])
