"""Figure 3.1: several solvers with the same small budget, on densely sampled data and on a large domain."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.drawing import grid, legend, save
from benchmarks.thesis.size import Size
from pathgp import GP, ConvergenceWarning, kernels, plots, solvers
from pathgp.cli import demo

TITLE = "Four solvers with the same budget"
TEXT = """\
The two problems of the demo with a squared exponential kernel. Top, "infill": normally distributed inputs around zero,
so that more points lie closer together. Bottom, "large domain": inputs over an interval that grows with their number.
Every solver has the same number of epochs for the mean and 64 samples, in float64.

- Alternating projections (AP) reach the exact mean in both.
- Conjugate gradients (CG) without a preconditioner are far from converged on densely sampled data, and extrapolate
  badly.
- Stochastic dual descent (SDD) is accurate where there are data, despite its large residual.
- Primal stochastic gradient descent (SGD), which has ten minutes in the thesis, needs far more epochs. The thesis's
  third method is SVGP, with inducing points; see [inducing points](../inducing.md)."""
CPU_ROWS = 2000
BUDGET = 12
ENTRANTS: dict[str, solvers.Solver] = {
    "AP": solvers.AP(),
    "CG, no preconditioner": solvers.CG(preconditioner=None, block=1),
    "SDD": solvers.SDD(),
    "SGD": solvers.SGD(),
}


def draw(path: Path, size: Size) -> dict[str, Any]:
    """One row of panels per problem, one column per solver; dashed: the exact mean."""
    figure, axes = grid(2, len(ENTRANTS), width=12, height=2.5, sharey=True)
    gp = GP(kernels.SquaredExponential(lengthscale=demo.LENGTHSCALE), noise=demo.NOISE)
    for row, case in enumerate(demo.make_cases(size.rows or 10_000, seed=0)):
        X, y = case.x[:, None].astype(np.float64), case.y.astype(np.float64)
        exact = gp.condition(X, y, solver="cholesky", samples=0)
        for panel, (name, solver) in zip(axes[row], ENTRANTS.items(), strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a budget that ends early is the point here
                generator = torch.Generator().manual_seed(0)
                post = gp.condition(X, y, solver=solver, tol=1e-6, max_epochs=size.pick(BUDGET, 3), generator=generator)
            plots.draw_posterior(panel, post, case.window, (case.x, case.y), paths=4)
            x = np.linspace(*case.window, 600)
            panel.plot(
                x, exact.mean(x[:, None]), color=plots.TRUTH, lw=1.1, ls=(0, (4, 2)), label="exact mean", zorder=5
            )
            panel.set_ylim(-3.4, 3.4)
            panel.set_title(name, fontsize=9, loc="left")
            panel.set_title(f"residual {post.report.mean_residual:.0e}", fontsize=8, loc="right", color="#5c5c66")
        axes[row, 0].set_ylabel(case.name, fontsize=9)
    figure.suptitle(f"{BUDGET} epochs for everyone, n = {len(y):,}", fontsize=9, x=0.01, ha="left")
    legend(figure, axes[0, 0])
    save(figure, path)
    return {"points": len(y), "epochs": BUDGET}
