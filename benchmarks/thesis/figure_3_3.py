"""Figure 3.3: four error measures of the posterior mean by epochs, at the learned noise and at a low noise.

Every marker is a separate solve from zero with that budget of epochs, so that methods whose averaging depends on the
budget are shown correctly. The reference is a Cholesky factorisation; all computations are in float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.uci import Regression
from benchmarks.thesis.size import Size, regression
from pathgp import solvers
from pathgp.operators import KernelOperator, cross_product

TITLE = "Four error measures"
TEXT = """\
The posterior mean on `elevators`, float64, hyperparameters of the thesis. Its weights are v, those of the exact mean
v*. The norms are ‖v‖₂² = vᵀv and ‖v‖_K² = vᵀKv.

- Top: at the learned noise AP and preconditioned CG are similar. AP, CG and SDD reach the test error of the exact mean
  long before their weights are accurate. SGD does not reach it within this budget.
- Bottom: at a low noise only AP converges within this budget. The exact mean overfits, so a solver that stops early
  can predict better than the exact solution. A small test error therefore does not show that a system is solved
  accurately."""
BUDGETS = (2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64)
LOW_NOISE = 0.001
ENTRANTS: dict[str, solvers.Solver] = {
    "AP": solvers.AP(),
    "CG": solvers.CG(block=1),
    "CG, no preconditioner": solvers.CG(preconditioner=None, block=1),
    "SDD": solvers.SDD(),
    "SGD": solvers.SGD(),
}
ERRORS = ("test RMSE", "RMSE to the exact mean", "‖v − v*‖₂ / ‖v*‖₂", "‖v − v*‖_K / ‖v*‖_K")


def draw(path: Path, size: Size) -> dict[str, Any]:
    """One row of panels per noise level, one column per error."""
    data = regression("elevators", size, torch.float64)
    budgets = size.pick(BUDGETS, BUDGETS[:2])
    figure, axes = grid(2, len(ERRORS), width=12, height=2.5, sharex=True)
    for row, (name, noise) in enumerate((("learned noise", data.noise), ("low noise", LOW_NOISE))):
        for (solver, curve), colour in zip(trace(data, noise, budgets).items(), COLOURS, strict=False):
            for column in range(len(ERRORS)):
                epochs, errors = curve[:, 0], curve[:, 1 + column]
                axes[row, column].plot(epochs, errors, ".-", color=colour, lw=1.2, ms=4, label=solver)
        # Beyond one a prediction is worse than none: the standardised targets have variance one.
        axes[row, 0].set_ylim(0.3, 1.1)
        axes[row, 0].set_ylabel(f"{name}, σ = {noise:.3g}", fontsize=9)
    for column, error in enumerate(ERRORS):
        axes[0, column].set_title(error, fontsize=9, loc="left")
        for panel in axes[:, column]:
            panel.set_xscale("log")
            panel.set_xticks(budgets[::2], map(str, budgets[::2]))
            panel.minorticks_off()
            panel.set_yscale("log" if column else "linear")
        axes[1, column].set_xlabel("epochs", fontsize=9)
    figure.suptitle(f"elevators, n = {len(data.y):,}", fontsize=9, x=0.01, ha="left")
    legend(figure, axes[0, 0])
    save(figure, path)
    return {"n": len(data.y), "noise": data.noise, "low noise": LOW_NOISE}


def trace(data: Regression, noise: float, budgets: tuple[int, ...]) -> dict[str, Tensor]:
    """Epochs and the four errors (budgets, 5) of every solver."""
    kernel, n = data.kernel().to(data.X.device), len(data.y)
    H = KernelOperator(kernel, data.X, noise)
    b = data.y.unsqueeze(1)
    exact = torch.cholesky_solve(b, torch.linalg.cholesky(H.block(torch.arange(n, device=H.device))))

    def predict(v: Tensor) -> Tensor:
        with torch.no_grad():
            return cross_product(kernel, data.X_test, data.X, v)[:, 0]

    def k_norm(v: Tensor) -> Tensor:
        return (v * (H @ v - noise**2 * v)).sum().clamp_min(0.0).sqrt()

    def errors(v: Tensor) -> list[Tensor]:
        mean, wrong = predict(v), v - exact
        return [
            (mean - data.y_test).square().mean().sqrt(),
            (mean - predict(exact)).square().mean().sqrt(),
            wrong.norm() / exact.norm(),
            k_norm(wrong) / k_norm(exact),
        ]

    curves = {}
    for name, solver in ENTRANTS.items():
        points = []
        for budget in budgets:
            solution = solver.solve(H, b, tol=0.0, max_epochs=budget, generator=torch.Generator().manual_seed(0))
            points.append([solution.epochs, *map(float, errors(solution.x))])
        curves[name] = torch.tensor(points)
    return curves
