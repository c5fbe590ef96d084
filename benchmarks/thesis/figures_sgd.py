"""Figures 3.2 and 3.5: the noise of primal gradients, and test errors by compute time (thesis, chapter 3)."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.recording import device_name
from benchmarks.common.uci import Regression, uci
from pathgp import GP, ConvergenceWarning, metrics, plots, solvers
from pathgp.compute.random import normal
from pathgp.operators import KernelOperator
from pathgp.pathwise import PriorPaths

SETS = ("pol", "elevators", "bike")
ENTRANTS: dict[str, solvers.Solver] = {
    "AP": solvers.AP(),
    "CG": solvers.CG(),
    "SDD": solvers.SDD(),
    "SGD": solvers.SGD(),
}
BUDGETS = (2, 4, 8, 16, 32)
SAMPLES = 8


def gradient_noise(path: Path, rows: int | None) -> Path:
    """Figure 3.2, left: the noise of a sample in the targets (loss 1) or in the regulariser (loss 2).

    The variance of the gradient from one random row, in closed form, along full-batch descent.
    """
    data = uci("elevators", dtype=torch.float64, device=device_name(), rows=rows)
    kernel, generator = data.kernel().requires_grad_(False).to(data.X.device), torch.Generator().manual_seed(0)
    H, n = KernelOperator(kernel, data.X, data.noise), len(data.y)
    f = PriorPaths.draw(kernel, SAMPLES, 512, data.X.shape[1], generator)(data.X).T
    noisy = f + data.noise * normal((n, SAMPLES), generator, torch.float64, data.X.device)
    losses = {"loss 1, noise in the targets": noisy, "loss 2, noise in the regulariser": f}
    figure, axes = grid(1, 1, width=6.5, height=3.2)
    for (name, targets), colour in zip(losses.items(), COLOURS, strict=False):
        axes[0, 0].plot(*variance_along_descent(H, data.noise, targets, noisy), color=colour, lw=1.5, label=name)
    axes[0, 0].set_title(f"variance of the gradient from one row, elevators, n = {n:,}", fontsize=9, loc="left")
    axes[0, 0].set_xlabel("full-batch steps", fontsize=9)
    axes[0, 0].set_xscale("log")
    axes[0, 0].set_yscale("log")
    legend(figure, axes[0, 0])
    return save(figure, path)


def variance_along_descent(
    H: KernelOperator, noise: float, targets: Tensor, right_hand_sides: Tensor
) -> tuple[list[int], list[float]]:
    """Total variance of n K_i (K_i a - t_i) over a random row i, mean over the samples, along full-batch descent.

    n sum_i |K_i|^2 e_i^2 - |K e|^2 with e = K a - targets. Descent has a closed form in the eigenbasis of K.
    """
    n = len(targets)
    K = H.block(torch.arange(n, device=H.device)) - noise**2 * torch.eye(n, dtype=H.dtype, device=H.device)
    values, vectors = torch.linalg.eigh(K)
    values.clamp_min_(0.0)
    curvature = values * (values + noise**2)
    step = 0.9 / curvature.max()
    exact = vectors.T @ right_hand_sides / (values + noise**2).unsqueeze(1)
    lengths = K.square().sum(1, keepdim=True)
    steps = torch.logspace(0, 6, 40).round().unique().int().tolist()
    variances = []
    for t in steps:
        kept = 1.0 - (1.0 - step * curvature).pow(t)
        e = vectors @ ((values * kept).unsqueeze(1) * exact) - targets
        variances.append(float((n * (lengths * e.square()).sum(0) - (K @ e).square().sum(0)).mean()))
    return steps, variances


def errors_by_time(path: Path, rows: int | None) -> Path:
    """Figure 3.5: test RMSE and negative log-likelihood by seconds; every marker is a solve with its own budget."""
    figure, axes = grid(2, len(SETS), width=12, height=2.6)
    for column, name in enumerate(SETS):
        data = uci(name, dtype=torch.float64, device=device_name(), rows=rows)
        gp = GP(data.kernel().to(data.X.device), noise=data.noise)
        for (label, solver), colour in zip(ENTRANTS.items(), COLOURS, strict=False):
            curve = [_score(gp, data, solver, budget) for budget in BUDGETS]
            for row in range(2):
                points = [(seconds, scores[row]) for seconds, scores in curve]
                axes[row, column].plot(*zip(*points, strict=True), ".-", color=colour, lw=1.3, ms=5, label=label)
        _, exact = _score(gp, data, solvers.Cholesky(), None)
        for row in range(2):
            axes[row, column].axhline(exact[row], color=plots.INK, lw=0.8, ls=":", label="exact")
            axes[row, column].set_xscale("log")
        axes[0, column].set_title(f"{name}, n = {len(data.y):,}", fontsize=9, loc="left")
        axes[0, column].set_ylim(0.8 * exact[0], 1.1)
        axes[1, column].set_ylim(exact[1] - 0.3, 2.0)
        axes[1, column].set_xlabel("seconds", fontsize=9)
    axes[0, 0].set_ylabel("test RMSE", fontsize=9)
    axes[1, 0].set_ylabel("test NLL", fontsize=9)
    legend(figure, axes[0, 0])
    return save(figure, path)


def _score(gp: GP, data: Regression, solver: solvers.Solver, budget: int | None) -> tuple[float, tuple[float, float]]:
    """Seconds of the solve, test RMSE and negative log-likelihood from 64 samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        generator = torch.Generator().manual_seed(0)
        post = gp.condition(data.X, data.y, solver=solver, tol=1e-8, max_epochs=budget, generator=generator)
    with torch.no_grad():
        mean = post.mean(data.X_test)
        variance = post.variance(data.X_test, noise=True, method="samples")
    return post.report.solution.seconds, (
        metrics.rmse(data.y_test, mean),
        metrics.nll(data.y_test, mean, variance),
    )
