"""Figure 3.4: where descent is accurate, and the spectral basis functions (thesis, section 3.2.4)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common.drawing import Figure, legend, save
from benchmarks.thesis.size import Size
from pathgp import GP, ConvergenceWarning, Posterior, kernels, plots, solvers
from pathgp.cli import demo
from pathgp.diagnostics import REGIONS, ExactSolution, SpectralBasis

TITLE = "Error and spectral basis functions"
TEXT = """\
Primal descent, stopped early, beside the exact posterior with the same random draws. The distance to the exact
posterior is small where there are data and far away from them, and largest in between, where the spectral basis
functions with small eigenvalues lie. See [diagnostics](../diagnostics.md)."""
CPU_ROWS = 1000
WINDOW = (-7.0, 7.0)
SHOWN = (1, 2, 3, 5, 10, 15, 20, 25)
# Epochs of primal descent in figure 3.4: far from convergence by its residual.
EPOCHS = 200
# Interpolation, extrapolation, prior.
TINTS = ("#3a8f6b", "#d98e04", "#8a8a94")
_TITLE: dict[str, Any] = {"fontsize": 9, "loc": "left"}


def draw(path: Path, size: Size) -> dict[str, Any]:
    case = demo.make_cases(size.rows or 10_000, seed=0)[0]
    data = case.x.astype(np.float64), case.y.astype(np.float64)
    gp = GP(kernels.SquaredExponential(lengthscale=demo.LENGTHSCALE), noise=demo.NOISE)
    post = stop_early(gp, data[0][:, None], data[1], solvers.SGD(), size.pick(EPOCHS, 4))
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
    save(figure, path)
    return {"n": len(case.x), "epochs": post.report.epochs, "residual": post.report.mean_residual}


def stop_early(gp: GP, X: NDArray[Any], y: NDArray[Any], solver: solvers.Solver, epochs: int) -> Posterior:
    """A posterior after a fixed number of epochs, converged or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return gp.condition(
            X, y, solver=solver, tol=1e-8, max_epochs=epochs, generator=torch.Generator().manual_seed(0)
        )


def _shade(panel: Any, x: NDArray[Any], labels: NDArray[Any]) -> None:
    """Tint the interpolation and the extrapolation region behind a curve over x."""
    for number, tint in enumerate(TINTS[:2]):
        style: dict[str, Any] = {"color": tint, "alpha": 0.12, "lw": 0, "label": REGIONS[number]}
        panel.fill_between(x, 0, 1, where=labels == number, transform=panel.get_xaxis_transform(), **style)
