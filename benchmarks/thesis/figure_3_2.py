"""Figure 3.2: the noise of primal gradients, and stochastic gradient descent with inducing points."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.drawing import COLOURS, grid, save
from benchmarks.common.uci import Regression
from benchmarks.thesis.size import Size, regression
from pathgp import GP, ConvergenceWarning, InducingGP, metrics
from pathgp.compute.random import normal
from pathgp.operators import KernelOperator
from pathgp.pathwise import PriorPaths

TITLE = "Noise of the gradient, and inducing points"
TEXT = """\
Two losses have the same minimiser, the weights a of a posterior sample. With prior values f at the training inputs and
noise ε ~ N(0, σ²I), loss 1 is ½ |f + ε - Ka|² + ½ σ² aᵀKa, with the noise in the targets. Loss 2 is ½ |f - Ka|² + ½ σ²
(a - ε/σ²)ᵀK(a - ε/σ²), with the noise in the regulariser. `SGD` uses loss 2.

Left: the variance of the gradient from one random row along full-batch descent on `elevators`, in closed form. That of
loss 2 is smaller from the first step on.

Other panels: stochastic gradient descent on all rows, and with inducing points at a part of them, with the same number
of epochs. The errors are smallest with half of the rows, and rise with fewer points. All rows have larger errors than
half of them: descent on all rows is far from converged in these epochs. The thesis shows two million rows of
`houseelectric`, which could not be obtained, and a time that grows with the number of points. The seconds of a small
problem on a CPU do not show that: all rows multiply a stored matrix, and inducing points evaluate their kernel in every
step."""
SAMPLES, EPOCHS = 8, 200
SHARES = (1.0, 0.5, 0.25, 0.125)


def draw(path: Path, size: Size) -> dict[str, Any]:
    data = regression("elevators", size, torch.float64)
    figure, axes = grid(1, 4, width=13, height=3.2)
    gap = _draw_variances(axes[0, 0], data)
    runs = [_descend(data, share, size.pick(EPOCHS, 4)) for share in SHARES]
    for panel, name in zip(axes[0, 1:], ("test RMSE", "test NLL", "seconds"), strict=True):
        panel.plot([run["points"] for run in runs], [run[name] for run in runs], "o-", color=COLOURS[0], ms=4, lw=1.4)
        panel.set_title(name, fontsize=9, loc="left")
        panel.set_xlabel("inducing points (last: all rows)", fontsize=9)
        panel.set_xscale("log", base=2)
    save(figure, path)
    return {"n": len(data.y), "variance of loss 1 / loss 2 at the end": gap, "epochs of SGD": size.pick(EPOCHS, 4)}


def _draw_variances(panel: Any, data: Regression) -> float:
    """The left panel; returns the ratio of the variances after the last step."""
    kernel, generator = data.kernel().requires_grad_(False).to(data.X.device), torch.Generator().manual_seed(0)
    H, n = KernelOperator(kernel, data.X, data.noise), len(data.y)
    f = PriorPaths.draw(kernel, SAMPLES, 512, data.X.shape[1], generator)(data.X).T
    noisy = f + data.noise * normal((n, SAMPLES), generator, torch.float64, data.X.device)
    last = []
    for (name, targets), colour in zip({"loss 1": noisy, "loss 2": f}.items(), COLOURS, strict=False):
        steps, variances = variance_along_descent(H, data.noise, targets, noisy)
        panel.plot(steps, variances, color=colour, lw=1.5, label=name)
        last.append(variances[-1])
    panel.set_title(f"variance of the gradient, elevators, n = {n:,}", fontsize=9, loc="left")
    panel.set_xlabel("full-batch steps", fontsize=9)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.legend(frameon=False, fontsize=8)
    return last[0] / last[1]


def _descend(data: Regression, share: float, epochs: int) -> dict[str, float]:
    """Test errors and seconds of SGD with inducing points at a share of the rows."""
    options: dict[str, Any] = {"max_epochs": epochs, "tol": 1e-6, "generator": torch.Generator().manual_seed(0)}
    kernel, points = data.kernel().to(data.X.device), round(share * len(data.y))
    if share == 1.0:
        gp: Any = GP(kernel, noise=data.noise)
        options["solver"] = "sgd"
    else:
        gp = InducingGP(kernel, data.noise, points, "sgd")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        post = gp.condition(data.X, data.y, **options)
    with torch.no_grad():
        mean, variance = post.mean(data.X_test), post.variance(data.X_test, noise=True)
    scores = {"test RMSE": metrics.rmse(data.y_test, mean), "test NLL": metrics.nll(data.y_test, mean, variance)}
    return {"points": points, "seconds": post.report.seconds, **scores}


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
